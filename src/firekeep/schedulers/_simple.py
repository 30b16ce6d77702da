"""Schedules of one formula, computed in the order that Burn computes them: the results are the same to the last bit."""

from __future__ import annotations

import math

from firekeep.errors import ScalarError
from firekeep.schedulers._base import U64_MAX, Counter, Scheduler, check_count, check_rate

_FRESH = (U64_MAX, (1 << 32) - 1)
"""What a counter of Burn holds before the first step, on 64-bit and on 32-bit machines."""


class Constant(Scheduler):
    """The same learning rate at every step. It keeps nothing."""

    def __init__(self, *, rate: float) -> None:
        self.rate = check_rate("rate", rate, zero=True)

    def step(self) -> float:
        """Give the rate."""
        return self.rate


class Linear(Scheduler):
    """From one learning rate to another in equal steps, which then stays.

    >>> linear = Linear(initial=0.5, final=0.25, iterations=2)
    >>> [linear.step() for _ in range(4)]
    [0.5, 0.375, 0.25, 0.25]
    """

    counters = (Counter("remaining_iters", "uint"),)

    def __init__(self, *, initial: float, final: float, iterations: int) -> None:
        self.initial = check_rate("initial", initial, high=1)
        self.final = check_rate("final", final, high=1, zero=True)
        self.iterations = check_count("iterations", iterations)
        self._change = (self.final - self.initial) / self.iterations
        self._remaining_iters = self.iterations + 1

    def step(self) -> float:
        """Go on until the final rate is reached."""
        if self._remaining_iters:
            self._remaining_iters -= 1
        return self.final - self._change * self._remaining_iters

    def check_counter(self, counter: Counter, value: float) -> int | float:  # noqa: ARG002
        """Refuse what this schedule never reaches."""
        if value > self.iterations + 1:
            raise ScalarError(f"{value} steps are left, and this schedule has {self.iterations}")
        return value


class Cosine(Scheduler):
    """Half a wave from the initial learning rate down to the lowest.

    Burn's goes up again after that, and down, and up; `clamp=True` stays at the lowest. A record is the same for both.

    >>> cosine = Cosine(initial=0.5, lowest=0.25, iterations=2)
    >>> [cosine.step() for _ in range(5)]
    [0.5, 0.375, 0.25, 0.375, 0.5]
    """

    counters = (Counter("current_iter", "uint"),)

    def __init__(self, *, initial: float, lowest: float = 0.0, iterations: int, clamp: bool = False) -> None:
        self.initial = check_rate("initial", initial, high=1)
        self.lowest = check_rate("lowest", lowest, high=self.initial, zero=True)
        self.iterations = check_count("iterations", iterations)
        self.clamp = clamp
        self._current_iter = U64_MAX

    def step(self) -> float:
        """Go along the wave."""
        self._current_iter = (self._current_iter + 1) & U64_MAX
        done = min(self._current_iter, self.iterations) if self.clamp else self._current_iter
        return cosine_rate(self.initial, self.lowest, done, self.iterations)

    def check_counter(self, counter: Counter, value: float) -> int | float:  # noqa: ARG002
        """Refuse what this schedule never reaches."""
        return U64_MAX if value in _FRESH else value


def cosine_rate(initial: float, lowest: float, done: int, iterations: int) -> float:
    """Compute the cosine formula."""
    return lowest + 0.5 * (initial - lowest) * (1.0 + math.cos(float(done) / float(iterations) * math.pi))


class Exponential(Scheduler):
    """A learning rate that is multiplied by `gamma` after each step.

    The rate itself is what is kept, so that its rounding adds up as in one long run.
    """

    counters = (Counter("previous_lr", "float"),)

    def __init__(self, *, initial: float, gamma: float) -> None:
        self.initial = check_rate("initial", initial, high=1)
        self.gamma = check_rate("gamma", gamma, high=1)
        self._previous_lr = self.initial / self.gamma

    def step(self) -> float:
        """Multiply."""
        self._previous_lr *= self.gamma
        return self._previous_lr

    def check_counter(self, counter: Counter, value: float) -> int | float:  # noqa: ARG002
        """Refuse what this schedule never reaches."""
        if not (math.isfinite(value) and value >= 0):
            raise ScalarError(f"{value} is no learning rate")
        return value


class Noam(Scheduler):
    """A rise over `warmup` steps, and then a decay with the square root of the steps, scaled by the size of the model."""

    counters = (Counter("step", "float"),)

    def __init__(self, *, factor: float, warmup: int = 4000, model_size: int = 512) -> None:
        self.factor = check_rate("factor", factor)
        self.warmup = check_count("warmup", warmup)
        self.model_size = check_count("model_size", model_size)
        self._step = 0.0

    def step(self) -> float:
        """Go on along the rise or the decay."""
        self._step += 1.0
        decay: float = self._step**-0.5
        rise: float = self._step * float(self.warmup) ** -1.5
        size: float = float(self.model_size) ** -0.5
        return self.factor * size * min(decay, rise)

    def check_counter(self, counter: Counter, value: float) -> int | float:  # noqa: ARG002
        """Refuse what this schedule never reaches."""
        if not (math.isfinite(value) and value >= 0):
            raise ScalarError(f"{value} is no number of steps")
        return value


class Step(Scheduler):
    """A learning rate that is multiplied by `gamma` after every `size` steps."""

    counters = (Counter("iter_idx", "int"),)

    def __init__(self, *, initial: float, size: int, gamma: float = 0.1) -> None:
        self.initial = check_rate("initial", initial)
        self.size = check_count("size", size)
        self.gamma = check_rate("gamma", gamma)
        self._iter_idx = -1

    def step(self) -> float:
        """Go on along the stairs."""
        self._iter_idx += 1
        return self.initial * integer_power(self.gamma, self._iter_idx // self.size)

    def check_counter(self, counter: Counter, value: float) -> int | float:  # noqa: ARG002
        """Refuse what this schedule never reaches."""
        if value < -1:
            raise ScalarError(f"{value} is no number of a step")
        return value


def integer_power(base: float, exponent: int) -> float:
    """Raise to a whole power by squaring, as Burn's machine code does: Python's `**` may differ in the last bit."""
    result = 1.0
    while True:
        if exponent & 1:
            result *= base
        exponent >>= 1
        if not exponent:
            return result
        base *= base
