"""Tensors of a model that are put into the same model: what is written to one may be read from the other."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from firekeep.bridges import Bridge, Filling


def reads_itself(bridge: Bridge, obj: Any, fillings: Sequence[Filling]) -> bool:
    """Say whether a tensor may be drawn from the memory of another place that is filled, so that all have to be drawn first."""
    paths = {filling.slot.path for filling in fillings}
    written = [
        (span, entry.name)
        for entry in bridge.entries(obj)
        if entry.name in paths and entry.problem is None
        for span in entry.blob.memory() or ()
    ]
    read = [(span, filling.slot.path) for filling in fillings for span in filling.entry.blob.memory() or ()]
    return _meet(read, written)


def _meet(read: Iterable[tuple[range, str]], written: Iterable[tuple[range, str]]) -> bool:
    """Say whether spans of the one kind and the other overlap, but for one place that is filled with what it holds."""
    spans = sorted((span.start, span.stop, path) for span, path in written if span)
    reach, furthest = [], 0
    for _, stop, _ in spans:
        reach.append(furthest := max(furthest, stop))
    for span, path in read:
        if not span:
            continue
        last = bisect_left(spans, (span.stop,))
        while last and reach[last - 1] > span.start:
            last -= 1
            if spans[last][1] > span.start and spans[last] != (span.start, span.stop, path):
                return True
    return False
