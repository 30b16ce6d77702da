"""Putting tensors into a model: a plan first, then the bytes, then a report that names every tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from firekeep.applying._alias import reads_itself
from firekeep.applying._anew import Anew
from firekeep.applying._attempt import Attempt
from firekeep.applying._constants import compare_constants
from firekeep.applying._hints import prepare_with_hints
from firekeep.applying._job import Hint, Hold, LoadJob
from firekeep.applying._load import Load
from firekeep.applying._outcome import failure, leniency, outcome, refusal, report_on
from firekeep.applying._prepare import prepare
from firekeep.applying._ranges import find_outside
from firekeep.applying._stage import stage
from firekeep.applying._told import Told, told_entries, told_outline
from firekeep.applying._valueless import tell_rewriting
from firekeep.applying._wants import variants_of, without_variants
from firekeep.bridges import Bridge, at_once, bridge_of, remaker_of
from firekeep.errors import FirekeepError
from firekeep.garbage import collector_paused
from firekeep.report import LoadReport
from firekeep.slots import Outline
from firekeep.supply import Supply

__all__ = [
    "Hint",
    "Hold",
    "LoadJob",
    "LoadPlan",
    "load_as",
    "load_into",
    "plan_load",
    "preview",
    "tell_rewriting",
    "told_entries",
    "told_outline",
    "variants_of",
    "without_variants",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What a load would do: `put` does it, and gives the object and the report.

    `names` maps the file's names to those that the model's tensors have in a file of that layout, where the two differ.
    """

    report: LoadReport
    names: Mapping[str, str]
    put: Callable[[], tuple[Any, LoadReport]]


def load_into(obj: Any, supply: Supply, job: LoadJob) -> LoadReport:
    """Put tensors into an object; see `firekeep.load_into`.

    A load that is refused has changed nothing and raises `LoadError` with the whole report.
    """
    bridge = at_once(bridge_of(obj))
    return _load_over(bridge if job.telling is None else Told(bridge, job.telling), obj, supply, job)


def load_as(obj: Any, supply: Supply, job: LoadJob) -> tuple[Any, LoadReport]:
    """Make an object like another with tensors in it; see `firekeep.load_as`."""
    bridge = Anew(remaker_of(obj), obj)
    report = _load_over(bridge if job.telling is None else Told(bridge, job.telling), obj, supply, job)
    return bridge.made, report


def plan_load(obj: Any, supply: Supply, job: LoadJob, *, anew: bool = False) -> LoadPlan:
    """Plan what `load_into` would do, or with `anew` what `load_as` would, and change nothing."""
    bridge = Anew(remaker_of(obj), obj) if anew else bridge_of(obj)
    load, report = _plan_over(bridge, obj, supply, replace(job, dry_run=True))
    sources = load.tried.sources
    found = ((sources.get(pair.offer.name, pair.offer.name), pair.want.name) for pair in load.tried.plan.found)

    def put() -> tuple[Any, LoadReport]:
        load.job = replace(job, dry_run=False)
        made = _carry_out(bridge, obj, load, report)
        return bridge.made if isinstance(bridge, Anew) else obj, made

    return LoadPlan(report=report, names={old: new for old, new in found if old != new}, put=put)


def _load_over(bridge: Bridge, obj: Any, supply: Supply, job: LoadJob) -> LoadReport:
    load, report = _plan_over(bridge, obj, supply, job)
    return report if job.dry_run else _carry_out(bridge, obj, load, report)


def _plan_over(bridge: Bridge, obj: Any, supply: Supply, job: LoadJob) -> tuple[Load, LoadReport]:
    with collector_paused():
        load = prepare_with_hints(bridge, obj, supply, job)
        if supply.constants:
            load.constants += compare_constants(bridge.constants(obj), supply.constants, _paired(load.tried))
    report = report_on(load, applied=None)
    if not report.ok and not load.remedies and (found := leniency(load)) is not None:
        load.remedies.append(found)
        report = report_on(load, applied=None)
    return load, report


def _carry_out(bridge: Bridge, obj: Any, load: Load, report: LoadReport) -> LoadReport:
    if not report.ok:
        raise refusal(load, report)
    outside = list(find_outside(load.fillings))
    if outside:
        load.problems += outside
        names = {problem.name for problem in outside}
        load.fillings = [filling for filling in load.fillings if filling.slot.path not in names]
        report = report_on(load, applied=None)
        if not report.ok:
            raise refusal(load, report)
    return _fill(bridge, obj, load, report)


def _paired(tried: Attempt) -> dict[str, str]:
    """Map names of the model's tensors to those that go there."""
    sources = tried.sources
    return {
        path: sources.get(pair.offer.name, pair.offer.name) for pair in tried.plan.found for path in pair.want.paths
    }


def preview(outline: Outline, supply: Supply, job: LoadJob, *, target: str) -> LoadReport:
    """Report what a load into such a model would do, refused or not; nothing is read."""
    with collector_paused():
        return report_on(prepare(outline, supply, replace(job, dry_run=True), target=target), applied=None)


def _fill(bridge: Bridge, obj: Any, load: Load, planned: LoadReport) -> LoadReport:
    if load.supply.live and not load.job.stage and reads_itself(bridge, obj, load.fillings):
        load.job = replace(load.job, stage=True)
    if load.job.stage:
        try:
            load.fillings = stage(load.fillings)
        except FirekeepError as error:
            raise failure(load, [], error) from error
    done: list[str] = []
    try:
        bridge.fill(obj, load.fillings, done)
    except FirekeepError as error:
        raise failure(
            load, done, error, touched=not isinstance(bridge.base if isinstance(bridge, Told) else bridge, Anew)
        ) from error
    return outcome(load, planned, done)
