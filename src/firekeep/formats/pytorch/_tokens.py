"""Reading opcodes one by one without a machine: to tell a pickle, and to find the names in one that is damaged."""

from __future__ import annotations

from collections.abc import Iterator

from firekeep.formats.pytorch._inert import Global
from firekeep.formats.pytorch._opcodes import NAMES, argument_end

MOST_TOKENS = 200_000
_TOLD_BY = 12
_LONGEST_NAME = 4096
_TEXTS = {0x58: 5, 0x8C: 2, 0x8D: 9, 0x54: 5, 0x55: 2}
"""Opcodes that push text, and where it starts behind them."""
_CALLS = frozenset((0x52, 0x81, 0x92, 0x69, 0x6F))
_TELLING = frozenset((0x2E, 0x63, 0x69, 0x71, 0x70, 0x93, 0x94))


def looks_like_pickle(data: bytes) -> bool:
    """Tell whether bytes start like a pickle: with PROTO, or with opcodes among which one is telling."""
    if len(data) < 2 or data[0] not in NAMES:
        return False
    if data[0] == 0x80:
        return data[1] <= 5 and len(data) > 2 and data[2] in NAMES
    position = 0
    for _ in range(_TOLD_BY):
        op = data[position]
        if op not in NAMES:
            return False
        end = argument_end(data, position)
        if op in (0x63, 0x69):
            return end is not None and _is_name(data[position + 1 : end])
        if op == 0x2E:
            return position > 0
        if end is None or end >= len(data):
            return False
        position = end
    return any(op in _TELLING for op in data[:position])


def _is_name(raw: bytes) -> bool:
    """Tell two lines that can be a module and a name."""
    return all(part and all(byte > 0x20 and byte != 0x7F for byte in part) for part in raw.split(b"\n")[:2])


def find_names(data: bytes, position: int, *, most: int = MOST_TOKENS) -> Iterator[Global]:
    """Find the globals that the next `most` opcodes from `position` on name, behind damage: what is on the stack is not known.

    A name is taken for called when any call follows it.
    """
    names: list[Global] = []
    texts: list[str] = ["?", "?"]
    calls = -1
    for number in range(most):
        if position >= len(data) or data[position] not in NAMES:
            break
        op = data[position]
        end = argument_end(data, position)
        if end is None:
            break
        if op in (0x63, 0x69):
            module, _, name = data[position + 1 : end - 1].partition(b"\n")
            names.append(_named(module, name, position))
        elif op == 0x93:
            names.append(_named(texts[-2].encode("utf-8", "replace"), texts[-1].encode("utf-8", "replace"), position))
        elif op in _TEXTS:
            texts = [texts[-1], data[position + _TEXTS[op] : end][:_LONGEST_NAME].decode("utf-8", "replace")]
        elif op == 0x56:
            texts = [texts[-1], data[position + 1 : end - 1][:_LONGEST_NAME].decode("utf-8", "replace")]
        if op in _CALLS:
            calls = number
        position = end
    for found in names:
        found.called = calls >= 0
        yield found


def _named(module: bytes, name: bytes, position: int) -> Global:
    found = Global(
        module[:_LONGEST_NAME].decode("utf-8", "replace"),
        name[:_LONGEST_NAME].decode("utf-8", "replace"),
        offset=position,
        make=None,
    )
    found.count = 1
    return found
