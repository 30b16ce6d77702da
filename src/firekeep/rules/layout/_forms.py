"""How tensors lie in a convention, seen from PyTorch's way: what is done to one there, and what undoes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from firekeep.entry import TensorEntry
from firekeep.errors import RuleError, UnsupportedError
from firekeep.views import flipped, permuted, reshaped, scaled_back

_Turn = Callable[[TensorEntry], TensorEntry]


def _nothing(entry: TensorEntry) -> TensorEntry:
    return entry


@dataclass(frozen=True, slots=True)
class Form:
    """A way to lie: `there` makes it of a tensor in PyTorch's way, `back` undoes that. Forms of one name are one form.

    `words` say what is done. `with_part`, where set, is the part of the layer without which `back` cannot be done, and which
    `back_with` takes in its place.
    """

    name: str
    words: str = field(compare=False)
    there: _Turn = field(default=_nothing, compare=False)
    back: _Turn = field(default=_nothing, compare=False)
    with_part: str = field(default="", compare=False)
    back_with: Callable[[TensorEntry, TensorEntry], TensorEntry] | None = field(default=None, compare=False)


def _transpose(entry: TensorEntry) -> TensorEntry:
    _require(entry, 2, "has not the two axes of a linear map")
    return permuted(entry, (1, 0))


def _require(entry: TensorEntry, rank: int, fault: str) -> None:
    if len(entry.shape) != rank:
        raise UnsupportedError(f"its shape {list(entry.shape)} {fault}", tensor=entry.name)


SAME = Form("same", "")
TRANSPOSED = Form("transposed", "transposed", _transpose, _transpose)


def permuting(name: str, axes: Sequence[int], *, flip: bool = False) -> Form:
    """Put axes in another order; `flip` runs backwards first along those after the first two, the spatial ones of a kernel."""
    undo = tuple(axes.index(axis) for axis in range(len(axes)))
    fault = f"has not the {len(axes)} axes of such a kernel"
    spatial = tuple(range(2, len(axes)))

    def there(entry: TensorEntry) -> TensorEntry:
        _require(entry, len(axes), fault)
        return permuted(flipped(entry, spatial) if flip else entry, axes)

    def back(entry: TensorEntry) -> TensorEntry:
        _require(entry, len(axes), fault)
        entry = permuted(entry, undo)
        return flipped(entry, spatial) if flip else entry

    return Form(name, "flipped and reordered" if flip else "reordered", there, back)


def in_groups(groups: int, dims: int) -> Form:
    """Equinox's transposed kernels in groups: flipped, and the channels of each group swapped."""
    spatial = tuple(range(2, 2 + dims))

    def swap(entry: TensorEntry) -> TensorEntry:
        _require(entry, 2 + dims, f"has not the {2 + dims} axes of such a kernel")
        many, few, *rest = entry.shape
        if many % groups:
            raise RuleError(f"its shape {list(entry.shape)} cannot be cut into {groups} groups")
        entry = permuted(
            reshaped(entry, (groups, many // groups, few, *rest)), (0, 2, 1, *(axis + 1 for axis in spatial))
        )
        return reshaped(entry, (groups * few, many // groups, *rest))

    def there(entry: TensorEntry) -> TensorEntry:
        return swap(flipped(entry, spatial))

    def back(entry: TensorEntry) -> TensorEntry:
        return flipped(swap(entry), spatial)

    return Form(f"{groups} groups swapped", "flipped and reordered", there, back)


def depthwise(channels: int | None, dims: int) -> Form:
    """Keras' kernels of one filter for each channel: spatial axes, channels, and how many outputs each has."""

    def there(entry: TensorEntry) -> TensorEntry:
        _require(entry, 2 + dims, f"has not the {2 + dims} axes of such a kernel")
        if channels is None:
            raise RuleError(
                "how many channels it has is in no tensor",
                remedy="Give the layer the fact groups, its number of channels.",
            )
        outputs, one, *rest = entry.shape
        if one != 1 or outputs % channels:
            raise RuleError(
                f"its shape {list(entry.shape)} is not that of a convolution of each of {channels} channels alone"
            )
        split = reshaped(entry, (channels, outputs // channels, *rest))
        return permuted(split, (*range(2, 2 + dims), 0, 1))

    def back(entry: TensorEntry) -> TensorEntry:
        _require(entry, 2 + dims, f"has not the {2 + dims} axes of such a kernel")
        *rest, many, each = entry.shape
        turned = permuted(entry, (dims, dims + 1, *range(dims)))
        return reshaped(turned, (many * each, 1, *rest))

    return Form(f"depthwise {channels}", "reordered", there, back)


def column(dims: int) -> Form:
    """A bias with an axis of one for each spatial axis."""

    def back(entry: TensorEntry) -> TensorEntry:
        if entry.shape[1:] != (1,) * dims:
            raise RuleError(f"its shape {list(entry.shape)} is not [channels{', 1' * dims}]")
        return reshaped(entry, entry.shape[:1])

    return Form("column", "reshaped", lambda entry: reshaped(entry, (*entry.shape, *(1,) * dims)), back)


def shaped(shape: Sequence[int]) -> Form:
    """A vector under another shape."""
    wanted = tuple(shape)

    def there(entry: TensorEntry) -> TensorEntry:
        _fit(entry, wanted)
        return reshaped(entry, wanted)

    return Form(f"shaped {wanted}", "reshaped", there, _flat)


def in_rows(rows: int) -> Form:
    """A vector cut into rows of one length, under one another."""

    def there(entry: TensorEntry) -> TensorEntry:
        if entry.numel % rows:
            raise RuleError(f"its shape {list(entry.shape)} cannot be cut into {rows} rows")
        return reshaped(entry, (rows, entry.numel // rows))

    def back(entry: TensorEntry) -> TensorEntry:
        if len(entry.shape) != 2 or entry.shape[0] != rows:
            raise RuleError(f"its shape is {list(entry.shape)}, and it should be {rows} rows")
        return _flat(entry)

    return Form(f"{rows} rows", "reshaped", there, back)


def shaped_map(inputs: Sequence[int], outputs: Sequence[int]) -> Form:
    """A linear map with several axes of inputs, of outputs, or of both: [*inputs, *outputs]."""
    wide, tall, whole = math.prod(inputs), math.prod(outputs), (*inputs, *outputs)

    def there(entry: TensorEntry) -> TensorEntry:
        _fit(entry, (tall, wide))
        return reshaped(_transpose(entry), whole)

    def back(entry: TensorEntry) -> TensorEntry:
        if entry.shape != whole:
            raise RuleError(f"its shape is {list(entry.shape)}, and {list(whole)} is what the layer has")
        return _transpose(reshaped(entry, (wide, tall)))

    return Form(f"shaped {inputs} {outputs}", "transposed and reshaped", there, back)


def heads_of_outputs(heads: int | None) -> Form:
    """The map to queries, keys or values, cut into heads: [inputs, heads, size]."""

    def there(entry: TensorEntry) -> TensorEntry:
        outputs, inputs = _transpose(entry).shape[::-1]
        return reshaped(_transpose(entry), (inputs, *_heads(outputs, heads)))

    def back(entry: TensorEntry) -> TensorEntry:
        _require(entry, 3, "is not [inputs, heads, size of a head]")
        inputs, count, size = entry.shape
        return _transpose(reshaped(entry, (inputs, count * size)))

    return Form(f"to {heads} heads", "transposed and cut into heads", there, back)


def heads_of_bias(heads: int | None) -> Form:
    """The bias of such a map: [heads, size]."""

    def there(entry: TensorEntry) -> TensorEntry:
        _require(entry, 1, "is not that of a bias")
        return reshaped(entry, _heads(entry.shape[0], heads))

    return Form(f"bias of {heads} heads", "cut into heads", there, _flat)


def heads_of_inputs(heads: int | None) -> Form:
    """The map back from the heads: [heads, size, outputs]."""

    def there(entry: TensorEntry) -> TensorEntry:
        turned = _transpose(entry)
        inputs, outputs = turned.shape
        return reshaped(turned, (*_heads(inputs, heads), outputs))

    def back(entry: TensorEntry) -> TensorEntry:
        _require(entry, 3, "is not [heads, size of a head, outputs]")
        count, size, outputs = entry.shape
        return _transpose(reshaped(entry, (count * size, outputs)))

    return Form(f"from {heads} heads", "transposed and cut into heads", there, back)


def scalar(why: str) -> Form:
    """One number without axes, which is PyTorch's vector of one."""

    def there(entry: TensorEntry) -> TensorEntry:
        if entry.shape != (1,):
            raise RuleError(f"its shape is {list(entry.shape)}: {why}")
        return reshaped(entry, ())

    def back(entry: TensorEntry) -> TensorEntry:
        if entry.numel != 1:
            raise RuleError(f"its shape is {list(entry.shape)}, and it should be one number")
        return reshaped(entry, (1,))

    return Form("scalar", "reshaped", there, back)


def last_axis(shape: Sequence[int] | None) -> Form:
    """A vector along the last axis of several of one; the shape is known by the side that has it."""

    def there(entry: TensorEntry) -> TensorEntry:
        if shape is None:
            return entry
        _fit(entry, tuple(shape))
        return reshaped(entry, shape)

    def back(entry: TensorEntry) -> TensorEntry:
        if any(extent != 1 for extent in entry.shape[:-1]):
            raise RuleError(
                f"its shape is {list(entry.shape)}, and only one number for each of the last axis has a place"
            )
        return reshaped(entry, (entry.numel,))

    return Form(f"last axis of {shape}", "reshaped", there, back)


def debiased(momentum: float, steps: str) -> Form:
    """Equinox's running statistics, which begin at zero and are divided by what is missing when they are used."""

    def back(entry: TensorEntry, count: TensorEntry) -> TensorEntry:
        return scaled_back(entry, count, momentum=momentum)

    return Form(f"debiased {momentum}", "debiased", with_part=steps, back_with=back)


def _heads(outputs: int, heads: int | None) -> tuple[int, int]:
    if heads is None:
        raise RuleError("how many heads it has is in no tensor", remedy="Give the layer the fact num_heads.")
    if heads < 1 or outputs % heads:
        raise RuleError(f"{outputs} features cannot be cut into {heads} heads")
    return heads, outputs // heads


def _flat(entry: TensorEntry) -> TensorEntry:
    return reshaped(entry, (entry.numel,))


def _fit(entry: TensorEntry, shape: tuple[int, ...]) -> None:
    if entry.numel != math.prod(shape):
        raise RuleError(f"its shape {list(entry.shape)} has not the {math.prod(shape)} elements of {list(shape)}")
