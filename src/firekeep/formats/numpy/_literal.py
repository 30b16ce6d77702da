"""The Python literals that the header of an array may be made of: read, never evaluated."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Any

from firekeep.errors import HeaderError

_DEEPEST = 16
_TOKEN = re.compile(
    r"\s*(?:u?(?P<text>'(?:[^'\\\n]|\\[^\n])*'|\"(?:[^\"\\\n]|\\[^\n])*\")"
    r"|(?P<number>-?[0-9]{1,19})L?(?![0-9A-Za-z_.])"
    r"|(?P<word>True|False|None)\b"
    r"|(?P<sign>[{}()\[\],:]))"
)
_WORDS = {"True": True, "False": False, "None": None}
_CLOSE = {"{": "}", "(": ")", "[": "]"}


def parse_literal(text: str) -> Any:
    """Read one literal: a dict, list, tuple, string, integer (Python 2's long too), True, False or None.

    Raises `HeaderError` for anything else. Escapes in strings are kept as they are written.
    """
    tokens = list(_split(text.rstrip()))
    value, end = _value(tokens, 0, _DEEPEST)
    if end != len(tokens):
        raise _odd(tokens[end][1])
    return value


def _split(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise _odd(text[place:])
        place = found.end()
        kind = str(found.lastgroup)
        yield kind, found[kind]


def _value(tokens: list[tuple[str, str]], at: int, depth: int) -> tuple[Any, int]:
    if at >= len(tokens) or depth == 0:
        raise HeaderError(
            "the header of the array nests too deep" if depth == 0 else "the header of the array ends early"
        )
    kind, text = tokens[at]
    if kind == "text":
        return text[1:-1], at + 1
    if kind == "number":
        return int(text), at + 1
    if kind == "word":
        return _WORDS[text], at + 1
    if text not in _CLOSE:
        raise _odd(text)
    return _container(tokens, at, depth - 1)


def _container(tokens: list[tuple[str, str]], at: int, depth: int) -> tuple[Any, int]:
    open_, close = tokens[at][1], _CLOSE[tokens[at][1]]
    at += 1
    items: list[Any] = []
    made: dict[Hashable, Any] = {}
    while True:
        if _sign(tokens, at) == close:
            if open_ == "(" and len(items) == 1 and _sign(tokens, at - 1) != ",":
                return items[0], at + 1
            return made if open_ == "{" else items if open_ == "[" else tuple(items), at + 1
        value, at = _value(tokens, at, depth)
        if open_ == "{":
            if not isinstance(value, str) or value in made or _sign(tokens, at) != ":":
                raise HeaderError("the header of the array is no dict of names given once each")
            made[value], at = _value(tokens, at + 1, depth)
        else:
            items.append(value)
        if _sign(tokens, at) == ",":
            at += 1
        elif _sign(tokens, at) != close:
            raise HeaderError(f"the header of the array has no {close!r} where one is needed")


def _sign(tokens: list[tuple[str, str]], at: int) -> str:
    return tokens[at][1] if at < len(tokens) and tokens[at][0] == "sign" else ""


def _odd(text: str) -> HeaderError:
    return HeaderError(f"the header of the array holds what no header may: {text[:40]!r}")
