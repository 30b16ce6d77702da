"""Open a burnpack file: header, table, placement; tensors stay where they are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import partial

from firekeep.blobs import WindowBlob
from firekeep.entry import TensorEntry
from firekeep.errors import HeaderError, LimitError, TruncatedError
from firekeep.formats._protocol import Container, OpenOptions
from firekeep.formats._rows import Rows
from firekeep.formats._signatures import COPY_AGAIN
from firekeep.formats.burnpack._findings import find
from firekeep.formats.burnpack._layout import HEADER, MAGIC, VERSION
from firekeep.formats.burnpack._placement import Placement, place
from firekeep.formats.burnpack._table import Table, read_table
from firekeep.garbage import collector_paused
from firekeep.ids import ParamId
from firekeep.limits import Limits
from firekeep.sources import Source


class Entries(Rows):
    """The tensors of a file in the order their data lies, made when looked at."""

    __slots__ = ("_data_offset", "_order", "_source", "_table")

    def __init__(self, source: Source, table: Table, placement: Placement) -> None:
        self._source = source
        self._table = table
        self._data_offset = placement.data_offset
        self._order = placement.order

    def __getitem__(self, name: str) -> TensorEntry:
        row = self._row_of(name)
        if row is None:
            raise KeyError(name)
        return next(self._make((row,)))

    def __contains__(self, name: object) -> bool:
        return self._row_of(name) is not None

    def _row_of(self, name: object) -> int | None:
        names = self._table.names
        if not isinstance(name, str):
            return None
        row = bisect_left(names, name)
        return row if row < len(names) and names[row] == name else None

    def __iter__(self) -> Iterator[str]:
        return map(self._table.names.__getitem__, self._order)

    def __len__(self) -> int:
        return len(self._order)

    def rows(self) -> Iterator[TensorEntry]:
        """Make all entries, one by one."""
        return self._make(self._order)

    def _make(self, rows: Iterable[int]) -> Iterator[TensorEntry]:
        table, source, base = self._table, self._source, self._data_offset
        names, forms, starts, ends, ids = table.names, table.forms, table.starts, table.ends, table.param_ids
        make_id = int.__new__  # the range of an id was checked with the table
        for row in rows:
            form, start, param_id = forms[row], starts[row], ids[row]
            yield TensorEntry(
                names[row],
                form.dtype,
                form.shape,
                WindowBlob(source, base + start, ends[row] - start),
                None if param_id is None else make_id(ParamId, param_id),
            )


def open_container(source: Source, options: OpenOptions) -> Container:
    """Open a burnpack file or buffer, with every check that Burn 0.22.1 makes, and no byte of a tensor read.

    Refused besides: names that stand in the table twice, tensors that overlap without being the same bytes, quantized tensors
    whose length does not follow from their scheme. Oddities that Burn accepts and that do no harm are in `notes`.
    """
    version, table_bytes = _read_header(source, options.limits)
    with collector_paused():
        table = read_table(source.view(HEADER.size, table_bytes), options.limits)
        placement = place(source, table, table_bytes)
        entries = Entries(source, table, placement)
    return Container(
        format="burnpack",
        entries=entries,
        metadata=table.metadata,
        scalars=table.scalars,
        notes=_notes(version, table, placement),
        details={
            "version": version,
            "metadata_bytes": table_bytes,
            "data_offset": placement.data_offset,
            "file_bytes": source.size,
        },
        check=partial(find, source, table, placement, table_bytes),
    )


def _read_header(source: Source, limits: Limits) -> tuple[int, int]:
    if source.size > limits.burnpack_file_bytes:
        raise LimitError(
            f"the file has {source.size} bytes: the limit is {limits.burnpack_file_bytes}",
            limit=limits.burnpack_file_bytes,
            actual=source.size,
        )
    raw = bytes(source.view(0, min(source.size, HEADER.size)))
    if raw[:4] != MAGIC[: len(raw)]:
        raise HeaderError(f"a burnpack file begins with {MAGIC!r}, this one with {raw[:4]!r}", offset=0)
    if len(raw) < HEADER.size:
        raise _truncated(HEADER.size, source.size, "header")
    _, version, table_bytes = HEADER.unpack(raw)
    if version > VERSION:
        raise HeaderError(f"the file is of burnpack version {version}; version {VERSION} is known", offset=4)
    if table_bytes > limits.burnpack_metadata_bytes:
        raise LimitError(
            f"the table has {table_bytes} bytes: the limit is {limits.burnpack_metadata_bytes}",
            limit=limits.burnpack_metadata_bytes,
            actual=table_bytes,
        )
    if HEADER.size + table_bytes > source.size:
        raise _truncated(HEADER.size + table_bytes, source.size, "table")
    return version, table_bytes


def _truncated(expected: int, actual: int, what: str) -> TruncatedError:
    return TruncatedError(
        f"the file is truncated: its {what} needs {expected} bytes, it has {actual}",
        limit=expected,
        actual=actual,
        remedy=COPY_AGAIN,
    )


def _notes(version: int, table: Table, placement: Placement) -> tuple[str, ...]:
    notes = sorted(table.notes)
    if version != VERSION:
        notes.append(f"the file says version {version}; it is read as version {VERSION}, as Burn does")
    if table.left_over:
        notes.append(f"{table.left_over} bytes behind the table, within its stated length, mean nothing")
    return (*notes, *placement.notes)
