"""Groups: names and the objects they lead to. Links that leave the file, or only name a place in it, are not followed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from firekeep.errors import LimitError, MetadataError
from firekeep.formats.hdf5._dense import list_dense
from firekeep.formats.hdf5._file import Fields, Hdf5
from firekeep.formats.hdf5._headers import LINK, LINK_INFO, SYMBOLS, Messages

_HARD = 0
_SOFT_IN_TABLE = 2
_DEEPEST_TREE = 16


class Link(NamedTuple):
    """A name in a group, and the address of its object; None for a link that is no more than a name."""

    name: str
    address: int | None


def is_group(messages: Messages) -> bool:
    """Tell a group by its messages."""
    return any(messages.find(kind) is not None for kind in (SYMBOLS, LINK_INFO, LINK))


def list_links(file: Hdf5, messages: Messages) -> list[Link]:
    """Give all links of a group; raises `LimitError` where their names are more text than the limits allow."""
    links, spelled = [], 0
    for link in _links(file, messages):
        spelled += len(link.name) + 1
        if spelled > file.limits.text_bytes:
            raise LimitError(
                f"the names in a group have more than {file.limits.text_bytes} bytes",
                limit=file.limits.text_bytes,
                actual=spelled,
            )
        links.append(link)
    return links


def _links(file: Hdf5, messages: Messages) -> Iterator[Link]:
    symbols, info = messages.find(SYMBOLS), messages.find(LINK_INFO)
    if symbols is not None:
        fields = Fields(file, symbols.data)
        tree, heap = fields.address(), file.local_heap(fields.address())
        for node in _leaves(file, tree, _DEEPEST_TREE, set()):
            yield from _read_node(file, node, heap)
    if info is not None:
        yield from _list_dense(file, Fields(file, info.data))
    for message in messages.each(LINK):
        yield _read_link(Fields(file, message.data))


def _leaves(file: Hdf5, address: int, depth: int, seen: set[int]) -> Iterator[int]:
    """Walk the tree over a group's nodes."""
    if address in seen or depth == 0:
        raise MetadataError(f"the tree of a group goes round in a circle at {address}", offset=address)
    seen.add(address)
    head = Fields(file, file.expect(address, b"TREE", 8))
    head.skip(4)
    kind, level, used = head.number(1), head.number(1), head.number(2)
    if kind != 0:
        raise MetadataError(f"the tree at {address} is of kind {kind}, and no group's", offset=address)
    width = file.length_bytes + file.address_bytes
    fields = Fields(file, file.view(address + 8 + 2 * file.address_bytes, used * width + file.length_bytes))
    for _ in range(used):
        fields.length()
        child = fields.address()
        if level:
            yield from _leaves(file, child, depth - 1, seen)
        elif child in seen:
            raise MetadataError(f"a node of a group, at {child}, is there twice", offset=child)
        else:
            seen.add(child)
            yield child


def _read_node(file: Hdf5, address: int, heap: bytes) -> Iterator[Link]:
    number = int.from_bytes(file.expect(address, b"SNOD", 8)[6:8], "little")
    width = 2 * file.address_bytes + 24
    for index in range(number):
        fields = Fields(file, file.view(address + 8 + index * width, width))
        place, target, kind = fields.address(), fields.address(), fields.number(4)
        yield Link(_text_at(heap, place), None if kind == _SOFT_IN_TABLE or file.is_nowhere(target) else target)


def _text_at(heap: bytes, place: int) -> str:
    end = heap.find(b"\0", place)
    if end < 0:
        raise MetadataError(f"the name at {place} of a group's texts has no end")
    return _decode(heap[place:end])


def _decode(raw: bytes | memoryview) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        raise MetadataError(f"the name {bytes(raw[:40])!r} in a group is not UTF-8") from None


def _list_dense(file: Hdf5, fields: Fields) -> Iterator[Link]:
    fields.skip(1)
    if fields.number(1) & 1:
        fields.skip(8)
    heap, tree = fields.address(), fields.address()
    if not file.is_nowhere(heap):
        for data in list_dense(file, heap, tree):
            yield _read_link(Fields(file, data))


def _read_link(fields: Fields) -> Link:
    version, flags = fields.number(1), fields.number(1)
    if version != 1:
        raise MetadataError(f"a link is of version {version}; 1 is known")
    kind = fields.number(1) if flags & 8 else _HARD
    fields.skip((8 if flags & 4 else 0) + (1 if flags & 16 else 0))
    name = _decode(fields.take(fields.number(1 << (flags & 3))))
    return Link(name, fields.address() if kind == _HARD else None)
