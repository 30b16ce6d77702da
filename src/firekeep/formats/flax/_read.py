"""From the nested maps of a file to named arrays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from firekeep.blobs import Blob, WindowBlob
from firekeep.dtypes import TABLE, DType
from firekeep.entry import TensorEntry
from firekeep.errors import LimitError, MetadataError, UnsupportedError
from firekeep.formats._absent import absent, check_bools, tell_absent
from firekeep.formats._joined import JoinedBlob
from firekeep.formats._protocol import Container, OpenOptions
from firekeep.formats.flax._msgpack import ArrayAt, Decoder, Extension
from firekeep.garbage import collector_paused
from firekeep.limits import Limits
from firekeep.sources import Source

CHUNKED = "__msgpack_chunked_array__"
"""The key of a map that stands for one array in pieces: MessagePack holds no more than 4 GB in one."""
_COLLECTIONS = frozenset(("params", "batch_stats"))
_LEAVES = frozenset(("kernel", "embedding", "scale"))
_LINEN_MODULE = re.compile(r"[A-Z][A-Za-z0-9]*_\d+")
_NNX_GATE = "if_"

_DTYPES: dict[str, DType] = {}
for _row in TABLE:
    if _row.numpy is not None and _row.bits >= 8:
        _DTYPES.setdefault(_row.numpy.rpartition(".")[2], _row)


def open_container(source: Source, options: OpenOptions) -> Container:
    """Read the maps of the file, and no array: arrays are windows of it.

    A tensor's name is its keys joined with dots. Numbers, texts and lists of them are `values`. Raises a `FormatError` for what is cut
    short, contradicts itself, or gives two tensors one name.
    """
    with collector_paused():
        decoder = Decoder(source.view(0, source.size), options.limits)
        root = decoder.decode()
        if not isinstance(root, dict | list | ArrayAt):
            raise UnsupportedError(
                f"the file is one value of MessagePack, {type(root).__name__}, and not maps of arrays"
            )
        walk = _Walk(source, options.limits)
        values = walk.look(root)
    entries = sorted(walk.found.values(), key=lambda entry: walk.starts[entry.name])
    notes = list(tell_absent(entries))
    if not entries:
        notes.append("there is no array of Flax in it: it is MessagePack, and not weights")
    if left := source.size - decoder.position:
        notes.append(f"{left} bytes follow the maps and were left aside")
    if walk.strange:
        notes.append(
            f"{walk.strange} values are extensions of MessagePack that Flax does not write, and were left aside"
        )
    return Container(
        format="flax",
        layout=_tell_layout(root, walk.found),
        entries={entry.name: entry for entry in entries},
        notes=tuple(notes),
        details={"arrays_in_pieces": walk.chunked, "file_bytes": source.size},
        values=lambda: values,
        check=lambda: check_bools(entries),
    )


class _Walk:
    """Goes through what was decoded; nothing in it is deeper than the limit that decoding keeps."""

    def __init__(self, source: Source, limits: Limits) -> None:
        self._source = source
        self._limits = limits
        self._spelled = 0
        self.found: dict[str, TensorEntry] = {}
        self.starts: dict[str, int] = {}
        self.chunked = 0
        self.strange = 0

    def look(self, root: Any) -> Any:
        """Collect the arrays below a value, and give back the rest of it as plain data, without maps that are empty then."""
        rest: dict[Any, Any] = {}
        stack: list[tuple[str, Any, dict[Any, Any], Any]] = [("", root, rest, "root")]
        order: list[tuple[dict[Any, Any], Any, dict[Any, Any], bool]] = []
        while stack:
            path, value, place, key = stack.pop()
            if isinstance(value, ArrayAt):
                self._add(path, [value], value.shape)
            elif isinstance(value, dict) and CHUNKED in value:
                self._add_chunked(path, value)
            elif isinstance(value, dict | list):
                made: dict[Any, Any] = {}
                order.append((place, key, made, isinstance(value, list)))
                pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
                prefix = f"{path}." if len(order) > 1 else ""
                self._spell(len(prefix) * len(pairs))
                stack += [(f"{prefix}{inner}", held, made, inner) for inner, held in reversed(pairs)]
            elif isinstance(value, Extension):
                self.strange += 1
            else:
                place[key] = value
        for place, key, made, is_list in reversed(order):
            if made:
                place[key] = [made[index] for index in sorted(made)] if is_list else dict(made)
        return rest.get("root", {})

    def _spell(self, length: int) -> None:
        """Count what names repeat of the keys around them: one long key may stand before many."""
        self._spelled += length
        if self._spelled > self._limits.text_bytes:
            raise LimitError(
                f"the names of the arrays, joined from their keys, have more than {self._limits.text_bytes} bytes",
                limit=self._limits.text_bytes,
                actual=self._spelled,
            )

    def _add_chunked(self, path: str, value: dict[Any, Any]) -> None:
        shape, pieces = _in_order(path, value.get("shape")), _in_order(path, value.get("chunks"))
        whole = all(type(extent) is int and extent >= 0 for extent in shape)
        if not whole or not all(isinstance(piece, ArrayAt) for piece in pieces):
            raise MetadataError("an array in pieces does not say its shape and its pieces", tensor=path)
        if len({piece.dtype for piece in pieces}) > 1 or not pieces:
            raise MetadataError("the pieces of an array are of several dtypes, or none are there", tensor=path)
        self.chunked += 1
        self._add(path, pieces, tuple(shape))

    def _add(self, path: str, pieces: list[ArrayAt], shape: tuple[int, ...]) -> None:
        if path in self.found:
            raise MetadataError("two arrays have this name once their keys are joined with dots", tensor=path)
        nbytes = sum(piece.nbytes for piece in pieces)
        if nbytes > self._limits.tensor_bytes:
            raise LimitError(
                f"its pieces have {nbytes} bytes, the limit is {self._limits.tensor_bytes}",
                tensor=path,
                limit=self._limits.tensor_bytes,
                actual=nbytes,
            )
        name = pieces[0].dtype
        dtype = _DTYPES.get(name)
        self.starts[path] = pieces[0].start
        if dtype is None:
            self.found[path] = absent(
                path, shape, f"its dtype is {name[:40]!r}, which no format here has", nbytes=nbytes
            )
            return
        if dtype.nbytes(shape) != nbytes:
            raise MetadataError(
                f"its shape {list(shape)} of {name} needs {dtype.nbytes(shape)} bytes, and it has {nbytes}",
                tensor=path,
                limit=dtype.nbytes(shape),
                actual=nbytes,
            )
        parts: list[Blob] = [WindowBlob(self._source, piece.start, piece.nbytes) for piece in pieces]
        self.found[path] = TensorEntry(path, dtype, shape, parts[0] if len(parts) == 1 else JoinedBlob(parts))


def _in_order(path: str, value: Any) -> list[Any]:
    """Give the values of a map with the keys "0", "1", ...: Flax writes tuples so."""
    pairs = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else None
    keyed = None if pairs is None else {str(key): held for key, held in pairs.items()}
    if keyed is None or keyed.keys() != {str(index) for index in range(len(keyed))}:
        raise MetadataError("an array in pieces has no list of them", tensor=path)
    return [keyed[str(index)] for index in range(len(keyed))]


def _tell_layout(root: Any, names: Iterable[str]) -> str:
    """Tell Linen's collections and module names, and NNX by its names of layers' tensors; "" where neither is there."""
    if isinstance(root, dict) and _COLLECTIONS & root.keys():
        return "linen"
    segments = frozenset(_segments(names))
    if any(_LINEN_MODULE.fullmatch(segment) for segment in segments):
        return "linen"
    return "flax" if _NNX_GATE in segments or _LEAVES & segments else ""


def _segments(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield from name.split(".")
