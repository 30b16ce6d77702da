"""GGUF files, byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firekeep.entry import TensorEntry

CODES = {"F32": 0, "F16": 1, "I8": 24, "I16": 25, "I32": 26, "I64": 27, "F64": 28, "BF16": 30}
U8, I8, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 1, 4, 5, 6, 7, 8, 9, 10
FORMS = {U8: "B", I8: "b", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q"}


@dataclass
class Tensor:
    name: str | bytes
    shape: Sequence[int]
    kind: int
    data: bytes
    offset: int | None = None


def tensor_of(entry: TensorEntry) -> Tensor:
    return Tensor(entry.name, entry.shape, CODES[entry.dtype.name], bytes(entry.read()))


def text(value: str | bytes, order: str = "<", wide: str = "Q") -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack(order + wide, len(raw)) + raw


def value_of(kind: int, value: Any, order: str, wide: str) -> bytes:
    if kind == STRING:
        return text(value, order, wide)
    if kind == ARRAY:
        inner, items = value
        return struct.pack(f"{order}I{wide}", inner, len(items)) + b"".join(
            value_of(inner, item, order, wide) for item in items
        )
    return struct.pack(order + FORMS[kind], value)


def gguf(
    tensors: Sequence[Tensor] = (),
    values: Mapping[str, tuple[int, Any]] | None = None,
    *,
    version: int = 3,
    order: str = "<",
    alignment: int = 32,
    count: int | None = None,
    pairs: int | None = None,
) -> bytes:
    wide = "Q" if version > 1 else "I"
    values = values or {}
    head = b"GGUF" + struct.pack(
        f"{order}I2{wide}", version, len(tensors) if count is None else count, len(values) if pairs is None else pairs
    )
    for key, (kind, value) in values.items():
        head += text(key, order, wide) + struct.pack(f"{order}I", kind) + value_of(kind, value, order, wide)
    data = b""
    for tensor in tensors:
        data += bytes(-len(data) % alignment)
        offset = len(data) if tensor.offset is None else tensor.offset
        extents = list(tensor.shape)[::-1]
        head += text(tensor.name, order, wide)
        head += struct.pack(f"{order}I{len(extents)}{wide}IQ", len(extents), *extents, tensor.kind, offset)
        data += tensor.data
    return head + bytes(-len(head) % alignment if tensors else 0) + data
