"""One fit: from the step that was saved last to the end of the run, or to whatever ends it before."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from firekeep.checkpoint import CheckpointManager, StepRestored
from firekeep.errors import RuleError
from firekeep.learner._data import Position, Source, batches_in, source_of
from firekeep.learner._early import Patience
from firekeep.learner._history import History
from firekeep.learner._keeping import Keeper, layout_of
from firekeep.learner._means import Means
from firekeep.learner._options import Options
from firekeep.learner._progress import Display, summary
from firekeep.learner._random import random_state_kept, seed_all
from firekeep.learner._report import FitReport
from firekeep.learner._stepper import Stepped, Stepper
from firekeep.training import TrainingState

HISTORY = "history.jsonl"


class _DataError(Exception):
    """An error of the data, which is none of the run's: the run is saved before it is raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Run:
    """What a fit knows: how far the run is, and everything that is needed to go on."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizers: Mapping[str, torch.optim.Optimizer],
        schedulers: Mapping[str, Any],
        options: Options,
        manager: CheckpointManager | None,
        train: Iterable[Any],
        valid: Iterable[Any] | None,
    ) -> None:
        self.model, self.optimizers, self.schedulers, self.options = model, optimizers, schedulers, options
        self.stepper = Stepper(model, optimizers, options)
        self.source: Source = source_of(train, seed=options.seed or 0)
        self.valid = valid
        self.position = Position(self.source.batches)
        self.step = self.epoch = self.batches = self.skipped = 0
        self.trained = False  # whether of the epoch only the validation is left
        self.means = Means()
        self.patience = None if options.early_stopping is None else Patience(options.early_stopping)
        self.display = Display(wanted=options.progress)
        self.state = TrainingState(
            model=model,
            optimizer=_alone(optimizers),
            scheduler=_alone(schedulers),
            scaler=self.stepper.scaler,
            data=self.position,
            layout=layout_of(manager),
        )
        self.keeper = Keeper(manager, self.state, refresh=self._refresh)
        self.history = History(_history_path(options, self.keeper.directory))
        self.epochs: list[Mapping[str, Any]] = []
        self.resumed: StepRestored | None = None
        self.notes: list[str] = []
        self.measured: Mapping[str, float] = {}

    def fit(self) -> FitReport:
        """Train, and report."""
        in_main = threading.current_thread() is threading.main_thread()
        with contextlib.ExitStack() as stack:
            stack.callback(self.model.train, self.model.training)
            stack.callback(self.history.close)
            stack.callback(self.display.close)
            with self.keeper.watching(signals=in_main):
                self._begin()
                try:
                    stopped = self._train()
                except _DataError as failure:
                    stopped = self._saved_because_of(failure.error)
                report = self._report(stopped)
        self.display.close()
        self.display.say(str(report).splitlines()[0])
        return report

    # The beginning

    def _begin(self) -> None:
        """Go on from the latest step, or begin anew."""
        self.resumed = self.keeper.resume(wanted=self.options.resume)
        if self.resumed is None:
            if self.options.seed is not None:
                seed_all(self.options.seed)
        else:
            self._take(self.resumed)
        self.epochs += self.history.open(step=self.step, epoch=self.epoch, anew=self.keeper.directory is None)

    def _saved_because_of(self, error: Exception) -> str:
        """Save, and raise an error of the data; unless a signal has come, which may have ended workers that make it."""
        self.keeper.save_before_raising(error, step=self.step, epoch=self.epoch)
        if not self.keeper.stopping:
            raise error from error.__cause__
        self.notes.append(f"when the signal came, the data failed: {type(error).__name__}: {error}")
        return self.keeper.signal

    def _take(self, restored: StepRestored) -> None:
        held = self.state.values.get("learner", {})
        if held:
            self.step, self.epoch = self.state.step, self.state.epoch
            self.batches, self.trained = int(held["batches"]), bool(held["trained"])
            self.skipped = int(held["skipped"])
            self.means.load(held["means"])
            if self.patience is not None:
                self.patience.load(held["patience"] or {})
        elif self.keeper.by_epoch:
            self._take_from_burn(restored.step)
        else:
            self.notes.append("the checkpoint was not written by a Learner: the run goes on with its step and epoch")
            self.step, self.epoch = self.state.step, self.state.epoch
        if self.batches and not self.trained and self.source.doubt is not None:
            self.notes.append(f"going on in the middle of an epoch may not be exact: {self.source.doubt}")
        place = f"epoch {min(self.epoch + 1, self.options.num_epochs)} of {self.options.num_epochs}"
        done = f", {self.batches:,} of its batches done" if self.batches else ""
        self.display.say(f"going on from step {restored.step} in {restored.info.folder}: {place}{done}")

    def _take_from_burn(self, epoch: int) -> None:
        """Count the steps that a run of Burn must have made: its checkpoints say the epoch alone."""
        batches = batches_in(self.source.batches)
        self.epoch = epoch
        self.step = epoch * -(-(batches or 0) // self.options.accumulate)
        self.notes.append("Burn's checkpoints hold no random state, no data order and no counters: those begin anew")
        if hasattr(self.source.batches, "set_epoch"):
            self.source.batches.set_epoch(epoch)

    # The loop

    def _train(self) -> str | None:
        """Train the epochs that are left, and say what ended the run before the last of them."""
        while self.epoch < self.options.num_epochs:
            if self.patience is not None and self.patience.exhausted:
                return "early stopping"
            if self.keeper.stopping:
                return self.keeper.signal  # it came while the epoch before was being saved
            measured = self._epoch()
            if measured is None:
                return self.keeper.signal
            self._finish_epoch(measured)
        return None

    def _epoch(self) -> dict[str, float] | None:
        """Train and validate an epoch, and give what was measured; None where a signal has ended it, and the run is saved."""
        in_all = batches_in(self.source.batches)
        self.display.epoch(self.epoch + 1, self.options.num_epochs, done=self.batches, batches=in_all)
        self.model.train()
        if not self.trained and not self._train_epoch(in_all):
            return None
        measured = self.means.means("train_")
        if self.valid is not None:
            validated = self._validate(self.valid)
            if validated is None:
                return None
            measured |= validated
        return measured

    def _train_epoch(self, in_all: int | None) -> bool:
        """Train to the end of an epoch, and say whether it was reached."""
        for group in self._groups():
            stepped = self.stepper.step(group, self.means)
            self.batches += len(group)
            self._after_step(stepped)
            self.position.release()
            if self.keeper.tick(step=self.step, epoch=self.epoch, last=self.batches == in_all):
                return False
        if self.batches == 0:
            raise RuleError("there are no batches to train with")
        self.trained = True
        return True

    def _groups(self) -> Iterator[Sequence[Any]]:
        """Give the batches of a step, as many as are accumulated; the last ones of an epoch may be fewer."""
        batches = _fetched(self.source.batches)
        several = self.options.accumulate > 1
        while True:
            if several:
                self.position.hold()
            group = list(islice(batches, self.options.accumulate))
            if not group:
                self.position.release()
                return
            yield group

    def _after_step(self, stepped: Stepped) -> None:
        self.step += 1
        self.skipped += stepped.skipped
        rate = self._rate()
        if self.options.scheduler_every == "step" and not stepped.skipped:
            self._step_schedulers()
        self.display.batches(self.batches, stepped.loss)
        if self.step % self.options.log_every == 0:
            self.history.append(self._record("step", self.epoch + 1, {"lr": rate, "loss": float(stepped.loss)}))

    def _step_schedulers(self) -> None:
        for scheduler in self.schedulers.values():
            if not isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step()

    def _validate(self, batches: Iterable[Any]) -> dict[str, float] | None:
        """Measure without training; None where a signal has come: half a validation would be another number."""
        self.display.validating(self.epoch + 1)
        self.model.eval()
        try:
            with random_state_kept():
                measured = self._measure(batches)
        finally:
            self.model.train()
        if measured is None:
            self.keeper.tick(step=self.step, epoch=self.epoch, last=True)
        return measured

    def _measure(self, batches: Iterable[Any]) -> dict[str, float] | None:
        means = Means()
        for batch in _fetched(batches):
            if self.keeper.stopping:
                return None
            outcome = self.stepper.judge(batch)
            for name, value in {"loss": outcome.loss, **outcome.metrics}.items():
                means.add(name, value, outcome.samples)
        return means.means("valid_")

    def _finish_epoch(self, measured: Mapping[str, float]) -> None:
        self.epoch += 1
        self.batches, self.trained = 0, False
        self.means.clear()
        if self.patience is not None:
            self.patience.observe(measured[self.patience.rule.metric], epoch=self.epoch)
        self.measured = measured
        record = self._record("epoch", self.epoch, {"lr": self._rate(), **measured})
        if self.options.scheduler_every == "epoch":
            self._step_schedulers()
        for scheduler in self.schedulers.values():
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(measured.get("valid_loss", measured["train_loss"]))
        # The history first: a checkpoint that knew more than it would leave a gap.
        self.epochs.append(record)
        self.history.append(record)
        self.history.sync()
        self.keeper.save_epoch(step=self.step, epoch=self.epoch, metrics=measured)
        self.display.close()
        self.display.say(summary(self.epoch, self.options.num_epochs, measured))

    # What is told

    def _refresh(self) -> None:
        """Put the counters into the state that is about to be saved."""
        self.history.sync()
        self.state.step, self.state.epoch = self.step, self.epoch
        self.state.metrics = self.means.means("train_") or dict(self.measured)
        self.state.values["learner"] = {
            "batches": self.batches,
            "trained": self.trained,
            "skipped": self.skipped,
            "means": self.means.state(),
            "patience": None if self.patience is None else self.patience.state(),
        }

    def _record(self, kind: str, epoch: int, measured: Mapping[str, float]) -> dict[str, Any]:
        return {"kind": kind, "step": self.step, "epoch": epoch, **measured}

    def _rate(self) -> float:
        return float(next(iter(self.optimizers.values())).param_groups[0]["lr"])

    def _report(self, stopped: str | None) -> FitReport:
        exact = None
        if self.resumed is not None:
            exact = bool(getattr(self.resumed.report, "exact", False)) and not self.notes
        return FitReport(
            step=self.step,
            epoch=self.epoch,
            num_epochs=self.options.num_epochs,
            epochs=tuple(self.epochs),
            stopped=stopped,
            resumed=self.resumed,
            exact=exact,
            saved=self.keeper.saved,
            directory=self.keeper.directory,
            history=self.history.path,
            skipped=self.skipped,
            notes=tuple(self.notes),
        )


def _fetched(batches: Iterable[Any]) -> Iterator[Any]:
    """Give batches, and tell their errors from those of the training."""
    source = None
    while True:
        try:
            source = iter(batches) if source is None else source
            batch = next(source)
        except StopIteration:
            return
        except Exception as error:
            raise _DataError(error) from error
        yield batch


def _alone(named: Mapping[str, Any]) -> Any:
    """Give what there is one of as it is, several as a dict, none as None."""
    return next(iter(named.values()), None) if len(named) < 2 else dict(named)


def _history_path(options: Options, directory: Path | None) -> Path | None:
    return options.history or (None if directory is None else directory / HISTORY)
