"""What a fit did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firekeep.checkpoint import StepRestored
from firekeep.showing import Shown
from firekeep.training import RestoreReport
from firekeep.wording import count, lines

EpochRecord = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FitReport(Shown):
    """A fit: how far it went, why it ended, and what it went on from.

    `stopped` is None for a run that is complete, "early stopping", or the name of the signal that interrupted it. `resumed` is the step
    that was restored, and `exact` whether the run went on as if it had never ended; None where nothing was restored. `epochs` has the
    metrics of each epoch, as in the history; without a history those of this fit alone. `skipped` counts the steps that the scaler of
    half precision left out.
    """

    step: int
    epoch: int
    num_epochs: int
    epochs: tuple[EpochRecord, ...] = ()
    stopped: str | None = None
    resumed: StepRestored | None = None
    exact: bool | None = None
    saved: int | None = None
    directory: Path | None = None
    history: Path | None = None
    skipped: int = 0
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to train: all epochs were, or early stopping has ended the run."""
        return self.stopped in (None, "early stopping")

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the last epoch that is known."""
        last = self.epochs[-1] if self.epochs else {}
        return {name: value for name, value in last.items() if name.startswith(("train_", "valid_"))}

    def to_dict(self) -> dict[str, Any]:
        """Give the report as data that `json` writes."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "num_epochs": self.num_epochs,
            "complete": self.complete,
            "stopped": self.stopped,
            "resumed": None if self.resumed is None else self.resumed.to_dict(),
            "exact": self.exact,
            "saved": self.saved,
            "directory": None if self.directory is None else str(self.directory),
            "history": None if self.history is None else str(self.history),
            "skipped": self.skipped,
            "epochs": [{name: _plain(value) for name, value in record.items()} for record in self.epochs],
            "notes": list(self.notes),
        }

    def _differences(self) -> list[str]:
        """Say why the run did not go on exactly, and which options it has from the checkpoint."""
        report = self.resumed.report if self.resumed is not None else None
        told: list[str] = []
        if isinstance(report, RestoreReport):
            told += [f"not exactly: {why}" for why in report.reasons()]
            told += report.set_back()
        return told

    def __str__(self) -> str:
        why = {None: "complete", "early stopping": "ended by early stopping"}.get(
            self.stopped, f"interrupted by {self.stopped}"
        )
        parts = [f"{why}: {self.epoch} of {count(self.num_epochs, 'epoch')}, {count(self.step, 'step')}"]
        if self.resumed is not None:
            how = "exactly" if self.exact else "not exactly"
            parts += lines([f"went on {how} from step {self.resumed.step} in {self.resumed.info.folder}"])
            parts += lines(self._differences())
        parts += lines(f"{name} {value:.6g}" for name, value in self.metrics.items())
        if self.saved is not None:
            parts += lines([f"saved last: step {self.saved} in {self.directory}"])
        if self.skipped:
            parts += lines([f"{count(self.skipped, 'step')} left out by the scaler: gradients were not finite"])
        return "\n".join([*parts, *lines(f"note: {note}" for note in self.notes)])


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value
