"""Checks of a burnpack file that cost a look at its data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from firekeep.blobs import CHUNK
from firekeep.formats._protocol import Finding
from firekeep.formats.burnpack._layout import HEADER, align
from firekeep.formats.burnpack._placement import Placement, gaps, is_zero
from firekeep.formats.burnpack._table import Table
from firekeep.sources import Source


def find(source: Source, table: Table, placement: Placement, table_bytes: int) -> Iterator[Finding]:
    """Look at the bytes that belong to no tensor, and at the ones that can only be true or false."""
    if not is_zero(source, HEADER.size + table_bytes, placement.data_offset):
        yield Finding("warning", "", "the padding between table and data is not zero")
    base = placement.data_offset
    for row, start, end in gaps(table, placement):
        name = table.names[row]
        if end > align(start):
            yield Finding("note", name, f"{end - start} unused bytes lie before it")
        if not is_zero(source, base + start, base + end):
            yield Finding("warning", name, "the padding before it is not zero")
    for row in placement.order:
        if table.starts[row] % 256 and base % 256 == 0:
            yield Finding("note", table.names[row], f"it lies at {table.starts[row]}, not a multiple of 256")
    yield from _two_forms(table, placement)
    if source.size > placement.end:
        yield Finding("note", "", f"{source.size - placement.end} bytes lie behind the last tensor")
    yield from _bad_bools(source, table, placement)


def _two_forms(table: Table, placement: Placement) -> Iterator[Finding]:
    for one, two in pairwise(placement.order):
        tied = table.starts[one] == table.starts[two] and table.ends[one] == table.ends[two] > table.starts[two]
        if tied and table.forms[one] != table.forms[two]:
            yield Finding("note", table.names[two], f"it has the bytes of {table.names[one]!r} in another form")


def _bad_bools(source: Source, table: Table, placement: Placement) -> Iterator[Finding]:
    for row in placement.order:
        dtype = table.forms[row].dtype
        if dtype.kind != "bool":
            continue
        width = dtype.bits // 8
        start, end = placement.data_offset + table.starts[row], placement.data_offset + table.ends[row]
        for offset in range(start, end, CHUNK):
            raw = bytes(source.view(offset, min(CHUNK, end - offset)))
            high = b"".join(raw[byte::width] for byte in range(1, width))
            if raw[::width].translate(None, delete=b"\0\1") or high.strip(b"\0"):
                yield Finding("warning", table.names[row], "it is boolean, and has values other than 0 and 1")
                break
