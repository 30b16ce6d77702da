"""Names and shapes that a reader looks for, and what they tell of tensors that do not say how they lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from firekeep.applying import without_variants
from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.layouts import BURNS, CONVENTIONS
from firekeep.likeness._joined import CUT, WHOLE, joined, parts
from firekeep.matching import MatchOptions, Want
from firekeep.rules import KeyRemapper
from firekeep.rules.layout import (
    layers_from_flax,
    layers_from_like,
    moved,
    parts_of,
    translate,
    translate_layers,
    without_collections,
)
from firekeep.rules.surgery import Surgery
from firekeep.slots import Convention, Layer
from firekeep.wording import some

_COUNTER = "num_batches_tracked"
FLAXES: tuple[Convention, ...] = ("flax", "linen")
"""Layouts whose names say what most tensors are."""

_SPELLINGS = {
    "gamma": ("weight",),
    "beta": ("bias",),
    "alpha": ("weight",),
    "weight": ("gamma", "alpha"),
    "bias": ("beta",),
}
"""What the last part of a name is called in the other layout, where it is not turned round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Names and shapes, in some layout, with the layers if they are known.

    `names` are given in place of `entries` where only names are known.
    """

    what: str
    entries: tuple[TensorEntry, ...] = ()
    names: tuple[str, ...] = ()
    layout: Convention | None = None
    layers: tuple[Layer, ...] = ()
    modules: frozenset[str] = field(default_factory=frozenset)
    variants: frozenset[str] = frozenset()
    """Paths that end in the name of an enum's variant, which other readers know nothing of."""
    match: Literal["auto", "exact"] = "auto"
    originals: Mapping[str, str] = field(default_factory=dict)
    """The reader's own names, by those that a load gives them."""
    told: bool = False
    """It is a model, which tells all its layers, be it none."""
    whole: bool = True
    """All that the reader looks for has to be there."""

    def before(self, names: Mapping[str, str]) -> Likeness:
        """Give this under the names that tensors have before a rename; `names` maps these to those of the reader."""
        if all(old == new for old, new in names.items()):
            return self
        back = {new: old for old, new in names.items()}
        layers = tuple(moved(self.layers, back))
        taken = {layer.path for layer in layers}
        spelled: dict[str, str] = {}
        for new, old in back.items():
            layer, dot, _ = old.rpartition(".")
            for other in other_names(new):
                spelled.setdefault(other, f"{layer}{dot}{other.rpartition('.')[2]}")
        named = {**spelled, **back}
        entries = {entry.name: entry for entry in self.entries}  # a reader may also have the names of before
        entries |= {
            named[entry.name]: entry.renamed(named[entry.name]) for entry in self.entries if entry.name in named
        }
        places = _places(back)
        for entry in self.entries:  # what its layer calls otherwise: kernel and weight
            part = next((part for part in parts_of(entry.name) if part in places), None)
            if entry.name not in named and part is not None:
                name = f"{places[part]}{entry.name[len(part) :]}".removeprefix(".")
                entries.setdefault(name, entry.renamed(name))
        return replace(
            self,
            entries=tuple(entries.values()),
            layers=(*layers, *(layer for layer in self.layers if layer.path not in taken)),
        )

    def uncut(self, surgery: Surgery, remapper: KeyRemapper, layout: Convention | None) -> Likeness:
        """Give this as tensors are before surgery and renames that are done in a layout; as it is where these have no inverse."""
        reader = self.in_layout(layout)
        try:
            undone = remapper.undo([entry.name for entry in reader.entries]).names if remapper else {}
            reader = reader.before({old: new for new, old in undone.items()})
            whole = surgery.inverse().apply(reader.entries).entries
        except RuleError:
            return self
        layers: dict[str, Layer] = {}
        for names in _ways_back(reader.entries, whole, surgery):
            layers |= {layer.path: layer for layer in moved(reader.layers, names)}
        return replace(reader, entries=tuple(whole), layers=tuple(layers.values()))

    def evidence(
        self, entries: Sequence[TensorEntry], *, layout: Convention | None, source: Convention | None = None
    ) -> tuple[Convention, tuple[Layer, ...]]:
        """Say how bare tensors lie and what layers they belong to, judging by this; `source` is how they lie, as far as it is known.

        A model tells the kinds of its layers by itself; of a file in the layout to be written, the shapes tell which tensors are turned
        round there, and a square one is refused, since nothing tells. Those of which nobody said how they lie do so as names and shapes
        tell; where these do not, they are taken for PyTorch's where Burn's are to be written, for Burn's where PyTorch's are, and for
        nothing where it is another layout.
        """
        source = source or self._lying(entries, layout) or self._other(layout)
        if (self.layers or self.told) and self.layout is not None:
            reader = self.in_layout(source)
            return source, _layers_holding(reader, entries)
        if self.layout == layout and self.entries and {source, layout} == set(BURNS):
            if layout == "torch":
                self._require(entries)
                return source, translate_layers(layers_from_like(self.entries, entries), source="torch", target=source)
            self._require_all(entries)
            return source, layers_from_like(entries, self.entries)
        if self.layout == layout and self.entries and (flax := flax_of(source, layout)) is not None:
            if layout == "torch":
                layers = layers_from_flax(self.entries, entries, convention=flax, given="flax")
                return source, translate_layers(layers, source="torch", target=flax)
            return source, layers_from_flax(
                entries, without_collections_of(self.entries), convention=flax, given="torch"
            )
        shapes_tell = {source, layout} == set(BURNS) or flax_of(source, layout) is not None
        file = f"a file whose layout is {layout!r}" if shapes_tell else "a PyTorch file of a whole model"
        raise RuleError(
            f"{self.what} does not tell what layers the tensors belong to",
            remedy=f"Give like= a model, or {file}.",
        )

    def fits(self, entries: Sequence[TensorEntry]) -> tuple[Convention, ...]:
        """Give the layouts in which tensors of which nobody said how they lie have the names and shapes of these, the own one first.

        None where it does not know its layers; one where its layers lie alike in all of them.
        """
        if self.layout is None or not (self.layers or self.told):
            return ()
        found: list[Convention] = []
        for layout in dict.fromkeys((self.layout, *BURNS)):
            reader = self.in_layout(layout)
            known = {entry.name: entry.shape for entry in reader.entries}
            if all(known.get(entry.name) == entry.shape for entry in entries):
                found.append(layout)
        first = self.in_layout(found[0]) if found else self
        return tuple(found[:1]) + tuple(one for one in found[1:] if _changes(entries, first, one))

    def _lying(self, entries: Sequence[TensorEntry], layout: Convention | None) -> Convention | None:
        """Say how tensors lie of which nobody said it, as far as names and shapes tell; raises `RuleError` where it makes a difference."""
        found = self.fits(entries)
        if len(found) > 1 and found[0] == layout:
            raise RuleError(
                f"names and shapes do not tell whether these {len(entries):,} tensors lie as {found[0]!r} or as {found[1]!r} has them",
                remedy=f"If they lie as {layout!r} has them, leave out layout=. Else convert the file that they come from, which says it "
                "(firekeep.convert), or give the model that they are of.",
            )
        return found[0] if found else None

    def _other(self, layout: Convention | None) -> Convention:
        if layout not in (None, *BURNS):
            raise RuleError(
                f"how these tensors lie is not known, and the layout {layout!r} is made of those of another",
                remedy="Give the model that they are of, or a file that says its layout (metadata 'firekeep.layout').",
            )
        return next(other for other in BURNS if other != layout)

    def _require(self, entries: Sequence[TensorEntry]) -> None:
        """Refuse tensors in Burn's layout that these, in PyTorch's, tell nothing of, and that may be otherwise there."""
        known = {entry.name for entry in self.entries}
        unclear = []
        for entry in entries:
            names = list(other_names(entry.name))
            burns = entry.name.rpartition(".")[2] in ("gamma", "beta", "alpha")
            if known.isdisjoint(names if burns else (entry.name,)) and (burns or len(entry.shape) == 2):
                unclear.append(entry.name)
        if parts(unclear) and joined(known):
            raise self._cut(unclear, f"in the layout 'torch' {len(parts(unclear)):,} of them are joined ({CUT})")
        if unclear:
            raise RuleError(
                f"{self.what} has nothing like {some(unclear)}, which may lie otherwise in the layout 'torch'",
                remedy="Give like= a model or a file that has them, or leave them out with exclude.",
            )

    def _require_all(self, entries: Sequence[TensorEntry]) -> None:
        """Refuse tensors in PyTorch's layout that these, in Burn's, have none of: a vector may be a norm's, of another name there."""
        known = {entry.name for entry in self.entries}
        unclear = [
            entry.name
            for entry in entries
            if known.isdisjoint((entry.name, *other_names(entry.name))) and entry.name.rpartition(".")[2] != _COUNTER
        ]
        if joined(unclear) and parts(known):
            raise self._cut(unclear, f"in the layout 'burn' {len(joined(unclear)):,} of them are cut up ({CUT})")
        if unclear:
            raise RuleError(
                f"{self.what} has nothing like {some(unclear)}, which may lie otherwise, or have other names, in the layout 'burn'",
                remedy="Give like= a model or a file that has them, rename them to the names it has, or leave them out with exclude.",
            )

    def _cut(self, unclear: Sequence[str], how: str) -> RuleError:
        return RuleError(
            f"{self.what} has nothing like {some(unclear)}: {how}, which no renames do and two files do not tell",
            remedy=f"Give like= a model, or {WHOLE}: that tells its layers. Or leave them out with exclude.",
        )

    def require(self, entries: Sequence[TensorEntry], layout: str) -> None:
        """Refuse tensors, which lie as `layout` has them, of which these have nothing; where these do not tell it, anything goes."""
        own = next((known for known in CONVENTIONS if known == layout), None)
        if self.entries and self.tells(own):
            _layers_holding(self.in_layout(own), entries)

    def tells(self, layout: Convention | None) -> bool:
        """Say whether it tells the names in a layout: its own, or another where its layers are known."""
        return layout is None or self.layout in (None, layout) or bool(self.layers) or not self.entries

    def in_layout(self, layout: Convention | None) -> Likeness:
        """Give the names and shapes that the reader looks for in a file of a layout, as far as they are known."""
        if layout is None or self.layout in (None, layout) or not self.layers:
            return self
        entries = translate(self.entries, self.layers, source=self.layout, target=layout).entries
        layers = translate_layers(self.layers, source=self.layout, target=layout)
        return replace(self, entries=entries, layers=layers, layout=layout)

    def read_by(self, surgery: Surgery, remapper: KeyRemapper) -> Likeness:
        """Give what a load with these makes of it; `originals` remember the reader's own names."""
        if not surgery and not remapper:
            return self
        entries = surgery.apply(self.entries).entries if surgery else self.entries
        names = remapper.rename([*self.names, *(entry.name for entry in entries)]).names
        return replace(
            self,
            entries=tuple(entry.renamed(names[entry.name]) for entry in entries),
            names=tuple(names[name] for name in self.names),
            layers=tuple(moved(self.layers, names)),
            modules=frozenset(remapper.rename([path]).names[path] for path in self.modules),
            variants=frozenset(remapper.rename([path]).names[path] for path in self.variants),
            originals={new: old for old, new in names.items()},
        )

    def wants(self) -> list[Want]:
        """List the names that the reader looks for, with their shapes."""
        return [
            Want(
                name=entry.name,
                shape=entry.shape,
                dtype=entry.dtype,
                spellings=tuple(other_names(entry.name)),
                short=without_variants(entry.name, self.variants) if self.variants else None,
            )
            for entry in self.entries
        ]

    def options(self) -> MatchOptions:
        """Say what else is known of the reader."""
        return MatchOptions(match=self.match, modules=self.modules)


