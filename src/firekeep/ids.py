"""Parameter ids: 64-bit numbers, printed as Burn prints them."""

from __future__ import annotations

import base64
import os
from typing import Self

from firekeep.errors import FormatError

_TO_HEX = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789abcdefghijklmnopqrstuv")
_FROM_HEX = bytes.maketrans(b"0123456789abcdefghijklmnopqrstuv", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")


class ParamId(int):
    """The identity of a parameter: an unsigned 64-bit integer.

    Files hold the plain integer. The text form is Burn's: the eight little-endian bytes in lower-case base32hex without
    padding, always 13 characters.

    >>> str(ParamId(14101554053607715927))
    'avq43klip2pc6'
    """

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        """Check the range; raises `FormatError` outside it."""
        if not 0 <= value < 1 << 64:
            raise FormatError(f"parameter id {value} does not fit 64 unsigned bits")
        return super().__new__(cls, value)

    @classmethod
    def fresh(cls) -> ParamId:
        """Draw a random id."""
        return cls(int.from_bytes(os.urandom(8), "little"))

    @classmethod
    def parse(cls, text: str) -> ParamId:
        """Read the text form, in either case.

        Shorter texts of older files (48-bit ids) are zero-extended. Longer or foreign texts raise `FormatError`.
        """
        lowered = text.lower().encode("utf-8", "replace")
        try:
            if not lowered or len(lowered) > 13 or set(lowered) - set(b"0123456789abcdefghijklmnopqrstuv"):
                raise ValueError(text)
            padded = lowered.translate(_FROM_HEX) + b"=" * (-len(lowered) % 8)
            raw = base64.b32decode(padded)
        except ValueError as error:
            raise FormatError(f"{text!r} is not a parameter id: 1 to 13 characters of 0-9 and a-v are") from error
        return cls(int.from_bytes(raw, "little"))

    def __str__(self) -> str:
        raw = int(self).to_bytes(8, "little")
        return base64.b32encode(raw).rstrip(b"=").translate(_TO_HEX).decode("ascii")

    def __repr__(self) -> str:
        return f"ParamId({int(self)})"
