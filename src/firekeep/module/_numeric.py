"""The arithmetic of layers, in NumPy, for inference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from firekeep.arrays import Array
from firekeep.module._errors import ModuleError
from firekeep.module._param import Param

Sizes = tuple[int, ...]


def numbers(param: Param) -> Array:
    """Give a parameter's value to compute with: float32 where it is stored in less."""
    value = param.value
    return value.astype(np.float32) if value.dtype.itemsize < 4 else value


def per_channel(values: Array, rank: int) -> Array:
    """Lay out one value a channel along axis 1 of an array of that rank."""
    return values.reshape((1, -1) + (1,) * (rank - 2))


def normalize(x: Array, axes: Sizes, epsilon: float) -> Array:
    """Take away the mean over axes and divide by the deviation."""
    centred = x - x.mean(axis=axes, keepdims=True)
    spread: Array = centred / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + _like(epsilon, x))
    return spread


def convolve(
    x: Array, weight: Array, *, stride: Sizes, padding: Sequence[tuple[int, int]], dilation: Sizes, groups: int
) -> Array:
    """Convolve [N, C, ...] with [O, C / groups, ...] over all axes from the third on, as deep learning means it: unflipped."""
    axes = tuple(range(2, x.ndim))
    kernel = weight.shape[2:]
    spans = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    padded = _pad(x, padding)
    if any(span > extent for span, extent in zip(spans, padded.shape[2:], strict=True)):
        raise ModuleError(
            f"a kernel that spans {list(spans)} does not fit into {list(padded.shape[2:])}, padding included"
        )
    windows = sliding_window_view(padded, spans, axis=axes)
    steps = (slice(None), slice(None), *(slice(None, None, step) for step in (*stride, *dilation)))
    windows = windows[steps]
    width, depth = weight.shape[0] // groups, weight.shape[1]
    inside = tuple(range(2 + len(axes), 2 + 2 * len(axes)))
    outs = []
    for group in range(groups):
        taken = windows[:, group * depth : (group + 1) * depth]
        filters = weight[group * width : (group + 1) * width]
        outs.append(np.tensordot(taken, filters, axes=((1, *inside), (1, *axes))))
    out: Array = np.moveaxis(np.concatenate(outs, axis=-1), -1, 1)
    return out


def convolve_transposed(
    x: Array,
    weight: Array,
    *,
    stride: Sizes,
    padding: Sizes,
    padding_out: Sizes,
    dilation: Sizes,
    groups: int,
) -> Array:
    """Go the way of a convolution's gradient: `weight` is [C, O / groups, ...].

    That is a convolution with the flipped kernel over an input with zeros between its elements.
    """
    kernel = weight.shape[2:]
    spread = np.zeros((*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True))), x.dtype)
    spread[(slice(None), slice(None), *(slice(None, None, step) for step in stride))] = x
    edges = [
        (d * (k - 1) - p, d * (k - 1) - p + extra)
        for d, k, p, extra in zip(dilation, kernel, padding, padding_out, strict=True)
    ]
    flipped = np.flip(weight, axis=tuple(range(2, weight.ndim)))
    grouped = flipped.reshape(groups, weight.shape[0] // groups, weight.shape[1], *kernel).swapaxes(1, 2)
    turned = grouped.reshape(groups * weight.shape[1], weight.shape[0] // groups, *kernel)
    return convolve(spread, turned, stride=(1,) * len(kernel), padding=edges, dilation=dilation, groups=groups)


def _pad(x: Array, edges: Sequence[tuple[int, int]]) -> Array:
    """Put zeros around the spatial axes; a negative width cuts off."""
    if any(width > 0 for pair in edges for width in pair):
        x = np.pad(x, [(0, 0), (0, 0), *((max(low, 0), max(high, 0)) for low, high in edges)])
    cuts = [slice(max(-low, 0), extent - max(-high, 0)) for (low, high), extent in zip(edges, x.shape[2:], strict=True)]
    return x[(slice(None), slice(None), *cuts)]


def sigmoid(x: Array) -> Array:
    """Squeeze to between 0 and 1, without overflow at either end."""
    y: Array = _like(0.5, x) * (np.tanh(_like(0.5, x) * x) + _like(1, x))
    return y


def softmax(x: Array, *, quiet: bool = False) -> Array:
    """Weigh along the last axis; the quiet one may leave weight undistributed."""
    top = x.max(axis=-1, keepdims=True)
    if quiet:
        top = np.maximum(top, _like(0, x))  # the extra choice has score 0
    raised = np.exp(x - top)
    total = raised.sum(axis=-1, keepdims=True)
    weights: Array = raised / (total + np.exp(-top) if quiet else total)
    return weights


def erf(x: Array) -> Array:
    """The error function to 1.5e-7, by formula 7.1.26 of Abramowitz and Stegun: NumPy has none."""
    size = np.abs(x.astype(np.float64))
    t = 1 / (1 + 0.3275911 * size)
    series = np.zeros_like(t)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series + coefficient) * t
    y: Array = (np.sign(x) * (1 - series * np.exp(-size * size))).astype(x.dtype)
    return y


def gelu(x: Array, *, approximate: bool = False) -> Array:
    """Weigh each number by the normal distribution, exactly or by the formula with tanh."""
    if approximate:
        inner = np.tanh(_like(math.sqrt(2 / math.pi), x) * (x + _like(0.044715, x) * x * x * x))
    else:
        inner = erf(x * _like(math.sqrt(0.5), x))
    y: Array = _like(0.5, x) * x * (_like(1, x) + inner)
    return y


def _like(value: float, x: Array) -> Array:
    """A number of the array's own type: older NumPy would widen float32 by some scalars."""
    return np.asarray(value, x.dtype)
