"""Writing one file, byte for byte as the safetensors library would."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from json.encoder import encode_basestring as quote
from operator import itemgetter
from typing import Any

from firekeep.blobs import Blob, DeferredBlob, MemoryBlob
from firekeep.disk import Part, WritePlan
from firekeep.dtypes import DType
from firekeep.entry import TensorEntry, tie_key
from firekeep.errors import FirekeepError, LimitError, MetadataError, UnsupportedError
from firekeep.formats._json import require_text
from firekeep.formats._protocol import Contents
from firekeep.formats.safetensors._header import LENGTH_BYTES, METADATA
from firekeep.formats.safetensors._ties import record_ties
from firekeep.garbage import collector_paused
from firekeep.limits import Limits

# The library's order of data: this one, then by name. Every tensor so lies at a multiple of its element size.
CODES = (
    *("U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16"),
    *("F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0", "F8_E4M3", "F8_E5M2", "I8", "U8", "F6_E3M2", "F6_E2M3", "F4", "BOOL"),
)
_NAME = itemgetter(0)
_TO_BOOL = bytes([0, *[1] * 255])


Item = tuple[str, str, tuple[int, ...], Blob]
"""A tensor as it will be written: name, code, shape, bytes."""


def plan(contents: Contents, limits: Limits, *, empty_metadata: bool = False) -> WritePlan:
    """Plan one file; see the package's `plan`."""
    with collector_paused():
        items, ties = prepare(contents)
        metadata = record_ties(ties, check_metadata(contents.metadata))
        return lay_out(items, metadata if metadata or empty_metadata else None, limits)


def prepare(contents: Contents) -> tuple[list[Item], dict[str, str]]:
    """Check all entries; give those to be stored, in the order given, and the ties (dropped name -> kept name)."""
    if contents.scalars:
        raise UnsupportedError(
            f"safetensors files hold no scalars, and there are {len(contents.scalars)} ({', '.join(contents.scalars)})",
            remedy="Write .bpk, which keeps them.",
        )
    entries = list(contents.entries)
    ties = find_ties(entries)
    seen: set[str] = set()
    due: dict[tuple[str, tuple[int, ...]], int] = {}
    items: list[Item] = []
    for entry in entries:
        name, dtype, shape, blob = entry.name, entry.require(), entry.shape, entry.blob
        code = dtype.safetensors
        if code is None or due.get((code, shape)) != blob.nbytes:  # each distinct form is computed once
            code, blob = _check_form(entry, dtype)
            due[code, shape] = blob.nbytes
        if name in seen or name == METADATA or not name.isascii():
            _check_name(name, seen)
        seen.add(name)
        if name not in ties:
            items.append((name, code, shape, blob))
    return items, ties


def find_ties(entries: Iterable[TensorEntry]) -> dict[str, str]:
    """Map each name that shares its tensor to the one that sorts first, as `safetensors.torch.save_model` does."""
    firsts: dict[Hashable, TensorEntry] = {}
    places: dict[Hashable, list[TensorEntry]] = {}
    for entry in entries:
        identity = entry.blob.identity()
        if identity is not None and (first := firsts.setdefault(identity, entry)) is not entry:
            places.setdefault(identity, [first]).append(entry)
    ties = {}
    for sharing in places.values():
        kept: dict[object, str] = {}
        for entry in sorted(sharing, key=lambda entry: entry.name):
            key = tie_key(entry)
            if key is not None and kept.setdefault(key, entry.name) != entry.name:
                ties[entry.name] = kept[key]
    return ties


def check_metadata(metadata: Mapping[Any, Any]) -> Mapping[str, str]:
    """Refuse metadata that is not text."""
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            what = f"the value of {key!r}" if isinstance(key, str) else f"the key {key!r}"
            wrong = value if isinstance(key, str) else key
            raise MetadataError(
                f"safetensors metadata is text only, and {what} is {type(wrong).__name__}",
                remedy="Give str(...) or json.dumps(...) of it.",
            )
        require_text(key, "the metadata key")
        require_text(value, f"the metadata value of {key!r}")
    return metadata


