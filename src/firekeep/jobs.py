"""The arguments of the doors of models, checked and made into jobs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from firekeep.errors import FirekeepError, WrongTypeError
from firekeep.formats import OpenOptions
from firekeep.limits import Limits
from firekeep.opened import OpenedFile, is_readable, no_file
from firekeep.wording import kind

if TYPE_CHECKING:
    from firekeep.applying import Hint, LoadJob
    from firekeep.rules import DTypeLike
    from firekeep.slots import Outline
    from firekeep.supply import Supply


def supply_of(source: Any) -> Supply:
    """Offer the tensors of another model, or of a `Collection`."""
    from firekeep.collecting import Collection
    from firekeep.supply import supply_of_entries, supply_of_object

    if not isinstance(source, Collection):
        return supply_of_object(source)
    return supply_of_entries(
        source.entries,
        layout=source.layout,
        layers=source.layers,
        scalars=source.scalars,
        constants=source.constants,
        told=source.told,
        unturned=source.unturned,
    )


def require_file(obj: Any, given: Any, job: LoadJob, *, like: Any, limits: Limits, call: str) -> None:
    """Raise `WrongTypeError` for an object where a file is due, with what takes it instead: tried, as all remedies are."""
    if is_readable(given):
        return
    if isinstance(given, OpenedFile):
        raise no_file(given, remedy=f"Give its path: firekeep.{call}(obj, {given.path!r})." if given.path else None)
    try:
        supply = supply_of(given)
    except FirekeepError:
        raise no_file(given, remedy=None) from None
    if not supply.entries:
        paths = isinstance(given, list | tuple) and any(isinstance(one, str | os.PathLike) for one in given)
        one = "One file is read at a time; a set of shards is opened by its folder or its index."
        raise no_file(given, remedy=one if paths else None)
    raise no_file(given, remedy=_remedy(obj, supply, job, like=like, limits=limits, call=call))


def _remedy(obj: Any, supply: Supply, job: LoadJob, *, like: Any, limits: Limits, call: str) -> str | None:
    from firekeep import applying

    try:
        tried = with_telling(replace(job, dry_run=True), like, supply, limits)
        report = applying.load_into(obj, supply, tried)
    except FirekeepError as error:
        why = error.message
    else:
        why = "" if report.ok else ", ".join(report.refusals)
    if not why:
        how = ", changing it in place" if call == "load_as" else ""
        return f"firekeep.apply(obj, other) puts the tensors of one object into another{how}."
    if call == "load_as":
        return "Write it to a file first: firekeep.save(other, path)."
    return f"The door for the tensors of another object is firekeep.apply(obj, other), which would refuse these: {why}."


def require_path(path: Any) -> None:
    """Raise `WrongTypeError` for an object where the path of a file to write is due."""
    if isinstance(path, str | os.PathLike | bytes):
        return
    remedy = "firekeep.save(obj, 'model.safetensors') writes a file."
    if hasattr(path, "write"):
        remedy = "A store keeps a file in memory: store = firekeep.SafetensorsStore(), store.save(obj), and store.data are its bytes."
    raise WrongTypeError(f"a path is due after the object, not {kind(path)}", remedy=remedy)


def open_options(limits: Limits, top_level_key: str | None, *, dequantize: bool) -> OpenOptions:
    """Say how the file of a load is opened."""
    return OpenOptions(limits=limits, top_level_key=top_level_key, dequantize=dequantize)


def with_telling(job: LoadJob, like: Any, supply: Supply, limits: Limits) -> LoadJob:
    """Add what tells the layers of a tree: what it is like, else, for variables of Linen, what the tensors come from."""
    from firekeep.layouts import CONVENTIONS
    from firekeep.likeness import Likeness, likeness_of, telling_of

    if like is not None:
        return replace(job, telling=telling_of(likeness_of(like, OpenOptions(limits=limits)), job))
    if not supply.live:
        job = replace(job, hint=_hint(job, supply, limits))
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


def _hint(job: LoadJob, supply: Supply, limits: Limits) -> Hint:
    """Say that like= may be given, and try the file itself, where it is PyTorch's and has a path."""
    from firekeep.applying import Hint
    from firekeep.likeness import likeness_of, telling_of

    if supply.where is None or supply.layers or supply.layout is None or supply.layout.name != "torch":
        return Hint()

    def tell(outline: Outline) -> Outline:
        return telling_of(likeness_of(supply.where, OpenOptions(limits=limits)), job)(outline)

    return Hint(telling=tell, spelled=f"like={supply.where!r}")


def collect_job(
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
    """Make the `CollectJob` of a save."""
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


def load_job(
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
    """Make the `LoadJob` of a load; raises `RuleError` for what makes no sense."""
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
