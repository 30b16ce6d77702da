"""What a manager warns of once: the line of the program that it is about, and metrics that lack the one that tells the best step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from firekeep.checkpoint._catalog import Catalog
from firekeep.checkpoint._metric import lacks, near_first, spelled
from firekeep.checkpoint._retention import KeepBest, Policy, bests
from firekeep.wording import quote, some


class Lacking:
    """Sees whether saves that have metrics have those by which steps are kept.

    A save without any metric says nothing: most loops evaluate at some of their steps only. Where nobody has named the metric the report
    of the save tells of it, and no warning does.
    """

    def __init__(self, best: KeepBest, keep: Policy, *, is_default: bool) -> None:
        self._best = best
        named = [rule.metric for rule in bests(keep)] + ([] if is_default else [best.metric])
        self._to_warn = {name for name in named if not (is_default and name == best.metric)}

    def notes(self, metrics: Mapping[str, float]) -> tuple[str, ...]:
        """Tell of it in the report of a save."""
        lacking = bool(metrics) and self._best.metric not in metrics
        return (lacks(self._best.metric, metrics),) if lacking else ()

    def warning(
        self, metrics: Mapping[str, Any], step: int, directory: Path, catalog: Callable[[], Catalog]
    ) -> str | None:
        """Warn of it once; not where a step that is there has the metric, so that its name is right."""
        if not (metrics and self._to_warn):
            return None
        self._to_warn -= metrics.keys()
        if not self._to_warn:
            return None
        for info in catalog().steps:
            self._to_warn -= info.metrics.keys()
        missing, self._to_warn = self._to_warn, set()
        return _warning(sorted(missing), metrics, step, directory) if missing else None


def _warning(missing: list[str], metrics: Iterable[str], step: int, directory: Path) -> str:
    near = near_first(missing[0], metrics)
    return (
        f"step {step} was saved in {directory} without the metric {quote(missing[0])}, by which the best step is kept, and no step has it: "
        f"there are {some(near)}. Name one of these, as in {spelled(near[0])}, or give the save a metric of that name."
    )
