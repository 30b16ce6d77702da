"""JSON objects from files nobody vouches for: duplicate keys, odd numbers and deep nesting are refused by name."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from firekeep.errors import LimitError, MetadataError

WHITESPACE = " \t\n\r"
_PADDING = b" " * 64
_LARGE = 4 << 20
_FREE_STRINGS = 1_000_000
_STRINGS_EACH = 10
"""Texts that a large header may have, and for each of its tensors: five in its row, some in the metadata, where digests are."""
_BLOCK = 1 << 10
_STRETCH = 1 << 20
_LONG_BYTES = 16 << 20
"""How much of large JSON may lie in blocks without a quote."""


def parse_object(raw: bytes, what: str) -> dict[str, Any]:
    """Parse one JSON object; `what` names it in messages ("the header").

    Raises `MetadataError` for anything else, with the place: text that is not UTF-8, JSON that does not parse, a key twice in one
    object, NaN and Infinity, numbers too long and nesting too deep to be meant.
    """
    refuse_flood(raw, what)
    text = _decode_text(raw.rstrip(b" ") if raw.endswith(_PADDING) else raw, what)
    if not text.startswith("{"):
        start = len(text) - len(text.lstrip(WHITESPACE))
        if text[start : start + 1] != "{":
            found = f"starts with {text[start : start + 1]!r}" if text[start:] else "is empty"
            raise MetadataError(f"{what} {found}, where a JSON object starts with '{{'", offset=start)
    # With no backslash in it, a text has two quotes for every string; a key that was overwritten by its duplicate is missing here.
    if b"\\" not in raw:
        plain = _decode_json(_PLAIN, text, what)
        if raw.count(b'"') == 2 * _count_strings(plain):
            return plain
    return _decode_json(STRICT, text, what)


def require_text(text: str, what: str) -> None:
    """Refuse half of a surrogate pair, which JSON can escape and no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MetadataError(f"{what} {text!r} holds half of a surrogate pair: it is not Unicode text") from None


def refuse_flood(raw: bytes, what: str) -> None:
    """Refuse large JSON that would take many times its size in memory: a value in every few bytes, as no table of tensors has."""
    if len(raw) < _LARGE:
        return
    strings = raw.count(b'"') // 2
    values = raw.count(b",") + raw.count(b"[") + raw.count(b"{") + strings
    most = len(raw) * 3 // 10
    if values > most:
        raise LimitError(
            f"{what} of {len(raw)} bytes holds about {values} values, more than a table of tensors can have in so few bytes",
            limit=most,
            actual=values,
        )
    if strings <= _FREE_STRINGS:
        return
    rows = raw.count(b'"data_offsets"')
    most = _FREE_STRINGS + _STRINGS_EACH * rows
    if strings > most:
        raise LimitError(
            f"{what} of {len(raw)} bytes holds about {strings} texts, of which {rows} tensors cannot make use",
            limit=most,
            actual=strings,
        )


def refuse_giants(view: memoryview, what: str) -> None:
    """Refuse large JSON of numbers, names and texts that are thousands of characters long, before it is copied or parsed.

    They show as blocks in which no text begins or ends. Some megabytes of these are fine: metadata may hold a picture. So are spaces
    at the end, for which nobody has to look.
    """
    if view.nbytes < _LARGE:
        return
    giants = blank = 0
    for start in range(0, view.nbytes, _STRETCH):
        piece = bytes(view[start : start + _STRETCH])
        for at in range(0, len(piece), _BLOCK):
            if piece.find(b'"', at, at + _BLOCK) >= 0:
                giants, blank = giants + blank, 0
            elif piece[at : at + _BLOCK].isspace():
                blank += _BLOCK
            else:
                giants, blank = giants + blank + _BLOCK, 0
        if giants > _LONG_BYTES:
            raise LimitError(
                f"{what} of {view.nbytes} bytes holds numbers, names or texts of thousands of characters: more than {_LONG_BYTES} bytes "
                "of it, as no table of tensors does",
                limit=_LONG_BYTES,
                actual=giants,
            )


def _decode_text(raw: bytes, what: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        found = raw[error.start]
        raise MetadataError(
            f"{what} is not UTF-8: byte {found:#04x} at byte {error.start} of {len(raw)}", offset=error.start
        ) from None


def _decode_json(decoder: json.JSONDecoder, text: str, what: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = decoder.decode(text)
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 20) : error.pos + 20]
        raise MetadataError(
            f"{what} is not valid JSON: {error.msg} at character {error.pos} of {len(text)}, near {near!r}",
            offset=error.pos,
        ) from None
    except MetadataError as error:
        error.message = f"{what} {error.message}"
        raise
    except ValueError:
        raise MetadataError(f"{what} holds a number of thousands of digits") from None
    except RecursionError:
        raise MetadataError(f"{what} is nested too deep to be a table of tensors") from None
    except MemoryError:
        raise LimitError(f"{what} of {len(text)} characters does not fit the memory there is") from None
    return value


def _count_strings(value: dict[str, Any]) -> int:
    """Count the strings of a header or an index, as far as its form is the usual one; never more than there are."""
    count = len(value)
    for item in value.values():
        if isinstance(item, dict):
            count += len(item)
            if "data_offsets" in item:
                count += isinstance(item.get("dtype"), str)
            else:
                count += sum(isinstance(inner, str) for inner in item.values())
        else:
            count += isinstance(item, str)
    return count


def _refuse_constant(text: str) -> NoReturn:
    raise MetadataError(f"holds {text}, which is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise MetadataError(f"has the key {key!r} twice in one object: which of the two counts is not defined")
            seen.add(key)
    return made


_PLAIN = json.JSONDecoder(parse_constant=_refuse_constant)
STRICT = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)
