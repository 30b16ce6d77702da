"""A quick proof that a header has the form that writers of safetensors give it.

That form is compact JSON: `"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}`, rows in the order of their data, no
escapes. `scan` compares a header with it block by block, with NumPy, several times as fast as parsing it. It never explains:
whatever it cannot prove, valid or not, is None and goes to the parser in `_header`, which would give the same table.
"""

from __future__ import annotations

import operator
import re
import sys
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

from firekeep.dtypes import BY_SAFETENSORS
from firekeep.errors import FirekeepError
from firekeep.formats._json import STRICT
from firekeep.formats.safetensors._header import METADATA, check_metadata
from firekeep.formats.safetensors._table import Form

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Flags = NDArray[np.bool_]
else:
    np = sys.modules["numpy"]  # this module is for processes that have it already: see `_read`

_BLOCK = 1 << 20
_PIECE = 1 << 16
_LONGEST_NAME = 512
_LONGEST_SHAPE = 64
_LONGEST_CODE = 9
_MOST_BYTES = 10**16
_PREFIX = f'{{"{METADATA}":'.encode()
_SHAPE = re.compile(rb"(?:(?:0|[1-9]\d{0,17})(?:,(?:0|[1-9]\d{0,17}))*)?")
_POWERS = [10**power for power in range(1, 17)]
# Masks that keep the first, or the last, 0 to 8 bytes of a word.
_HEADS = np.array([(1 << 8 * kept) - 1 for kept in range(9)], np.uint64)
_TAILS = np.array([(1 << 64) - (1 << 8 * (8 - kept)) for kept in range(9)], np.uint64)


class _OtherFormError(Exception):
    """The header is not in canonical form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Some successive rows, proven. `form_of` says which of the block's `forms` each row has."""

    name_starts: Ints
    name_ends: Ints
    forms: list[Form]
    form_of: Ints
    ends: Ints

    def names(self, raw: bytes) -> list[str]:
        """Give the names; every byte before them is a character of its own where the header is ASCII."""
        if not raw.isascii():
            spans = zip(self.name_starts.tolist(), self.name_ends.tolist(), strict=True)
            return [raw[start:end].decode() for start, end in spans]
        low = int(self.name_starts[0])
        text = raw[low : int(self.name_ends[-1])].decode("ascii")
        spans_of_text = map(slice, (self.name_starts - low).tolist(), (self.name_ends - low).tolist())
        return list(map(operator.getitem, repeat(text), spans_of_text))


class PackedTable:
    """The rows of a proven header, as positions in its bytes; names and numbers become objects when asked for."""

    def __init__(self, raw: bytes, blocks: list[_Block]) -> None:
        self._raw = raw
        self._blocks = blocks

    def __len__(self) -> int:
        return sum(len(block.ends) for block in self._blocks)

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors."""
        return int(self._blocks[-1].ends[-1])

    def find(self, name: str) -> tuple[Form, int] | None:
        """Give one tensor's form and where its data begin, or None."""
        key = name.encode("utf-8", "surrogatepass")
        if b'"' in key:
            return None
        first = int(self._blocks[0].name_starts[0])
        at = self._raw.find(b'"' + key + b'":{', first - 1) + 1
        if at == 0:
            return None
        block = next(block for block in reversed(self._blocks) if block.name_starts[0] <= at)
        row = int(block.name_starts.searchsorted(at))
        form = block.forms[int(block.form_of[row])]
        return form, int(block.ends[row]) - form[2]

    def names(self) -> list[str]:
        """Give all names, in the order of the data."""
        return [name for block in self._blocks for name in block.names(self._raw)]

    def forms(self) -> list[Form]:
        """Give each tensor's form, in the same order."""
        return [block.forms[index] for block in self._blocks for index in block.form_of.tolist()]


