"""What the pickles in a file would import and call, without doing either.

Every pickle is looked at: the one that is read, others in the same archive (an attacker hides one among the storages), several
in one stream, object arrays of NumPy. A damaged pickle is read as far as it goes, since an unpickler would run what comes before
the damage; what comes after is still searched for names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from firekeep.formats.pytorch._verdicts import DANGEROUS, SAFE, Verdict
from firekeep.showing import Shown

_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanGlobal:
    """One name that a pickle imports. `member` is where in an archive, `offset` the byte in the pickle where it is first named."""

    module: str
    name: str
    verdict: Verdict
    called: bool
    member: str
    offset: int
    count: int

    @property
    def path(self) -> str:
        """The dotted name."""
        return f"{self.module}.{self.name}"

    def __str__(self) -> str:
        done = "called" if self.called else "imported"
        where = f" of {self.member!r}" if self.member else ""
        path = self.path if self.path.isprintable() else ascii(self.path)
        return f"{self.verdict}: {path}, {done} {self.count}x, first at byte {self.offset}{where}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ScanReport(Shown):
    """What the pickles of a file would import. `damaged` says what is wrong with them, where something is.

    `safe` means that every name is known to be harmless and every pickle whole. Names that are merely unknown make a file not
    safe: an unpickler would import them. `pickles` counts what was found to scan: 0 in a file without any.
    """

    globals: tuple[ScanGlobal, ...]
    damaged: str | None
    pickles: int
    path: str | None = None

    @property
    def safe(self) -> bool:
        """Whether an unpickler could do no harm with the file."""
        return self.damaged is None and all(found.verdict == SAFE for found in self.globals)

    @property
    def scanned(self) -> bool:
        """Whether there was anything to scan: False for a file, or a folder, without any pickle, which is `safe` for that reason."""
        return self.pickles > 0 or bool(self.globals) or self.damaged is not None

    def __bool__(self) -> bool:
        return self.safe

    @property
    def dangerous(self) -> tuple[ScanGlobal, ...]:
        """The names that can run code."""
        return tuple(found for found in self.globals if found.verdict == DANGEROUS)

    def to_dict(self) -> dict[str, Any]:
        """Give the report as plain JSON data."""
        return {
            "path": self.path,
            "safe": self.safe,
            "scanned": self.scanned,
            "dangerous": len(self.dangerous),
            "pickles": self.pickles,
            "damaged": self.damaged,
            "globals": [
                {
                    "module": found.module,
                    "name": found.name,
                    "verdict": found.verdict,
                    "called": found.called,
                    "member": found.member,
                    "offset": found.offset,
                    "count": found.count,
                }
                for found in self.globals
            ],
        }

    def __str__(self) -> str:
        lines = [self._headline()]
        lines += [f"  {found}" for found in self.globals[:_SHOWN]]
        if len(self.globals) > _SHOWN:
            lines.append(f"  and {len(self.globals) - _SHOWN} more names")
        if self.damaged is not None:
            lines.append(f"  damaged: {self.damaged}")
        return "\n".join(lines)

    def _headline(self) -> str:
        where = f"{self.path}: " if self.path else ""
        if self.dangerous:
            return f"{where}DANGEROUS: {_count(len(self.dangerous), 'name')} that can run code, in {_count(self.pickles, 'pickle')}"
        if self.pickles == 0:
            return (
                f"{where}nothing to scan: there is no pickle in it"
                if self.damaged is None
                else f"{where}no pickle was found in it"
            )
        if self.safe:
            return f"{where}safe: nothing but known names in {_count(self.pickles, 'pickle')}"
        unknown = sum(found.verdict != SAFE for found in self.globals)
        return f"{where}not known to be safe: {_count(unknown, 'unknown name')} in {_count(self.pickles, 'pickle')}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def ordered(found: Iterable[ScanGlobal]) -> tuple[ScanGlobal, ...]:
    """Put the worst first, then by place."""
    rank = {DANGEROUS: 0, SAFE: 2}
    return tuple(sorted(found, key=lambda one: (rank.get(one.verdict, 1), one.member, one.offset)))