def lay_out(items: list[Item], metadata: Mapping[str, str] | None, limits: Limits) -> WritePlan:
    """Give every tensor its place and render the header."""
    if len(items) > limits.safetensors_tensors:
        raise LimitError(
            f"there are {len(items)} tensors, more than the limit of {limits.safetensors_tensors}",
            limit=limits.safetensors_tensors,
            actual=len(items),
            remedy="Save in shards (max_shard_size=...).",
        )
    by_code: dict[str, list[Item]] = {code: [] for code in CODES}
    for item in items:
        by_code[item[1]].append(item)
    shapes: dict[tuple[int, ...], str] = {}
    rows = [] if metadata is None else [f'"{METADATA}":{_render(metadata)}']
    ordered: list[Item] = []
    end = 0
    for code, group in by_code.items():
        group.sort(key=_NAME)
        for name, _, shape, blob in group:
            extents = shapes.get(shape)
            if extents is None:
                extents = shapes[shape] = ",".join(map(str, shape))
            begin, end = end, end + blob.nbytes
            rows.append(f'{quote(name)}:{{"dtype":"{code}","shape":[{extents}],"data_offsets":[{begin},{end}]}}')
        ordered += group
    return _join(("{" + ",".join(rows) + "}").encode(), ordered, end, limits)


def _join(header: bytes, items: list[Item], data_bytes: int, limits: Limits) -> WritePlan:
    header += b" " * (-len(header) % 8)
    if len(header) > limits.safetensors_header_bytes:
        raise LimitError(
            f"the header of {len(items)} tensors has {len(header)} bytes, more than the limit of "
            f"{limits.safetensors_header_bytes}, past which readers refuse the file",
            limit=limits.safetensors_header_bytes,
            actual=len(header),
            remedy="Save in shards (max_shard_size=...), or join small tensors into larger ones.",
        )
    place = LENGTH_BYTES + len(header)
    parts = [Part(0, MemoryBlob(len(header).to_bytes(LENGTH_BYTES, "little") + header))]
    for name, _, _, blob in items:
        parts.append(Part(place, blob, name))
        place += blob.nbytes
    return WritePlan(nbytes=LENGTH_BYTES + len(header) + data_bytes, parts=parts)


def _render(metadata: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{quote(key)}:{quote(metadata[key])}" for key in sorted(metadata)) + "}"


def _check_name(name: str, seen: set[str]) -> None:
    require_text(name, "the tensor name")
    if name in seen:
        raise MetadataError("two tensors have this name: it would stand twice in the header", tensor=name)
    if name == METADATA:
        raise MetadataError(
            f"no tensor can be called {METADATA}: it is the key of the file's metadata",
            tensor=name,
            remedy="Rename it.",
        )


def _check_form(entry: TensorEntry, dtype: DType) -> tuple[str, Blob]:
    """Give the code and the bytes to be written, or refuse the dtype or the length by the tensor's name."""
    try:
        due = dtype.nbytes(entry.shape)
    except FirekeepError as error:
        raise error.at(tensor=entry.name)  # noqa: B904 - the same error, with its place
    blob = entry.blob
    if blob.nbytes != due:
        raise MetadataError(
            f"shape {list(entry.shape)} of {dtype} needs {due} bytes, {blob.nbytes} are declared",
            tensor=entry.name,
            limit=due,
            actual=blob.nbytes,
        )
    if dtype.safetensors is not None:
        return dtype.safetensors, blob
    if dtype.name == "FLEX32":
        return "F32", blob
    if dtype.name == "BOOL_U8":
        return "BOOL", DeferredBlob(blob.nbytes, lambda: bytes(entry.read()).translate(_TO_BOOL))
    if dtype.name == "BOOL_U32":
        return "BOOL", DeferredBlob(blob.nbytes // 4, lambda: _narrow(entry.read()))
    raise UnsupportedError(f"safetensors has no dtype for {dtype}", tensor=entry.name, remedy=_remedy(dtype))


def _remedy(dtype: DType) -> str:
    if dtype.burn is not None:
        return "Write .bpk, which holds it, or leave it out (exclude)."
    if dtype.kind == "complex":
        return "Leave it out (exclude), or give it as complex64 or as two float tensors."
    return "Leave it out (exclude), or give it dequantized."


def _narrow(wide: memoryview) -> memoryview:
    import numpy as np

    narrow: memoryview = (np.frombuffer(wide, "<u4") != 0).view(np.uint8).data
    return narrow
