"""Telling numbers apart in arrays of any float type: finite, NaN, zero. By their bits, where that is faster than asking NumPy."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from firekeep.dtypes import DType

if TYPE_CHECKING:
    import numpy as np

    from firekeep.arrays import Array

_EXPONENTS = {"float16": 0x7C00, "bfloat16": 0x7F80}
"""The exponent bits of the 16-bit types: all set in infinities and NaN."""

_SPANS = {
    "F64": (2.0**-1074, (2 - 2.0**-52) * 2.0**1023),
    "F32": (2.0**-149, (2 - 2.0**-23) * 2.0**127),
    "FLEX32": (2.0**-149, (2 - 2.0**-23) * 2.0**127),
    "F16": (2.0**-24, 65504.0),
    "BF16": (2.0**-133, (2 - 2.0**-7) * 2.0**127),
    "F8_E4M3": (2.0**-9, 448.0),
    "F8_E5M2": (2.0**-16, 57344.0),
    "F8_E4M3FNUZ": (2.0**-10, 240.0),
    "F8_E5M2FNUZ": (2.0**-17, 57344.0),
}


def span(dtype: DType) -> tuple[float, float]:
    """Give the smallest and the largest positive number of a float type."""
    return _SPANS[dtype.name]


def is_finite(array: Array) -> Array:
    """Say of each number whether it is neither infinite nor NaN."""
    import numpy as np

    if array.dtype.itemsize == 1:
        return _table(array.dtype)[0][array.view(np.uint8)]
    exponent = _EXPONENTS.get(array.dtype.name)
    if exponent is None:
        return np.isfinite(array)
    finite: Array = (array.view(np.uint16) & np.uint16(exponent)) != exponent
    return finite


def is_nan(array: Array) -> Array:
    """Say of each number whether it is NaN."""
    import numpy as np

    if array.dtype.itemsize == 1:
        return _table(array.dtype)[1][array.view(np.uint8)]
    exponent = _EXPONENTS.get(array.dtype.name)
    if exponent is None:
        return np.isnan(array)
    nan: Array = (array.view(np.uint16) & np.uint16(0x7FFF)) > exponent
    return nan


def count_nonzero(array: Array) -> int:
    """Count the numbers that are neither 0 nor -0."""
    import numpy as np

    if array.dtype.itemsize == 1:
        return int(np.count_nonzero(_table(array.dtype)[2][array.view(np.uint8)]))
    if array.dtype.kind == "c":
        return int(np.count_nonzero(array))
    bits = array.view(f"u{array.dtype.itemsize}")
    return int(np.count_nonzero(bits << 1))


@cache
def _table(dtype: np.dtype[Any]) -> tuple[Array, Array, Array]:
    """Say of each of the 256 bytes whether it is finite, NaN, and not zero."""
    import numpy as np

    every = np.arange(256, dtype=np.uint8).view(dtype)
    with np.errstate(all="ignore"):
        numbers = every.astype(np.float32)
    return np.isfinite(numbers), np.isnan(numbers), numbers != 0