def _changes(entries: Sequence[TensorEntry], reader: Likeness, layout: Convention) -> bool:
    """Say whether tensors of a reader's layout lie otherwise in another."""
    if reader.layout is None:
        return False
    names = {entry.name for entry in entries}
    ghosts = [entry for entry in reader.entries if entry.name in names]
    return bool(translate(ghosts, reader.layers, source=reader.layout, target=layout).steps)


def _ways_back(
    after: Sequence[TensorEntry], before: Sequence[TensorEntry], surgery: Surgery
) -> Iterator[dict[str, str]]:
    """Map names after a surgery to those before: the first part of a tensor that is cut to the whole, and what is joined to each part."""
    known, old = {entry.name for entry in after}, {entry.name for entry in before}
    cut = {part: entry.name for entry in before for part in _made_of(entry, surgery)[:1] if part in known}
    yield {name: name for name in known & old} | cut
    inverse = surgery.inverse()
    parts = {entry.name: _made_of(entry, inverse) for entry in after if entry.name not in old}
    for place in range(max(map(len, parts.values()), default=0)):
        yield {name: made[place] for name, made in parts.items() if place < len(made) and made[place] in old}


def _made_of(entry: TensorEntry, surgery: Surgery) -> list[str]:
    """Name what surgery makes of a tensor by itself; nothing where it takes several."""
    try:
        return [made.name for made in surgery.apply([entry]).entries]
    except RuleError:
        return []


