"""Schedulers of PyTorch that Burn has too: its counters from theirs, and back.

PyTorch puts the learning rate of the next step into the optimizer: after n steps `last_epoch` is n, and the rate is the one of number n
from zero. Burn's schedules give the rate of a step when it is made, so after n steps they stand at number n - 1.
"""
# ruff: noqa: SLF001 - the counters of PyTorch's schedulers are private, and their state is nothing else

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from torch.optim import lr_scheduler as theirs

from firekeep import schedulers as ours
from firekeep.scalars import Scalar
from firekeep.schedulers import Scheduler, SchedulerError

_FRESH = (1 << 64) - 1
_RATE = "previous_lr"


def twin(scheduler: Any, *, group: int = 0) -> Scheduler:
    """Build Burn's schedule of the same settings, for one group of parameters; raises `SchedulerError` saying why there is none."""
    kind = type(scheduler)
    if kind is theirs.SequentialLR:
        children = [twin(child, group=group) for child in scheduler._schedulers]
        return ours.Sequential(children, milestones=scheduler._milestones)
    if kind not in _KINDS:
        raise SchedulerError(f"Burn has no schedule like {kind.__name__}")
    base = float(scheduler.base_lrs[group])
    if kind is theirs.CosineAnnealingLR:
        return ours.Cosine(initial=base, lowest=float(scheduler.eta_min), iterations=scheduler.T_max)
    if kind is theirs.ExponentialLR:
        return ours.Exponential(initial=base, gamma=float(scheduler.gamma))
    if kind is theirs.StepLR:
        return ours.Step(initial=base, size=scheduler.step_size, gamma=float(scheduler.gamma))
    first, last = base * scheduler.start_factor, base * scheduler.end_factor
    return ours.Linear(initial=first, final=last, iterations=scheduler.total_iters)


_KINDS = (theirs.CosineAnnealingLR, theirs.ExponentialLR, theirs.StepLR, theirs.LinearLR)


def scalars_of(scheduler: Any) -> dict[str, Scalar]:
    """Give Burn's counters for the steps that a scheduler has made; raises `SchedulerError` saying why there are none."""
    twin(scheduler)
    return _counters(scheduler, max(0, scheduler.last_epoch))


def _counters(scheduler: Any, steps: int) -> dict[str, Scalar]:
    kind = type(scheduler)
    if kind is theirs.CosineAnnealingLR:
        return {"current_iter": Scalar("uint", steps - 1 if steps else _FRESH)}
    if kind is theirs.StepLR:
        return {"iter_idx": Scalar("int", steps - 1)}
    if kind is theirs.LinearLR:
        return {"remaining_iters": Scalar("uint", max(0, scheduler.total_iters + 1 - steps))}
    if kind is theirs.ExponentialLR:
        return {_RATE: Scalar("float", _repeated(float(scheduler.base_lrs[0]), float(scheduler.gamma), steps))}
    made = {"step": Scalar("uint", steps)}
    for place, (child, inside) in enumerate(zip(scheduler._schedulers, _shares(scheduler, steps), strict=True)):
        made |= {f"{place}.{key}": value for key, value in _counters(child, inside).items()}
    return made


def _repeated(base: float, gamma: float, steps: int) -> float:
    """Multiply as Burn does, so that the rounding is the same: from one step before the first."""
    rate = base / gamma
    for _ in range(steps):
        following = rate * gamma
        if following == rate:
            break  # nothing changes any more: gamma is 1, or the rate has become 0
        rate = following
    return rate


def _shares(scheduler: Any, steps: int) -> list[int]:
    """Say how many of the steps of a sequence each of its schedulers has made."""
    starts = [0, *scheduler._milestones]
    ends = [*scheduler._milestones, None]
    return [
        max(0, (steps if end is None else min(steps, end)) - start) for start, end in zip(starts, ends, strict=True)
    ]


def take_scalars(scheduler: Any, scalars: Mapping[str, Scalar]) -> tuple[ours.SchedulerReport, list[float]]:
    """Bring a scheduler to where Burn's counters are, and give the learning rates of the next step, one a group.

    The report says what was missing or refused; then nothing has been changed, and there are no rates.
    """
    bases = _bases(scheduler)
    report = twin(scheduler).load_scalars(scalars)
    if not report.ok:
        return report, []
    rates = []
    for group, base in enumerate(bases):
        one = twin(scheduler, group=group)
        one.load_scalars(scalars if base == bases[0] else _scaled(scalars, base / bases[0])).require()
        rates.append(one.step())
    _place(scheduler, _steps(scheduler, scalars, ""))
    return report, rates


def _bases(scheduler: Any) -> list[float]:
    while type(scheduler) is theirs.SequentialLR:
        scheduler = scheduler._schedulers[0]
    return [float(base) for base in scheduler.base_lrs]


def _scaled(scalars: Mapping[str, Scalar], factor: float) -> dict[str, Scalar]:
    return {
        key: Scalar("float", float(value) * factor) if key.rpartition(".")[2] == _RATE else value
        for key, value in scalars.items()
    }


def _steps(scheduler: Any, scalars: Mapping[str, Scalar], prefix: str) -> int:
    """Say how many steps were made, from counters that are known to be there."""
    kind = type(scheduler)
    if kind is theirs.SequentialLR:
        return int(scalars[f"{prefix}step"])
    if kind is theirs.CosineAnnealingLR:
        current = int(scalars[f"{prefix}current_iter"])
        return 0 if current in (_FRESH, (1 << 32) - 1) else current + 1
    if kind is theirs.StepLR:
        return int(scalars[f"{prefix}iter_idx"]) + 1
    if kind is theirs.LinearLR:
        return int(scheduler.total_iters) + 1 - int(scalars[f"{prefix}remaining_iters"])
    base, gamma, rate = float(scheduler.base_lrs[0]), float(scheduler.gamma), float(scalars[f"{prefix}{_RATE}"])
    if gamma == 1 or rate <= 0:
        return 0
    return max(0, round(math.log(rate / base) / math.log(gamma)) + 1)


def _place(scheduler: Any, steps: int, *, begun: bool = True) -> None:
    """Set the counters of PyTorch as they are after so many steps; `last_epoch` is -1 in those of a sequence that have not begun."""
    scheduler.last_epoch = steps if begun else -1
    if type(scheduler) is not theirs.SequentialLR:
        scheduler._step_count = steps + 1
        return
    active = bisect_right(scheduler._milestones, steps)
    for place, (child, inside) in enumerate(zip(scheduler._schedulers, _shares(scheduler, steps), strict=True)):
        # one that is over was not asked for the rate after its last step
        _place(child, inside - 1 if place < active else inside, begun=begun and place <= active)
