"""First values of parameters, with the names and the numbers that Burn gives them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from firekeep.arrays import Array

Seed = np.random.Generator | int | None
"""Where random numbers come from: a generator, a seed, or None for the generator that `seed` sets."""

_UNIT = 1 / math.sqrt(3)  # Burn's gain: makes the bound of KaimingUniform 1 / sqrt(fan_in)


@dataclass(frozen=True, slots=True)
class Fans:
    """How many numbers flow into and out of one element of a layer."""

    into: int
    out: int


class Initializer(Protocol):
    """Anything that makes an array of a shape; any function of these three will do."""

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator, fans: Fans) -> Array:
        """Make the array."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """The same number everywhere."""

    value: float

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator, fans: Fans) -> Array:  # noqa: ARG002
        """Make the array."""
        return np.full(shape, self.value, np.float32)


ZEROS = Constant(0.0)
ONES = Constant(1.0)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Evenly between two bounds."""

    low: float = 0.0
    high: float = 1.0

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator, fans: Fans) -> Array:  # noqa: ARG002
        """Make the array."""
        return _uniform(shape, rng, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Normal:
    """The normal distribution."""

    mean: float = 0.0
    std: float = 1.0

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator, fans: Fans) -> Array:  # noqa: ARG002
        """Make the array."""
        return _normal(shape, rng, self.mean, self.std)


@dataclass(frozen=True, slots=True)
class KaimingUniform:
    """Evenly within `gain * sqrt(3 / fan)`; the fan is what flows in, or what flows out with `fan_out_only`."""

    gain: float = _UNIT
    fan_out_only: bool = False

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator, fans: Fans) -> Array:
        """Make the array."""
        bound = self.gain * math.sqrt(3 / _one_fan(fans, out=self.fan_out_only))
        return _uniform(shape, rng, -bound, bound)


@dataclass(frozen=True, slots=True)
class KaimingNormal:
    """Normal, with a deviation of `gain / sqrt(fan)`."""

    gain: float = _UNIT
    fan_out_only: bool = False

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator, fans: Fans) -> Array:
        """Make the array."""
        return _normal(shape, rng, 0.0, self.gain / math.sqrt(_one_fan(fans, out=self.fan_out_only)))


@dataclass(frozen=True, slots=True)
class XavierUniform:
    """Evenly within `gain * sqrt(6 / (fan_in + fan_out))`."""

    gain: float = 1.0

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator, fans: Fans) -> Array:
        """Make the array."""
        bound = self.gain * math.sqrt(6 / max(fans.into + fans.out, 1))
        return _uniform(shape, rng, -bound, bound)


@dataclass(frozen=True, slots=True)
class XavierNormal:
    """Normal, with a deviation of `gain * sqrt(2 / (fan_in + fan_out))`."""

    gain: float = 1.0

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator, fans: Fans) -> Array:
        """Make the array."""
        return _normal(shape, rng, 0.0, self.gain * math.sqrt(2 / max(fans.into + fans.out, 1)))


def _one_fan(fans: Fans, *, out: bool) -> int:
    return max(fans.out if out else fans.into, 1)  # an empty layer divides by nothing


def _uniform(shape: tuple[int, ...], rng: np.random.Generator, low: float, high: float) -> Array:
    return (rng.random(shape, np.float32) * np.float32(high - low) + np.float32(low)).astype(np.float32)


def _normal(shape: tuple[int, ...], rng: np.random.Generator, mean: float, std: float) -> Array:
    return (rng.standard_normal(shape, np.float32) * np.float32(std) + np.float32(mean)).astype(np.float32)


class _Default:
    """The generator of all layers that are given none."""

    rng = np.random.default_rng()


def seed(value: int) -> None:
    """Seed the generator of all layers built from now on without an `rng` of their own.

    Each parameter draws its own seed when its layer is built, so that the values do not depend on which one is used first.
    """
    _Default.rng = np.random.default_rng(value)


def generator(rng: Seed) -> np.random.Generator:
    """Give the generator meant: itself, a new one of a seed, or the one that `seed` sets."""
    if rng is None:
        return _Default.rng
    return rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)


def draw_seed(rng: np.random.Generator) -> Any:
    """Draw the seed of one parameter."""
    return rng.integers(0, 1 << 63)
