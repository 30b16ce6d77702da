"""Whether tensors that are alike but for numbers keep their order on the way into a model."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from firekeep.folding import is_number

Numbers = tuple[int, ...]


def exchanges_alike(found: Iterable[tuple[str, str]]) -> bool:
    """Say whether any two tensors change places, given names of the file and those of the model that they go to.

    Of names that are alike but for numbers on both sides, the one with the lower numbers has to go to the one with the lower numbers.
    """
    alike: dict[tuple[str, str], list[tuple[Numbers, Numbers]]] = {}
    for old, new in found:
        (kind, numbers), (other, places) = _read(old), _read(new)
        alike.setdefault((kind, other), []).append((numbers, places))
    return any(
        before[1] >= after[1]
        for pairs in alike.values()
        for before, after in pairwise(sorted(pairs))
        if len(before[0]) and len(before[1])
    )


def _read(name: str) -> tuple[str, Numbers]:
    segments = name.split(".")
    numbers = tuple(int(segment) for segment in segments if is_number(segment))
    return ".".join("#" if is_number(segment) else segment for segment in segments), numbers
