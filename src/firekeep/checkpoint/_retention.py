"""Which steps stay: pure functions of what is on disk.

A policy says what it keeps; `|` keeps what either keeps, `&` what both do. Nothing is deleted but by `doomed`, which spares
more than the policy asks for: the newest step, the best, and those just written.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from firekeep.checkpoint._metric import more_is_better, spelled, unsaid
from firekeep.checkpoint._step import StepInfo
from firekeep.errors import RuleError

Mode = Literal["min", "max"]
Tie = Literal["first", "last"]
BEST = "firekeep.best"
"""The fact of a step that tells by what its manager knew the best: `max accuracy`."""


class Policy:
    """What every policy can: say which steps it keeps, and be joined to others."""

    __slots__ = ()

    def kept(self, steps: Sequence[StepInfo], *, now: float) -> frozenset[int]:
        """Say which of these steps stay, by number; `now` is in seconds since 1970."""
        raise NotImplementedError

    def __or__(self, other: Policy) -> AnyOf:
        return AnyOf(self, other)

    def __and__(self, other: Policy) -> AllOf:
        return AllOf(self, other)


@dataclass(frozen=True, slots=True)
class KeepAll(Policy):
    """Keep every step."""

    def kept(self, steps: Sequence[StepInfo], *, now: float) -> frozenset[int]:  # noqa: ARG002
        """Keep all."""
        return frozenset(info.step for info in steps)


@dataclass(frozen=True, slots=True)
class KeepLast(Policy):
    """Keep the `n` newest steps, by their numbers."""

    n: int = 1

    def __post_init__(self) -> None:
        _whole(self, self.n, "the newest step is always kept")

    def kept(self, steps: Sequence[StepInfo], *, now: float) -> frozenset[int]:  # noqa: ARG002
        """Keep the newest."""
        return frozenset(sorted(info.step for info in steps)[-self.n :])


@dataclass(frozen=True, slots=True)
class KeepBest(Policy):
    """Keep the `n` best steps by a metric.

    NaN is worse than any number, a step without the metric is not in the running. Of equal steps the earlier is the better one,
    unless `tie="last"`. Without a `mode` less is better; a name that plainly says the opposite, such as "accuracy", is refused then.
    """

    metric: str
    mode: Mode | None = None
    n: int = 1
    tie: Tie = "first"

    def __post_init__(self) -> None:
        _whole(self, self.n, "leave the policy out to keep no step for its metric")
        if self.mode is None:
            if more_is_better(self.metric):
                raise RuleError(
                    unsaid(self.metric),
                    remedy=f'Say it: {spelled(self.metric)}, or mode="min" where less of it is better.',
                )
            object.__setattr__(self, "mode", "min")
        if self.mode not in ("min", "max") or self.tie not in ("first", "last"):
            raise RuleError(f"{self}: the mode is 'min' or 'max', the tie 'first' or 'last'")

    def ranked(self, steps: Sequence[StepInfo]) -> list[StepInfo]:
        """Give the steps that have the metric, best first."""
        sign = 1 if self.mode == "min" else -1
        later = -1 if self.tie == "last" else 1

        def key(info: StepInfo) -> tuple[bool, float, int]:
            value = info.metrics[self.metric]
            return math.isnan(value), 0.0 if math.isnan(value) else sign * value, later * info.step

        return sorted((info for info in steps if self.metric in info.metrics), key=key)

    def best(self, steps: Sequence[StepInfo]) -> StepInfo | None:
        """Give the best step; None where none has the metric, or all have NaN."""
        first = next(iter(self.ranked(steps)), None)
        return None if first is None or math.isnan(first.metrics[self.metric]) else first

    def kept(self, steps: Sequence[StepInfo], *, now: float) -> frozenset[int]:  # noqa: ARG002
        """Keep the best."""
        return frozenset(info.step for info in self.ranked(steps)[: self.n])


def remembered(steps: Sequence[StepInfo]) -> KeepBest | None:
    """Tell by what the manager of these steps knew the best, the last one that did."""
    for info in sorted(steps, key=lambda info: info.step, reverse=True):
        mode, _, metric = str(info.facts.get(BEST, "")).partition(" ")
        if metric and mode in ("min", "max"):
            return KeepBest(metric, "max" if mode == "max" else "min")
    return None


@dataclass(frozen=True, slots=True)
class KeepEvery(Policy):
    """Keep the steps whose number is a multiple of `n`."""

    n: int

    def __post_init__(self) -> None:
        _whole(self, self.n, "no step is a multiple of it")

    def kept(self, steps: Sequence[StepInfo], *, now: float) -> frozenset[int]:  # noqa: ARG002
        """Keep the multiples."""
        return frozenset(info.step for info in steps if info.step % self.n == 0)


@dataclass(frozen=True, slots=True)
class KeepYounger(Policy):
    """Keep the steps that were saved less than `age` ago: a `timedelta`, or seconds."""

    age: timedelta | float

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise RuleError(f"{self}: an age above 0 is needed")

    @property
    def seconds(self) -> float:
        """The age in seconds."""
        return self.age.total_seconds() if isinstance(self.age, timedelta) else float(self.age)

    def kept(self, steps: Sequence[StepInfo], *, now: float) -> frozenset[int]:
        """Keep the young."""
        return frozenset(info.step for info in steps if now - info.time < self.seconds)


class _Joined(Policy):
    __slots__ = ("policies",)

    def __init__(self, *policies: Policy) -> None:
        if not policies:
            raise RuleError(f"{type(self).__name__} joins policies, and none is given")
        for policy in policies:
            if not isinstance(policy, Policy):
                raise TypeError(f"{type(self).__name__} joins policies, not {type(policy).__name__}")
        self.policies = policies

    def _each(self, steps: Sequence[StepInfo], now: float) -> list[frozenset[int]]:
        return [policy.kept(steps, now=now) for policy in self.policies]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Joined) and type(other) is type(self) and other.policies == self.policies

    def __hash__(self) -> int:
        return hash((type(self), self.policies))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.policies))})"


class AnyOf(_Joined):
    """Keep what any of several policies keeps."""

    __slots__ = ()

    def kept(self, steps: Sequence[StepInfo], *, now: float) -> frozenset[int]:
        """Keep the union."""
        return frozenset().union(*self._each(steps, now))


class AllOf(_Joined):
    """Keep what all of several policies keep."""

    __slots__ = ()

    def kept(self, steps: Sequence[StepInfo], *, now: float) -> frozenset[int]:
        """Keep the intersection."""
        first, *others = self._each(steps, now)
        return first.intersection(*others)


def doomed(
    steps: Sequence[StepInfo],
    policy: Policy,
    *,
    now: float,
    best: KeepBest | None = None,
    spared: Collection[int] = (),
) -> tuple[StepInfo, ...]:
    """Say which steps may go, oldest first: those that the policy does not keep, but never the newest, the best or a spared one.

    Spared are steps just written, which may not be the newest when several processes save to one directory.
    """
    if not steps:
        return ()
    kept = {*policy.kept(steps, now=now), *spared, max(info.step for info in steps)}
    if best is not None:
        kept |= best.kept(steps, now=now)
    return tuple(sorted((info for info in steps if info.step not in kept), key=lambda info: info.step))


def bests(policy: Policy) -> Iterator[KeepBest]:
    """Give the policies by a metric in a policy."""
    if isinstance(policy, KeepBest):
        yield policy
    for part in policy.policies if isinstance(policy, _Joined) else ():
        yield from bests(part)


def _whole(policy: Policy, n: object, why: str) -> None:
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"{policy}: a whole number is needed, not {type(n).__name__}")
    if n < 1:
        raise RuleError(f"{policy}: a number of at least 1 is needed; {why}")
