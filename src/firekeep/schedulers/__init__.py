"""Burn's learning rate schedules in plain Python: the same formulas, bit for bit, and the same records.

>>> warmup = Linear(initial=0.125, final=0.5, iterations=3)
>>> schedule = Sequential([warmup, Exponential(initial=0.5, gamma=0.5)], milestones=[4])
>>> [schedule.step() for _ in range(6)]
[0.125, 0.25, 0.375, 0.5, 0.5, 0.25]

Beside an optimizer of PyTorch, `as_torch` makes one of them behave like a scheduler of PyTorch.
"""

from __future__ import annotations

from firekeep.schedulers._base import Scheduler
from firekeep.schedulers._composite import Composed, Groups, Reduction, Sequential
from firekeep.schedulers._errors import SchedulerError
from firekeep.schedulers._levels import LEARNER, find_level
from firekeep.schedulers._report import SchedulerReport
from firekeep.schedulers._simple import Constant, Cosine, Exponential, Linear, Noam, Step
from firekeep.schedulers._torch_like import TorchSchedule, as_torch

__all__ = [
    "LEARNER",
    "Composed",
    "Constant",
    "Cosine",
    "Exponential",
    "Groups",
    "Linear",
    "Noam",
    "Reduction",
    "Scheduler",
    "SchedulerError",
    "SchedulerReport",
    "Sequential",
    "Step",
    "TorchSchedule",
    "as_torch",
    "find_level",
]
