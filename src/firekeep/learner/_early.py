"""Ending a run that gets no better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from firekeep.checkpoint._metric import more_is_better, unsaid
from firekeep.errors import RuleError


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """End the run after `patience` epochs in a row in which the metric was not better than its best by more than `min_delta`.

    NaN is never better. Without a `mode` less is better; a name that plainly says the opposite, such as "accuracy", is refused then.
    The counters are in every checkpoint, so a run that is resumed ends in the same epoch.
    """

    metric: str = "valid_loss"
    patience: int = 3
    mode: Literal["min", "max"] | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.mode is None:
            if more_is_better(self.metric):
                remedy = (
                    f'Say it: EarlyStopping({self.metric!r}, mode="max"), or mode="min" where less of it is better.'
                )
                raise RuleError(unsaid(self.metric), remedy=remedy)
            object.__setattr__(self, "mode", "min")
        if self.mode not in ("min", "max"):
            raise RuleError(f"mode={self.mode!r}: 'min' or 'max'")
        if self.patience < 1:
            raise RuleError(f"patience={self.patience!r}: a number of epochs of at least 1 is needed")
        if not self.min_delta >= 0:
            raise RuleError(f"min_delta={self.min_delta!r}: a number of at least 0 is needed")


@dataclass(slots=True)
class Patience:
    """What early stopping has seen so far: the best value, in which epoch, and how many epochs ago."""

    rule: EarlyStopping
    best: float = math.nan
    best_epoch: int = 0
    waited: int = 0

    @property
    def exhausted(self) -> bool:
        """Whether the run is to end."""
        return self.waited >= self.rule.patience

    def observe(self, value: float, *, epoch: int) -> None:
        """Take the value of an epoch."""
        sign = 1 if self.rule.mode == "min" else -1
        is_first = math.isnan(self.best) and not math.isnan(value)
        if is_first or sign * value < sign * self.best - self.rule.min_delta:
            self.best, self.best_epoch, self.waited = value, epoch, 0
        else:
            self.waited += 1

    def state(self) -> dict[str, Any]:
        """Give the counters."""
        return {"metric": self.rule.metric, "best": self.best, "best_epoch": self.best_epoch, "waited": self.waited}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the counters; those of another metric say nothing about this one."""
        if state.get("metric") == self.rule.metric:
            self.best, self.best_epoch = float(state["best"]), int(state["best_epoch"])
            self.waited = int(state["waited"])
