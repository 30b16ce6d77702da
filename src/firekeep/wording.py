"""How reports speak: sizes, counts, lists of names, lines of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

WIDTH = 80
_FUNCTIONS = ("builtin_function_or_method", "method", "partial")


def count(number: int, noun: str) -> str:
    """Give a number with its noun: 1 tensor, 2,000 tensors."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(nbytes: int) -> str:
    """Give a number of bytes in decimal units: 512 B, 1.04 MB."""
    number = float(nbytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 999.5:
            return f"{nbytes} B" if unit == "B" else f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} PB"


def middle(text: str, longest: int) -> str:
    """Cut a text in the middle where it is longer than so many characters: names differ at both ends."""
    if len(text) <= longest:
        return text
    tail = max(1, longest // 3)
    return f"{text[: max(1, longest - 3 - tail)]}...{text[-tail:]}"


def spell(value: object, longest: int = 100) -> str:
    """Spell a value that came out of a file, cut where it is long; whole numbers may have more digits than Python spells."""
    try:
        return middle(repr(value), longest)
    except (ValueError, RecursionError):
        return f"({type(value).__name__}, too large to be shown)"


def quote(text: str, longest: int = 60) -> str:
    """Put a text in quotes, cut in the middle where it is long; what a terminal would act on is spelled out."""
    if len(text) > longest:
        text = f"{text[: longest // 2]}...{text[-longest // 2 :]}"
    return f"'{text}'" if text.isprintable() and "'" not in text else repr(text)


def kind(value: object) -> str:
    """Say in a word what a value is: its type, of an array without numbers what it holds, too."""
    if isinstance(value, type):
        return f"class {value.__name__}"
    name = type(value).__name__
    dtype = getattr(getattr(value, "dtype", None), "name", None)
    if isinstance(dtype, str):
        return f"{name} of {dtype}"
    return "function" if name in _FUNCTIONS else name


def some(names: Sequence[str], shown: int = 5) -> str:
    """List names in quotes, and count those that are not shown."""
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(map(quote, names[:shown])) + more


def headline(first: str, second: str) -> str:
    """Join two halves of a sentence that hold paths, which are never broken: on one line if they fit."""
    whole = f"{first} {second}"
    return whole if len(whole) <= WIDTH else f"{first}\n  {second}"


def lines(texts: Iterable[str], *, indent: str = "  ") -> Iterator[str]:
    """Break texts into lines of at most 80 columns, where they have spaces; further lines of one text stand further in."""
    for text in texts:
        yield from textwrap.wrap(
            text,
            WIDTH,
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def listed(title: str, told: Sequence[tuple[str, int]], *, shown: int) -> Iterator[str]:
    """Give a title with the number of all, the first lines, and how many are not shown; a line may stand for several."""
    total = sum(number for _, number in told)
    if total:
        yield f"  {title}: {total:,}"
        yield from lines((text for text, _ in told[:shown]), indent="    ")
    if rest := total - sum(number for _, number in told[:shown]):
        yield f"    ... and {rest:,} more"


def unfold(text: str) -> Iterator[str]:
    """Undo what `lines` did to a report: its headline as it is, then each text whole."""
    whole = ""
    for line in text.split("\n"):
        if line.startswith("    ") and whole:
            whole += f" {line.lstrip()}"
            continue
        if whole:
            yield whole
        whole = line
    if whole:
        yield whole
