"""What the commands print: safe for a terminal whatever stands in the file, and plain JSON on request."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from firekeep.wording import WIDTH, headline, lines, middle

LONGEST = 160
LONGEST_NAME = 64
"""Characters of one value, and of one name, shown; `--json` gives all of them."""

_HELD = "\N{NO-BREAK SPACE}"
"""Stands for spaces that no line is broken at; of a file's text none is left once it is escaped."""
_MAX_DEPTH = 64
_MAX_NODES = 200_000
_MAX_TEXT = 1 << 26
"""Characters given whole in one document: a text of a pickle may stand in it thousands of times."""
_MAX_ARRAY = 64
_MAX_BITS = 14_000
"""Python prints integers of up to 4,300 digits, unless it is told otherwise."""


def prepare() -> None:
    """Let characters that the terminal's encoding lacks come out as escapes instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def can_print(text: str) -> bool:
    """Say whether standard output's encoding has these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def escape(text: str) -> str:
    """Spell out what a terminal would act on or hide: control characters, escapes, text direction marks, line breaks."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )


def shorten(text: str, longest: int = LONGEST) -> str:
    """Escape a text and cut it, saying how long it is."""
    if len(text) <= longest:
        return escape(text)
    return f"{escape(text[:longest])}... ({len(text):,} characters)"


def folded(text: str, *, indent: str = "") -> Iterator[str]:
    """Escape a text and break it into lines of 80 columns; a word that fits in none is cut in the middle."""
    words = (middle(escape(word), WIDTH - len(indent) - 2) for word in text.split(" "))
    return lines([" ".join(words)], indent=indent)


def headed(path: str, facts: str) -> list[str]:
    """Give a headline about a file, the facts on lines of their own where they do not fit beside the path, which is never broken."""
    first, *rest = headline(f"{escape(path)}:", escape(facts)).split("\n")
    return [first, *lines(part.strip() for part in rest)]


_COMMAND = re.compile(r"`[^`]*`")


def advice(text: str, *, indent: str = "") -> Iterator[str]:
    """Escape a text and break it into lines of 80 columns; words and commands in backquotes stay whole, to be copied."""
    held = _COMMAND.sub(lambda command: command[0].replace(" ", _HELD), escape(text))
    return (line.replace(_HELD, " ") for line in lines([held], indent=indent))


def escape_lines(text: str) -> list[str]:
    """Give the lines of a text, each escaped."""
    return [escape(line) for line in text.split("\n")]


class ClosedOutputError(Exception):
    """Standard output took no more: a closed pipe, a full disk."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def shown(name: str, longest: int = LONGEST_NAME) -> str:
    """Escape a name and cut it in the middle; the empty one is shown as two quotes."""
    if not name:
        return '""'
    if len(name) <= longest:
        return escape(name)
    tail = longest // 3
    return f"{escape(name[: longest - tail])}...{escape(name[-tail:])}"


def write(text: str) -> None:
    """Write text to standard output, once it is escaped; raises `ClosedOutputError`."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
    except OSError as error:
        raise ClosedOutputError(error) from error


def write_lines(lines: Iterable[str]) -> None:
    """Write lines that are escaped already."""
    write("".join(f"{line.rstrip()}\n" for line in lines))


def write_json(data: Any) -> None:
    """Write one JSON document: ASCII, indented, without NaN (non-finite numbers become text)."""
    import json

    write(json.dumps(plain(data), indent=2, allow_nan=False) + "\n")


def warn(message: str) -> None:
    """Write one line to standard error, escaped; for a terminal it is broken at spaces."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            told = f"firekeep: {escape(message)}"
            if sys.stderr.isatty():
                told = "\n".join(advice(told))
            sys.stderr.write(f"{told}\n")
            sys.stderr.flush()


def flush() -> None:
    """Bring out what is buffered, so that a full disk or a closed pipe is seen now and not after the exit code."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        raise ClosedOutputError(error) from error


def abandon() -> None:
    """Point standard output at nothing: what is still buffered for a closed pipe must not fail once more at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def shape(extents: Sequence[int]) -> str:
    """Give a shape as it is written in Python."""
    return f"[{', '.join(map(str, extents))}]"


_DIGITS = re.compile(r"([0-9]+)")


def natural(name: str) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    """Give a sort key that puts layers.2 before layers.10 and a before a.b."""
    return tuple(_segment_key(segment) for segment in name.split("."))


@lru_cache(1 << 16)
def _segment_key(segment: str) -> tuple[tuple[int, int, str], ...]:
    if not segment or segment.isalpha():
        return ((1, 0, segment),)
    key = []
    for part in _DIGITS.split(segment):
        if part[:1].isdigit() and part.isascii():
            digits = part.lstrip("0")
            key.append((0, len(digits), digits))  # compares like the number, without the cost of a number of any length
        elif part:
            key.append((1, 0, part))
    return tuple(key)


def width(text: str) -> int:
    """Count the columns a terminal gives a text."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Fill up with spaces to a width; longer text stays whole."""
    fill = " " * max(0, columns - width(text))
    return fill + text if right else text + fill


def columns(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "") -> list[str]:
    """Lay out rows in columns two spaces apart; the columns named in `right` are right-aligned."""
    if not rows:
        return []
    widths = [max(width(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        indent + "  ".join(pad(cell, widths[index], right=index in right) for index, cell in enumerate(row)).rstrip()
        for row in rows
    ]


def plain(data: Any) -> Any:
    """Turn a value into what JSON can say, whatever it holds.

    Non-finite floats become "NaN", "Infinity", "-Infinity"; sets and tuples lists; bytes and large arrays a description; objects of
    unknown classes their class and what they hold; the rest its text. Values nested deeper than 64, beyond 200,000 in number or
    beyond 64 MiB of text are cut, and say so.
    """
    return _convert(data, 0, [_MAX_NODES, _MAX_TEXT])


def _convert(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, left)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_BITS else _huge(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _non_finite(value)
    if depth >= _MAX_DEPTH or left[0] < 0:
        return "... (not shown: nested too deeply or too long)"
    if isinstance(value, Mapping):
        return {_text(_key(key), left): _convert(item, depth + 1, left) for key, item in _some(value.items(), left)}
    if isinstance(value, list | tuple | set | frozenset):
        return [_convert(item, depth + 1, left) for item in _some(value, left)]
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    described = _describe(value)
    return _convert(described, depth + 1, left)


def _describe(value: Any) -> Any:
    """Give a value of a pickle that is no plain data as text, or as data to convert further.

    Tensors and objects are told by the names of the classes that stand for them; the library's own types are not imported here.
    """
    kind = type(value).__name__
    if kind == "TensorRef":
        return f"<tensor {value.name}>"
    if kind == "Opaque":
        held = {"args": value.args, "state": value.state, "items": value.items}
        held = {name: part for name, part in held.items() if part is not None and part != ()}
        return {"<class>": value.name, **held} if held else f"<class {value.name}>"
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return value.tolist() if value.size <= _MAX_ARRAY else f"<array {value.dtype} {shape(value.shape)}>"
    return str(value)


def _text(text: str, left: list[int]) -> str:
    left[1] -= len(text)
    return text if left[1] >= 0 or len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} characters)"


def _some(items: Iterable[Any], left: list[int]) -> Iterable[Any]:
    for item in items:
        if left[0] < 0:
            return
        yield item


def _key(key: Any) -> str:
    if isinstance(key, int) and key.bit_length() > _MAX_BITS:
        return _huge(key)
    return key if isinstance(key, str) else str(key)


def _huge(value: int) -> str:
    return f"<an integer of {value.bit_length():,} bits>"


def _non_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
