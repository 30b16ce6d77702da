"""The arguments of the doors of models, checked and made into jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from firekeep.formats import OpenOptions
from firekeep.limits import Limits

if TYPE_CHECKING:
    from firekeep.applying import LoadJob
    from firekeep.rules import DTypeLike
    from firekeep.supply import Supply


def open_options(limits: Limits, top_level_key: str | None, *, dequantize: bool) -> OpenOptions:
    """Say how the file of a load is opened."""
    return OpenOptions(limits=limits, top_level_key=top_level_key, dequantize=dequantize)


def with_telling(job: LoadJob, like: Any, supply: Supply, limits: Limits) -> LoadJob:
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