def scan(raw: bytes) -> tuple[PackedTable, dict[str, str] | None] | None:
    """Give the table and the metadata of a header in canonical form, or None for any other and for one without tensors."""
    end = raw.rfind(b"}") - 1
    try:
        place, metadata = _split_metadata(raw)
        _require(raw[end - 1 : end + 1] == b"]}" and not raw[end + 2 :].strip(b" "))
        _require(raw[place : place + 1] == b'"' and raw.find(b"\\", place) < 0 and _is_utf8(raw))
        blocks, names = [], []
        data_end = 0
        while place < end:
            proof = _Proof(raw, place, min(end + 1, place + _BLOCK), data_end)
            blocks.append(proof.block())
            names.append(proof.hash_names())
            place, data_end = proof.stop, int(blocks[-1].ends[-1])
            _require(raw[place - 3 : place + 1] == b']},"' or place == end + 2)
        _require(_all_differ(np.concatenate([_RESERVED, *names])))
    except (_OtherFormError, IndexError):  # an index beyond the end: a part of a row where no row is
        return None
    return PackedTable(raw, blocks), metadata


def _require(holds: object) -> None:
    if not holds:
        raise _OtherFormError


def _split_metadata(raw: bytes) -> tuple[int, dict[str, str] | None]:
    """Give where the first tensor's name starts, and the metadata that may stand before it."""
    if not raw.startswith(_PREFIX):
        _require(raw.startswith(b"{"))
        return 1, None
    text = raw[: raw.find(b'":{"dtype":"')].decode("utf-8", "replace")
    try:
        value, stop = STRICT.raw_decode(text, len(_PREFIX))
        metadata = check_metadata(value)
    except (ValueError, RecursionError, MemoryError, FirekeepError):
        raise _OtherFormError from None
    stop = len(text[:stop].encode())
    _require(raw[stop : stop + 1] == b",")
    return stop + 1, metadata


def _is_utf8(raw: bytes) -> bool:
    try:
        return raw.isascii() or bool(raw.decode())
    except UnicodeDecodeError:
        return False


def _word(text: bytes) -> int:
    return int.from_bytes(text, "little")


