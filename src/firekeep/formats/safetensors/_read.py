"""Reading one file."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator

from firekeep.formats._json import refuse_flood
from firekeep.formats._protocol import Container, Finding, OpenOptions
from firekeep.formats.safetensors._entries import Entries
from firekeep.formats.safetensors._header import LENGTH_BYTES, has_escapes, parse_header, read_header
from firekeep.formats.safetensors._table import Table, require_length
from firekeep.formats.safetensors._ties import read_ties
from firekeep.garbage import collector_paused
from firekeep.limits import Limits
from firekeep.sources import Source

_QUICK_BYTES = 44 << 10
_WORTH_NUMPY = 8 << 20
"""A header so long takes longer to parse, and far more memory, than NumPy takes to import."""


def open_container(source: Source, options: OpenOptions) -> Container:
    """Read and check the header; see the package's `open_container`."""
    with collector_paused():
        raw = read_header(source, options.limits)
        table, metadata = _read_table(raw, options.limits)
        start = LENGTH_BYTES + len(raw)
        trailing = require_length(table, source.size - start, allow_trailing=options.allow_trailing)
        entries = Entries(source, table, start)
    ties, notes = read_ties(metadata or {}, entries)
    warnings = list(_warn(table, trailing, plain=raw.isascii() and not has_escapes(raw)))
    return Container(
        format="safetensors",
        entries=entries,
        metadata=metadata or {},
        notes=(*warnings, *notes),
        details={
            "header_bytes": len(raw),
            "data_offset": start,
            "data_bytes": table.data_bytes,
            "file_bytes": source.size,
            "metadata": "absent" if metadata is None else "present" if metadata else "empty",
        },
        ties=ties,
        check=lambda: _check(entries, warnings),
    )


def _read_table(raw: bytes, limits: Limits) -> tuple[Table, dict[str, str] | None]:
    # Importing NumPy takes longer than parsing most headers: the quick way is for those who have it already, and for giants.
    if len(raw) >= _WORTH_NUMPY or (len(raw) >= _QUICK_BYTES and "numpy" in sys.modules):
        import numpy  # noqa: F401, ICN001 - the scan is written for processes that have it

        from firekeep.formats.safetensors._canonical import scan

        refuse_flood(raw, "the header")
        proven = scan(raw)
        if proven is not None and len(proven[0]) <= limits.safetensors_tensors:
            return proven
    return parse_header(raw, limits)


def _warn(table: Table, trailing: int, *, plain: bool) -> Iterator[str]:
    if trailing:
        yield f"{trailing} bytes after the last tensor were left aside"
    for first, second in () if plain else _collisions(table.names()):
        yield (
            f"the names {first!r} and {second!r} differ only in how Unicode spells them (equal after NFC): "
            "other programs may take one for the other"
        )


def _collisions(names: list[str]) -> Iterator[tuple[str, str]]:
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(unicodedata.normalize("NFC", name), name)
        if first != name:
            yield first, name


def _check(entries: Entries, warnings: list[str]) -> Iterator[Finding]:
    for warning in warnings:
        yield Finding("warning", "", warning)
    for entry in entries.values():
        window = entry.blob.window()
        if entry.dtype is None or window is None:
            continue
        width = entry.dtype.bits // 8
        if width > 1 and entry.nbytes and window[1] % width:
            yield Finding(
                "note", entry.name, f"byte {window[1]} of the file is not a multiple of {width}: slower to read"
            )
        if entry.dtype.kind == "bool" and (odd := len(bytes(entry.read()).translate(None, b"\0\1"))):
            yield Finding("warning", entry.name, f"{odd} of {entry.nbytes} booleans are neither 0 nor 1")
