"""Float tensors in another float type, converted piece by piece when their bytes are drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from firekeep import floats
from firekeep.blobs import CHUNK, Blob
from firekeep.dtypes import BY_NAME, DType, dtype
from firekeep.entry import TensorEntry
from firekeep.errors import RuleError, UnsupportedError

if TYPE_CHECKING:
    from firekeep.arrays import Array

CASTABLE = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_SOURCES = (*CASTABLE, "FLEX32")
_PARTS = {"C64": "F32", "C128": "F64"}
"""Types of complex numbers, and of their parts."""


@dataclass(slots=True)
class Losses:
    """What casts did to numbers, by tensor, known once its bytes were drawn.

    `overflowed` counts finite numbers that became infinite (or NaN, where the type has no infinity), `vanished` those that became 0.
    """

    overflowed: dict[str, int] = field(default_factory=dict)
    vanished: dict[str, int] = field(default_factory=dict)


DTypeLike = Any
"""A dtype's name, or the dtype itself: NumPy's (type or instance), ml_dtypes', JAX's, PyTorch's, firekeep's."""


def name_dtype(dtype: DTypeLike) -> str:
    """Give the name of a dtype, however it was given."""
    if isinstance(dtype, str):
        return dtype
    if dtype is float:
        return "F64"  # as NumPy and PyTorch understand Python's float, while "float" is PyTorch's name of F32
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    return name if isinstance(name, str) else str(dtype)


def cast_target(name: str) -> DType:
    """Look up the type to cast to, by any of its names ("bf16", "bfloat16"); raises `RuleError` listing those there are."""
    known = ", ".join(row.lower() for row in CASTABLE)
    try:
        row = dtype(_ALIASES.get(name.lower().removeprefix("torch."), name))
    except (UnsupportedError, AttributeError):
        raise RuleError(f"there is no dtype {name!r} to cast to: one of {known}") from None
    if row.name not in CASTABLE:
        raise RuleError(f"casts make floats of floats, and {name!r} is none to cast to: one of {known}")
    return row


_ALIASES = {
    "half": "F16",
    "float": "F32",
    "double": "F64",
    "fp16": "F16",
    "fp32": "F32",
    "fp64": "F64",
    "f8_e4m3fn": "F8_E4M3",
}


def can_cast(entry: TensorEntry, target: DType) -> bool:
    """Say whether a cast would change this tensor: a float, not packed several to a byte, or complex numbers of another type."""
    if entry.dtype is None or entry.dtype is target:
        return False
    return (entry.dtype.name in _SOURCES and target.name in CASTABLE) or {
        entry.dtype.name,
        target.name,
    } <= _PARTS.keys()


def cast(entry: TensorEntry, target: DType, losses: Losses) -> TensorEntry:
    """Give the tensor in the type `target`; numbers are rounded to the nearest, ties to even.

    Nothing is drawn now. Tied tensors stay tied.
    """
    if entry.dtype is None or not can_cast(entry, target):
        return entry
    if entry.dtype.numpy == target.numpy:  # Flex32 is F32 by another name
        return replace(entry, dtype=target)
    if target.name in _PARTS:  # a complex number is two floats, one after the other
        pairs = replace(entry, shape=(*entry.shape, 2))
        return replace(entry, dtype=target, blob=CastBlob(pairs, _part(entry.dtype), _part(target), losses))
    return replace(entry, dtype=target, blob=CastBlob(entry, entry.dtype, target, losses))


def narrows(source: DType, target: DType) -> bool:
    """Say whether numbers of one type, both of which can be cast, may be too large or too small for the other."""
    before, after = floats.span(_part(source)), floats.span(_part(target))
    return before[0] < after[0] or before[1] > after[1]


def _part(dtype: DType) -> DType:
    return BY_NAME[_PARTS.get(dtype.name, dtype.name)]


HALF_PRECISION_TYPES = frozenset(
    (
        "Linear",
        "Embedding",
        "Conv1d",
        "Conv2d",
        "Conv3d",
        "ConvTranspose1d",
        "ConvTranspose2d",
        "ConvTranspose3d",
        "DeformConv2d",
        "LayerNorm",
        "GroupNorm",
        "InstanceNorm",
        "RmsNorm",
        "PRelu",
    )
)
"""The types whose tensors Burn keeps in half precision. BatchNorm is none: its running variance would vanish in F16."""

_HALF_TARGETS = ("F16", "BF16", "F32")
_HALF_SOURCES = ("F64", "F32", "FLEX32", "F16", "BF16")
_DIMENSIONS = re.compile(r"(?<=^instancenorm)[123]d$")


def half_precision(
    entries: Iterable[TensorEntry],
    target: DType,
    losses: Losses,
    *,
    owner_of: Callable[[str], str],
    types: Iterable[str] = HALF_PRECISION_TYPES,
) -> list[TensorEntry]:
    """Cast the tensors that layers of these types own to F16 or BF16, or to F32 to take it back; the others stay as they are.

    `owner_of` gives the type that owns a tensor of this name: "Linear", or "Struct:Linear" as Burn labels it, and "" where that is not
    known. Types are told by their names in any spelling, Burn's `RmsNorm` and PyTorch's `RMSNorm`, `InstanceNorm2d` too. Floats of 8 bits
    are left alone. Raises `RuleError` for another target.
    """
    if target.name not in _HALF_TARGETS:
        raise RuleError(
            f"half precision is F16 or BF16, or F32 to take it back, and not {target.name}",
            remedy="Cast to other types without regard to layers.",
        )
    chosen = frozenset(map(_spelling, types))
    return [
        cast(entry, target, losses) if _is_wide(entry) and _spelling(owner_of(entry.name)) in chosen else entry
        for entry in entries
    ]


def _is_wide(entry: TensorEntry) -> bool:
    return entry.dtype is not None and entry.dtype.name in _HALF_SOURCES


def _spelling(owner: str) -> str:
    """Give the name of a type without its label and its capitals."""
    return _DIMENSIONS.sub("", owner.rpartition(":")[2].lower())


class CastBlob(Blob):
    """The bytes of a tensor in another float type."""

    __slots__ = ("_base", "_losses", "_name", "_source", "_target")

    def __init__(self, entry: TensorEntry, source: DType, target: DType, losses: Losses) -> None:
        self._base = entry.blob
        self._name = entry.name
        self._source = source
        self._target = target
        self._losses = losses
        super().__init__(target.nbytes(entry.shape))

    def view(self) -> memoryview:
        """Convert into a fresh buffer."""
        import numpy as np

        out = np.empty(self.nbytes, np.uint8)
        place = 0
        for piece in self._pieces(CHUNK):
            out[place : place + piece.nbytes] = piece
            place += piece.nbytes
        return out.data

    def chunks(self, size: int = CHUNK) -> Iterator[memoryview]:
        """Give the converted bytes in pieces of at most `size`."""
        for piece in self._pieces(size):
            yield piece.data

    def memory(self) -> tuple[range, ...] | None:
        """Give the memory of what is cast."""
        return self._base.memory()

    def identity(self) -> Hashable | None:
        """Tensors that were tied and are cast alike are still tied."""
        below = self._base.identity()
        return None if below is None else (below, self._target.name)

    def _pieces(self, size: int) -> Iterator[Array]:
        import numpy as np

        from firekeep.arrays import numpy_dtype

        source, target = numpy_dtype(self._source), numpy_dtype(self._target)
        convert = _conversion(self._source, self._target)
        count = _counter(self._source, self._target)
        step = max(1, size // max(source.itemsize, target.itemsize))
        totals = [0, 0]
        for piece in self._base.chunks(step * source.itemsize):
            numbers = np.frombuffer(piece, source)
            made = convert(numbers)
            for kind, lost in enumerate(count(numbers, made)):
                totals[kind] += lost
            yield made.view(np.uint8)
        for lost, known in zip(totals, (self._losses.overflowed, self._losses.vanished), strict=True):
            if lost:
                known[self._name] = lost


def _conversion(source: DType, target: DType) -> Callable[[Array], Array]:
    """Give a function that rounds once, to the nearest.

    NumPy rounds F64 to F16 directly; ml_dtypes goes by way of F32 and so would round twice, unless the first step keeps a sticky bit.
    """
    import numpy as np

    from firekeep.arrays import numpy_dtype

    to = numpy_dtype(target)

    def direct(numbers: Array) -> Array:
        with np.errstate(all="ignore"):
            return numbers.astype(to)

    def by_odd(numbers: Array) -> Array:
        with np.errstate(all="ignore"):
            return _round_to_odd(numbers).astype(to)

    return by_odd if source is BY_NAME["F64"] and target.name not in ("F32", "F16") else direct


def _round_to_odd(numbers: Array) -> Array:
    """Round F64 to F32 towards zero, and set the last bit where that lost something."""
    import numpy as np

    near = numbers.astype(np.float32)
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    bits -= np.abs(back) > np.abs(numbers)
    bits |= (back != numbers) & ~np.isnan(numbers)
    return near


def _counter(source: DType, target: DType) -> Callable[[Array, Array], tuple[int, int]]:
    """Give a function that counts what a conversion lost: numbers gone to infinity, and numbers gone to zero."""
    import numpy as np

    before, after = floats.span(source), floats.span(target)
    may_vanish, may_overflow = before[0] < after[0], before[1] > after[1]

    def count(numbers: Array, made: Array) -> tuple[int, int]:
        overflowed = vanished = 0
        if may_overflow and not (kept := floats.is_finite(made)).all():
            overflowed = int(np.count_nonzero(~kept & floats.is_finite(numbers)))
        if may_vanish:
            vanished = floats.count_nonzero(numbers) - floats.count_nonzero(made)
        return overflowed, vanished

    return count
