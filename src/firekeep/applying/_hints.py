"""What would help a tree of arrays that does not tell its layers, and what else it holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from firekeep.applying._job import LoadJob
from firekeep.applying._load import Load
from firekeep.applying._prepare import prepare
from firekeep.applying._told import Told, told_outline
from firekeep.bridges import Bridge
from firekeep.errors import FirekeepError, RuleError
from firekeep.layouts import CONVENTIONS
from firekeep.matching import Remedy
from firekeep.slots import Outline
from firekeep.supply import Supply
from firekeep.wording import count, some

_FLAXES = ("flax", "linen")
_ITSELF = "the names and shapes of the file itself tell the layers, whose tensors are then turned round"


def tell_others(outline: Outline) -> Iterator[str]:
    """Say which values of a tree are no tensors: no load changes them."""
    if outline.others:
        many = len(outline.others) > 1
        stay = "values that are no tensors stay as they are" if many else "value that is no tensor stays as it is"
        yield f"{len(outline.others):,} {stay} in the object: {some(list(outline.others))}"


def prepare_with_hints(bridge: Bridge, obj: Any, supply: Supply, job: LoadJob) -> Load:
    """Plan a load; where it is refused for want of layers, say what tells them: tried, or else in words."""
    target = type(obj).__name__
    outline = bridge.outline(obj)
    try:
        load = prepare(outline, supply, job, target=target)
    except RuleError as error:
        helped, spelled = _helped(outline, bridge, obj, supply, job)
        if helped is not None and not helped.tried.plan.refusals(job.policy):
            other = f" Or {error.remedy[0].lower()}{error.remedy[1:]}" if error.remedy else ""
            error.remedy = f"Give {spelled}: {_ITSELF}.{other}"
        raise
    if not load.tried.plan.refusals(job.policy):
        load.notes += tell_others(outline)
        return load
    _propose(load, bridge, obj)
    return load


def _is_untold(outline: Outline) -> bool:
    """Say whether it is a tree with Flax's names that does not tell its layers."""
    told = told_outline(outline)
    return told.bare and not told.layers and told.convention in _FLAXES


def _helped(outline: Outline, bridge: Bridge, obj: Any, supply: Supply, job: LoadJob) -> tuple[Load | None, str]:
    """Plan a load with the hint, and spell that; None where it tells nothing."""
    if job.hint is None or job.hint.telling is None or job.telling is not None or not _is_untold(outline):
        return None, ""
    try:
        outline = Told(bridge, job.hint.telling).outline(obj)
        made = prepare(outline, supply, job, target="") if outline.layers else None
    except FirekeepError:
        return None, ""
    return made, job.hint.spelled


def _propose(load: Load, bridge: Bridge, obj: Any) -> None:
    job, layout = load.job, load.supply.layout
    helped, spelled = _helped(load.outline, bridge, obj, load.supply, job)
    gain = 0 if helped is None else len(helped.tried.plan.pairs) - len(load.tried.plan.pairs)
    if gain > 0:
        best = [one for one in load.remedies if one.gain > gain]
        reason = f"{_ITSELF}; {count(gain, 'more tensor')} would be loaded with"
        load.remedies[:] = [*best, Remedy(reason=reason, python=spelled, gain=gain)]
        return
    if job.hint is None or layout is None or not load.tried.plan.missing or not _is_untold(load.outline):
        return
    if layout.name in CONVENTIONS and layout.name not in _FLAXES:
        load.notes.append(
            f"the names are Flax's, and the file's layers lie as {layout.name!r} has them: like= tells which tensors are turned "
            "round, a model in any framework or a PyTorch file, with layers of these names, or of those that rename= makes these"
        )
