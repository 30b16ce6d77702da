"""What a save, a restore and a tidying did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firekeep.checkpoint._step import IncompleteStep, StepInfo
from firekeep.showing import Shown
from firekeep.wording import count, headline, lines, size


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepSaved(Shown):
    """A save. With `background` the step is still being written: `CheckpointManager.wait` gives the report of the end.

    `deleted` are the steps that the retention policy let go of afterwards.
    """

    step: int
    directory: Path
    nbytes: int
    sections: tuple[str, ...]
    deleted: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    background: bool = False
    hidden_by: int | None = None
    """A step of a higher number that was there before: most likely of another run, and it is what `restore()` would take."""

    def to_dict(self) -> dict[str, Any]:
        """Give it as data that `json` writes."""
        return {
            "step": self.step,
            "directory": str(self.directory),
            "nbytes": self.nbytes,
            "sections": list(self.sections),
            "deleted": list(self.deleted),
            "notes": list(self.notes),
            "background": self.background,
            "hidden_by": self.hidden_by,
        }

    def __str__(self) -> str:
        said = "is being saved" if self.background else "is saved"
        parts = [
            headline(
                f"step {self.step} {said} in {self.directory}:", f"{size(self.nbytes)} in {some_of(self.sections)}"
            )
        ]
        if self.deleted:
            parts += lines([f"deleted afterwards: {numbers(self.deleted)}"])
        return "\n".join([*parts, *lines(self.notes)])


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepRestored(Shown):
    """A restore: which step it was, and what the state itself reports.

    Of the latest step, `passed_over` are those above it that could not be used.
    """

    info: StepInfo
    report: Any
    passed_over: tuple[IncompleteStep, ...] = ()

    @property
    def step(self) -> int:
        """The step's number."""
        return self.info.step

    def to_dict(self) -> dict[str, Any]:
        """Give it as data that `json` writes."""
        told = self.report.to_dict() if hasattr(self.report, "to_dict") else self.report
        passed_over = [step.to_dict() for step in self.passed_over]
        return {"info": self.info.to_dict(), "report": told, "passed_over": passed_over}

    def __str__(self) -> str:
        said = f"step {self.step} restored from {self.info.folder}"
        for step in self.passed_over:
            said += f"\n  step {step.step} is newer and cannot be used: {step.reason}"
        return said if self.report is None else f"{said}\n{self.report}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PruneReport(Shown):
    """Which steps stay and which went, or would go."""

    directory: Path
    kept: tuple[StepInfo, ...]
    deleted: tuple[StepInfo, ...]
    dry_run: bool = False

    @property
    def nbytes(self) -> int:
        """The space of the deleted steps."""
        return sum(info.nbytes for info in self.deleted)

    def to_dict(self) -> dict[str, Any]:
        """Give it as data that `json` writes."""
        return {
            "directory": str(self.directory),
            "kept": [info.to_dict() for info in self.kept],
            "deleted": [info.to_dict() for info in self.deleted],
            "nbytes": self.nbytes,
            "dry_run": self.dry_run,
        }

    def __str__(self) -> str:
        would = "would be deleted" if self.dry_run else "deleted"
        parts = [f"{self.directory}: {count(len(self.deleted), 'step')} {would}, {size(self.nbytes)}"]
        if self.deleted:
            parts += lines([f"{would}: {numbers([info.step for info in self.deleted])}"])
        if self.kept:
            parts += lines([f"kept: {numbers([info.step for info in self.kept])}"])
        return "\n".join(parts)


def numbers(steps: Sequence[int]) -> str:
    """List step numbers, the middle left out where there are many."""
    shown = [str(step) for step in steps]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:4], "...", *shown[-4:]])


def some_of(names: Sequence[str]) -> str:
    """List section names."""
    return ", ".join(names if len(names) <= 6 else [*names[:5], f"{len(names) - 5} more"])
