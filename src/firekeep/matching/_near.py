"""Names that were likely meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from firekeep.entry import TensorEntry
from firekeep.matching._words import Want

NEAR = 0.7
"""How alike two names are at least (Jaro) for the one to be suggested for the other."""

_COMPARED = 1_000_000
"""Pairs of names that are compared in all: past that, only names with the same last segment, and of those the first."""

_SAME_PLACE = 0.05
"""What it counts for a name to have the same indices of lists: layers.0 is hardly meant where layers.1 is wanted."""

_VARIANT = re.compile(r"(?<=\.)[A-Z][^.]*[a-z][^.]*\.")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A name of the file that may be what a want is called there: how near it is (Jaro, 0 to 1), and whether the shapes are equal."""

    name: str
    score: float
    same_shape: bool


def suggest(missing: Sequence[Want], unused: Sequence[TensorEntry]) -> dict[str, Suggestion]:
    """Give wants, by name, the unused name that is nearest, each name to one want at most.

    A name without the variants of enums comes first, then names of tensors of the same shape, then others. Of very many names
    only some are compared.
    """
    if not missing or not unused:
        return {}
    search = _Search(list(missing), list(unused))
    search.short()
    for blocks in (search.by(_shape), search.by(_nothing)):
        search.compare(blocks)
    return search.made


def _shape(one: Want | TensorEntry) -> object:
    return one.shape


def _nothing(one: Want | TensorEntry) -> object:  # noqa: ARG001 - a key like the others
    return None


def _last(one: Want | TensorEntry) -> object:
    return one.name[one.name.rfind(".") + 1 :]


def _indices(name: str) -> tuple[str, ...]:
    """Give the parts of a name that are places in lists."""
    return tuple(part for part in name.split(".") if part.isdecimal())


_Block = tuple[list[Want], list[TensorEntry]]
_Key = Callable[[Want | TensorEntry], object]


def _blocks(wants: Sequence[Want], offers: Sequence[TensorEntry], key: _Key) -> list[_Block]:
    blocks: dict[object, _Block] = {}
    for want in wants:
        blocks.setdefault(key(want), ([], []))[0].append(want)
    for offer in offers:
        if (known := key(offer)) in blocks:
            blocks[known][1].append(offer)
    return sorted(blocks.values(), key=_pairs)


def _pairs(block: _Block) -> int:
    return len(block[0]) * len(block[1])


def _cut(block: _Block, most: int) -> _Block:
    """Keep the first names of either side, so many that not more than `most` pairs are left."""
    wants, offers = block
    if _pairs(block) <= most:
        return block
    side = int(most**0.5)
    rows = max(side, most // max(len(offers), 1))
    return wants[:rows], offers[: most // max(min(rows, len(wants)), 1)]


@dataclass(slots=True)
class _Search:
    missing: list[Want]
    unused: list[TensorEntry]
    made: dict[str, Suggestion] = field(default_factory=dict)
    left: int = _COMPARED

    def short(self) -> None:
        """Take the names that are there when variants of enums are left out."""
        from rapidfuzz.distance import Jaro

        offers = {offer.name: offer for offer in self.unused}
        for want in self.missing:
            for name in (want.short, _VARIANT.sub("", want.name, count=1), *want.spellings):
                if name is not None and name != want.name and name in offers:
                    self._take(want, offers.pop(name), Jaro.similarity(want.name, name))
                    break
        self._close()

    def by(self, key: _Key) -> Iterator[_Block]:
        """Give the names still open in blocks of one key, the smallest first."""
        yield from _blocks(self.missing, self.unused, key)

    def compare(self, blocks: Iterable[_Block]) -> None:
        """Compare the names of each block with one another, as far as the measure reaches."""
        for block in blocks:
            for wants, offers in [block] if _pairs(block) <= self.left else _blocks(*block, _last):
                share = _cut((wants, offers), self.left)
                self.left -= _pairs(share)
                self._assign(*share)
        self._close()

    def _assign(self, wants: list[Want], offers: list[TensorEntry]) -> None:
        if not wants or not offers:
            return
        import numpy as np
        from rapidfuzz import process
        from rapidfuzz.distance import Jaro

        scores = process.cdist(
            [want.name for want in wants],
            [offer.name for offer in offers],
            scorer=Jaro.similarity,
            score_cutoff=NEAR,
            dtype=np.float64,
        )
        known: dict[tuple[str, ...], int] = {}
        places = [
            np.array([known.setdefault(_indices(one.name), len(known)) for one in side]) for side in (wants, offers)
        ]
        worth = np.where(scores > 0, scores + _SAME_PLACE * np.equal.outer(*places), 0)
        order = np.argsort(-worth, axis=None, kind="stable")
        order = order[: int((scores > 0).sum())]
        free_wants, free_offers = set(range(len(wants))), set(range(len(offers)))
        for place in order:
            row, column = divmod(int(place), len(offers))
            if row in free_wants and column in free_offers:
                self._take(wants[row], offers[column], float(scores[row, column]))
                free_wants.discard(row)
                free_offers.discard(column)
                if not free_wants or not free_offers:
                    break

    def _take(self, want: Want, offer: TensorEntry, score: float) -> None:
        self.made[want.name] = Suggestion(offer.name, round(score, 3), want.shape == offer.shape)

    def _close(self) -> None:
        given = {suggestion.name for suggestion in self.made.values()}
        self.missing = [want for want in self.missing if want.name not in self.made]
        self.unused = [offer for offer in self.unused if offer.name not in given]
