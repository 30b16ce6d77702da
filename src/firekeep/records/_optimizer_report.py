"""What became of each parameter's state when an optimizer was restored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firekeep.errors import FirekeepError
from firekeep.folding import fold, some_alike
from firekeep.showing import Shown
from firekeep.wording import WIDTH, count, lines, listed, quote

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OptimizerReport(Shown):
    """What a restored optimizer goes on with, by the names of parameters in the model.

    `restored` have their state back. `stateless` had none when they were saved, and have none now. `fresh` are not in the record and start
    anew; `dropped` are in it and start anew all the same, for the reason given. `orphaned` are the record's names of parameters that the
    optimizer does not have. `groups_restored` are places of groups that have their options back, `groups_kept` those that keep the
    options they were made with, and why.

    It is true when it is `exact`: nothing starts anew, nothing is left over or `changed`, all options are back.
    """

    source: str | None = None
    target: str = ""
    restored: tuple[str, ...] = ()
    stateless: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=dict)
    orphaned: tuple[str, ...] = ()
    groups_restored: tuple[int, ...] = ()
    groups_kept: Mapping[int, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The record's names of parameters that have another name now, and that name."""
    changed: tuple[str, ...] = ()
    """What goes on, but not bit for bit as it was saved, or not beyond doubt as what it was saved as."""
    notes: tuple[str, ...] = ()
    options_back: tuple[str, ...] = ()
    """Options that were set otherwise for this run, and are again what they were when they were saved: "lr: 0.0001 -> 0.001"."""
    refusals: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """Whether the optimizer was restored as asked for, or would be."""
        return not self.refusals

    @property
    def exact(self) -> bool:
        """Whether the optimizer goes on as the saved one would have."""
        return self.ok and not (self.fresh or self.dropped or self.orphaned or self.groups_kept or self.changed)

    def __bool__(self) -> bool:
        return self.exact

    def to_dict(self) -> dict[str, Any]:
        """Give the report as data that `json` writes."""
        return {
            "source": self.source,
            "target": self.target,
            "ok": self.ok,
            "exact": self.exact,
            "dry_run": self.dry_run,
            "refusals": list(self.refusals),
            "restored": list(self.restored),
            "stateless": list(self.stateless),
            "fresh": list(self.fresh),
            "dropped": dict(self.dropped),
            "orphaned": list(self.orphaned),
            "groups_restored": list(self.groups_restored),
            "groups_kept": {str(place): why for place, why in self.groups_kept.items()},
            "renamed": dict(self.renamed),
            "changed": list(self.changed),
            "notes": list(self.notes),
            "options_back": list(self.options_back),
        }

    def __str__(self) -> str:
        place, said = f"{self.source or 'the record'}:", self.verdict()
        head = [f"{place} {said}"] if len(f"{place} {said}") <= WIDTH else [place, *lines([said])]
        return "\n".join((*head, *self._body()))

    def verdict(self) -> str:
        """Say in one sentence what came of it."""
        if self.refusals:
            done = "would not be restored" if self.dry_run else "not restored, nothing was changed"
            return f"{self.target} {done}: {', '.join(self.refusals)}"
        return f"{count(len(self.restored), 'state')} {'would be restored' if self.dry_run else 'restored'} in {self.target}"

    def _body(self) -> Iterator[str]:
        if self.stateless:
            told = f"{count(len(self.stateless), 'parameter')} ({some_alike(self.stateless, 3)})"
            yield from lines([f"without a state then as now: {told}"])
        yield from _each("dropped, so they start anew", [f"{quote(name)}: {why}" for name, why in self.dropped.items()])
        yield from listed("not in the record, so they start anew", _labels(self.fresh), shown=_SHOWN)
        yield from listed("in the record only", _labels(self.orphaned), shown=_SHOWN)
        kept = [f"{place}: {why}" for place, why in self.groups_kept.items()]
        yield from _each("groups that keep their options", kept)
        yield from _each("under another name now", [f"{quote(old)}: {quote(new)}" for old, new in self.renamed.items()])
        yield from _each("not as it was", self.changed)
        yield from lines(f"note: {note}" for note in self.notes)


class OptimizerError(FirekeepError, RuntimeError):
    """An optimizer was not restored, and nothing was changed; `report` says of each parameter why."""

    def __init__(self, report: OptimizerReport) -> None:
        super().__init__(report.verdict(), path=report.source)
        self.report = report

    def __str__(self) -> str:
        return str(self.report)

    def __reduce__(self) -> tuple[type[OptimizerError], tuple[OptimizerReport]]:
        return type(self), (self.report,)


def _labels(names: Sequence[str]) -> list[tuple[str, int]]:
    """Give names, alike ones as one, and for how many each stands."""
    return [(quote(one.label), len(one.names)) for one in fold(names)]


def _each(title: str, told: Sequence[str]) -> Iterator[str]:
    yield from listed(title, [(text, 1) for text in told], shown=_SHOWN)
