"""CBOR as Burn spells it: shortest integers, definite lengths, and floats in the smallest form that keeps every bit.

No CBOR package's encoder does this: default ones keep floats at 64 bits, canonical ones sort maps their own way.
"""

from __future__ import annotations

import struct

UINT, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, OTHER = range(8)

NULL = b"\xf6"
TRUE = b"\xf5"
FALSE = b"\xf4"

_BYTE = [bytes((value,)) for value in range(256)]
_U16 = struct.Struct(">BH").pack
_U32 = struct.Struct(">BI").pack
_U64 = struct.Struct(">BQ").pack
_EXPONENT = 0x7FF << 52
_QUIET = 1 << 51


def head(major: int, count: int) -> bytes:
    """Write a major type with its count in the fewest bytes; `count` is below 2**64."""
    top = major << 5
    if count < 24:
        return _BYTE[top | count]
    if count < 0x100:
        return _BYTE[top | 24] + _BYTE[count]
    if count < 0x1_0000:
        return _U16(top | 25, count)
    if count < 0x1_0000_0000:
        return _U32(top | 26, count)
    return _U64(top | 27, count)


def integer(number: int) -> bytes:
    """Write an integer between -2**64 and 2**64 - 1."""
    if number < 0:
        return head(NEGATIVE, -1 - number)
    if number < 24:
        return _BYTE[number]
    if number < 0x100:
        return b"\x18" + _BYTE[number]
    if number < 0x1_0000:
        return _U16(0x19, number)
    if number < 0x1_0000_0000:
        return _U32(0x1A, number)
    return _U64(0x1B, number)


def text(value: str) -> bytes:
    """Write a text; raises `UnicodeEncodeError` for lone surrogates."""
    raw = value.encode("utf-8")
    return head(TEXT, len(raw)) + raw


def encode(tree: object) -> bytes:
    """Write None, bools, numbers, texts, lists and dicts; a dict keeps its order."""
    if tree is None:
        return NULL
    if isinstance(tree, bool):
        return TRUE if tree else FALSE
    if isinstance(tree, int):
        return integer(tree)
    if isinstance(tree, float):
        return real(tree)
    if isinstance(tree, str):
        return text(tree)
    if isinstance(tree, list):
        return head(ARRAY, len(tree)) + b"".join(map(encode, tree))
    if isinstance(tree, dict):
        return head(MAP, len(tree)) + b"".join(text(key) + encode(value) for key, value in tree.items())
    raise TypeError(f"{type(tree).__name__} has no place in a burnpack table")


def real(value: float) -> bytes:
    """Write a float as half, single or double precision: the first that gives back all 64 bits.

    A quiet NaN shrinks as far as its payload allows, a signalling one stays at 64 bits (the conversions would quieten it).
    """
    wide = struct.pack(">d", value)
    bits = int.from_bytes(wide, "big")
    if bits & _EXPONENT == _EXPONENT and bits & (1 << 52) - 1:
        return _nan(bits, wide)
    for form, mark in ((">e", b"\xf9"), (">f", b"\xfa")):
        try:
            narrow = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.pack(">d", struct.unpack(form, narrow)[0]) == wide:
            return mark + narrow
    return b"\xfb" + wide


def _nan(bits: int, wide: bytes) -> bytes:
    sign = bits >> 63
    if bits & _QUIET and not bits & (1 << 42) - 1:
        return b"\xf9" + (sign << 15 | 0x7C00 | bits >> 42 & 0x3FF).to_bytes(2, "big")
    if bits & _QUIET and not bits & (1 << 29) - 1:
        return b"\xfa" + (sign << 31 | 0x7F80_0000 | bits >> 29 & 0x7F_FFFF).to_bytes(4, "big")
    return b"\xfb" + wide
