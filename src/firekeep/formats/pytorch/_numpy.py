"""NumPy arrays, scalars and dtypes in pickles, as plain data: decoded from their bytes, never by NumPy's own functions for it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Literal

from firekeep.formats.pytorch._inert import Call, Global

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ARRAY_MAKERS = frozenset(("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"))
_SCALAR_MAKERS = frozenset(("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"))
_BUFFER_MAKERS = frozenset(("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"))
_DTYPE_TEXT = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248]|c8|c16|[SU]\d{1,9})")
_MOST_AXES = 32


def is_array(value: Call) -> bool:
    """Say whether a value is an array, of whatever kind."""
    return type(value.func) is Global and (value.func.path in _ARRAY_MAKERS or value.func.path in _BUFFER_MAKERS)


def decode_array(value: Any) -> NDArray[Any] | None:
    """Decode an array, in its own byte order and layout; None for a value that is no array of numbers, bools or text."""
    if type(value) is not Call or type(value.func) is not Global:
        return None
    if value.func.path in _ARRAY_MAKERS and type(value.state) is tuple and len(value.state) == 5:
        _, shape, dtype, fortran, raw = value.state
        return _from_bytes(raw, dtype, shape, "F" if fortran is True else "C")
    if value.func.path in _BUFFER_MAKERS and len(value.args) == 4:
        raw, dtype, shape, order = value.args
        return _from_bytes(raw, dtype, shape, "F" if order == "F" else "C")
    return None


def decode_scalar(value: Any) -> Any:
    """Decode a NumPy scalar; None for anything else."""
    if type(value) is not Call or type(value.func) is not Global or value.func.path not in _SCALAR_MAKERS:
        return None
    if len(value.args) != 2:
        return None
    array = _from_bytes(value.args[1], value.args[0], (), "C")
    return None if array is None else array[()]


def decode_dtype(value: Any) -> np.dtype[Any] | None:
    """Decode a dtype of numbers, bools or text; None for anything else."""
    if (
        type(value) is not Call
        or type(value.func) is not Global
        or value.func.path not in ("numpy.dtype", "numpy._core.multiarray.dtype")
    ):
        return None
    text = value.args[0] if value.args else None
    if type(text) is bytes:
        text = text.decode("ascii", "replace")
    if type(text) is not str or not _DTYPE_TEXT.fullmatch(text):
        return None
    import numpy as np

    order = value.state[1] if type(value.state) is tuple and len(value.state) > 1 else "="
    if order == b">":
        order = ">"
    found = np.dtype(text)
    return found.newbyteorder(">") if order == ">" else found


def _from_bytes(raw: Any, dtype: Any, shape: Any, order: Literal["C", "F"]) -> NDArray[Any] | None:
    found = decode_dtype(dtype)
    if type(raw) is str:
        raw = raw.encode("utf-8", "surrogatepass")
    if found is None or found.itemsize == 0 or type(raw) is not bytes:
        return None
    if type(shape) is not tuple or len(shape) > _MOST_AXES:
        return None
    if any(type(extent) is not int or not 0 <= extent < 1 << 48 for extent in shape):
        return None
    if math.prod(shape) * found.itemsize != len(raw):
        return None
    import numpy as np

    if not raw:
        return np.zeros(shape, found) if math.prod(extent or 1 for extent in shape) < 1 << 48 else None
    try:
        return np.ndarray(shape, found, raw, order=order)
    except ValueError:
        return None
