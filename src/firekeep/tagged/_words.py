"""What both sides of tagged text agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 100
"""How deep values may lie in one another."""
MAX_VALUES = 1_000_000
"""How many values one text may hold."""
MAX_TEXT = 64 << 20
"""How long a text may be."""

NUMPY = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
"""The scalars of NumPy that are kept."""
SMALL_FLOATS = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
"""Those of ml_dtypes."""

Values = list[Any]


@dataclass(frozen=True, slots=True)
class TensorAt:
    """Stands in a value for a tensor that is kept elsewhere, under this path."""

    path: str


def below(path: str, key: object) -> str:
    """Give the path of a part of a value."""
    return f"{path}.{key}" if path else str(key)


def place(path: str, message: str) -> str:
    """Say where something is wrong."""
    return f"{path!r}: {message}" if path else message
