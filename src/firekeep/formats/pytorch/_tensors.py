"""Tensors before they have names: their geometry, checked, and the words for what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firekeep.blobs import Blob
from firekeep.dtypes import BY_TORCH, DType
from firekeep.errors import MetadataError
from firekeep.formats._absent import NoBlob
from firekeep.formats.pytorch._inert import Global, StorageRef


@dataclass(slots=True)
class Tensor:
    """A tensor without a name yet. `integers` is what a quantized one stores."""

    dtype: DType | None
    shape: tuple[int, ...]
    blob: Blob
    problem: str | None = None
    integers: Tensor | None = None


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor that a container describes by itself: the tar layout keeps them beside the pickle."""

    storage: StorageRef
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def measure(offset: int, shape: tuple[Any, ...], strides: Any) -> tuple[int, int, bool]:
    """Count the elements, find the last one touched, and tell whether they lie in row-major order."""
    if len(shape) != len(strides):
        raise MetadataError(f"it has {len(shape)} extents and {len(strides)} strides")
    if offset < 0:
        raise MetadataError(f"its offset {offset} is negative")
    numel, last, contiguous = 1, offset, True
    for at in range(len(shape) - 1, -1, -1):
        extent, stride = shape[at], strides[at]
        if type(extent) is not int or type(stride) is not int or extent < 0 or stride < 0:
            raise MetadataError(
                f"its shape {show_extents(shape)} and strides {show_extents(strides)} hold what is no extent"
            )
        if extent != 1:
            if stride != numel:
                contiguous = False
            last += (extent - 1) * stride
        numel *= extent
    if numel == 0:
        _check_empty(shape)
    return numel, last, contiguous


def _check_empty(shape: tuple[int, ...]) -> None:
    """An empty tensor may have huge other extents, but not ones that no array can have."""
    product = 1
    for extent in shape:
        product *= extent or 1
    if product >= 1 << 58:
        raise MetadataError(f"its shape {show_extents(shape)} is larger than any array's")


def lost(shape: tuple[int, ...], problem: str, dtype: DType | None = None) -> Tensor:
    """A tensor of which only the name can be told."""
    nbytes = 0
    if dtype is not None and dtype.bits % 8 == 0:
        nbytes = dtype.nbytes(shape)
    return Tensor(dtype, shape, NoBlob(nbytes, problem), problem)


def show_extents(numbers: Any) -> str:
    """Print a shape that may hold anything."""
    shown = ", ".join(
        str(number) if type(number) is int and number.bit_length() <= 128 else "?" for number in list(numbers)[:8]
    )
    return f"[{shown}{', ...' if len(numbers) > 8 else ''}]"


def shape_of(value: Any) -> tuple[int, ...]:
    """Read a shape; raises `MetadataError` for anything else."""
    if type(value) in (tuple, list) and all(type(extent) is int and 0 <= extent < 1 << 58 for extent in value):
        return tuple(value)
    raise MetadataError("its shape is not a tuple of extents")


def dtype_of(value: Any) -> DType | None:
    """Read a `torch.dtype`: it is pickled as the global of its name."""
    return BY_TORCH.get(value.name) if type(value) is Global and value.module == "torch" else None


def describe(value: Any) -> str:
    """Name a value that may be anything."""
    if type(value) is Global:
        return value.path
    return value[:80] if type(value) is str else f"a {type(value).__name__}"
