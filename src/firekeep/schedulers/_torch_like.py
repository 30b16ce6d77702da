"""A schedule in the place of one of PyTorch's, told by what an optimizer has: its groups of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from firekeep.scalars import Scalar
from firekeep.schedulers._base import Scheduler
from firekeep.schedulers._composite import Groups
from firekeep.schedulers._errors import SchedulerError
from firekeep.schedulers._report import SchedulerReport


class Optimizer(Protocol):
    """What is asked of an optimizer."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of parameters, each with its learning rate under "lr"."""
        ...


def as_torch(scheduler: Scheduler, optimizer: Optimizer) -> TorchSchedule:
    """Let a schedule drive an optimizer of PyTorch, with the methods of its own schedulers.

    The learning rates of the optimizer are replaced: by the schedule's in all groups, or by those of `Groups` one by one, the base's in
    the first. Raises `SchedulerError` when groups of different learning rates would get one, or when `Groups` has another number.
    """
    return TorchSchedule(scheduler, optimizer)


class TorchSchedule:
    """A schedule that drives an optimizer: call `step` after each of the optimizer's.

    `last_epoch` counts the steps of the optimizer. The learning rate of the next one is already in its groups, as PyTorch has it;
    the schedule that is kept in `state_dict` and in records is that of the steps that were made.
    """

    def __init__(self, scheduler: Scheduler, optimizer: Optimizer) -> None:
        self.scheduler = scheduler
        self.optimizer = optimizer
        self.last_epoch = 0
        _check_groups(scheduler, optimizer)
        self._advance()
        for group, rate in zip(optimizer.param_groups, self._last_lr, strict=True):
            group.setdefault("initial_lr", rate)
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]

    def step(self) -> None:
        """Put the next learning rates into the optimizer's groups."""
        self.last_epoch += 1
        self._advance()

    def get_last_lr(self) -> list[float]:
        """Give the learning rates that are in the groups now."""
        return list(self._last_lr)

    def to_record_scalars(self) -> dict[str, Scalar]:
        """Give the counters as after the steps that the optimizer has made; those of the look ahead are not among them."""
        return dict(self._made)

    def load_scalars(self, scalars: Mapping[str, Any]) -> SchedulerReport:
        """Take counters from a record, as `Scheduler.load_scalars`, and put the learning rates of the next step into the groups.

        Records of schedules do not hold `last_epoch`, which stays as it is; `load_state_dict` has it.
        """
        self.scheduler.load_scalars(self._made)
        report = self.scheduler.load_scalars(scalars)
        self._advance()
        return report

    def state_dict(self) -> dict[str, Any]:
        """Give the state as plain numbers."""
        return {
            "last_epoch": self.last_epoch,
            "scalars": {key: scalar.value for key, scalar in self._made.items()},
            "_last_lr": list(self._last_lr),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the state; raises `SchedulerError`, having changed nothing, for that of another schedule.

        The learning rates go into the groups too, so it does not matter whether the optimizer was loaded before or after.
        """
        try:
            last_epoch, scalars = int(state_dict["last_epoch"]), dict(state_dict["scalars"])
        except (KeyError, TypeError, ValueError) as error:
            raise SchedulerError(f"this is not the state of a {type(self).__name__}: {error!r}") from None
        before = self._made
        report = self.load_scalars(scalars)
        if not report.ok or report.unknown:
            self.load_scalars(before)
            raise SchedulerError(f"the state is that of another schedule. {report}")
        self.last_epoch = last_epoch

    def _advance(self) -> None:
        """Step the schedule ahead of the optimizer, keeping the counters from before."""
        self._made = self.scheduler.to_record_scalars()
        rate = self.scheduler.step()
        groups = self.optimizer.param_groups
        rates = self.scheduler.rates if isinstance(self.scheduler, Groups) and len(groups) > 1 else [rate] * len(groups)
        for group, one in zip(groups, rates, strict=True):
            if hasattr(group["lr"], "fill_"):
                group["lr"].fill_(one)  # a tensor that captured code looks at
            else:
                group["lr"] = one
        self._last_lr = list(rates)


def _check_groups(scheduler: Scheduler, optimizer: Optimizer) -> None:
    groups = optimizer.param_groups
    if not groups:
        raise SchedulerError("the optimizer has no groups of parameters")
    if isinstance(scheduler, Groups):
        if len(scheduler.children) != len(groups):
            raise SchedulerError(
                f"the schedule has {len(scheduler.children)} groups, the base among them, and the optimizer {len(groups)}"
            )
        return
    rates = sorted({float(group.get("initial_lr", group["lr"])) for group in groups})
    if len(rates) > 1:
        raise SchedulerError(
            f"the optimizer's groups have different learning rates, {rates[0]:g} to {rates[-1]:g}, and would all get one",
            remedy="Give Groups, with a schedule for each.",
        )
