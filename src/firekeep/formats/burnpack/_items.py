"""Read CBOR one item at a time, with the tolerance and the strictness of Burn's own decoder.

Tags are passed over, but for big integers. Lengths may be indefinite except where Burn reads into a fixed buffer (keys of structs
and words). Nothing is taken into memory before it is known to lie inside the table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from firekeep.errors import LimitError, MetadataError
from firekeep.formats.burnpack._cbor import ARRAY, BYTES, MAP, NEGATIVE, OTHER, TAG, TEXT, UINT
from firekeep.formats.burnpack._layout import HEADER

LONGEST_KEY = 4096
"""Burn's decoder reads the keys of structs into a buffer of this size."""
MOST_ODD_ITEMS = 300_000
"""Items beside descriptors that a table may have when it is not spelled as Burn spells it: they are read one by one."""
_LIST_LENGTH = 8
"""Elements of a list that do not count as odd items: an ordinary shape."""

_KINDS = ("an integer", "a negative integer", "a byte string", "a text", "an array", "a map", "a tag", "a simple value")
_NULLS = (b"\xf6", b"\xf7")


class ItemReader:
    """A position in a table. Every method reads one item, or raises `MetadataError` saying where and why not."""

    def __init__(self, data: bytes, *, max_depth: int) -> None:
        self.data = data
        self.pos = 0
        self._depth = 0
        self._max_depth = max_depth
        self._odd_items_left = MOST_ODD_ITEMS

    # Containers

    def entries(self, wanted: int, what: str) -> Iterator[None]:
        """Enter an array or map and yield before each element or pair; the caller reads it."""
        major, _, count = self._pull()
        if major != wanted:
            raise self.wrong(f"{_KINDS[major]} where {what} is due")
        self._enter()
        for _ in self._until_break() if count is None else range(count):
            yield
        self.leave()

    def variant(self, what: str, *, with_value: bool) -> tuple[str, bool]:
        """Read an enum: a word alone, or the word that is the only key of a map.

        The second is True when a value follows; after it comes `leave`.
        """
        start = self.pos
        major, _, count = self._pull()
        if major == TEXT:
            self.pos = start
            return self.word(), False
        if major != MAP or count != 1 or not with_value:
            raise self.wrong(f"{_KINDS[major]} where {what} is due")
        self._enter()
        return self.key(), True

    def leave(self) -> None:
        """Leave the innermost container."""
        self._depth -= 1

    def integers(self) -> list[int]:
        """Read a list of integers; a byte string is one, too."""
        start = self.pos
        major, _, count = self._pull()
        if major == BYTES:
            return list(self._bytes(count))
        self.pos = start
        out: list[int] = []
        for _ in self.entries(ARRAY, "a list of integers"):
            if len(out) >= _LIST_LENGTH:
                self.count_odd()
            out.append(self.integer())
        return out

    def anything(self) -> object:
        """Read an item of the kinds that quantization schemes are made of."""
        start = self.pos
        major, info, count = self._pull()
        if major == TEXT:
            return self._text_body(count)
        if major == OTHER and info in (22, 23):
            return None
        self.pos = start
        if major == MAP:
            return {self.text(): self.anything() for _ in self.entries(MAP, "a map")}
        return self.integers() if major in (ARRAY, BYTES) else self.integer()

    def skip(self) -> None:
        """Pass over one item of any kind; its texts must still be UTF-8 and its depth within the limit."""
        waiting = [1]  # how many items each open container still waits for; -1: until a break
        while waiting:
            if waiting[-1] == 0 or (waiting[-1] < 0 and self.at_break()):
                waiting.pop()
                continue
            if waiting[-1] > 0:
                waiting[-1] -= 1
            inside = self._skip_head()
            if inside is not None:
                waiting.append(inside)
                self._check_depth(self._depth + len(waiting) - 1)

    # Single items

    def key(self) -> str:
        """Read the key of a struct: a text or byte string of known length."""
        major, _, count = self._pull()
        if major not in (TEXT, BYTES) or count is None or count > LONGEST_KEY:
            raise self.wrong(f"{_KINDS[major]} where a key of at most {LONGEST_KEY} bytes is due")
        raw = self._take(count)
        return self._decoded(raw) if major == TEXT else raw.decode("utf-8", "replace")

    def word(self) -> str:
        """Read the name of an enum's variant."""
        major, _, count = self._pull()
        if major != TEXT or count is None or count > LONGEST_KEY:
            raise self.wrong(f"{_KINDS[major]} where a word is due")
        return self._decoded(self._take(count))

    def text(self) -> str:
        """Read a text, in one piece or many."""
        major, _, count = self._pull()
        if major != TEXT:
            raise self.wrong(f"{_KINDS[major]} where a text is due")
        return self._text_body(count)

    def integer(self) -> int:
        """Read an integer of up to 128 bits, over-wide and big ones included."""
        while True:
            major, _, count = self._head()
            if major == UINT and count is not None:
                return count
            if major == NEGATIVE and count is not None:
                return -1 - count
            if major != TAG:
                raise self.wrong(f"{_KINDS[major]} where an integer is due")
            if count in (2, 3):
                return self._big(negative=count == 3)
            self.count_odd()

    def real(self) -> float:
        """Read a float; integers are not taken for floats."""
        major, info, bits = self._pull()
        if major != OTHER or info not in (25, 26, 27) or bits is None:
            raise self.wrong(f"{_KINDS[major]} where a float is due")
        return _float_of(info, bits)

    def boolean(self) -> bool:
        """Read true or false."""
        major, info, _ = self._pull()
        if major != OTHER or info not in (20, 21):
            raise self.wrong(f"{_KINDS[major]} where true or false is due")
        return info == 21

    def at_null(self) -> bool:
        """Pass over null or undefined, if that is next."""
        found = self.data[self.pos : self.pos + 1] in _NULLS
        self.pos += found
        return found

    def at_break(self) -> bool:
        """Pass over the end of a container of unknown length, if that is next."""
        found = self.data[self.pos : self.pos + 1] == b"\xff"
        self.pos += found
        return found

    def count_odd(self) -> None:
        """Count an item that Burn would not have written there; raises `LimitError` when there are too many."""
        self._odd_items_left -= 1
        if self._odd_items_left < 0:
            raise LimitError(
                f"the table has more than {MOST_ODD_ITEMS} items beside its tensors and is not spelled as Burn spells it",
                limit=MOST_ODD_ITEMS,
                actual=MOST_ODD_ITEMS + 1,
            )

    def wrong(self, message: str) -> MetadataError:
        """Make the error for what has just been read."""
        place = HEADER.size + self.pos
        return MetadataError(f"table, before byte {place} of the file: {message}", offset=place)

    # Heads and bytes

    def _big(self, *, negative: bool) -> int:
        major, _, count = self._head()
        if major != BYTES:
            raise self.wrong(f"{_KINDS[major]} where the bytes of an integer are due")
        raw = self._bytes(count).lstrip(b"\0")
        if len(raw) > 16:
            raise self.wrong(f"an integer of {len(raw)} bytes")
        number = int.from_bytes(raw, "big")
        return -1 - number if negative else number

    def _skip_head(self) -> int | None:
        self.count_odd()
        major, info, count = self._head()
        if major == TEXT:
            self._text_body(count)
        elif major == BYTES:
            self._bytes(count)
        elif major == TAG:
            return 1
        elif major in (ARRAY, MAP):
            return -1 if count is None else count * (2 if major == MAP else 1)
        elif major == OTHER and info not in (20, 21, 22, 23, 25, 26, 27):
            raise self.wrong("a simple value that means nothing")
        return None

    def _pull(self) -> tuple[int, int, int | None]:
        found = self._head()
        while found[0] == TAG:
            self.count_odd()
            found = self._head()
        return found

    def _head(self) -> tuple[int, int, int | None]:
        byte = self._take(1)[0]
        major, info = byte >> 5, byte & 31
        if info < 24:
            return major, info, info
        if info < 28:
            return major, info, int.from_bytes(self._take(1 << info - 24), "big")
        if info == 31 and major in (BYTES, TEXT, ARRAY, MAP):
            return major, info, None
        raise self.wrong(f"a byte {byte:#04x} that begins nothing")

    def _take(self, count: int) -> bytes:
        end = self.pos + count
        if end > len(self.data):
            raise self.wrong(f"the table ends {end - len(self.data)} bytes short of what begins there")
        raw = self.data[self.pos : end]
        self.pos = end
        return raw

    def _bytes(self, count: int | None) -> bytes:
        return self._take(count) if count is not None else b"".join(self._pieces(BYTES))

    def _text_body(self, count: int | None) -> str:
        if count is not None:
            return self._decoded(self._take(count))
        return "".join(self._decoded(raw) for raw in self._pieces(TEXT))

    def _pieces(self, wanted: int) -> Iterator[bytes]:
        while not self.at_break():
            self.count_odd()
            major, _, count = self._head()
            if major != wanted or count is None:
                raise self.wrong(f"{_KINDS[major]} inside {_KINDS[wanted]} of many pieces")
            yield self._take(count)

    def _decoded(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.wrong(f"a text that is not UTF-8 ({error.reason})") from None

    def _until_break(self) -> Iterator[None]:
        while not self.at_break():
            yield

    def _enter(self) -> None:
        self._depth += 1
        self._check_depth(self._depth)

    def _check_depth(self, depth: int) -> None:
        if depth > self._max_depth:
            raise LimitError(
                f"the table is nested deeper than {self._max_depth}",
                limit=self._max_depth,
                actual=depth,
            )


def _float_of(info: int, bits: int) -> float:
    if info == 25 and bits & 0x7C00 == 0x7C00 and bits & 0x3FF:
        # Python's half-precision NaN has no payload: widen it here.
        info, bits = 27, (bits >> 15) << 63 | 0x7FF8 << 48 | (bits & 0x3FF) << 42
    form, size = {25: (">e", 2), 26: (">f", 4), 27: (">d", 8)}[info]
    value: float = struct.unpack(form, bits.to_bytes(size, "big"))[0]
    return value
