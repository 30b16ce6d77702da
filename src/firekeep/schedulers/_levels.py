"""Burn's Learner keeps every schedule one level down, as the first group of a module: its keys begin with `0.`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

Value = TypeVar("Value")

LEARNER = "0."


def find_level(held: Mapping[str, Value], wanted: Iterable[str]) -> tuple[dict[str, Value], str]:
    """Give the keys of a record as a schedule wants them: as they are, or one level up or down, whichever fits better; and say so."""
    keys = set(wanted)
    below = {key.removeprefix(LEARNER): value for key, value in held.items() if key.startswith(LEARNER)}
    above = {f"{LEARNER}{key}": value for key, value in held.items()}
    found = dict(held)
    note = ""
    for level, told in (
        (below, "the record has the schedule under '0.', as Burn's Learner writes it"),
        (above, "the record has one schedule and no groups: it was taken for that of the base"),
    ):
        if len(keys & level.keys()) > len(keys & found.keys()):
            found, note = level, told
    return found, note
