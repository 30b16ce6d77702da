"""The doors of models: save one, load into one, take tensors out of one and put them into another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from firekeep.errors import RuleError
from firekeep.jobs import collect_job, load_job, open_options, require_file, require_path, supply_of, with_telling
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.opened import Readable

if TYPE_CHECKING:
    from firekeep.collecting import Collection, SaveReport
    from firekeep.report import LoadReport
    from firekeep.rules import DTypeLike, KeyRemapper, Rule
    from firekeep.rules.filter import Wanted
    from firekeep.rules.surgery import Surgery
    from firekeep.saving import Progress


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
    max_shard_size: int | str | None = None,
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
    `nn.Sequential` skips are opened again), and layers that a bare state dict does not tell are told by it; a tree of arrays lies as its
    names and shapes tell beside a model's. Raises `UnsupportedError` naming all tensors that the layout cannot hold, and `RuleError`
    where nothing tells how layers lie; it never guesses.

    The file appears whole or not at all, replacing an older one unless `overwrite=False`, which raises `ExistsError`. Values beside the
    tensors (numbers, texts, functions, modules that hold none) are not in it, and a `LeftOutWarning` names them, but for those that
    `metadata` or `scalars` keep under their names, and those that `exclude` names.

    `max_shard_size` ("5GB") writes a set of `.safetensors` files with an index, into a folder or beside the name given, as Hugging Face's
    libraries do: the same path opens it again. A set or a file that stood there is replaced, and one of the two is whole at any time.

    Example:
        >>> firekeep.save(model, "model.bpk", metadata={"epoch": "3"})  # doctest: +SKIP
    """
    from firekeep import writing
    from firekeep.saving import check_metadata

    _refuse_swapped(obj, path, call="save")
    path = require_path(path)
    collecting = collect_job(
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
        max_shard_size=max_shard_size,
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

    A tree of arrays that does not tell its layers (variables of Flax Linen, a state dict, NumPy arrays) takes tensors of another layout
    where `like` tells them: a model with the same layers in any framework, or a PyTorch file of a whole one. Linen's collections
    `params` and `batch_stats` are then no part of the names.

    Example:
        >>> report = firekeep.load_into(model, "weights.pt", rename=r"^backbone\.=>encoder.")  # doctest: +SKIP
    """
    from firekeep import applying
    from firekeep.supply import supply_of_file

    _refuse_swapped(obj, source, call="load_into")
    job = load_job(
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
    require_file(obj, source, job, like=like, limits=limits, call="load_into")
    with supply_of_file(source, open_options(limits, top_level_key, dequantize=dequantize)) as supply:
        return applying.load_into(obj, supply, with_telling(job, like, supply, limits))


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

    _refuse_swapped(obj, source, call="load_as")
    job = load_job(
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
    require_file(obj, source, job, like=like, limits=limits, call="load_as")
    with supply_of_file(source, open_options(limits, top_level_key, dequantize=dequantize)) as supply:
        return applying.load_as(obj, supply, with_telling(job, like, supply, limits))


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

    job = collect_job(
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

    _refuse_swapped(obj, source, call="apply")
    job = load_job(
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
    supply = supply_of(source)
    return applying.load_into(obj, supply, with_telling(job, like, supply, DEFAULT_LIMITS))


def _refuse_swapped(obj: Any, other: Any, *, call: str) -> None:
    """Raise `RuleError` where a path stands in the place of the object, or a file in that of another model."""
    paths = (str, os.PathLike)
    if isinstance(obj, paths) and not isinstance(other, (*paths, bytes, bytearray, memoryview)):
        call = "load_into" if call == "apply" else call
        raise RuleError(
            f"the path {os.fspath(obj)!r} was given first, where the object belongs, and a {type(other).__name__} after it",
            remedy=f"Turn the two round: firekeep.{call}(obj, path).",
        )
    if call == "apply" and isinstance(other, paths):
        raise RuleError(
            f"{os.fspath(other)!r} is a path, and apply takes the tensors of another model",
            remedy="Use firekeep.load_into(obj, path).",
        )
