"""Where the data of a file lies: its start, the order of the tensors, what overlaps and what is missing.

Burn writes the data of every release since 0.20 from a multiple of 256 on, and 0.19 wrote it directly behind the table, under the
same version number. Both are told apart by the length of the file and by the bytes that one of them leaves zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import le, or_

from firekeep.blobs import CHUNK
from firekeep.errors import MetadataError, TruncatedError
from firekeep.formats._signatures import COPY_AGAIN
from firekeep.formats.burnpack._layout import ALIGNMENT, HEADER, data_start
from firekeep.formats.burnpack._table import Table
from firekeep.sources import Source

OLD_PLACEMENT = "written as Burn 0.19 did: the data begins directly behind the table, without alignment"
UNALIGNED = "tensors do not lie at multiples of 256 bytes, as Burn places them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the data begins and ends in the file, and the rows of the table in the order their data lies."""

    order: list[int]
    data_offset: int
    end: int
    notes: tuple[str, ...]


def place(source: Source, table: Table, table_bytes: int) -> Placement:
    """Find where the data is; raises `TruncatedError` or `MetadataError` when it is not all there or not certain where."""
    order = _data_order(table)
    _refuse_overlaps(table, order)
    end = max(table.ends, default=0)
    unaligned = bool(reduce(or_, table.starts, 0) % ALIGNMENT)
    data_offset = data_start(table_bytes)
    notes = []
    gap_used = not is_zero(source, HEADER.size + table_bytes, data_offset)
    if gap_used and _is_old(source, table, order, table_bytes, end):
        data_offset = HEADER.size + table_bytes
        notes.append(OLD_PLACEMENT)
    elif source.size < data_offset + end:
        raise _truncated(source, data_offset + end, HEADER.size + table_bytes + end)
    elif unaligned and gap_used:
        raise MetadataError(
            f"{UNALIGNED}, and the bytes between table and data are in use: it cannot be told where the data begins",
            offset=HEADER.size + table_bytes,
        )
    elif unaligned:
        notes.append(UNALIGNED)
    if (behind := source.size - data_offset - end) > 0:
        notes.append(f"{behind} bytes behind the last tensor belong to none")
    return Placement(order=order, data_offset=data_offset, end=data_offset + end, notes=tuple(notes))


def _data_order(table: Table) -> list[int]:
    rows = range(len(table.starts))
    if len(set(table.starts)) == len(rows):
        return sorted(rows, key=table.starts.__getitem__)
    ranges = list(
        zip(table.starts, table.ends, strict=True)
    )  # an empty tensor lies before the one it shares a start with
    return sorted(rows, key=ranges.__getitem__)


def is_zero(source: Source, start: int, end: int) -> bool:
    """Say whether the bytes from `start` to `end`, or to the end of the file, are all zero."""
    end = min(end, source.size)
    while start < end:
        length = min(CHUNK, end - start)
        if source.view(start, length).tobytes().strip(b"\0"):
            return False
        start += length
    return True


def gaps(table: Table, placement: Placement) -> Iterator[tuple[int, int, int]]:
    """Give what lies between tensors: the row behind it, its first byte and the one after its last, within the data."""
    reached = 0
    for row in placement.order:
        if table.starts[row] > reached:
            yield row, reached, table.starts[row]
        reached = max(reached, table.ends[row])


def _is_old(source: Source, table: Table, order: list[int], table_bytes: int, end: int) -> bool:
    """Say whether only Burn 0.19 can have written this: packed without gaps, and as long as that makes it."""
    if source.size != HEADER.size + table_bytes + end:
        return False
    reached = 0
    for row in order:
        if table.starts[row] > reached:
            return False
        reached = max(reached, table.ends[row])
    return True


def _truncated(source: Source, expected: int, unaligned: int) -> TruncatedError:
    hint = ""
    if source.size == unaligned:
        hint = "; as a file of Burn 0.19 it would be whole, but nothing shows that it is one"
    return TruncatedError(
        f"the file is truncated: its table needs {expected} bytes, it has {source.size}{hint}",
        limit=expected,
        actual=source.size,
        remedy=COPY_AGAIN,
    )


def _refuse_overlaps(table: Table, order: list[int]) -> None:
    """Allow two names for exactly the same bytes (tied tensors), and no other sharing."""
    starts = list(map(table.starts.__getitem__, order))
    ends = list(map(table.ends.__getitem__, order))
    if all(map(le, ends, starts[1:])):
        return
    last: int | None = None
    for row in order:
        start, end = table.starts[row], table.ends[row]
        if start == end:
            continue
        if last is not None and start < table.ends[last] and (start, end) != (table.starts[last], table.ends[last]):
            raise MetadataError(
                f"its bytes {start} to {end} overlap those of {table.names[last]!r}, "
                f"{table.starts[last]} to {table.ends[last]}",
                tensor=table.names[row],
                offset=start,
            )
        if last is None or end >= table.ends[last]:
            last = row
