"""How the elements of two lists fit one another in order, whatever their numbers: where some were put in, taken out or reshaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from firekeep.entry import TensorEntry
from firekeep.matching._lists import Side
from firekeep.matching._words import Want

_MOST = 250_000
"""Pairs of elements that are looked at."""

Element = tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]
"""The tensors of an element: the names that each may have within it, and its shape."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Most elements that fit in their order.

    `most` is their number, `equal` that of the elements which fit those of equal numbers; `sure` has those that are paired in every way
    to pair so many, the model's number first. No element before the number `first` has another number in any such way.
    """

    most: int = 0
    equal: int = 0
    sure: dict[int, int] = field(default_factory=dict)
    first: int = 0

    @property
    def shifted(self) -> bool:
        """Whether more elements fit others than those of equal numbers."""
        return self.most > self.equal

    @property
    def moved(self) -> dict[int, int]:
        """The numbers that are surely others in the file."""
        return {mine: theirs for mine, theirs in self.sure.items() if mine != theirs}


def sides_of(wants: Sequence[Want], offers: Sequence[TensorEntry]) -> tuple[Side, Side]:
    """Give both sides by the names they have, with all that wants may be called."""
    others = {
        place: [*want.spellings, *([] if want.short is None else [want.short])]
        for place, want in enumerate(wants)
        if want.spellings or want.short is not None
    }
    model = Side([want.name for want in wants], [want.shape for want in wants], others=others)
    return model, Side([offer.name for offer in offers], [offer.shape for offer in offers])


def align(model: Side, file: Side, mine: str, theirs: str) -> Alignment | None:
    """Align two lists, or give None where they are too long to be looked at."""
    ours, others = sorted(model.lists[mine]), sorted(file.lists[theirs])
    if len(ours) * len(others) > _MOST:
        return None
    wanted = [_element(model, mine, number) for number in ours]
    offered = [_element(file, theirs, number) for number in others]
    known: dict[tuple[Element, Element], bool] = {}

    def fit(own: int, other: int) -> bool:
        key = (wanted[own], offered[other])
        if key not in known:
            known[key] = _fit(*key)
        return known[key]

    places = {number: place for place, number in enumerate(others)}
    equal = sum(number in places and fit(place, places[number]) for place, number in enumerate(ours))
    before = _lengths(len(ours), len(others), fit)
    after = _lengths(len(ours), len(others), lambda own, other: fit(len(ours) - 1 - own, len(others) - 1 - other))
    most = before[-1][-1]
    ranks: dict[int, list[tuple[int, int]]] = {}
    for own in range(len(ours)):
        for other in range(len(others)):
            rest = after[len(ours) - 1 - own][len(others) - 1 - other]
            if fit(own, other) and before[own][other] + 1 + rest == most:
                ranks.setdefault(before[own][other], []).append((own, other))
    # In every way to pair most of them there is one pair of each rank, so that the only one of its rank is in all.
    pairs = [[(ours[own], others[other]) for own, other in rank] for rank in ranks.values()]
    moved = [min(pair) for rank in pairs for pair in rank if pair[0] != pair[1]]
    return Alignment(most, equal, dict(rank[0] for rank in pairs if len(rank) == 1), min(moved, default=0))


def _lengths(rows: int, columns: int, fit: Callable[[int, int], bool]) -> Sequence[Sequence[int]]:
    """Give for the first elements of both lists how many can be paired in order, one by one."""
    table = [[0] * (columns + 1) for _ in range(rows + 1)]
    for row in range(rows):
        above, here = table[row], table[row + 1]
        for column in range(columns):
            here[column + 1] = max(above[column + 1], here[column], above[column] + fit(row, column))
    return table


def _element(side: Side, parent: str, number: int) -> Element:
    return tuple((tuple(side.inner(place, parent)), side.shapes[place]) for place in side.lists[parent][number])


def _fit(wanted: Element, offered: Element) -> bool:
    """Say whether two elements have tensors of the same names and shapes, and neither lacks more than the other has beside."""
    shapes = {names[0]: shape for names, shape in offered}
    common = [
        (name, shape)
        for names, shape in wanted
        if (name := next((one for one in names if one in shapes), None)) is not None
    ]
    if not common or (len(common) < len(wanted) and len(common) < len(offered)):
        return False
    return all(shapes[name] == shape for name, shape in common)
