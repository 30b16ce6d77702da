"""One way of reading the names of both sides, and the pairs that it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from firekeep.entry import TensorEntry
from firekeep.matching._lists import Renumbering, Side, elements_of, find_renumbering
from firekeep.matching._words import Ambiguity, MatchOptions, Via, Want

Read = Callable[[str], str]

_LEVELS: tuple[tuple[Via, ...], ...] = ((), ("spelling",), ("variant",), ("variant", "spelling"))
"""Forms of a wanted name, the surest first."""


def as_it_is(name: str) -> str:
    """Read a name as it stands."""
    return name


@dataclass(frozen=True, slots=True)
class Reading:
    """What names are taken for on each side, and the word for it."""

    offered: Read = as_it_is
    wanted: Read = as_it_is
    via: tuple[Via, ...] = ()


@dataclass(slots=True)
class Found:
    """A tensor found for a want, both by place, and how."""

    offer: int
    via: tuple[Via, ...]


@dataclass(slots=True)
class Spread:
    """Names of wants, form by form: for each level, the names of each want that has any."""

    levels: tuple[dict[int, tuple[str, ...]], ...]

    def level(self, level: int) -> Iterator[tuple[int, tuple[str, ...]]]:
        yield from self.levels[level].items()

    def names(self, level: int) -> list[str]:
        """Give one name for each want: of this level, or of the first where it has none here."""
        first, here = self.levels[0], self.levels[level]
        return [(here.get(place) or names)[0] for place, names in first.items()]

    def others(self, level: int) -> dict[int, tuple[str, ...]]:
        """Give the further names of each want at this level, or the level of spellings where it has none here."""
        return {**self.levels[1], **self.levels[level]}


def _spread(wants: Sequence[Want], read: Read) -> Spread:
    levels: tuple[dict[int, tuple[str, ...]], ...] = ({}, {}, {}, {})
    for place, want in enumerate(wants):
        levels[0][place] = (read(want.name),)
        if want.spellings:
            levels[1][place] = tuple(map(read, want.spellings))
        if want.short is not None and want.short != want.name:
            levels[2][place] = (read(want.short),)
            if want.spellings:
                levels[3][place] = tuple(
                    read(shortened(want.name, want.short, spelling)) for spelling in want.spellings
                )
    return Spread(levels)


def shortened(name: str, short: str, other: str) -> str:
    """Leave out of another spelling of a name the segments that its short form leaves out."""
    kept = iter(short.split("."))
    wanted, gone = next(kept, None), []
    for place, segment in enumerate(name.split(".")):
        if segment == wanted:
            wanted = next(kept, None)
        else:
            gone.append(place)
    return ".".join(segment for place, segment in enumerate(other.split(".")) if place not in gone)


@dataclass(slots=True)
class Both:
    """The two sides, and how they look under each reading, worked out once."""

    wants: Sequence[Want]
    offers: Sequence[TensorEntry]
    options: MatchOptions
    _models: dict[Read, tuple[Spread, list[Side]]] = field(default_factory=dict)
    _files: dict[Read, Side] = field(default_factory=dict)

    def models(self, read: Read) -> tuple[Spread, list[Side]]:
        """Give the names of wants, and the model by them: by full names, and by those without variants where there are any."""
        if read not in self._models:
            spread = _spread(self.wants, read)
            shapes = [want.shape for want in self.wants]
            modules, keyed = (frozenset(map(read, paths)) for paths in (self.options.modules, self.options.keyed))
            sides = [
                Side(spread.names(level), shapes, modules, spread.others(level + 1), keyed=keyed)
                for level in (0, 2)
                if spread.levels[level]
            ]
            self._models[read] = (spread, sides)
        return self._models[read]

    def file(self, read: Read) -> Side:
        """Give the file by the names of its tensors."""
        if read not in self._files:
            names = [read(offer.name) for offer in self.offers]
            modules = frozenset(map(read, self.options.submodules))
            known = self.options.sources
            sources = [known.get(offer.name, offer.name) for offer in self.offers] if known else []
            self._files[read] = Side(names, [offer.shape for offer in self.offers], modules, sources=sources)
        return self._files[read]


@dataclass(slots=True)
class Draft:
    """What has been found so far: a tensor for each want by place; `found` of equal shape or of the very name, `odd` of other shapes."""

    both: Both
    found: dict[int, Found] = field(default_factory=dict)
    odd: dict[int, Found] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    doubts: dict[int, Ambiguity] = field(default_factory=dict)
    lists: dict[tuple[frozenset[int], int], Ambiguity] = field(default_factory=dict)
    """What is in doubt about lists, by the wants in them and the lists around."""
    renumberings: list[Renumbering] = field(default_factory=list)

    @property
    def fitting(self) -> int:
        """How many wants found a tensor of their shape."""
        return sum(
            self.both.wants[want].shape == self.both.offers[found.offer].shape for want, found in self.found.items()
        )

    def read(self, reading: Reading, *, first: bool = False) -> None:
        """Pair what is still open under a reading; of the first one, equal names pair whatever their shapes.

        A further reading is taken as a whole or not at all: not where it is in doubt anywhere, and not without one tensor that fits.
        """
        before, doubts = dict(self.found), len(self.doubts)
        self._read(reading, first=first)
        if not first and (len(self.found) == len(before) or len(self.doubts) > doubts):
            self.found = before
            self.taken = {found.offer for found in before.values()}
            self.odd = {want: found for want, found in self.odd.items() if found.via[: len(reading.via)] != reading.via}

    def _read(self, reading: Reading, *, first: bool) -> None:
        spread, models = self.both.models(reading.wanted)
        file = self.both.file(reading.offered)
        table: dict[str, list[int]] = {}
        for place, key in enumerate(file.names):
            if place not in self.taken:
                table.setdefault(key, []).append(place)
        long, *others = self._renumber(models, file)
        short = others[0] if others else long
        for level, via in enumerate(_LEVELS):
            numbers = short if "variant" in via else long
            self._read_level(spread, level, numbers, table, reading.via + via, final=first and not level)

    def _renumber(self, models: Sequence[Side], file: Side) -> list[Renumbering]:
        made = [find_renumbering(model, file) for model in models]
        for model, one in zip(models, made, strict=True):
            for (
                parent,
                doubt,
            ) in one.doubts.items():  # a list that has another name under another reading is told of once
                places = frozenset(place for element in model.lists[parent].values() for place in element)
                self.lists.setdefault((places, len(elements_of(parent))), doubt)
        self.renumberings += made
        return made

    def _read_level(
        self,
        spread: Spread,
        level: int,
        numbers: Renumbering,
        table: Mapping[str, Sequence[int]],
        via: tuple[Via, ...],
        *,
        final: bool,
    ) -> None:
        chosen: dict[int, tuple[int, str | None]] = {}
        for want, names in spread.level(level):
            if want in self.found:
                continue
            keys = (
                {numbers.apply(name): name for name in names} if numbers.maps else dict(zip(names, names, strict=True))
            )
            places = [place for key in keys for place in table.get(key, ()) if place not in self.taken]
            if len(places) == 1:
                chosen[want] = (places[0], next((name for key, name in keys.items() if key != name), None))
            elif places:
                self._doubt(want, places, "more than one tensor of the file may be meant")
        for want, place, moved in self._undisputed(chosen):
            if moved:
                numbers.used.update(numbers.lists_of(moved))
            words: tuple[Via, ...] = (*via, "index") if moved else via
            found = Found(place, words or ("exact",))
            if final or self.both.wants[want].shape == self.both.offers[place].shape:
                self.found[want] = found
                self.taken.add(place)
            else:
                self.odd.setdefault(want, found)

    def _undisputed(self, chosen: Mapping[int, tuple[int, str | None]]) -> Iterator[tuple[int, int, str | None]]:
        rivals: dict[int, list[int]] = {}
        for want, (place, _) in chosen.items():
            rivals.setdefault(place, []).append(want)
        for want, (place, moved) in chosen.items():
            if len(rivals[place]) == 1:
                yield want, place, moved
            else:
                self._doubt(want, [place], "the tensor is as near to " + _names(self.both.wants, rivals[place], want))

    def _doubt(self, want: int, places: Sequence[int], reason: str) -> None:
        candidates = tuple(self.both.offers[place].name for place in places)
        self.doubts.setdefault(want, Ambiguity(want=self.both.wants[want].name, candidates=candidates, reason=reason))


def _names(wants: Sequence[Want], places: Sequence[int], without: int) -> str:
    return " and ".join(repr(wants[place].name) for place in places if place != without)
