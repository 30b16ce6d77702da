"""Tiny PyTorch files, written opcode by opcode: without PyTorch, and also the ones that it would not write.

Functions named after opcodes give bytes; `text`, `number`, `pair` and the like give the bytes that push a value. They are joined with
`+` and made a whole pickle by `pickled`.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence

from firekeep.dtypes import BY_NAME, DType

MAGIC = 0x1950A86A20F9469CFC6C

MARK, STOP, NONE, TRUE, FALSE = b"(", b".", b"N", b"\x88", b"\x89"
EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE, EMPTY_SET = b"}", b"]", b")", b"\x8f"
REDUCE, BUILD, NEWOBJ, TUPLE, SETITEM, SETITEMS, APPEND, APPENDS = b"R", b"b", b"\x81", b"t", b"s", b"u", b"a", b"e"
BINPERSID, STACK_GLOBAL, MEMOIZE, POP, DUP = b"Q", b"\x93", b"\x94", b"0", b"2"


def pickled(body: bytes, protocol: int = 2) -> bytes:
    """Close a pickle."""
    return b"\x80" + bytes([protocol]) + body + STOP


def text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def raw_bytes(value: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(value)) + value


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def group(*values: bytes) -> bytes:
    """A tuple."""
    return MARK + b"".join(values) + TUPLE


def numbers(values: Sequence[int]) -> bytes:
    return group(*map(number, values))


def sequence(*values: bytes) -> bytes:
    """A list."""
    return EMPTY_LIST + MARK + b"".join(values) + APPENDS


def mapping(items: Mapping[str, bytes]) -> bytes:
    """A dict with text keys."""
    return pairs((text(key), value) for key, value in items.items())


def pairs(items: object) -> bytes:
    return EMPTY_DICT + MARK + b"".join(key + value for key, value in items) + SETITEMS  # type: ignore[attr-defined]


def call(module: str, attribute: str, *args: bytes) -> bytes:
    return name(module, attribute) + group(*args) + REDUCE


def new(module: str, attribute: str, state: bytes | None = None, *args: bytes) -> bytes:
    """An object of a class, and its state."""
    made = name(module, attribute) + group(*args) + NEWOBJ
    return made if state is None else made + state + BUILD


def ordered(items: Mapping[str, bytes], metadata: bytes | None = None) -> bytes:
    """An OrderedDict, as a state dict is one."""
    made = name("collections", "OrderedDict") + EMPTY_TUPLE + REDUCE + MARK
    made += b"".join(text(key) + value for key, value in items.items()) + SETITEMS
    return made if metadata is None else made + mapping({"_metadata": metadata}) + BUILD


def storage(kind: str, key: str, numel: int, *, view: bytes | None = None, module: str = "torch") -> bytes:
    parts = [text("storage"), name(module, kind), text(key), text("cpu"), number(numel)]
    return group(*parts, *([] if view is None else [view])) + BINPERSID


def tensor(
    kind: str,
    key: str,
    numel: int,
    *,
    shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    offset: int = 0,
    view: bytes | None = None,
    metadata: bytes | None = None,
) -> bytes:
    """A tensor as `_rebuild_tensor_v2` takes it; by default the whole storage in one row."""
    shape = (numel,) if shape is None else shape
    strides = row_major(shape) if strides is None else strides
    hooks = name("collections", "OrderedDict") + EMPTY_TUPLE + REDUCE
    parts = [storage(kind, key, numel, view=view), number(offset), numbers(shape), numbers(strides), FALSE, hooks]
    return call("torch._utils", "_rebuild_tensor_v2", *parts, *([] if metadata is None else [metadata]))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def module(
    tables: Mapping[str, Mapping[str, bytes]], attributes: Mapping[str, bytes] | None = None, cls: str = "Net"
) -> bytes:
    """A whole `torch.nn.Module` of a class nobody has; `tables` may leave out any of the three."""
    state = {table: ordered(tables.get(table, {})) for table in ("_parameters", "_buffers", "_modules")}
    return new("my_project.models", cls, mapping({"training": TRUE, **state, **(attributes or {})}))


def zip_file(
    pickle: bytes,
    storages: Mapping[str, bytes] | None = None,
    *,
    root: str = "archive/",
    byteorder: bytes | None = b"little",
    extra: Mapping[str, bytes] | None = None,
    packed: bool = False,
) -> bytes:
    """The layout of PyTorch 1.6 and later."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{root}data.pkl", pickle)
        if byteorder is not None:
            archive.writestr(f"{root}byteorder", byteorder)
        for key, raw in (storages or {}).items():
            archive.writestr(f"{root}data/{key}", raw)
        archive.writestr(f"{root}version", b"3\n")
        for member, raw in (extra or {}).items():
            archive.writestr(member, raw)
    return out.getvalue()


