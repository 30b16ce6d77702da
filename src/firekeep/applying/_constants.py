"""Constants of two models, side by side where tensors of one go into the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from firekeep.report import ConstantDifference
from firekeep.slots import Constant, Constants


def compare_constants(
    model: Iterable[Constants], source: Iterable[Constants], tensors: Mapping[str, str]
) -> Iterator[ConstantDifference]:
    """Give the constants that two models do not agree on, part by part, where both tell them.

    `tensors` maps names of the model's tensors to those of the source that go there, and so parts to parts. What has no tensors of
    its own (an activation) belongs to what is called so in the source, in the part around that has some. Two layers of different kinds
    that hold the same tensors differ in `kind`.
    """
    others = {part.path: part for part in source}
    mine = {part.path: part for part in model}
    pairs = _pair(tensors, mine, others)
    places = dict(_around(pairs))
    held = {name.rpartition(".")[0]: other.rpartition(".")[0] for name, other in tensors.items()}
    for path, part in mine.items():
        if path not in pairs:
            outer, dot, last = path.rpartition(".")
            other = others.get(f"{places.get(outer, outer)}{dot}{last}")
        else:
            other = others[pairs[path]]
        if other is None:
            continue
        if other.kind == part.kind:
            yield from _differences(part, other)
        elif path in held and held[path] == other.path:
            yield ConstantDifference(
                path=path, source_path=other.path, constant="kind", model=part.kind, source=other.kind
            )


def _pair(tensors: Mapping[str, str], mine: Mapping[str, Constants], others: Mapping[str, Constants]) -> dict[str, str]:
    """Map parts with tensors to those of the source; the first tensor of each says it."""
    pairs: dict[str, str] = {}
    for name, other in tensors.items():
        here, there = _part(name, mine), _part(other, others)
        if here is not None and there is not None:
            pairs.setdefault(here, there)
    return pairs


def _part(name: str, parts: Mapping[str, Constants]) -> str | None:
    """Give the innermost part that a tensor lies in."""
    while name:
        name = name.rpartition(".")[0]
        if name in parts:
            return name
    return None


def _around(pairs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Map what is around parts, as far as the parts are called alike."""
    for here, there in pairs.items():
        while here and there and here.rpartition(".")[2] == there.rpartition(".")[2]:
            here, there = here.rpartition(".")[0], there.rpartition(".")[0]
            yield here, there


def _differences(part: Constants, other: Constants) -> Iterator[ConstantDifference]:
    for name, value in part.values.items():
        theirs = other.values.get(name)
        if theirs is not None and not _alike(value, theirs):
            yield ConstantDifference(path=part.path, source_path=other.path, constant=name, model=value, source=theirs)


def _alike(value: Constant, other: Constant) -> bool:
    if isinstance(value, float) and isinstance(other, float):
        return math.isclose(value, other, rel_tol=1e-6)  # one may have been kept in single precision
    return value == other
