"""Object headers: the messages that say what a group or a dataset is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from firekeep.errors import LimitError, MetadataError
from firekeep.formats.hdf5._file import Fields, Hdf5

DATASPACE, LINK_INFO, DATATYPE, FILL_OLD, FILL, LINK, EXTERNAL, LAYOUT = 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08
FILTERS, ATTRIBUTE, CONTINUATION, SYMBOLS = 0x0B, 0x0C, 0x10, 0x11
_SHARED = 2
_MOST_MESSAGES = 100_000


@dataclass(frozen=True, slots=True)
class Message:
    """A message: `is_shared` where its data only say where it is kept."""

    kind: int
    data: memoryview
    is_shared: bool


class Messages:
    """The messages of one object."""

    def __init__(self, file: Hdf5, address: int) -> None:
        self._all = tuple(_read(file, address))

    def find(self, kind: int) -> Message | None:
        """Give the first message of a kind."""
        return next((message for message in self._all if message.kind == kind), None)

    def each(self, kind: int) -> Iterator[Message]:
        """Give all messages of a kind."""
        return (message for message in self._all if message.kind == kind)


def _read(file: Hdf5, address: int) -> Iterator[Message]:
    is_new = bytes(file.view(address, 4)) == b"OHDR"
    first, extra = _first_block(file, address) if is_new else (_old_block(file, address), 0)
    blocks, seen, number = [first], {address}, 0
    while blocks:
        fields = Fields(file, blocks.pop(0))
        while fields.left >= (4 + extra if is_new else 8):
            message = _new_message(fields, extra) if is_new else _old_message(fields)
            number += 1
            if number > _MOST_MESSAGES:
                raise LimitError(f"the object at {address} has too many messages", limit=_MOST_MESSAGES, actual=number)
            if message.kind != CONTINUATION:
                yield message
                continue
            more = Fields(file, message.data)
            place, length = more.address(), more.length()
            if place in seen:
                raise MetadataError(f"the header of the object at {address} goes round in a circle", offset=address)
            seen.add(place)
            block = file.view(place, length)
            blocks.append(block[4 : max(4, length - 4)] if is_new else block)


def _old_block(file: Hdf5, address: int) -> memoryview:
    head = Fields(file, file.view(address, 16))
    if head.number(1) != 1:
        raise MetadataError(f"there is no object at {address}, where one should be", offset=address)
    head.skip(7)
    return file.view(address + 16, head.number(4))


def _old_message(fields: Fields) -> Message:
    kind, length, flags = fields.number(2), fields.number(2), fields.number(1)
    fields.skip(3)
    return Message(kind, fields.take(length), bool(flags & _SHARED))


def _first_block(file: Hdf5, address: int) -> tuple[memoryview, int]:
    """Give the first messages of a new header, and how many bytes more than usual stand before each."""
    version, flags = file.view(address + 4, 2)
    if version != 2:
        raise MetadataError(f"the object at {address} has a header of version {version}", offset=address)
    place = address + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    length = int.from_bytes(file.view(place, width), "little")
    return file.view(place + width, length), 2 if flags & 4 else 0


def _new_message(fields: Fields, extra: int) -> Message:
    kind, length, flags = fields.number(1), fields.number(2), fields.number(1)
    fields.skip(extra)
    return Message(kind, fields.take(length), bool(flags & _SHARED))
