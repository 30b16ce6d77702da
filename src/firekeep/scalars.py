"""Typed scalars: the small numbers beside the tensors of a burnpack file."""

from __future__ import annotations

import operator
import struct
from dataclasses import dataclass
from typing import Literal

from firekeep.errors import ScalarError

ScalarKind = Literal["int", "uint", "float", "bool"]

_RANGES = {
    **{f"i{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"u{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
HOST_TYPES = (*_RANGES, "f32", "f64", "bool")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that keeps the kind it was stored as: Int(3) and UInt(3) are different bytes in a file.

    `to` reads it as a host type with a check; `int()`, `float()` and `bool()` are the short forms.

    >>> Scalar.of(-5).to("i32")
    -5
    """

    kind: ScalarKind
    value: int | float | bool

    def __post_init__(self) -> None:
        value, kind = self.value, self.kind
        if kind == "bool":
            ok = isinstance(value, bool)
        elif kind == "float":
            ok = isinstance(value, float)
        else:
            low, high = _RANGES["i64" if kind == "int" else "u64"]
            ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        if not ok:
            raise ScalarError(f"{value!r} is not a 64-bit {kind}")

    @classmethod
    def of(cls, value: object) -> Scalar:
        """Give a Python or NumPy number the kind Burn would: bool, float, unsigned for NumPy's unsigned, else signed.

        Python integers are signed, or unsigned above 2**63 - 1. Anything else raises `ScalarError`.
        """
        if isinstance(value, Scalar):
            return value
        if isinstance(value, bool):
            return cls("bool", value)
        if isinstance(value, float):
            return cls("float", float(value))
        dtype_kind = getattr(getattr(value, "dtype", None), "kind", None)
        if dtype_kind == "b":
            return cls("bool", bool(value))
        if dtype_kind == "f":
            return cls("float", float(value))  # type: ignore[arg-type]
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise ScalarError(f"{type(value).__name__} is not a scalar: int, float or bool is") from None
        unsigned = dtype_kind == "u" or number >= 1 << 63
        return cls("uint" if unsigned else "int", number)

    def to(self, host: str) -> int | float | bool:
        """Read as one of i8-i64, u8-u64, f32, f64, bool.

        Integers convert to any integer type they fit and to floats; floats never become integers, and bool is only bool.
        Anything else raises `ScalarError` with both sides.
        """
        if host not in HOST_TYPES:
            raise ScalarError(f"no scalar type {host!r}: one of {', '.join(HOST_TYPES)}")
        if (host == "bool") != (self.kind == "bool"):
            raise ScalarError(f"{self} cannot be read as {host}")
        if host == "bool":
            return self.value
        if host in ("f32", "f64"):
            number = float(self.value)
            return struct.unpack("<f", _to_f32(number))[0] if host == "f32" else number
        if self.kind == "float":
            raise ScalarError(f"{self} cannot be read as {host}: a float is never rounded to an integer")
        low, high = _RANGES[host]
        if not low <= self.value <= high:
            raise ScalarError(f"{self} does not fit {host} ({low} to {high})")
        return self.value

    def __int__(self) -> int:
        return int(self.to("u64" if self.kind == "uint" else "i64"))

    def __index__(self) -> int:
        return int(self)

    def __float__(self) -> float:
        return float(self.to("f64"))

    def __bool__(self) -> bool:
        return bool(self.to("bool"))

    def __str__(self) -> str:
        return f"{ {'int': 'Int', 'uint': 'UInt', 'float': 'Float', 'bool': 'Bool'}[self.kind] }({self.value})"


def _to_f32(number: float) -> bytes:
    try:
        return struct.pack("<f", number)
    except OverflowError:
        raise ScalarError(f"Float({number}) does not fit f32") from None
