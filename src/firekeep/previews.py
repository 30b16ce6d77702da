"""The doors that only look: how a load would go, what renames make of names, in what two models differ."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from firekeep.formats import OpenOptions
from firekeep.jobs import load_job, require_source
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.models import apply
from firekeep.opened import OpenedFile, Readable, open_file

if TYPE_CHECKING:
    from firekeep.report import ConstantDifference, LoadReport
    from firekeep.rules import KeyRemapper, Rule
    from firekeep.rules.filter import Wanted
    from firekeep.rules.surgery import Surgery


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
    like: Readable | OpenedFile,
    *,
    strict: bool = True,
    match: Literal["auto", "exact"] = "auto",
    rename: Rule | Iterable[Rule] | Mapping[str, str] | KeyRemapper = (),
    surgery: Surgery | Iterable[Any] = (),
    include: Wanted | Iterable[Wanted] = (),
    exclude: Wanted | Iterable[Wanted] = (),
    layout: str | None = None,
    top_level_key: str | None = None,
    like_top_level_key: str | None = None,
    allow_unused: bool | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> LoadReport:
    r"""Say how the tensors of a file would go into a model with the names and shapes of another file; nothing is read or changed.

    Of a PyTorch checkpoint the part is taken that is a model, unless `top_level_key`, or `like_top_level_key` for the other file, says.
    The report is that of a dry run, refused or not: `report.ok` says which. For a model at hand, `load_into(..., dry_run=True)` says it.

    Example:
        >>> print(firekeep.preview("theirs.safetensors", "mine.bpk", rename=r"^model\.=>"))  # doctest: +SKIP
    """
    from firekeep import applying
    from firekeep.likeness import outline_of_file
    from firekeep.supply import supply_of_file

    job = load_job(
        strict=strict,
        match=match,
        rename=rename,
        surgery=surgery,
        include=include,
        exclude=exclude,
        dtype="module",
        layout=layout,
        allow_missing=None,
        allow_unused=allow_unused,
        allow_mismatched=None,
        stage=False,
        dry_run=True,
    )
    source = require_source(source, call="preview")
    if not isinstance(like, OpenedFile):
        like = require_source(like, call="preview")
    options = OpenOptions(limits=limits, top_level_key=like_top_level_key)
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

    source = require_source(source, call="renamed_keys")
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
    with open_file(require_source(source, call="saved_metadata"), OpenOptions(limits=limits)) as opened:
        return dict(opened.metadata)
