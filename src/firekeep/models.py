"""The doors of models: save one, load into one, take tensors out of one and put them into another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from firekeep.formats import OpenOptions
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.opened import Readable, open_file

if TYPE_CHECKING:
    from firekeep.applying import LoadJob
    from firekeep.collecting import Collection, SaveReport
    from firekeep.report import ConstantDifference, LoadReport
    from firekeep.rules import DTypeLike, KeyRemapper, Rule
    from firekeep.rules.filter import Wanted
    from firekeep.rules.surgery import Surgery
    from firekeep.saving import Progress
    from firekeep.supply import Supply


def save(
    obj: Any,
    path: str | os.PathLike[str],
    *,
    layout: str | None = None,
    like: Any = None,
    rename: Rule | Iterable[Rule] | Mapping[str, str] | KeyRemapper = (),
    surgery: Surgery | Iterable[Any] = (),
    include: Wanted | Iterable[Wanted] = (),
    exclude: Wanted | Iterable[Wanted] = (),
    dtype: DTypeLike | None = None,
    ties: str = "keep",
    metadata: Mapping[str, str] | None = None,
    scalars: Mapping[str, Any] | None = None,
    format: str | None = None,
    digest: bool = False,
    overwrite: bool = True,
    durable: bool = True,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> SaveReport:
    """Write the weights of a model: a `torch.nn.Module`, a `firekeep.module.Module`, or any tree of arrays.

    The suffix is a promise: a `.safetensors` holds what readers for PyTorch and Hugging Face expect, a `.bpk` what Burn expects (Linear
    weights turned round, `gamma` and `beta`), and `layout` says otherwise: "torch", "burn", "flax" (NNX), "linen", "equinox" or "keras".
    In this order: `include` and `exclude` choose by the model's names, layers are laid out, floats are cast to `dtype`, `surgery`
    splits and joins tensors, `rename` rules make the file's names of the model's.

    `like` says what the reader looks like: a model, a file or a list of names. Names are then the reader's (list indices that a
    `nn.Sequential` skips are opened again), and layers that a bare state dict does not tell are told by it. Raises `UnsupportedError`
    naming all tensors that the layout cannot hold, and `RuleError` where nothing tells how layers lie; it never guesses.

    The file appears whole or not at all, replacing an older one unless `overwrite=False`, which raises `ExistsError`.

    Example:
        >>> firekeep.save(model, "model.bpk", metadata={"epoch": "3"})  # doctest: +SKIP
    """
    from firekeep import writing
    from firekeep.saving import check_metadata

    collecting = _collect_job(
        layout=layout,
        like=like,
        rename=rename,
        surgery=surgery,
        include=include,
        exclude=exclude,
        dtype=dtype,
        ties=ties,
        limits=limits,
    )
    job = writing.WriteJob(
        metadata=check_metadata(metadata or {}),
        scalars=scalars or {},
        format=format,
        digest=digest,
        overwrite=overwrite,
        durable=durable,
        progress=progress,
        limits=limits,
    )
    return writing.save(obj, path, collecting, job)


def load_into(
    obj: Any,
    source: Readable,
    *,
    strict: bool = True,
    match: Literal["auto", "exact"] = "auto",
    rename: Rule | Iterable[Rule] | Mapping[str, str] | KeyRemapper = (),
    surgery: Surgery | Iterable[Any] = (),
    include: Wanted | Iterable[Wanted] = (),
    exclude: Wanted | Iterable[Wanted] = (),
    dtype: DTypeLike = "module",
    layout: str | None = None,
    like: Any = None,
    top_level_key: str | None = None,
    allow_missing: bool | None = None,
    allow_unused: bool | None = None,
    allow_mismatched: bool | None = None,
    stage: bool = False,
    dequantize: bool = False,
    dry_run: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> LoadReport:
    r"""Put the weights of a file into a model, all of them or none, and report what became of every tensor.

    All is planned before a byte is read. With `strict=True` a tensor that the file lacks, one that the model has no place for, or one of
    another shape refuses the load: `LoadError` names them all at once, and the model is as it was. `strict=False` takes what fits.
    `allow_missing`, `allow_unused` and `allow_mismatched` say it one by one. A load in which nothing matches is always refused.

    `match="auto"` also finds tensors under the layer's other spelling (gamma, weight), without the variants of enums, at other indices of
    a list, and inside known wrappers (`module.`, `_orig_mod.`), where that is unambiguous and shapes agree; the report says what was
    done. `surgery` splits and joins tensors of the file (a fused qkv), then `rename` rules turn the file's names into the model's.
    `include` and `exclude` choose among the model's names.

    A slot keeps its dtype (`dtype="module"`), takes the file's ("file"), or floats become the one named. `layout` says how the
    file's layers lie where the file does not. `stage=True` reads everything before anything is changed. `dequantize=True` computes the
    float32 values of tensors that a GGUF file keeps in quantized blocks. `dry_run=True` only reports.

    A tree of arrays that does not tell its layers (variables of Flax Linen, a state dict) takes tensors of another layout where `like`
    tells them: a model with the same layers in any framework, or a PyTorch file of a whole one. Linen's collections `params` and
    `batch_stats` are then no part of the names.

    Example:
        >>> report = firekeep.load_into(model, "weights.pt", rename=r"^backbone\.=>encoder.")  # doctest: +SKIP
    """
    from firekeep import applying
    from firekeep.supply import supply_of_file

    job = _load_job(
        strict=strict,
        match=match,
        rename=rename,
        surgery=surgery,
        include=include,
        exclude=exclude,
        dtype=dtype,
        layout=layout,
        allow_missing=allow_missing,
        allow_unused=allow_unused,
        allow_mismatched=allow_mismatched,
        stage=stage,
        dry_run=dry_run,
    )
    with supply_of_file(source, _options(limits, top_level_key, dequantize=dequantize)) as supply:
        return applying.load_into(obj, supply, _telling(job, like, supply, limits))


def load_as(
    obj: Any,
    source: Readable,
    *,
    strict: bool = True,
    match: Literal["auto", "exact"] = "auto",
    rename: Rule | Iterable[Rule] | Mapping[str, str] | KeyRemapper = (),
    surgery: Surgery | Iterable[Any] = (),
    include: Wanted | Iterable[Wanted] = (),
    exclude: Wanted | Iterable[Wanted] = (),
    dtype: DTypeLike = "module",
    layout: str | None = None,
    like: Any = None,
    top_level_key: str | None = None,
    allow_missing: bool | None = None,
    allow_unused: bool | None = None,
    allow_mismatched: bool | None = None,
    dequantize: bool = False,
    dry_run: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> tuple[Any, LoadReport]:
    """Make an object like another, with the weights of a file in it; the rest is as in `load_into`.

    For what never changes: Equinox modules, a Linen `TrainState`, states of optax, named tuples and frozen dataclasses, at any depth.
    `obj` may be of shapes only (`jax.eval_shape`, `nnx.eval_shape`, `eqx.filter_eval_shape`): each array goes to the sharding its shape
    names. `obj` stays as it is, and arrays that are not given are in both. Raises `UnsupportedError` for models that are changed
    in place, which `load_into` takes.

    Example:
        >>> model, report = firekeep.load_as(model, "model.safetensors")  # doctest: +SKIP
    """
    from firekeep import applying
    from firekeep.supply import supply_of_file

    job = _load_job(
        strict=strict,
        match=match,
        rename=rename,
        surgery=surgery,
        include=include,
        exclude=exclude,
        dtype=dtype,
        layout=layout,
        allow_missing=allow_missing,
        allow_unused=allow_unused,
        allow_mismatched=allow_mismatched,
        stage=False,
        dry_run=dry_run,
    )
    with supply_of_file(source, _options(limits, top_level_key, dequantize=dequantize)) as supply:
        return applying.load_as(obj, supply, _telling(job, like, supply, limits))


def collect(
    obj: Any,
    *,
    layout: str | None = None,
    like: Any = None,
    rename: Rule | Iterable[Rule] | Mapping[str, str] | KeyRemapper = (),
    surgery: Surgery | Iterable[Any] = (),
    include: Wanted | Iterable[Wanted] = (),
    exclude: Wanted | Iterable[Wanted] = (),
    dtype: DTypeLike | None = None,
    ties: str = "keep",
    limits: Limits = DEFAULT_LIMITS,
) -> Collection:
    """Take the tensors of a model, without copying any, to be put into another with `apply`.

    They keep the model's own layout unless `layout` asks for another. Their bytes are those the model has when they are drawn.

    Example:
        >>> firekeep.apply(student, firekeep.collect(teacher, include="^encoder"), allow_missing=True)  # doctest: +SKIP
    """
    from firekeep import collecting

    job = _collect_job(
        layout=layout,
        like=like,
        rename=rename,
        surgery=surgery,
        include=include,
        exclude=exclude,
        dtype=dtype,
        ties=ties,
        limits=limits,
    )
    return collecting.collect(obj, replace(job, constants=True))


def apply(
    obj: Any,
    source: Any,
    *,
    strict: bool = True,
    match: Literal["auto", "exact"] = "auto",
    rename: Rule | Iterable[Rule] | Mapping[str, str] | KeyRemapper = (),
    surgery: Surgery | Iterable[Any] = (),
    include: Wanted | Iterable[Wanted] = (),
    exclude: Wanted | Iterable[Wanted] = (),
    dtype: DTypeLike = "module",
    layout: str | None = None,
    like: Any = None,
    allow_missing: bool | None = None,
    allow_unused: bool | None = None,
    allow_mismatched: bool | None = None,
    stage: bool = False,
    dry_run: bool = False,
) -> LoadReport:
    """Put tensors of one model, or a `Collection` of them, into another, across frameworks; the rest is as in `load_into`.

    A tree of arrays of which nobody knows what layers they belong to is taken to lie as the model does. Constants that no tensor holds
    (epsilon, padding, the form of a GELU) stay the model's own, and the report names those that the two do not agree on.

    Example:
        >>> firekeep.apply(native_net, torch_net)  # doctest: +SKIP
    """
    from firekeep import applying
    from firekeep.collecting import Collection
    from firekeep.supply import supply_of_entries, supply_of_object

    job = _load_job(
        strict=strict,
        match=match,
        rename=rename,
        surgery=surgery,
        include=include,
        exclude=exclude,
        dtype=dtype,
        layout=layout,
        allow_missing=allow_missing,
        allow_unused=allow_unused,
        allow_mismatched=allow_mismatched,
        stage=stage,
        dry_run=dry_run,
    )
    if isinstance(source, Collection):
        supply = supply_of_entries(
            source.entries,
            layout=source.layout,
            layers=source.layers,
            scalars=source.scalars,
            constants=source.constants,
        )
    else:
        supply = supply_of_object(source)
    return applying.load_into(obj, supply, _telling(job, like, supply, DEFAULT_LIMITS))


def compare_constants(
    obj: Any,
    source: Any,
    *,
    rename: Rule | Iterable[Rule] | Mapping[str, str] | KeyRemapper = (),
) -> tuple[ConstantDifference, ...]:
    """List the constants, which no tensor holds, that two models do not agree on; nothing is changed.

    They are epsilon and momentum of norms, padding, stride and dilation of convolutions, heads, groups, and activations with the form of
    a GELU and slopes. Parts are paired as their tensors are: `rename` rules turn the names of `source` into those of `obj`. A part of a
    class that is not known, or without a counterpart, is not compared. After a load from a file this is what is left to check.

    Example:
        >>> for one in firekeep.compare_constants(nnx_net, torch_net): print(one)  # doctest: +SKIP
        'norm': epsilon 1e-06 in the model, 1e-05 in the source
    """
    return apply(obj, source, strict=False, rename=rename, dry_run=True).constants


def preview(
    source: Readable,
    like: Readable,
    *,
    strict: bool = True,
    match: Literal["auto", "exact"] = "auto",
    rename: Rule | Iterable[Rule] | Mapping[str, str] | KeyRemapper = (),
    surgery: Surgery | Iterable[Any] = (),
    include: Wanted | Iterable[Wanted] = (),
    exclude: Wanted | Iterable[Wanted] = (),
    layout: str | None = None,
    top_level_key: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> LoadReport:
    r"""Say how the tensors of a file would go into a model with the names and shapes of another file; nothing is read or changed.

    The report is that of a dry run, refused or not: `report.ok` says which. For a model at hand, `load_into(..., dry_run=True)` says it.

    Example:
        >>> print(firekeep.preview("theirs.safetensors", "mine.bpk", rename=r"^model\.=>"))  # doctest: +SKIP
    """
    from firekeep import applying
    from firekeep.likeness import outline_of_file
    from firekeep.supply import supply_of_file

    job = _load_job(
        strict=strict,
        match=match,
        rename=rename,
        surgery=surgery,
        include=include,
        exclude=exclude,
        dtype="module",
        layout=layout,
        allow_missing=None,
        allow_unused=None,
        allow_mismatched=None,
        stage=False,
        dry_run=True,
    )
    options = OpenOptions(limits=limits)
    with supply_of_file(source, OpenOptions(limits=limits, top_level_key=top_level_key)) as supply:
        outline, name = outline_of_file(like, options, supply, job)
        return applying.preview(outline, supply, job, target=name)


def renamed_keys(
    source: Readable,
    *,
    rename: Rule | Iterable[Rule] | Mapping[str, str] | KeyRemapper = (),
    top_level_key: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> dict[str, str]:
    r"""Map the names of a file to those that rename rules make of them; raises `RuleError` naming both where two become one.

    Example:
        >>> firekeep.renamed_keys("model.safetensors", rename=r"^model\.=>")  # doctest: +SKIP
        {'model.norm.weight': 'norm.weight'}
    """
    from firekeep.rules import KeyRemapper
    from firekeep.supply import supply_of_file

    with supply_of_file(source, OpenOptions(limits=limits, top_level_key=top_level_key)) as supply:
        return dict(KeyRemapper.of(rename).rename(supply.entries).names)


def renames_of(
    rename: Rule | Iterable[Rule] | Mapping[str, str] = (),
    *,
    presets: Iterable[str] = (),
    mapping: str | os.PathLike[str] | None = None,
) -> KeyRemapper:
    """Join the renames of presets, of a mapping file and of rules, tried in this order, for the `rename` of a load or save.

    A name that stands in the table of the mapping file takes its new one from there, and no rule is tried on it.
    """
    from firekeep.rules import KeyRemapper

    parts = [KeyRemapper.preset(name) for name in presets]
    parts += [KeyRemapper.load(mapping)] if mapping is not None else []
    names = parts[-1].names if mapping is not None else {}
    parts.append(KeyRemapper.of(rename))
    return KeyRemapper.of([rule for part in parts for rule in part.rules], names=names)


def saved_metadata(source: Readable, *, limits: Limits = DEFAULT_LIMITS) -> dict[str, str]:
    """Read back the metadata of a file: what the caller gave when it was saved, so that a loop can check what it has written.

    Example:
        >>> assert firekeep.saved_metadata("model.bpk")["epoch"] == "3"  # doctest: +SKIP
    """
    with open_file(source, OpenOptions(limits=limits)) as opened:
        return dict(opened.metadata)


def _options(limits: Limits, top_level_key: str | None, *, dequantize: bool) -> OpenOptions:
    return OpenOptions(limits=limits, top_level_key=top_level_key, dequantize=dequantize)


def _telling(job: LoadJob, like: Any, supply: Supply, limits: Limits) -> LoadJob:
    """Add what tells the layers of a tree: what it is like, else, for variables of Linen, what the tensors come from."""
    from firekeep.layouts import CONVENTIONS
    from firekeep.likeness import Likeness, likeness_of, telling_of

    if like is not None:
        return replace(job, telling=telling_of(likeness_of(like, OpenOptions(limits=limits)), job))
    said = None if supply.layout is None else supply.layout.name
    layout = next((known for known in CONVENTIONS if known == said), None)
    if not supply.layers or layout is None:
        return job
    known = Likeness(
        what="the source",
        entries=tuple(entry for entry in supply.entries.values() if entry.problem is None),
        layout=layout,
        layers=supply.layers,
        told=True,
    )
    return replace(job, telling=telling_of(known, job, linen_only=True))


def _collect_job(
    *,
    layout: str | None,
    like: Any,
    rename: Any,
    surgery: Any,
    include: Any,
    exclude: Any,
    dtype: DTypeLike | None,
    ties: str,
    limits: Limits,
) -> Any:
    from firekeep.collecting import CollectJob
    from firekeep.layouts import check_layout
    from firekeep.likeness import likeness_of
    from firekeep.rules import KeyRemapper, PathFilter, cast_target, name_dtype
    from firekeep.rules.surgery import Surgery

    return CollectJob(
        chosen=PathFilter.of(include=include, exclude=exclude),
        layout=None if layout is None else check_layout(layout),
        dtype=None if dtype is None else cast_target(name_dtype(dtype)),
        remapper=KeyRemapper.of(rename),
        surgery=Surgery.of(surgery),
        like=None if like is None else likeness_of(like, OpenOptions(limits=limits)),
        ties=ties,
    )


def _load_job(
    *,
    strict: bool,
    match: Literal["auto", "exact"],
    rename: Any,
    surgery: Any,
    include: Any,
    exclude: Any,
    dtype: DTypeLike,
    layout: str | None,
    allow_missing: bool | None,
    allow_unused: bool | None,
    allow_mismatched: bool | None,
    stage: bool,
    dry_run: bool,
) -> Any:
    from firekeep.applying import LoadJob
    from firekeep.errors import RuleError
    from firekeep.layouts import check_layout
    from firekeep.matching import Policy
    from firekeep.rules import KeyRemapper, PathFilter
    from firekeep.rules.surgery import Surgery
    from firekeep.stores import held

    if match not in ("auto", "exact"):
        raise RuleError(f"match={match!r}: 'auto' finds names by certain steps, 'exact' takes equal names only")

    def verdict(*, allowed: bool | None) -> Literal["error", "allow"]:
        return "allow" if (not strict if allowed is None else allowed) else "error"

    return LoadJob(
        policy=Policy(
            missing=verdict(allowed=allow_missing),
            unused=verdict(allowed=allow_unused),
            shape=verdict(allowed=allow_mismatched),
        ),
        match=match,
        remapper=KeyRemapper.of(rename),
        surgery=Surgery.of(surgery),
        chosen=PathFilter.of(include=include, exclude=exclude),
        dtype=held(dtype),
        layout=None if layout is None else check_layout(layout),
        stage=stage,
        dry_run=dry_run,
        switches={"missing": "allow_missing=True", "unused": "allow_unused=True", "shape": "allow_mismatched=True"},
    )
