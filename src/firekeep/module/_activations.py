"""Activations: most are arithmetic only, and still a module, since they take an index in a list."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from firekeep.arrays import Array
from firekeep.module._errors import ModuleError
from firekeep.module._initializers import Constant, Initializer, Seed, generator
from firekeep.module._linear import Linear
from firekeep.module._numeric import gelu, numbers, per_channel, sigmoid
from firekeep.module._param import Param
from firekeep.module._tree import Facts, Module


class Identity(Module):
    """Give the input back."""

    def __call__(self, x: Array) -> Array:
        return x


class Dropout(Module):
    """Drop numbers in training; in inference, which is all there is here, give the input back."""

    prob: float = 0.5

    def __call__(self, x: Array) -> Array:
        return x


class Relu(Module):
    """Nothing below zero."""

    def __call__(self, x: Array) -> Array:
        y: Array = np.maximum(x, np.zeros((), x.dtype))
        return y


class LeakyRelu(Module):
    """A slope below zero."""

    negative_slope: float = 0.01

    def __call__(self, x: Array) -> Array:
        return _leaky(x, np.asarray(self.negative_slope, x.dtype))


class Gelu(Module):
    """Gaussian error linear unit, exact, or by the formula with tanh."""

    approximate: bool = False

    def __call__(self, x: Array) -> Array:
        return gelu(x, approximate=self.approximate)


class Sigmoid(Module):
    """The logistic function."""

    def __call__(self, x: Array) -> Array:
        return sigmoid(x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def __call__(self, x: Array) -> Array:
        y: Array = np.tanh(x)
        return y


class Softplus(Module):
    """A smooth Relu, the sharper the larger `beta`."""

    beta: float = 1.0

    def __call__(self, x: Array) -> Array:
        beta = np.asarray(self.beta, x.dtype)
        y: Array = np.logaddexp(beta * x, np.zeros((), x.dtype)) / beta
        return y


class Elu(Module):
    """Exponential below zero, down to `-alpha`."""

    alpha: float = 1.0

    def __call__(self, x: Array) -> Array:
        low = np.asarray(self.alpha, x.dtype) * np.expm1(np.minimum(x, np.zeros((), x.dtype)))
        y: Array = np.where(x > 0, x, low)
        return y


class HardSigmoid(Module):
    """A line cut off at 0 and 1; PyTorch's has `alpha=1/6`."""

    alpha: float = 0.2
    beta: float = 0.5

    def __call__(self, x: Array) -> Array:
        y: Array = np.clip(np.asarray(self.alpha, x.dtype) * x + np.asarray(self.beta, x.dtype), 0, 1)
        return y


class HardSwish(Module):
    """The input, weighed by a line cut off at 0 and 1."""

    def __call__(self, x: Array) -> Array:
        y: Array = x * np.clip(x / np.asarray(6, x.dtype) + np.asarray(0.5, x.dtype), 0, 1)
        return y


class PRelu(Module):
    """A learned slope below zero: one for all, or one for each channel (axis 1)."""

    kind: ClassVar[str] = "prelu"

    alpha: Param

    def __init__(self, num_parameters: int = 1, *, alpha: float = 0.25) -> None:
        self.alpha = Param.lazy(Constant(alpha), (num_parameters,))

    def __call__(self, x: Array) -> Array:
        slope = numbers(self.alpha)
        if slope.shape[0] == 1:
            return _leaky(x, slope)
        if x.ndim < 2 or x.shape[1] != slope.shape[0]:
            raise ModuleError(
                f"a PRelu of {slope.shape[0]} slopes takes [batch, {slope.shape[0]}, ...], not {list(x.shape)}"
            )
        return _leaky(x, per_channel(slope, x.ndim))


class SwiGlu(Module):
    """`silu(linear_inner(x)) * linear_outer(x)`, without biases unless asked for."""

    kind: ClassVar[str] = "swiglu"

    linear_inner: Linear
    linear_outer: Linear

    def __init__(
        self,
        d_input: int,
        d_output: int,
        *,
        bias: bool = False,
        layout: Literal["row", "col"] = "row",
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        rng = generator(rng)
        self.linear_inner = Linear(d_input, d_output, bias=bias, layout=layout, initializer=initializer, rng=rng)
        self.linear_outer = Linear(d_input, d_output, bias=bias, layout=layout, initializer=initializer, rng=rng)

    @property
    def facts(self) -> Facts:
        """Whether its weights lie as [out, in]."""
        return {"columns": True} if self.linear_inner.kind == "linear_col" else {}

    def __call__(self, x: Array) -> Array:
        gate = self.linear_inner(x)
        y: Array = gate * sigmoid(gate) * self.linear_outer(x)
        return y


def _leaky(x: Array, slope: Array) -> Array:
    y: Array = np.where(x >= 0, x, x * slope)
    return y
