"""From the bytes of a table to its tree: quickly for what Burn writes, item by item for everything else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import cbor2

from firekeep.dtypes import BY_BURN, BY_BURN_BOOL
from firekeep.errors import LimitError
from firekeep.formats.burnpack._cbor import BYTES, TEXT, text
from firekeep.formats.burnpack._strict import Tree
from firekeep.limits import Limits, MiB

_SMALL = MiB
"""A table of this size cannot take more than 100 MiB once decoded, whatever stands in it."""
_MAP_COST = 200
_LIST_COST = 88
_OTHER_COST = 30
"""Most bytes of memory measured per byte of table: maps of one entry 66 to 1 (200 for the map), nested lists 91, texts 29."""
_LONG_COST = 200
"""For an item that is looked at on its own. Texts take less: this bounds the time, too."""
_DESCRIPTOR_COST = 1000
_MAP_HEADS = bytes(range(0xA1, 0xC0))
_LIST_HEADS = bytes(range(0x80, 0xA1))

_INTEGER = rb"(?:[\x00-\x17]|\x18.|\x19..|\x1a.{4}|\x1b.{8})"
_DESCRIPTOR_HEADS = (0xA3, 0xA4)
_LONG_HEADS = frozenset((*range(0x58, 0x5C), *range(0x78, 0x7C)))
_DTYPES = (*map(text, BY_BURN), *(b"\xa1\x64Bool" + text(store) for store in BY_BURN_BOOL))
_DESCRIPTOR = re.compile(
    # Texts are spelled out, so that it can end only where an item ends.
    rb"[\xa3\xa4]\x65dtype(?:" + b"|".join(_DTYPES) + rb")\x65shape[\x80-\x88]" + _INTEGER + rb"{0,8}"
    rb"\x6cdata_offsets\x82" + _INTEGER + rb"{2}(?:\x68param_id" + _INTEGER + rb")?",
    re.DOTALL,
)
_SHORT_ITEMS = re.compile(
    # A run of items with few bytes; the heads of descriptors are left out, for `_DESCRIPTOR` to look at.
    rb"(?:[\x80-\x97\xa0-\xa2\xa5-\xb7\x40\x60\xf4-\xf7]|[\x98\xb8].|" + _INTEGER + rb"|[\x20-\x37]|\x38.|\x39..|"
    rb"\xf9..|\xfa.{4}|\xfb.{8}|"
    + b"|".join(b"[%c%c].{%d}" % (0x40 + n, 0x60 + n, n) for n in range(1, 24))
    + rb"){1,4096}",
    re.DOTALL,
)


class _NoTags(Mapping[int, Any]):
    """A decoder for every tag, present and future, that refuses it: none may build an object from the file."""

    def __getitem__(self, tag: int) -> Any:
        return _refuse_tag

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __contains__(self, tag: object) -> bool:
        return True


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("a tag")


_NO_TAGS = _NoTags()


def decode_quickly(data: bytes | memoryview, limits: Limits) -> Tree | None:
    """Give the tree of a table without tags, indefinite lengths, repeated keys and bytes left over; None for any other.

    Raises `LimitError` when the tree would take more memory than `limits.burnpack_decoded_bytes`.
    """
    # The decoder does not say where it stopped. A mark behind the table, read as the second of two items, does.
    mark = os.urandom(8)
    framed = b"".join((b"\x82", data, b"\x48", mark))
    guard_memory(framed, limits)
    try:
        tree, behind = cbor2.loads(
            framed,
            allow_duplicate_keys=False,
            allow_indefinite=False,
            strict_hashable_types=True,
            max_depth=limits.burnpack_depth + 1,
            semantic_decoders=_NO_TAGS,
            tag_hook=_refuse_tag,
        )
    except Exception:  # noqa: BLE001 - whatever it was, the strict reader finds it and says where
        return None
    return tree if behind == mark and type(tree) is dict else None


def guard_memory(data: bytes, limits: Limits) -> None:
    """Refuse a table whose decoded form would be out of all proportion, before it is decoded."""
    limit = limits.burnpack_decoded_bytes
    if len(data) <= _SMALL or _worst(data) <= limit:
        return
    cost = _walk(data, limit)
    if cost > limit:
        raise LimitError(f"the table would take more than {limit} bytes of memory", limit=limit, actual=cost)


def _worst(data: bytes) -> int:
    """Give the most that these bytes can cost, wherever the heads among them are."""
    no_maps = data.translate(None, delete=_MAP_HEADS)
    others = len(no_maps.translate(None, delete=_LIST_HEADS))
    return (len(data) - len(no_maps)) * _MAP_COST + (len(no_maps) - others) * _LIST_COST + others * _OTHER_COST


def _walk(data: bytes, limit: int) -> int:
    """Add up what the items would cost, from head to head; stops as soon as the limit is passed."""
    pos, cost, end = 0, 0, len(data)
    while pos < end and cost <= limit:
        byte = data[pos]
        if byte in _DESCRIPTOR_HEADS:
            if (found := _DESCRIPTOR.match(data, pos)) is not None:
                pos = found.end()
                cost += _DESCRIPTOR_COST
                continue
        elif byte not in _LONG_HEADS and (found := _SHORT_ITEMS.match(data, pos)) is not None:
            cost += _worst(data[pos : found.end()])
            pos = found.end()
            continue
        major, count = byte >> 5, byte & 31
        pos += 1
        if 24 <= count < 28:
            width = 1 << count - 24
            count = int.from_bytes(data[pos : pos + width], "big")
            pos += width
        if major in (BYTES, TEXT):
            count = min(count, end - pos)
            pos += count
            cost += count
        cost += _LONG_COST
    return cost
