"""What a comparison of steps with their digests found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from firekeep.formats import Finding
from firekeep.verification import Judged
from firekeep.wording import count, headline, lines, quote, some

_SHOWN = 50


class StepVerified(tuple[str, ...]):  # noqa: SLOT001 - what varies in length has no room for them
    """The names of a step's files whose digest is not the one kept: empty, and false, when nothing is wrong.

    `files` are those of the step, `compared` those of them that a digest was kept of. Where none was, only sizes are known, and `str`
    says so.
    """

    step: int
    folder: Path
    files: tuple[str, ...]
    compared: tuple[str, ...]

    def __new__(
        cls, changed: Iterable[str] = (), *, step: int, folder: Path, files: Iterable[str], compared: Iterable[str]
    ) -> Self:
        made = super().__new__(cls, tuple(changed))
        made.step, made.folder, made.files, made.compared = step, folder, tuple(files), tuple(compared)
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[tuple[str, ...]], dict[str, Any]]:
        return (tuple(self),), {name: getattr(self, name) for name in ("step", "folder", "files", "compared")}

    @property
    def checked(self) -> str:
        """What was compared, in words."""
        if not self.compared:
            return "sizes alone: no digests were kept"
        without = len(self.files) - len(self.compared)
        return f"sizes, {count(len(self.compared), 'digest')}" + (f" ({without:,} without)" if without else "")

    def to_dict(self) -> dict[str, Any]:
        """Give it as data that `json` writes."""
        return {
            "step": self.step,
            "folder": str(self.folder),
            "files": list(self.files),
            "compared": list(self.compared),
            "changed": list(self),
        }

    def __str__(self) -> str:
        if not self:
            told = f"{count(len(self.files), 'file')} as they were written; checked: {self.checked}"
            return headline(f"step {self.step} of {self.folder.parent}:", told) if self.compared else self._unknown()
        told = f"NOT as it was written: {some(self)}; checked: {self.checked}"
        return headline(f"step {self.step} of {self.folder.parent}:", told)

    def _unknown(self) -> str:
        return headline(f"step {self.step} of {self.folder.parent}:", f"checked: {self.checked}")

    __repr__ = __str__


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepsVerified(Judged):
    """What a check of a run, or of one step, found. `ok` is False when any finding is an error; `bool(report)` is `ok`."""

    path: str
    steps: tuple[StepVerified, ...] = ()
    values: bool = False
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Give the report as data that `json` writes."""
        return {
            "path": self.path,
            "ok": self.ok,
            "format": "checkpoint",
            "steps": [step.to_dict() for step in self.steps],
            "digests_checked": sum(len(step.compared) for step in self.steps),
            "values_checked": self.values,
            "findings": self.told_findings(),
        }

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "NOT OK"
        return "\n".join((f"{self.path}: {verdict} ({count(len(self.steps), 'complete step')})", *lines(self._told())))

    def _told(self) -> Iterator[str]:
        for step in self.steps:
            checked = ["structure", *(["values"] if self.values else []), step.checked]
            yield f"step {step.step}: {count(len(step.files), 'file')}; checked: {', '.join(checked)}"
        for found in self.findings[:_SHOWN]:
            place = f"{quote(found.place)}: " if found.place else ""
            yield f"{found.severity}: {place}{found.message}"
        if len(self.findings) > _SHOWN:
            yield f"and {len(self.findings) - _SHOWN:,} more findings"
