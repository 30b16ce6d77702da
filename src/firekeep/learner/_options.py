"""The settings of a Learner, checked before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from firekeep.errors import RuleError
from firekeep.learner._batches import Judge
from firekeep.learner._early import EarlyStopping

Precision = Literal["fp32", "bf16", "fp16"]
When = Literal["step", "epoch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a run is trained."""

    judge: Judge
    num_epochs: int
    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    precision: Precision = "fp32"
    scheduler_every: When = "step"
    early_stopping: EarlyStopping | None = None
    resume: bool = True
    history: Path | None = None
    log_every: int = 10
    progress: bool = True
    seed: int | None = None
    names: frozenset[str] = field(init=False)
    """The metrics of an epoch."""

    def __post_init__(self) -> None:
        for name, least in (("num_epochs", 1), ("accumulate", 1), ("log_every", 1)):
            _whole(name, getattr(self, name), least)
        if self.seed is not None:
            _whole("seed", self.seed, 0)
        if self.precision not in get_args(Precision):
            raise RuleError(f"precision={self.precision!r}: {_or(get_args(Precision))}")
        if self.scheduler_every not in get_args(When):
            raise RuleError(f"scheduler_every={self.scheduler_every!r}: {_or(get_args(When))}")
        if self.clip_norm is not None and self.clip_value is not None:
            raise RuleError("gradients are clipped by their norm or by value: give clip_norm or clip_value")
        for name in ("clip_norm", "clip_value"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise RuleError(f"{name}={limit!r}: a number above 0 is needed")
        bases = ("loss", *self.judge.metrics)
        if "loss" in self.judge.metrics:
            raise RuleError("a metric cannot be called 'loss', which the loss is")
        object.__setattr__(
            self, "names", frozenset(f"{split}_{base}" for split in ("train", "valid") for base in bases)
        )

    def check_monitored(self, *, validated: bool) -> None:
        """Refuse early stopping by a metric that no epoch will have."""
        if self.early_stopping is None:
            return
        there = sorted(name for name in self.names if validated or not name.startswith("valid_"))
        if self.early_stopping.metric not in there:
            raise RuleError(
                f"early stopping looks at {self.early_stopping.metric!r}, and an epoch has {', '.join(there)}",
                remedy="Name one of these, or give fit() what to validate with.",
            )


def check_metrics(metrics: Mapping[str, object] | None) -> None:
    """Refuse what cannot be called by a name."""
    for name, metric in (metrics or {}).items():
        if not callable(metric):
            raise RuleError(f"metrics={{{name!r}: {metric!r}}}: names with functions of output and target are needed")


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RuleError(f"{name}={value!r}: a whole number of at least {least} is needed")


def _or(words: tuple[str, ...]) -> str:
    return " or ".join(map(repr, words))