class _Proof:
    """The proof for as many whole rows as lie between two places of a header, whose data begin at `data_begin`.

    `stop` is where the name after the last of them starts. Every byte of a row is compared: the text between its parts with what it
    must be, the offsets with what follows from the shapes.
    """

    def __init__(self, raw: bytes, start: int, stop: int, data_begin: int) -> None:
        text = np.frombuffer(raw, np.uint8)[start:stop]
        marks, quotes = _find_marks(text)
        rows = marks.size // 3
        _require(rows)
        braces, shape_ends, offset_ends = np.ascontiguousarray((marks[: 3 * rows] + start).reshape(rows, 3).T)
        self.raw = raw
        self.data_begin = data_begin
        self.braces: Ints = braces
        self.shape_ends: Ints = shape_ends
        self.offset_ends: Ints = offset_ends
        self.stop = int(offset_ends[-1]) + len("]},")
        text = text[: self.stop - start]
        _require(text.min() >= 0x20 and quotes - raw.count(b'"', self.stop, stop) == 10 * rows)
        self.words: Words = np.ndarray((len(raw) - 7,), "<u8", buffer=raw, strides=(1,))
        self.spans = np.ndarray((len(raw) - 31,), "V32", buffer=raw, strides=(1,))
        self.name_starts = np.concatenate(([start + 1], offset_ends[:-1] + len(']},"')))
        self.name_ends = braces - len('":')
        self.name_lengths = self.name_ends - self.name_starts

    def block(self) -> _Block:
        """Go through all steps."""
        self._compare_fixed_text()
        codes, code_of, starts = self._read_dtypes()
        forms, form_of = self._read_shapes(codes, code_of, starts)
        lengths = np.array([size for _, _, size, _ in forms], np.int64)[form_of]
        _require(self.data_begin + float(lengths.sum(dtype=np.float64)) < _MOST_BYTES)
        ends = np.cumsum(lengths) + self.data_begin
        self._compare_offsets(ends)
        return _Block(
            name_starts=self.name_starts,
            name_ends=self.name_ends,
            forms=forms,
            form_of=form_of,
            ends=ends,
        )

    def hash_names(self) -> Words:
        """Give a hash of each name; equal names have equal hashes, in whichever block they are."""
        longest = int(self.name_lengths.max())
        _require(longest <= _LONGEST_NAME)
        return _hash_texts(self._parts(self.name_starts, self.name_lengths, longest), self.name_lengths)

    def _compare_fixed_text(self) -> None:
        _require(self.name_lengths.min() >= 0)
        _require(((self.words[self.offset_ends[:-1]] & _HEADS[4]) == _word(b']},"')).all())
        # From a word before it, so as not to reach beyond the end of the shortest header.
        _require(_begin_with(self._spans(self.shape_ends - 8)[:, 1:], b'],"data_offsets":[').all())

    def _spans(self, places: Ints) -> Words:
        """Give the 32 bytes from each place on as words, which takes as long as one word does."""
        return self.spans[places].view("<u8").reshape(-1, 4)

    def _read_dtypes(self) -> tuple[list[str], Ints, Ints]:
        """Read the dtypes, one distinct code after another, with the text around them; give also where each shape's text starts."""
        found = self._spans(self.braces - len('":'))
        code_of: Ints = np.full(len(found), -1)
        codes: list[str] = []
        while code_of[row := int(code_of.argmin())] < 0:
            start = int(self.braces[row]) + len('{"dtype":"')
            code = self.raw[start : self.raw.find(b'"', start)]
            _require(len(code) <= _LONGEST_CODE and code.decode("utf-8", "replace") in BY_SAFETENSORS)
            alike = _begin_with(found, b'":{"dtype":"' + code + b'","shape":[')
            _require(alike[row])
            code_of[alike] = len(codes)
            codes.append(code.decode())
        before = np.array([len('{"dtype":"' + code + '","shape":[') for code in codes])
        return codes, code_of, self.braces + before[code_of]

    def _read_shapes(self, codes: list[str], code_of: Ints, starts: Ints) -> tuple[list[Form], Ints]:
        """Read each distinct pair of dtype and shape once; give these forms, and which row has which."""
        lengths = self.shape_ends - starts
        longest = int(lengths.max())
        _require(lengths.min() >= 0 and longest <= _LONGEST_SHAPE)
        parts = [code_of.astype(np.uint64), *self._parts(starts, lengths, longest)]
        _, examples, group_of = np.unique(_mix(parts), return_index=True, return_inverse=True)
        for part in parts:  # else two forms have one hash
            _require((part == part[examples][group_of]).all())
        forms = [
            _read_form(self.raw[int(starts[row]) : int(self.shape_ends[row])], codes[int(code_of[row])])
            for row in examples.tolist()
        ]
        return forms, group_of

    def _compare_offsets(self, ends: Ints) -> None:
        """Compare the text of all offsets with what it must be: each row begins where the one before it ends."""
        first = int(self.shape_ends[0]) + len('],"data_offsets":[')
        begin = b"%d" % self.data_begin
        _require(self.raw.startswith(begin, first))
        digits = np.ones_like(ends)
        for place in ends.searchsorted(_POWERS).tolist():
            digits[place:] += 1
        commas = self.shape_ends + len('],"data_offsets":[') + np.concatenate(([len(begin)], digits[:-1]))
        _require((self.offset_ends - commas - 1 == digits).all())
        _require((np.frombuffer(self.raw, np.uint8)[commas] == ord(",")).all())
        rest = ends.astype(np.uint64)
        for done in range(0, int(digits[-1]), 8):
            kept = _TAILS[np.clip(digits - done, 0, 8)]
            text = self.words[self.offset_ends - 8 - done]
            begins = self.words[commas[1:] - 8 - done]
            _require(not ((begins ^ text[:-1]) & kept[:-1]).any())
            rest, due = np.divmod(rest, np.uint64(10**8)) if digits[-1] > 8 else (rest, rest)
            _require((_eight_digits(text, kept) == due).all())

    def _parts(self, starts: Ints, lengths: Ints, longest: int) -> list[Words]:
        """Cut texts into words of 8 bytes, zeros behind the end of each."""
        last = len(self.words) - 1
        shortest = int(lengths.min())
        parts = []
        for done in range(0, longest, 8):
            words = self.words[np.minimum(starts + done, last)]
            parts.append(words if shortest >= done + 8 else words & _HEADS[np.clip(lengths - done, 0, 8)])
        return parts


