"""Normalisation, with Burn's names: gamma scales, beta shifts."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from firekeep.arrays import Array
from firekeep.module._errors import ModuleError
from firekeep.module._initializers import ONES, ZEROS
from firekeep.module._numeric import normalize, numbers, per_channel
from firekeep.module._param import Param, RunningState
from firekeep.module._tree import Module


class BatchNorm(Module):
    """Normalise each channel of [batch, channels, ...] by the statistics that training kept.

    `running_mean` and `running_var` are `RunningState`; there is no counter of batches. `momentum` is for trainers: nothing here
    changes the statistics.
    """

    kind: ClassVar[str] = "batch_norm"

    gamma: Param
    beta: Param
    running_mean: RunningState
    running_var: RunningState
    momentum: float
    epsilon: float

    def __init__(self, num_features: int, *, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        self.gamma = Param.lazy(ONES, (num_features,))
        self.beta = Param.lazy(ZEROS, (num_features,))
        self.running_mean = RunningState.lazy(ZEROS, (num_features,))
        self.running_var = RunningState.lazy(ONES, (num_features,))
        self.momentum = momentum
        self.epsilon = epsilon

    def __call__(self, x: Array) -> Array:
        """Normalise [batch, channels, ...]."""
        _check_channels(self, x, self.gamma.shape[0])
        scale = numbers(self.gamma) / np.sqrt(numbers(self.running_var) + np.float32(self.epsilon))
        shift = numbers(self.beta) - numbers(self.running_mean) * scale
        y: Array = x * per_channel(scale, x.ndim) + per_channel(shift, x.ndim)
        return y


class LayerNorm(Module):
    """Normalise along the last axis, the only one that Burn's has; beta is left out with `bias=False`."""

    kind: ClassVar[str] = "layer_norm"

    gamma: Param
    beta: Param | None
    epsilon: float

    def __init__(self, d_model: int, *, epsilon: float = 1e-5, bias: bool = True) -> None:
        self.gamma = Param.lazy(ONES, (d_model,))
        self.beta = Param.lazy(ZEROS, (d_model,)) if bias else None
        self.epsilon = epsilon

    def __call__(self, x: Array) -> Array:
        """Normalise [..., d_model]."""
        y: Array = normalize(x, (-1,), self.epsilon) * numbers(self.gamma)
        return y if self.beta is None else y + numbers(self.beta)


class GroupNorm(Module):
    """Normalise groups of channels of each item; gamma and beta are left out with `affine=False`."""

    kind: ClassVar[str] = "group_norm"

    gamma: Param | None
    beta: Param | None
    num_groups: int
    num_channels: int
    epsilon: float

    def __init__(self, num_groups: int, num_channels: int, *, epsilon: float = 1e-5, affine: bool = True) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ModuleError(f"{num_channels} channels do not divide into {num_groups} groups")
        self.gamma = Param.lazy(ONES, (num_channels,)) if affine else None
        self.beta = Param.lazy(ZEROS, (num_channels,)) if affine else None
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.epsilon = epsilon

    def __call__(self, x: Array) -> Array:
        """Normalise [batch, channels, ...]."""
        _check_channels(self, x, self.num_channels)
        return _grouped(x, self.num_groups, self.epsilon, self.gamma, self.beta)


class InstanceNorm(Module):
    """Normalise each channel of each item; gamma and beta are left out with `affine=False`."""

    kind: ClassVar[str] = "instance_norm"

    gamma: Param | None
    beta: Param | None
    num_channels: int
    epsilon: float

    def __init__(self, num_channels: int, *, epsilon: float = 1e-5, affine: bool = True) -> None:
        self.gamma = Param.lazy(ONES, (num_channels,)) if affine else None
        self.beta = Param.lazy(ZEROS, (num_channels,)) if affine else None
        self.num_channels = num_channels
        self.epsilon = epsilon

    def __call__(self, x: Array) -> Array:
        """Normalise [batch, channels, ...]."""
        _check_channels(self, x, self.num_channels)
        return _grouped(x, self.num_channels, self.epsilon, self.gamma, self.beta)


class RmsNorm(Module):
    """Divide by the root of the mean square along the last axis; no mean is taken away."""

    kind: ClassVar[str] = "rms_norm"

    gamma: Param
    epsilon: float

    def __init__(self, d_model: int, *, epsilon: float = 1e-5) -> None:
        self.gamma = Param.lazy(ONES, (d_model,))
        self.epsilon = epsilon

    def __call__(self, x: Array) -> Array:
        """Normalise [..., d_model]."""
        size = np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(self.epsilon))
        y: Array = x / size * numbers(self.gamma)
        return y


def _grouped(x: Array, groups: int, epsilon: float, gamma: Param | None, beta: Param | None) -> Array:
    y = normalize(x.reshape(x.shape[0], groups, -1), (2,), epsilon).reshape(x.shape)
    if gamma is not None:
        y = y * per_channel(numbers(gamma), x.ndim)
    return y if beta is None else y + per_channel(numbers(beta), x.ndim)


def _check_channels(module: Module, x: Array, channels: int) -> None:
    if x.ndim < 2 or x.shape[1] != channels:
        raise ModuleError(f"a {type(module).__name__} takes [batch, {channels}, ...], and {list(x.shape)} came")
