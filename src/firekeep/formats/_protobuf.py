"""Naming protocol buffer files by their outermost fields: ONNX models and TensorFlow graphs. Nothing inside is decoded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from firekeep.formats._signatures import Identity, count_bytes
from firekeep.sources import Source

_VARINT, _LENGTH = 0, 2
_MOST_FIELDS = 64
_GRAPH = 7
# onnx.proto, ModelProto: field number to wire type.
_ONNX_FIELDS = {1: _VARINT, 2: _LENGTH, 3: _LENGTH, 4: _LENGTH, 5: _VARINT, 6: _LENGTH, 7: _LENGTH, 8: _LENGTH, 14: _LENGTH,
                20: _LENGTH, 25: _LENGTH, 26: _LENGTH}  # fmt: skip
_EXTERNAL_SEARCHED = 64 << 20


def identify_protobuf(source: Source, head: bytes) -> Identity | None:
    """Name a protocol buffer file by its outermost fields."""
    if not head or head[0] not in (0x08, 0x0A, 0x12, 0x3A, 0x42):
        return None
    fields = list(_iter_fields(source))
    if not fields:
        return None
    return _name_onnx(source, head, fields) or _name_tensorflow(head, fields)


def _iter_fields(source: Source) -> Iterator[tuple[int, int, int, int]]:
    """Walk the outermost fields: number, wire type, value or length, offset of the contents; ends where the file makes no sense."""
    at = 0
    for _ in range(_MOST_FIELDS):
        window = bytes(source.view(at, min(20, source.size - at)))
        tag, used = _read_varint(window)
        value, more = _read_varint(window[used:])
        if not used or not more or tag & 7 not in (_VARINT, _LENGTH) or tag >> 3 == 0:
            return
        at += used + more
        yield tag >> 3, tag & 7, value, at
        if tag & 7 == _LENGTH:
            at += value
        if at >= source.size:
            return


def _read_varint(window: bytes) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(window[:10]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, i + 1
    return 0, 0


def _name_onnx(source: Source, head: bytes, fields: list[tuple[int, int, int, int]]) -> Identity | None:
    first: dict[int, tuple[int, int]] = {}
    for number, wire, value, start in fields:
        if _ONNX_FIELDS.get(number) != wire:
            return None
        first.setdefault(number, (value, start))
    version = first.get(1, (0, 0))[0]
    if not 1 <= version <= 64 or _GRAPH not in first:
        return None
    facts = [("IR version", str(version))]
    for number, label in ((2, "producer"), (3, "producer version")):
        length, start = first.get(number, (0, 0))
        text = head[start : start + length]
        if text and length < 200:
            facts.append((label, text.decode(errors="replace")))
    length, start = first[_GRAPH]
    title = "an ONNX model"
    if start + length > source.size:
        missing = start + length - source.size
        title = f"an ONNX model that is cut short: {count_bytes(missing)} of its graph are missing"
        facts.append(("missing", count_bytes(missing)))
    if data := _find_external(source):
        facts.append(("weights in", repr(data)))
    return Identity(
        kind="onnx",
        title=title,
        facts=tuple(facts),
        next_step="firekeep does not read ONNX; `onnx.load` does: `onnx.numpy_helper.to_array` gives an array for each of the "
        "graph's initializers.",
    )


def _find_external(source: Source) -> str | None:
    """Find the name of the file that holds the weights of a large model: an entry of key "location" (onnx.proto, TensorProto)."""
    step = 1 << 20
    for start in range(0, min(source.size, _EXTERNAL_SEARCHED), step):
        piece = bytes(source.view(start, min(step + 300, source.size - start)))
        found = re.search(rb"\x0a\x08location\x12([\x01-\x7f])", piece)
        if found and (name := piece[found.end() : found.end() + found[1][0]]):
            return name.decode(errors="replace")
    return None


def _name_tensorflow(head: bytes, fields: list[tuple[int, int, int, int]]) -> Identity | None:
    numbers = [(number, wire) for number, wire, _, _ in fields]
    if (
        numbers[0] == (1, _VARINT)
        and fields[0][2] == 1
        and (2, _LENGTH) in numbers
        and {*numbers} <= {(1, _VARINT), (2, _LENGTH)}
    ):
        return Identity(
            kind="tf-saved-model",
            title="the graph of a TensorFlow SavedModel",
            next_step="The weights lie in its folder variables/: firekeep does not read them yet; `tf.train.load_checkpoint` does.",
        )
    # tensorflow/core/framework/node_def.proto: a node starts with its name and its operation.
    node = head[fields[0][3] :]
    if numbers[0] == (1, _LENGTH) and len(node) > 2 and node[0] == 0x0A and node[1] < 0x80:
        operation = node[2 + node[1] :]
        if re.match(rb"\x12.(Placeholder|Const|VarHandleOp|NoOp|Variable)", operation, re.DOTALL):
            return Identity(
                kind="tf-graph",
                title="a frozen TensorFlow graph",
                next_step="firekeep does not read it; `tf.compat.v1.GraphDef` does, and its Const nodes hold the weights.",
            )
    return None
