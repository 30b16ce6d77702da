"""The Learner: a model, what trains it, and how its run is kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from firekeep.checkpoint import CheckpointManager
from firekeep.errors import RuleError
from firekeep.learner._batches import Judge, Loss, Metric, Objective, objective_of
from firekeep.learner._early import EarlyStopping
from firekeep.learner._options import Options, Precision, When, check_metrics
from firekeep.learner._report import FitReport
from firekeep.learner._run import Run
from firekeep.schedulers import Scheduler, TorchSchedule, as_torch

Named = Mapping[str, Any]


class Learner:
    """Trains a model of PyTorch with labelled batches, keeps the run on disk, and goes on where it was cut off.

    A batch is a pair of inputs and targets for `loss(model(inputs), target)`; for any other kind give `objective(model, batch)`, which
    returns the loss, or the loss, the output and the target. `metrics` are functions of output and target, and the mean over a batch each.
    Epochs are counted from the beginning of the run, so a resumed one trains those that are left of `num_epochs`.

    `checkpoint` is a directory, or a `CheckpointManager`. Each epoch is saved, of which the last two and the one of the least validation
    loss are kept unless the manager says otherwise; with `save_every` every so many steps, too (a manager has `every`). `fit` goes on
    from the latest complete step in there. SIGTERM, SIGINT and SIGUSR1 have the run saved at the end of a step; a second one ends it
    at once. An error of the data saves before it is raised, any other error does not.

    A step is made of `accumulate` batches, and its gradients are the mean of theirs. What is left at the end of an epoch makes a step of
    fewer batches, so nothing is carried over from an epoch to the next. Gradients are clipped by their norm over all parameters
    (`clip_norm`), or each by value (`clip_value`). `precision` is that of autocast; with "fp16" gradients are scaled.

    The scheduler is one of PyTorch's or of `firekeep.schedulers`, and steps with the optimizer, or after each epoch with
    `scheduler_every="epoch"`. ReduceLROnPlateau always steps after an epoch, by the validation loss, else that of the training. Several
    optimizers or schedulers are given as a dict of names.

    `history` is a file of JSON lines, beside the checkpoints unless told otherwise: a line each `log_every` steps and each epoch.
    `seed` seeds Python, NumPy and PyTorch at the beginning of a new run, and the order of the data.

    Example:
        >>> learner = Learner(model, optimizer, loss=nn.functional.cross_entropy, num_epochs=10, checkpoint="run")  # doctest: +SKIP
        >>> print(learner.fit(train, valid))  # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Named,
        scheduler: LRScheduler | Scheduler | TorchSchedule | Named | None = None,
        *,
        num_epochs: int,
        loss: Loss | None = None,
        objective: Objective | None = None,
        metrics: Mapping[str, Metric] | None = None,
        checkpoint: CheckpointManager | str | os.PathLike[str] | None = None,
        save_every: int | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        precision: Precision = "fp32",
        scheduler_every: When = "step",
        early_stopping: EarlyStopping | None = None,
        resume: bool = True,
        history: str | os.PathLike[str] | None = None,
        log_every: int = 10,
        progress: bool = True,
        seed: int | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"a torch.nn.Module is needed, not {type(model).__name__}")
        check_metrics(metrics)
        if not isinstance(early_stopping, EarlyStopping | None):
            raise TypeError(
                f"early_stopping={early_stopping!r}: an EarlyStopping is needed, such as EarlyStopping(patience=3)"
            )
        self.model = model
        self.optimizers = _optimizers(optimizer)
        self.schedulers = _schedulers(scheduler, self.optimizers)
        self.checkpoint = checkpoint if isinstance(checkpoint, CheckpointManager | None) else Path(checkpoint)
        if save_every is not None and not isinstance(self.checkpoint, Path):
            raise RuleError(
                "save_every is for a Learner that is given the directory of its checkpoints",
                remedy="Give the manager every=, or give checkpoint= a path.",
            )
        self.save_every = save_every
        self.options = Options(
            judge=Judge(objective=objective_of(loss, objective), metrics=dict(metrics or {})),
            num_epochs=num_epochs,
            accumulate=accumulate,
            clip_norm=clip_norm,
            clip_value=clip_value,
            precision=precision,
            scheduler_every=scheduler_every,
            early_stopping=early_stopping,
            resume=resume,
            history=None if history is None else Path(history),
            log_every=log_every,
            progress=progress,
            seed=seed,
        )

    def fit(self, train: Iterable[Any], valid: Iterable[Any] | None = None) -> FitReport:
        """Train until all epochs are done, early stopping or a signal ends the run, or something goes wrong.

        `train` and `valid` give batches once an epoch. The run goes on exactly in the middle of an epoch with a `ResumableLoader`, a list
        of batches, a loader that has `state_dict` and `load_state_dict`, and a plain DataLoader of a dataset with indices, which is
        rebuilt with an order that can begin anywhere; with any other the report says that it may not be exact.
        """
        self.options.check_monitored(validated=valid is not None)
        if isinstance(self.checkpoint, Path):
            with CheckpointManager(self.checkpoint, every=self.save_every) as manager:
                return self._run(manager, train, valid)
        return self._run(self.checkpoint, train, valid)

    def _run(self, manager: CheckpointManager | None, train: Iterable[Any], valid: Iterable[Any] | None) -> FitReport:
        run = Run(
            model=self.model,
            optimizers=self.optimizers,
            schedulers=self.schedulers,
            options=self.options,
            manager=manager,
            train=train,
            valid=valid,
        )
        return run.fit()


def _optimizers(given: Any) -> dict[str, torch.optim.Optimizer]:
    named = dict(given) if isinstance(given, Mapping) else {"optimizer": given}
    for name, one in named.items():
        if not isinstance(one, torch.optim.Optimizer):
            raise TypeError(f"{name}: a torch.optim.Optimizer is needed, not {type(one).__name__}")
    if not named:
        raise RuleError("no optimizer is given")
    return named


def _schedulers(given: Any, optimizers: Mapping[str, torch.optim.Optimizer]) -> dict[str, Any]:
    if given is None:
        return {}
    named = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    return {name: _scheduler(name, one, optimizers) for name, one in named.items()}


def _scheduler(name: str, given: Any, optimizers: Mapping[str, torch.optim.Optimizer]) -> Any:
    if isinstance(given, Scheduler):
        if len(optimizers) > 1 and name not in optimizers:
            raise RuleError(
                f"the schedule {name!r} could drive any of several optimizers",
                remedy="Give schedules under the names of their optimizers.",
            )
        return as_torch(given, optimizers.get(name, next(iter(optimizers.values()))))
    if isinstance(given, LRScheduler | TorchSchedule):
        return given
    raise TypeError(f"{name}: a scheduler of PyTorch or of firekeep.schedulers is needed, not {type(given).__name__}")