def legacy_file(
    body: bytes,
    storages: Mapping[str, tuple[int, bytes]] | None = None,
    *,
    protocol: int = 2,
    magic: bytes | None = None,
    little: bytes | None = TRUE,
    counts: str = "little",
) -> bytes:
    """The stream of PyTorch before 1.6: `storages` maps a key to its number of elements and its bytes."""
    facts = {"protocol_version": number(1001), "type_sizes": mapping({"int": number(4)})}
    if little is not None:
        facts["little_endian"] = little
    out = pickled(number(MAGIC)) if magic is None else magic
    out += pickled(number(1001), protocol) + pickled(mapping(facts), protocol) + pickled(body, protocol)
    held = dict(sorted((storages or {}).items()))
    out += pickled(sequence(*map(text, held)), protocol)
    for numel, raw in held.values():
        out += numel.to_bytes(8, counts) + raw  # type: ignore[arg-type]
    return out


def tar_file(members: Mapping[str, bytes]) -> bytes:
    """A tar archive that ends with two empty blocks and nothing more."""
    out = b""
    for member, raw in members.items():
        header = bytearray(512)
        header[: len(member)] = member.encode()
        header[100:108] = b"0000644\0"
        header[108:116] = header[116:124] = b"0000000\0"
        header[124:136] = b"%011o\0" % len(raw)
        header[136:148] = b"%011o\0" % 0
        header[148:156] = b" " * 8
        header[156:157] = b"0"
        header[257:265] = b"ustar\x0000"
        header[148:156] = b"%06o\0 " % sum(header)
        out += bytes(header) + raw + bytes(-len(raw) % 512)
    return out + bytes(1024)


def old_tar(
    body: bytes,
    storages: Mapping[int, tuple[str, bytes]],
    tensors: Mapping[int, tuple[int, Sequence[int], Sequence[int], int]],
    views: Sequence[tuple[int, int, int, int]] = (),
) -> bytes:
    """The layout of PyTorch 0.1: storages by key (class, bytes), tensors by key (storage, shape, strides, offset)."""
    held = pickled(number(len(storages)))
    for key, (kind, raw) in storages.items():
        itemsize = next(row.bits // 8 for row in BY_NAME.values() if row.storage == kind)
        held += pickled(group(number(key), text("cpu"), name("torch", kind)))
        held += struct.pack("<q", len(raw) // itemsize) + raw
    held += pickled(sequence(*map(numbers, views)))
    described = pickled(number(len(tensors)))
    for key, (place, shape, strides, offset) in tensors.items():
        described += pickled(group(number(key), number(place), name("torch", "FloatTensor")))
        described += struct.pack(f"<ii{2 * len(shape) + 1}q", len(shape), 0, *shape, *strides, offset)
    facts = {"protocol_version": number(1000), "little_endian": TRUE, "type_sizes": mapping({})}
    return tar_file(
        {"sys_info": pickled(mapping(facts)), "pickle": pickled(body), "storages": held, "tensors": described}
    )


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


STORED_DTYPES: tuple[DType, ...] = tuple(row for row in BY_NAME.values() if row.storage and row.kind != "quantized")
"""What a typed storage can hold."""
