"""Schedules made of schedules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Protocol

from firekeep.ids import ParamId
from firekeep.schedulers._base import Counter, Scheduler, check_count
from firekeep.schedulers._errors import SchedulerError

Reduction = Literal["product", "sum", "average"]
_REDUCTIONS = ("product", "sum", "average")


class Matcher(Protocol):
    """What tells the parameters of a group: `firekeep.module.ParamGroup` does."""

    def matches(self, *, param_id: ParamId | None = None, path: str | None = None) -> bool:
        """Say whether the parameter of this id and path is in the group."""
        ...


class Sequential(Scheduler):
    """One schedule after another: the next takes over at each milestone, a number of steps from the start.

    A schedule whose time has not come, or is over, does not move.
    """

    counters = (Counter("step", "uint"),)

    def __init__(self, schedulers: Iterable[Scheduler], *, milestones: Iterable[int]) -> None:
        self._children = _schedulers(schedulers)
        self.milestones = tuple(check_count("a milestone", one) for one in milestones)
        if not self._children:
            raise SchedulerError("a sequence needs at least one schedule")
        if len(self.milestones) != len(self._children) - 1:
            raise SchedulerError(
                f"{len(self._children)} schedules take {len(self._children) - 1} milestones, one between each two,"
                f" not {len(self.milestones)}"
            )
        if list(self.milestones) != sorted(set(self.milestones)):
            raise SchedulerError(f"the milestones {list(self.milestones)} do not rise")
        self._step = 0

    @property
    def children(self) -> tuple[Scheduler, ...]:
        """The schedules, in order."""
        return self._children

    def step(self) -> float:
        """Go on with the schedule whose time it is."""
        active = sum(milestone <= self._step for milestone in self.milestones)
        rate = self._children[active].step()
        self._step += 1
        return rate


class Composed(Scheduler):
    """Several schedules at once, whose learning rates become one.

    The reduction has no default: a product of two learning rates is rarely what is meant; one of a learning rate and a factor is.
    """

    def __init__(self, schedulers: Iterable[Scheduler], *, reduction: Reduction) -> None:
        self._children = _schedulers(schedulers)
        if reduction not in _REDUCTIONS:
            raise SchedulerError(f"reduction is {reduction!r}: one of {', '.join(_REDUCTIONS)}")
        self.reduction = reduction

    @property
    def children(self) -> tuple[Scheduler, ...]:
        """The schedules, in order."""
        return self._children

    def step(self) -> float:
        """Step all, and reduce."""
        rates = [child.step() for child in self._children]
        if self.reduction == "product":
            product = 1.0
            for rate in rates:
                product *= rate
            return product
        total = 0.0
        for rate in rates:
            total += rate if self.reduction == "sum" else rate / len(rates)
        return total


class Groups(Scheduler):
    """A schedule for all parameters, and others for groups of them: Burn's schedule of a whole module.

    All schedules step each time, whether or not their group has a parameter. For a parameter, the last group it is in decides. Burn
    keeps every schedule this way, so a record that Burn's Learner can read is that of `Groups(schedule)`.
    """

    def __init__(self, base: Scheduler, groups: Iterable[tuple[Matcher, Scheduler]] = ()) -> None:
        pairs = list(groups)
        self._matchers = tuple(matcher for matcher, _ in pairs)
        for matcher in self._matchers:
            if not callable(getattr(matcher, "matches", None)):
                raise SchedulerError(
                    f"{matcher!r} tells no group of parameters", remedy="Give a firekeep.module.ParamGroup."
                )
        self._children = _schedulers([base, *(scheduler for _, scheduler in pairs)])
        self.rates: tuple[float, ...] = ()
        """The learning rates of the last step: the base's, then those of the groups."""

    @property
    def children(self) -> tuple[Scheduler, ...]:
        """The base, then the schedules of the groups."""
        return self._children

    def step(self) -> float:
        """Step all schedules, and give the base's learning rate; `rates` and `rate_of` give the others."""
        self.rates = tuple(child.step() for child in self._children)
        return self.rates[0]

    def rate_of(self, *, path: str | None = None, param_id: ParamId | None = None) -> float:
        """Give the learning rate of a parameter in the last step."""
        if not self.rates:
            raise SchedulerError("there is no learning rate before the first step", remedy="Call step() first.")
        for matcher, rate in zip(reversed(self._matchers), reversed(self.rates), strict=False):
            if matcher.matches(param_id=param_id, path=path):
                return rate
        return self.rates[0]


def _schedulers(given: Iterable[Any]) -> tuple[Scheduler, ...]:
    children = tuple(given)
    for place, child in enumerate(children):
        if not isinstance(child, Scheduler):
            raise SchedulerError(
                f"schedule {place} is {type(child).__name__}, not a schedule",
                remedy="A plain learning rate is Constant(rate=...).",
            )
    if len(set(map(id, children))) < len(children):
        raise SchedulerError("one schedule stands in two places, where it would step twice", remedy="Make two.")
    return children
