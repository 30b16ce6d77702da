"""A run and its checkpoints: the state as it is when it is saved, and the numbers that steps are saved under."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from firekeep.checkpoint import CheckpointManager, Layout, SignalWatch, StepRestored
from firekeep.errors import RuleError
from firekeep.opened import OpenedFile
from firekeep.sections import Section
from firekeep.training import TrainingState


class _Fresh:
    """A state whose counters are brought up to date when it is taken apart, and not after each step of the loop."""

    def __init__(self, state: TrainingState, refresh: Callable[[], None]) -> None:
        self._state, self._refresh = state, refresh

    def sections(self) -> Sequence[Section]:
        self._refresh()
        return self._state.sections()

    def restore(self, opened: Mapping[str, OpenedFile]) -> Any:
        return self._state.restore(opened)

    @property
    def place(self) -> tuple[int, int]:
        return self._state.step, self._state.epoch

    def facts(self) -> Mapping[str, Any]:
        return self._state.facts()


def layout_of(manager: CheckpointManager | None) -> Layout | None:
    """Tell how the files of a manager lie: "burn" means that tensors do, too."""
    return "burn" if manager is not None and manager.catalog().layout == "burn" else None


class Keeper:
    """Saves a run by its manager, or does nothing where there is none.

    Steps are numbered by the steps of the optimizer; in Burn's layout by epochs, as Burn does, where an epoch that was interrupted is
    saved under its own number and replaced once it is complete.
    """

    def __init__(self, manager: CheckpointManager | None, state: TrainingState, *, refresh: Callable[[], None]) -> None:
        self.manager = manager
        self.by_epoch = layout_of(manager) is not None
        self.saved: int | None = None
        self._state = _Fresh(state, refresh)
        self._at: tuple[int, int] | None = None
        self._watch: SignalWatch | None = None

    @property
    def directory(self) -> Path | None:
        """Where the checkpoints are."""
        return None if self.manager is None else self.manager.directory

    @property
    def stopping(self) -> bool:
        """Whether a signal has come."""
        return self.manager is not None and self.manager.stopping

    @property
    def signal(self) -> str:
        """The signal that has come, by its name."""
        return "a signal" if self._watch is None or self._watch.received is None else self._watch.received.name

    def resume(self, *, wanted: bool) -> StepRestored | None:
        """Restore the latest complete step, where there is one."""
        if self.manager is None or (latest := self.manager.latest()) is None:
            return None
        if not wanted:
            raise RuleError(
                f"{self.manager.directory} holds step {latest.step} of an earlier run, which a new one would be mixed with",
                remedy="Give the new run another directory, or leave resume=False out to go on with the old one.",
            )
        restored = self.manager.restore(self._state, step=latest.step)
        self.saved, self._at = restored.step, self._state.place
        return restored

    def tick(self, *, step: int, epoch: int, last: bool) -> bool:
        """Save after a step if one is due, or if a signal has come; says whether the run is to stop.

        After the `last` step of an epoch nothing is due: the epoch is about to be saved with its metrics.
        """
        if self.manager is None or ((last or self.by_epoch) and not self.manager.stopping):
            return False
        if self.by_epoch:
            self._save(self.manager, step=step, epoch=epoch)
            return True
        stopping = self.manager.tick(self._state, step=step)
        if stopping:
            self._note(step, step=step, epoch=epoch)
        return stopping

    def save_epoch(self, *, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Save a complete epoch."""
        if self.manager is not None:
            number = epoch if self.by_epoch else step
            self.manager.save(self._state, step=number, metrics=metrics, overwrite=True)
            self._note(number, step=step, epoch=epoch)

    def save_before_raising(self, error: BaseException, *, step: int, epoch: int) -> None:
        """Save the run as it is because of an error that is none of the run's, and tell the error."""
        if self.manager is None:
            return
        try:
            if self._at != (step, epoch):
                self._save(self.manager, step=step, epoch=epoch)
            self.manager.wait()
        except Exception as failure:  # noqa: BLE001 - the error of the data is the one to be seen
            error.add_note(f"The run could not be saved before this error was raised: {failure}")
            return
        error.add_note(f"The run was saved in {self.manager.directory}, as step {self.saved}, before this was raised.")

    def _save(self, manager: CheckpointManager, *, step: int, epoch: int) -> None:
        """Save in the middle of an epoch."""
        number = epoch + 1 if self.by_epoch else step
        manager.save(self._state, step=number, overwrite=True)
        manager.wait()
        self._note(number, step=step, epoch=epoch)

    def _note(self, number: int, *, step: int, epoch: int) -> None:
        self.saved, self._at = number, (step, epoch)

    @contextlib.contextmanager
    def watching(self, *, signals: bool) -> Iterator[None]:
        """Have signals save, and wait for the save in the background at the end."""
        if self.manager is None:
            yield
            return
        with contextlib.ExitStack() as stack:
            if signals:
                self._watch = stack.enter_context(self.manager.handle_signals())
                stack.callback(setattr, self._watch, "received", None)  # a fit after this one is not to stop
            yield
            self.manager.wait()