def _places(back: Mapping[str, str]) -> dict[str, str]:
    """Map the paths of what lies elsewhere after renames to where it lay, as far as names end alike."""
    places: dict[str, str] = {}
    for new, old in back.items():
        while new and new.rpartition(".")[2] == old.rpartition(".")[2]:
            new, old = new.rpartition(".")[0], old.rpartition(".")[0]
            if new and new != old:
                places.setdefault(new, old)
    return places


def _layers_holding(reader: Likeness, entries: Sequence[TensorEntry]) -> tuple[Layer, ...]:
    """Give the layers of a reader; refuses tensors that have no name of its, and those that lie across: nothing tells how these lie."""
    known = {entry.name: entry.shape for entry in reader.entries}
    paths = {layer.path for layer in reader.layers}
    unclear = [
        entry.name
        for entry in entries
        if entry.name not in known
        and (
            paths.isdisjoint(parts_of(entry.name))
            or (len(entry.shape) > 1 and known.keys().isdisjoint(other_names(entry.name)))
        )
    ]
    if unclear := [name for name in unclear if name.rpartition(".")[2] != _COUNTER]:
        raise RuleError(
            f"{reader.what} has nothing like {some(unclear)}, so that nothing tells how they lie",
            remedy="Give like= a model or a file that has them, rename them to the names it has, or leave them out with exclude.",
        )
    for entry in entries:
        shape = known.get(entry.name, ())
        if len(shape) == 2 and entry.shape == shape[::-1] != shape:
            raise RuleError(
                f"its shape is {list(entry.shape)}, and {reader.what} has it as {list(shape)} in the layout {reader.layout!r}: "
                "it lies the other way round, or is of another model",
                tensor=entry.name,
                remedy="Say how the tensors lie (metadata 'firekeep.layout'), or give like= the model that they are of.",
            )
    return reader.layers


def flax_of(source: Convention | None, layout: Convention | None) -> Convention | None:
    """Give Flax's side of a pair of layouts of which the other is PyTorch's; None for other pairs."""
    sides: set[Convention | None] = {source, layout}
    return next((side for side in FLAXES if sides == {"torch", side}), None)


def without_collections_of(entries: Sequence[TensorEntry]) -> tuple[TensorEntry, ...]:
    """Give entries the names that they have in their layers, where these lie in the collections of Linen."""
    names = without_collections(entry.name for entry in entries)
    return tuple(entry if (name := names[entry.name]) == entry.name else entry.renamed(name) for entry in entries)


def other_names(name: str) -> Iterator[str]:
    """Give the names that a tensor may have in the other layout."""
    layer, dot, role = name.rpartition(".")
    yield from (f"{layer}{dot}{other}" for other in _SPELLINGS.get(role, ()))