def _eight_digits(text: Words, kept: Words) -> Words:
    """Read decimal digits, where kept, eight at once in three steps."""
    digits = (text ^ np.uint64(0x3030303030303030)) & kept
    above_nine = ((digits + np.uint64(0x7676767676767676)) | digits) & np.uint64(0x8080808080808080)
    _require(not above_nine.any())
    pairs = (digits * np.uint64(10) + (digits >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(100) + (pairs >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    return (fours * np.uint64(10_000) + (fours >> np.uint64(32))) & np.uint64(0xFFFFFFFF)


def _find_marks(text: NDArray[np.uint8]) -> tuple[Ints, int]:
    """Give where braces open and brackets close, and how many quotes there are.

    It goes piece by piece, through the same memory: new memory takes longer to come by than all that is done in it here.
    """
    found, quotes = [], 0
    flags, more = np.empty((2, _PIECE), np.bool_)
    for begin in range(0, len(text), _PIECE):
        piece = text[begin : begin + _PIECE]
        here, also = flags[: len(piece)], more[: len(piece)]
        np.equal(piece, ord('"'), out=here)
        quotes += int(np.count_nonzero(here))
        np.equal(piece, ord("{"), out=here)
        np.logical_or(here, np.equal(piece, ord("]"), out=also), out=here)
        found.append(np.flatnonzero(here) + begin)
    return np.concatenate(found), quotes


def _begin_with(found: Words, text: bytes) -> Flags:
    """Say which rows of words begin with a text."""
    alike: Flags = np.ones(len(found), np.bool_)
    for done in range(0, len(text), 8):
        part, word = text[done : done + 8], found[:, done // 8]
        alike &= (word if len(part) == 8 else word & _HEADS[len(part)]) == _word(part)
    return alike


def _all_differ(mixed: Words) -> bool:
    """Say whether no hash comes twice: each is put into a table, and compared with what took its place there."""
    bits = (4 * len(mixed)).bit_length()
    places = (mixed >> np.uint64(64 - bits)).astype(np.int64)
    own = np.arange(len(mixed), dtype=np.int32)
    table = np.empty(1 << bits, np.int32)
    table[places] = own
    held = table[places]
    lost = np.flatnonzero(held != own)
    rest = np.sort(mixed[lost])
    return not ((mixed[lost] == mixed[held[lost]]).any() or (rest[1:] == rest[:-1]).any())


def _mix(parts: list[Words]) -> Words:
    """Hash rows of words. Two rows of one hash are compared, or the proof given up: nothing rests on there being none."""
    mixed = np.zeros_like(parts[0])
    for part in parts:
        mixed ^= part
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _hash_texts(parts: list[Words], lengths: Ints) -> Words:
    """Hash texts by their words and lengths alone, with however many words of zeros behind them a block has for its longest text.

    The last word comes first: a hash of nothing is 0, and stays it through words of zeros.
    """
    return _mix([*reversed(parts), lengths.astype(np.uint64)])


def _hash_text(text: bytes) -> Words:
    parts = [np.array([_word(text[done : done + 8])], np.uint64) for done in range(0, len(text), 8)]
    return _hash_texts(parts, np.array([len(text)]))


_RESERVED = _hash_text(METADATA.encode())
"""Stands among the names, so that a tensor called so is one of a name that comes twice."""


def _read_form(text: bytes, code: str) -> Form:
    """Read a shape's text; give the form of such a tensor."""
    _require(_SHAPE.fullmatch(text))
    shape = tuple(map(int, text.split(b","))) if text else ()
    count = 1
    for extent in shape:
        count *= extent
        _require(count < _MOST_BYTES)
    dtype = BY_SAFETENSORS[code]
    bits = count * dtype.bits
    _require(bits % 8 == 0)
    return dtype, shape, bits // 8, None
