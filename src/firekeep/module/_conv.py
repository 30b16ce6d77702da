"""Convolutions and transposed convolutions over one, two or three axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from firekeep.arrays import Array
from firekeep.module._errors import ModuleError
from firekeep.module._initializers import Fans, Initializer, KaimingUniform, Seed, generator
from firekeep.module._numeric import convolve, convolve_transposed, numbers, per_channel
from firekeep.module._param import Param
from firekeep.module._tree import Facts, Module

Extent = int | Sequence[int]


class _Convolution(Module):
    axes: ClassVar[int]

    weight: Param
    bias: Param | None
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def _declare(
        self,
        shape: tuple[int, ...],
        channels_out: int,
        *,
        bias: bool,
        stride: Extent,
        dilation: Extent,
        groups: int,
        initializer: Initializer | None,
        rng: Seed,
    ) -> None:
        rng = generator(rng)
        initializer = initializer if initializer is not None else KaimingUniform()
        window = math.prod(shape[2:])
        fans = Fans(shape[1] * window, shape[0] // groups * window)
        self.weight = Param.lazy(initializer, shape, fans=fans, rng=rng)
        self.bias = Param.lazy(initializer, (channels_out,), fans=fans, rng=rng) if bias else None
        self.stride = self._each("stride", stride)
        self.dilation = self._each("dilation", dilation)
        self.groups = groups

    @property
    def facts(self) -> Facts:
        """How many groups its channels are in."""
        return {"groups": self.groups}

    def _each(self, name: str, extent: Extent) -> tuple[int, ...]:
        each = (extent,) * self.axes if isinstance(extent, int) else tuple(extent)
        if len(each) != self.axes:
            raise ModuleError(
                f"{name} {list(each)} of a {type(self).__name__} should have {self.axes} numbers, or be one"
            )
        return each

    def _check(self, x: Array, channels: int) -> None:
        if x.ndim != self.axes + 2 or x.shape[1] != channels:
            wanted = f"[batch, {channels}, {', '.join(['size'] * self.axes)}]"
            raise ModuleError(f"a {type(self).__name__} takes {wanted}, and {list(x.shape)} came")

    def _shift(self, y: Array) -> Array:
        shifted: Array = y if self.bias is None else y + per_channel(numbers(self.bias), y.ndim)
        return shifted


class _Conv(_Convolution):
    """A convolution: weight [out, in / groups, ...], input [batch, in, ...].

    `padding` is a width for all axes, one for each, "valid" for none, or "same" for as many as keep the size at stride 1 (the odd
    one goes to the end).
    """

    padding: tuple[int, ...] | str

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel_size: Extent,
        *,
        stride: Extent = 1,
        padding: Extent | Literal["valid", "same"] = "valid",
        dilation: Extent = 1,
        groups: int = 1,
        bias: bool = True,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        _check_groups(channels_in, channels_out, groups)
        shape = (channels_out, channels_in // groups, *self._each("kernel_size", kernel_size))
        self._declare(
            shape,
            channels_out,
            bias=bias,
            stride=stride,
            dilation=dilation,
            groups=groups,
            initializer=initializer,
            rng=rng,
        )
        if isinstance(padding, str):
            if padding not in ("valid", "same"):
                raise ModuleError(f"padding {padding!r} is neither a width nor 'valid' nor 'same'")
            if padding == "same" and any(step != 1 for step in self.stride):
                raise ModuleError(f"padding 'same' keeps the size at stride 1 only, not at {list(self.stride)}")
            self.padding = padding
        else:
            self.padding = self._each("padding", padding)

    def __call__(self, x: Array) -> Array:
        """Convolve [batch, in, ...]."""
        weight = numbers(self.weight)
        self._check(x, weight.shape[1] * self.groups)
        y = convolve(x, weight, stride=self.stride, padding=self._edges(), dilation=self.dilation, groups=self.groups)
        return self._shift(y)

    def _edges(self) -> list[tuple[int, int]]:
        if not isinstance(self.padding, str):
            return [(width, width) for width in self.padding]
        if self.padding == "valid":
            return [(0, 0)] * self.axes
        totals = [d * (k - 1) for d, k in zip(self.dilation, self.weight.shape[2:], strict=True)]
        return [(total // 2, total - total // 2) for total in totals]


class _ConvTranspose(_Convolution):
    """A transposed convolution: weight [in, out / groups, ...], input [batch, in, ...].

    `padding_out` adds to the end of the output, as PyTorch's `output_padding` does.
    """

    padding: tuple[int, ...]
    padding_out: tuple[int, ...]

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel_size: Extent,
        *,
        stride: Extent = 1,
        padding: Extent = 0,
        padding_out: Extent = 0,
        dilation: Extent = 1,
        groups: int = 1,
        bias: bool = True,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        _check_groups(channels_in, channels_out, groups)
        shape = (channels_in, channels_out // groups, *self._each("kernel_size", kernel_size))
        self._declare(
            shape,
            channels_out,
            bias=bias,
            stride=stride,
            dilation=dilation,
            groups=groups,
            initializer=initializer,
            rng=rng,
        )
        self.padding = self._each("padding", padding)
        self.padding_out = self._each("padding_out", padding_out)

    def __call__(self, x: Array) -> Array:
        """Convolve [batch, in, ...] the other way."""
        weight = numbers(self.weight)
        self._check(x, weight.shape[0])
        y = convolve_transposed(
            x,
            weight,
            stride=self.stride,
            padding=self.padding,
            padding_out=self.padding_out,
            dilation=self.dilation,
            groups=self.groups,
        )
        return self._shift(y)


def _check_groups(channels_in: int, channels_out: int, groups: int) -> None:
    if groups < 1 or channels_in % groups or channels_out % groups:
        raise ModuleError(f"{channels_in} channels in and {channels_out} out do not divide into {groups} groups")


class Conv1d(_Conv):
    """A convolution over one axis: weight [out, in / groups, k]."""

    kind: ClassVar[str] = "conv1d"
    axes: ClassVar[int] = 1


class Conv2d(_Conv):
    """A convolution over two axes: weight [out, in / groups, k, k]."""

    kind: ClassVar[str] = "conv2d"
    axes: ClassVar[int] = 2


class Conv3d(_Conv):
    """A convolution over three axes: weight [out, in / groups, k, k, k]."""

    kind: ClassVar[str] = "conv3d"
    axes: ClassVar[int] = 3


class ConvTranspose1d(_ConvTranspose):
    """A transposed convolution over one axis: weight [in, out / groups, k]."""

    kind: ClassVar[str] = "conv_transpose1d"
    axes: ClassVar[int] = 1


class ConvTranspose2d(_ConvTranspose):
    """A transposed convolution over two axes: weight [in, out / groups, k, k]."""

    kind: ClassVar[str] = "conv_transpose2d"
    axes: ClassVar[int] = 2


class ConvTranspose3d(_ConvTranspose):
    """A transposed convolution over three axes: weight [in, out / groups, k, k, k]."""

    kind: ClassVar[str] = "conv_transpose3d"
    axes: ClassVar[int] = 3
