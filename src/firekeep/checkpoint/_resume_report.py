"""What of a step would go into something like what is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from firekeep.showing import Shown
from firekeep.wording import lines


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCheck:
    """What would become of one section. `told` says it in a few words, `report` is the whole report where there is one.

    `fresh` maps what would start as it is to the reason, `dropped` what of the step would be of no use.
    """

    name: str
    kind: str
    exact: bool
    told: str
    fresh: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    report: Any = None
    untold: bool = False
    """The files alone do not tell what would become of it: they lie as two frameworks have them."""

    def to_dict(self) -> dict[str, Any]:
        """Give it as data that `json` writes."""
        return {
            "name": self.name,
            "kind": self.kind,
            "exact": self.exact,
            "untold": self.untold,
            "told": self.told,
            "fresh": dict(self.fresh),
            "dropped": dict(self.dropped),
            "notes": list(self.notes),
            "report": None if self.report is None else self.report.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ResumeReport(Shown):
    """Would a step be restored exactly in a run like another one, or in a model like that of a file?

    `fresh` are sections that the other has and the step lacks, `dropped` those that only the step has, each with the reason.
    `unchecked` are sections of the step that what it was compared with says nothing of. `changed` tells what else decides the bits of
    a result and is not the same on both sides.

    It is true when it is `exact`: every part that was checked would go on as it was saved.
    """

    source: str
    like: str
    step: int | None = None
    parts: tuple[PartCheck, ...] = ()
    fresh: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether every part that was checked would go on as it was saved."""
        return all(part.exact for part in self.parts) and not (self.fresh or self.dropped or self.changed)

    def __bool__(self) -> bool:
        return self.exact

    def to_dict(self) -> dict[str, Any]:
        """Give the report as data that `json` writes."""
        return {
            "source": self.source,
            "like": self.like,
            "step": self.step,
            "exact": self.exact,
            "parts": [part.to_dict() for part in self.parts],
            "fresh": dict(self.fresh),
            "dropped": dict(self.dropped),
            "unchecked": list(self.unchecked),
            "changed": list(self.changed),
        }

    def __str__(self) -> str:
        return "\n".join((*self.headline(), *self._body()))

    def headline(self) -> Iterator[str]:
        """Give the answer."""
        if any(part.untold for part in self.parts):
            untold = "what of it would go there, across frameworks, the files alone do not tell"
            yield from lines([f"{self.source} would NOT be restored exactly into {self.like}: {untold}"], indent="")
            return
        how = "would be" if self.exact else "would NOT be"
        yield from lines([f"{self.source} {how} restored exactly into {self.like}"], indent="")

    def remarks(self) -> Iterator[str]:
        """Say of each part what would become of it, each remark in one line of any length."""
        yield from (f"{part.name}: {part.told}" for part in self.parts)
        for prefix, fresh, dropped in (
            *((f"{part.name}: ", part.fresh, part.dropped) for part in self.parts),
            ("", self.fresh, self.dropped),
        ):
            yield from (f"starts as it is: {prefix}{name}: {why}" for name, why in fresh.items())
            yield from (f"of no use: {prefix}{name}: {why}" for name, why in dropped.items())
        yield from (f"changed: {one}" for one in self.changed)
        yield from (f"note: {part.name}: {note}" for part in self.parts for note in part.notes)
        if self.unchecked:
            yield f"not checked, since {self.like} says nothing of it: {', '.join(self.unchecked)}"

    def _body(self) -> Iterator[str]:
        yield from lines(self.remarks())
        for part in self.parts:
            if part.report is not None and not part.exact:
                yield from lines([f"{part.name} in full:"])
                yield from (f"  {line}" for line in str(part.report).split("\n"))
