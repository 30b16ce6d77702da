"""What every schedule is: a few counters, a step that gives the next learning rate, and a record of the counters."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from firekeep.errors import ScalarError
from firekeep.scalars import Scalar, ScalarKind
from firekeep.schedulers._errors import SchedulerError
from firekeep.schedulers._report import SchedulerReport

U64_MAX = (1 << 64) - 1

_HOSTS: dict[ScalarKind, str] = {"uint": "u64", "int": "i64", "float": "f64", "bool": "bool"}


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that a schedule keeps: its key in a record, which is also its attribute with an underscore before it, and its kind."""

    key: str
    kind: ScalarKind


class Scheduler(ABC):
    """A learning rate schedule: `step` is called once an optimizer step, and the first call gives the first learning rate.

    A record holds the counters and none of the settings, as Burn's do: load it into a schedule of the same settings.
    """

    counters: ClassVar[tuple[Counter, ...]] = ()

    @abstractmethod
    def step(self) -> float:
        """Go one step on, and give the learning rate of that step."""

    @property
    def children(self) -> tuple[Scheduler, ...]:
        """The schedules inside this one; the record has theirs under their numbers."""
        return ()

    def to_record_scalars(self) -> dict[str, Scalar]:
        """Give the counters as Burn writes them, those of schedules inside this one under `0.`, `1.` and so on."""
        return {
            f"{prefix}{one.key}": owner.save_counter(one) for prefix, owner in self.owners("") for one in owner.counters
        }

    def load_scalars(self, scalars: Mapping[str, Any]) -> SchedulerReport:
        """Take counters from a record, and say which were there: see `SchedulerReport`, and its `require` for those who want all.

        Values are `Scalar` or plain numbers. A schedule takes all its counters or none; those inside others are schedules of their own.
        """
        restored: list[str] = []
        missing: list[str] = []
        refused: list[tuple[str, str]] = []
        known = set()
        for prefix, owner in self.owners(""):
            taken: dict[str, int | float] = {}
            faults = 0
            for one in owner.counters:
                key = f"{prefix}{one.key}"
                known.add(key)
                if key not in scalars:
                    missing.append(key)
                    faults += 1
                    continue
                try:
                    taken[one.key] = owner.check_counter(one, _read(scalars[key], one.kind))
                except ScalarError as error:
                    refused.append((key, error.message))
                    faults += 1
            if not faults:
                for key, value in taken.items():
                    setattr(owner, f"_{key}", value)
                restored += [f"{prefix}{key}" for key in taken]
        return SchedulerReport(
            scheduler=type(self).__name__,
            restored=tuple(restored),
            missing=tuple(missing),
            refused=tuple(refused),
            unknown=tuple(key for key in scalars if key not in known),
        )

    def save_counter(self, counter: Counter) -> Scalar:
        """Give a counter of this schedule as it is written."""
        return Scalar(counter.kind, getattr(self, f"_{counter.key}"))

    def check_counter(self, counter: Counter, value: float) -> int | float:  # noqa: ARG002 - for those that have something to check
        """Give a value read from a record as it is kept; raises `ScalarError` for one that this schedule never reaches."""
        return value

    def owners(self, prefix: str) -> Iterator[tuple[str, Scheduler]]:
        """Give this schedule and all inside it, with what their keys in a record begin with."""
        yield prefix, self
        for place, child in enumerate(self.children):
            yield from child.owners(f"{prefix}{place}.")


def _read(value: Any, kind: ScalarKind) -> int | float:
    return Scalar.of(value).to(_HOSTS[kind])


def check_rate(name: str, value: Any, *, low: float = 0.0, high: float = math.inf, zero: bool = False) -> float:
    """Refuse, naming it, a rate or factor outside (low, high], or [low, high] where zero is allowed."""
    number = _number(name, value)
    if not (math.isfinite(number) and (low < number <= high or (zero and number == low))):
        inside = f"above {low:g}" if not zero else f"at least {low:g}"
        most = "" if math.isinf(high) else f" and at most {high:g}"
        raise SchedulerError(f"{name} is {value!r}, and has to be {inside}{most}")
    return number


def check_count(name: str, value: Any) -> int:
    """Refuse, naming it, a number of steps that is no positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SchedulerError(f"{name} is {value!r}, and has to be an integer of at least 1")
    if value >= U64_MAX:
        raise SchedulerError(f"{name} is {value}, more than a 64-bit counter counts")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SchedulerError(f"{name} is {value!r}, and has to be a number")
    try:
        return float(value)
    except OverflowError:
        raise SchedulerError(f"{name} is {value}, more than a float holds") from None
