"""Which step of a manager's directory is meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from firekeep.checkpoint._catalog import describe
from firekeep.checkpoint._errors import NoStepError
from firekeep.checkpoint._hints import hint
from firekeep.checkpoint._manifest import check_step
from firekeep.checkpoint._metric import which_there_are
from firekeep.checkpoint._retention import KeepBest
from firekeep.checkpoint._step import StepInfo
from firekeep.checkpoint._store import Store
from firekeep.errors import RuleError


def choose(store: Store, step: int | str, best: KeepBest, *, is_empty: Callable[[], None]) -> StepInfo:
    """Find the latest complete step, the best, or one by its number; raises `NoStepError` saying what there is.

    `is_empty` is called where there is no step at all.
    """
    if step == "latest" and (newest := store.latest()) is not None:
        return newest
    if not isinstance(step, str) and (there := store.find(check_step(step))) is not None:
        return there
    catalog = store.scan()
    if step == "latest":
        found, asked = catalog.latest(), "a step"
    elif step == "best":
        found, asked = best.best(catalog.steps), f"a step with a number for the metric {best.metric!r}"
    elif isinstance(step, str):
        raise RuleError(f"step={step!r}: 'latest', 'best' or a number")
    else:
        found, asked = catalog.find(check_step(step)), f"step {step}"
    if found is None:
        if not catalog.steps:
            is_empty()
        raise NoStepError(
            f"{asked} is asked for, and {describe(catalog)}",
            remedy=_remedy(step, best, [info.metrics for info in catalog.steps])
            if catalog.steps
            else hint(store.directory),
        )
    return found


def _remedy(step: int | str, best: KeepBest, metrics: list[Mapping[str, float]]) -> str | None:
    return which_there_are(best.metric, metrics) if step == "best" else None


def in_doubt(store: Store, step: int | str, best: KeepBest, info: StepInfo) -> bool:
    """Say whether another step may be meant: one that was being replaced when the directory was looked at."""
    if step == "latest":
        return store.passed_over(info.step)
    if step != "best":
        return False
    catalog = store.scan()
    return best.best(catalog.steps) != info or store.is_unclear(catalog)
