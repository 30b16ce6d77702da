"""MessagePack as `flax.serialization` writes it, byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firekeep.entry import TensorEntry


@dataclass
class Ext:
    code: int
    data: bytes


def pack(value: object) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return struct.pack("b", value) if -32 <= value < 128 else b"\xd3" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        return sized(value.encode(), (0xA0, 32), (0xD9, 0xDA, 0xDB))
    if isinstance(value, bytes):
        return sized(value, None, (0xC4, 0xC5, 0xC6))
    if isinstance(value, Ext):
        return sized(value.data, None, (0xC7, 0xC8, 0xC9), struct.pack("b", value.code))
    if isinstance(value, Mapping):
        return counted(len(value), (0x80, 0xDE, 0xDF)) + b"".join(pack(part) for pair in value.items() for part in pair)
    assert isinstance(value, Sequence), value
    return counted(len(value), (0x90, 0xDC, 0xDD)) + b"".join(map(pack, value))


def counted(number: int, codes: tuple[int, int, int]) -> bytes:
    if number < 16:
        return bytes([codes[0] | number])
    return (
        bytes([codes[1]]) + struct.pack(">H", number)
        if number < 1 << 16
        else bytes([codes[2]]) + struct.pack(">I", number)
    )


def sized(data: bytes, short: tuple[int, int] | None, codes: tuple[int, int, int], kind: bytes = b"") -> bytes:
    number = len(data)
    if short is not None and number < short[1]:
        return bytes([short[0] | number]) + data
    for code, form, most in zip(codes, ("B", ">H", ">I"), (1 << 8, 1 << 16, 1 << 32), strict=True):
        if number < most:
            return bytes([code]) + struct.pack(form, number) + kind + data
    raise AssertionError(number)


def array(dtype: str, shape: Sequence[int], data: bytes, *, code: int = 1) -> Ext:
    return Ext(code, pack([list(shape), dtype, data]))


def array_of(entry: TensorEntry) -> Ext:
    return array(entry.dtype.numpy.rpartition(".")[2], entry.shape, bytes(entry.read()))
