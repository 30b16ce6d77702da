"""What became of a scheduler's record when it was loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from firekeep.schedulers._errors import SchedulerError
from firekeep.showing import Shown
from firekeep.wording import count, lines, some


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SchedulerReport(Shown):
    """Which counters of a schedule were restored, and what was not.

    `restored`, `missing` and `unknown` are keys of the record; `refused` maps keys to what is wrong with their values. A schedule with a
    counter that is missing or refused stays as it was. `changed` says which settings of the schedule the record has replaced. `source` is
    "burn" for Burn's scalars, or "firekeep" for the full state that is kept beside them.
    """

    scheduler: str
    source: str = "burn"
    restored: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    unknown: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything the schedule keeps was restored."""
        return not self.missing and not self.refused

    def require(self) -> Self:
        """Give the report back, or raise `SchedulerError` with its words when something was not restored."""
        if not self.ok:
            raise SchedulerError(
                f"the schedule cannot be restored. {self}",
                remedy="Load the record of the same schedule, or start it fresh without loading.",
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Give the report as plain data."""
        return {
            "scheduler": self.scheduler,
            "source": self.source,
            "ok": self.ok,
            "restored": list(self.restored),
            "missing": list(self.missing),
            "refused": dict(self.refused),
            "unknown": list(self.unknown),
            "changed": list(self.changed),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        told = f"{self.scheduler}: {count(len(self.restored), 'value')} restored"
        more = [
            f"missing, so that their schedules stay as they were: {some(self.missing)}" if self.missing else "",
            *(f"refused: {key!r}: {why}" for key, why in self.refused),
            f"in the record, and of no use to this schedule: {some(self.unknown)}" if self.unknown else "",
            *(f"changed: {text}" for text in self.changed),
            *self.notes,
        ]
        return "\n".join((told, *lines(text for text in more if text)))
