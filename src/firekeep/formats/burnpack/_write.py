"""Plan a burnpack file: data in the order given, descriptors by name, every limit of Burn's reader kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firekeep.blobs import Blob, MemoryBlob
from firekeep.disk import Part, WritePlan
from firekeep.dtypes import DType
from firekeep.entry import TensorEntry, tie_key
from firekeep.errors import FirekeepError, LimitError, MetadataError, ScalarError
from firekeep.formats._protocol import Contents
from firekeep.formats.burnpack._cbor import ARRAY, MAP, encode, head, integer, text
from firekeep.formats.burnpack._elements import dtype_tree, nbytes_of, scalar_bytes
from firekeep.formats.burnpack._layout import ALIGNMENT, data_start, header
from firekeep.garbage import collector_paused
from firekeep.limits import Limits
from firekeep.scalars import Scalar

_PLAIN_DEPTH = 4
"""Containers around a number of a plain tensor's shape: the table, the tensors, the descriptor, the shape."""
_SCHEME_DEPTH = 8
"""And around a block's extents: the dtype, the scheme, the block, its size and the list come after the descriptor."""

_OFFSETS_KEY = text("data_offsets") + head(ARRAY, 2)
_ID_KEY = text("param_id")
Form = tuple[bytes, int]
"""The encoded dtype and shape of a descriptor, and the bytes such a tensor has."""


def plan(contents: Contents, limits: Limits) -> WritePlan:
    """Decide the whole file from declared lengths, as Burn lays it out; no tensor is drawn.

    Tensors with one identity, dtype and shape are stored once, under all their names. Raises `FormatError` naming the tensor
    for a name given twice, a length that does not follow from dtype and shape, a dtype Burn has not, and for whatever
    Burn's own reader would refuse (`limits`).
    """
    with collector_paused():
        layout = _Layout(limits)
        for entry in contents.entries:
            try:
                layout.add(entry)
            except FirekeepError as error:
                raise error.at(tensor=entry.name)  # noqa: B904 - the same error, with its place
        table = _table(layout.descriptors, contents.metadata, _scalars(contents.scalars))
        _check_limit(len(table), min(limits.burnpack_metadata_bytes, (1 << 32) - 1), "the table would have {} bytes")
        start = data_start(len(table))
        nbytes = start + layout.end
        _check_limit(nbytes, limits.burnpack_file_bytes, "the file would have {} bytes")
        parts = [Part(0, MemoryBlob(header(len(table)) + table))]
        parts += [Part(start + offset, blob, name) for offset, blob, name in layout.data]
    return WritePlan(nbytes=nbytes, parts=parts)


class _Layout:
    """Where each tensor goes, and the descriptor that says so."""

    def __init__(self, limits: Limits) -> None:
        self.descriptors: dict[str, bytes] = {}
        self.data: list[tuple[int, Blob, str]] = []
        self.end = 0
        self._limits = limits
        self._places: dict[object, tuple[int, int]] = {}
        self._forms: dict[tuple[int, tuple[int, ...]], Form] = {}
        self._dtypes: list[DType] = []  # alive, so that the ids in `_forms` mean them

    def add(self, entry: TensorEntry) -> None:
        """Place one more tensor behind the ones before."""
        name, blob, dtype, shape = entry.name, entry.blob, entry.dtype, entry.shape
        form = self._forms.get((id(dtype), shape))
        if form is None or entry.problem is not None:
            dtype = entry.require()
            self._dtypes.append(dtype)
            form = self._forms[id(dtype), shape] = _form(dtype, shape, self._limits)
        spelled, nbytes = form
        if blob.nbytes != nbytes:
            raise MetadataError(f"{dtype} of shape {list(shape)} takes {nbytes} bytes, {blob.nbytes} are declared")
        if name in self.descriptors:
            raise MetadataError("the name is given twice")
        key = None if blob.identity() is None else tie_key(entry)
        place = None if key is None else self._places.get(key)
        if place is None:
            start = -(-self.end // ALIGNMENT) * ALIGNMENT
            self.end = start + nbytes
            self.data.append((start, blob, name))
            place = (start, self.end)
            if key is not None:
                self._places[key] = place
        offsets = spelled + integer(place[0]) + integer(place[1])
        param_id = entry.param_id
        self.descriptors[name] = (
            b"\xa3" + offsets if param_id is None else b"\xa4" + offsets + _ID_KEY + integer(param_id)
        )
        limit = self._limits.burnpack_tensors
        if len(self.descriptors) > limit:
            raise LimitError(f"more than {limit} tensors", limit=limit, actual=limit + 1)


def _form(dtype: DType, shape: tuple[int, ...], limits: Limits) -> Form:
    spelled = encode(dtype_tree(dtype))
    nbytes = nbytes_of(dtype, shape)
    _check_limit(nbytes, limits.burnpack_tensor_bytes, "it has {} bytes")
    depth = _PLAIN_DEPTH if dtype.scheme is None else _SCHEME_DEPTH
    _check_limit(depth, limits.burnpack_depth, "a descriptor nested {} deep")
    extents = head(ARRAY, len(shape)) + b"".join(map(integer, shape))
    return text("dtype") + spelled + text("shape") + extents + _OFFSETS_KEY, nbytes


def _table(descriptors: Mapping[str, bytes], metadata: Mapping[str, str], scalars: Mapping[str, bytes]) -> bytes:
    parts = [("tensors", _by_name(descriptors, "tensor"))]
    if metadata:
        parts.append(("metadata", _by_name(_texts(metadata), "metadata key")))
    if scalars:
        parts.append(("scalars", _by_name(scalars, "scalar")))
    return b"".join([head(MAP, len(parts)), *(text(key) + value for key, value in parts)])


def _by_name(values: Mapping[str, bytes], what: str) -> bytes:
    out = [head(MAP, len(values))]
    for name in sorted(values):
        try:
            out += (text(name), values[name])
        except UnicodeEncodeError:
            raise MetadataError(
                f"the {what} {name!r} is not Unicode text: it has half of a surrogate pair",
                tensor=name if what == "tensor" else None,
            ) from None
    return b"".join(out)


def _texts(metadata: Mapping[Any, Any]) -> dict[str, bytes]:
    out = {}
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise MetadataError(f"metadata {key!r}: {value!r} is not a text under a text")
        try:
            out[key] = text(value)
        except UnicodeEncodeError:
            raise MetadataError(f"metadata {key!r} is not Unicode text: it has half of a surrogate pair") from None
    return out


def _scalars(scalars: Mapping[str, Scalar]) -> dict[str, bytes]:
    out = {}
    for name, value in scalars.items():
        try:
            out[name] = scalar_bytes(Scalar.of(value))
        except ScalarError as error:
            raise MetadataError(f"scalar {name!r}: {error}") from None
    return out


def _check_limit(actual: int, limit: int, what: str) -> None:
    if actual > limit:
        raise LimitError(
            f"{what.format(actual)}: the limit is {limit}, beyond which Burn does not read it",
            limit=limit,
            actual=actual,
        )
