"""The metadata of the new file: the source's, without what would no longer be true, and the caller's over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from firekeep import digests
from firekeep.formats import FORMATS, Format
from firekeep.layouts import LAYOUT, layout_of
from firekeep.opened import OpenedFile

TIES = "firekeep.ties"


@dataclass(frozen=True, slots=True)
class Merged:
    """Metadata to be written, the layout it speaks of, and the keys that were not taken over."""

    metadata: dict[str, str]
    layout: str
    dropped: tuple[str, ...]


def merge(opened: OpenedFile, row: Format, given: Mapping[str, str], *, layout: str | None = None) -> Merged:
    """Put together the metadata for a file of the format `row`.

    Digests and records of ties are made anew by whoever writes. `format: burnpack` and `format: safetensors` name the file's own
    format and go when that changes; `format: pt` says who wrote it and stays. `layout` is the one that the tensors are given, None for
    the source's.
    """
    held = opened.container
    kept = {key: value for key, value in held.metadata.items() if held.ties.get(key) != value}
    for key in (digests.KEY, TIES):
        kept.pop(key, None)
    dropped = []
    named = FORMATS.get(kept.get("format", ""))
    if named is not None and named.writes and named is not row:
        dropped.append("format")
        del kept["format"]
    layout = layout or given.get(LAYOUT) or layout_of(opened.format, opened.metadata, content=held.layout).name
    kept.pop(LAYOUT, None)
    if layout != row.layout:
        kept[LAYOUT] = layout
    elif row.name == "safetensors" and opened.format != row.name:
        kept.setdefault("format", "pt")
    return Merged({**kept, **given}, layout, tuple(dropped))
