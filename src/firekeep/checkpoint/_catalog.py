"""What is in a directory of checkpoints, found by looking at it: no links, no state of its own, no modification times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from firekeep.checkpoint._step import IncompleteStep, StepInfo
from firekeep.showing import Shown
from firekeep.wording import WIDTH, count, lines, quote, size

Layout = Literal["firekeep", "burn"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Catalog(Shown):
    """The steps of a directory, oldest first, and what else lies there.

    `scratch` are directories that saves are being written in, or that killed processes have left; the next save removes the latter.
    """

    directory: Path
    layout: Layout
    steps: tuple[StepInfo, ...] = ()
    incomplete: tuple[IncompleteStep, ...] = ()
    scratch: tuple[str, ...] = ()

    def latest(self) -> StepInfo | None:
        """Give the complete step of the highest number."""
        return self.steps[-1] if self.steps else None

    def find(self, step: int) -> StepInfo | None:
        """Give a complete step by its number."""
        return next((info for info in self.steps if info.step == step), None)

    def to_dict(self) -> dict[str, Any]:
        """Give it as data that `json` writes."""
        return {
            "directory": str(self.directory),
            "layout": self.layout,
            "steps": [info.to_dict() for info in self.steps],
            "incomplete": [step.to_dict() for step in self.incomplete],
            "scratch": list(self.scratch),
        }

    def __str__(self) -> str:
        parts = [f"{self.directory}: {count(len(self.steps), 'complete step')}"]
        for info in self.steps:
            metrics = "".join(f"  {name} {value:.6g}" for name, value in info.metrics.items())
            parts.append(f"  {info.step:>8}  {size(info.nbytes):>8}{metrics}"[:WIDTH])
        parts += lines(f"incomplete: {step.name}: {step.reason}" for step in self.incomplete)
        if self.scratch:
            parts += lines(
                [f"{count(len(self.scratch), 'unfinished save')}, being written or left by a killed process"]
            )
        return "\n".join(parts)


def describe(catalog: Catalog) -> str:
    """Say in a sentence which steps there are, for messages."""
    if not catalog.steps:
        said = f"{catalog.directory} holds no complete step"
    else:
        numbers = [str(info.step) for info in catalog.steps]
        shown = numbers if len(numbers) <= 8 else [*numbers[:3], "...", *numbers[-4:]]
        said = f"{catalog.directory} holds {'step' if len(numbers) == 1 else 'steps'} {', '.join(shown)}"
    for step in catalog.incomplete[:3]:
        said += f"; {quote(step.name)} is incomplete: {step.reason}"
    return said
