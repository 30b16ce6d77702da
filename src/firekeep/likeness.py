"""What a reader of a file looks like: a model, a file, or a list of names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from firekeep.applying import LoadJob, variants_of, without_variants
from firekeep.bridges import BRIDGES, bridge_of
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.formats import OpenOptions
from firekeep.layouts import BURNS, CONVENTIONS, layout_of
from firekeep.matching import MatchOptions, Plan, Want, plan
from firekeep.opened import open_file
from firekeep.rules import KeyRemapper
from firekeep.rules.layout import layers_from_like, tell_facts, translate, translate_layers
from firekeep.rules.surgery import Surgery
from firekeep.slots import Constants, Convention, Layer, Outline, Slot
from firekeep.supply import Supply
from firekeep.views import ghost
from firekeep.wording import some

_COUNTER = "num_batches_tracked"
_Part = TypeVar("_Part", Layer, Constants)

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
            for other in _other_names(new):
                spelled.setdefault(other, f"{layer}{dot}{other.rpartition('.')[2]}")
        named = {**spelled, **back}
        entries = {entry.name: entry for entry in self.entries}  # a reader may also have the names of before
        entries |= {
            named[entry.name]: entry.renamed(named[entry.name]) for entry in self.entries if entry.name in named
        }
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
        round there, and a square one is refused, since nothing tells. Those of which nobody said how they lie are taken for PyTorch's
        where Burn's are to be written, for Burn's where PyTorch's are, and for nothing where it is another layout.
        """
        source = source or self._other(layout)
        if (self.layers or self.told) and self.layout is not None:
            reader = self.in_layout(source)
            return source, _layers_holding(reader, entries)
        if self.layout == layout and self.entries and {source, layout} == set(BURNS):
            if layout == "torch":
                self._require(entries)
                return source, translate_layers(layers_from_like(self.entries, entries), source="torch", target=source)
            self._require_all(entries)
            return source, layers_from_like(entries, self.entries)
        raise RuleError(
            f"{self.what} does not tell what layers the tensors belong to",
            remedy=f"Give like= a model, or a file whose layout is {layout!r}.",
        )

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
            names = list(_other_names(entry.name))
            burns = entry.name.rpartition(".")[2] in ("gamma", "beta", "alpha")
            if known.isdisjoint(names if burns else (entry.name,)) and (burns or len(entry.shape) == 2):
                unclear.append(entry.name)
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
            if known.isdisjoint((entry.name, *_other_names(entry.name))) and entry.name.rpartition(".")[2] != _COUNTER
        ]
        if unclear:
            raise RuleError(
                f"{self.what} has nothing like {some(unclear)}, which may lie otherwise, or have other names, in the layout 'burn'",
                remedy="Give like= a model or a file that has them, rename them to the names it has, or leave them out with exclude.",
            )

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
                spellings=tuple(_other_names(entry.name)),
                short=without_variants(entry.name, self.variants) if self.variants else None,
            )
            for entry in self.entries
        ]

    def options(self) -> MatchOptions:
        """Say what else is known of the reader."""
        return MatchOptions(match=self.match, modules=self.modules)


def likeness_of(like: Any, options: OpenOptions) -> Likeness:
    """Describe what like= was given: a model, a path or bytes of a file, or names."""
    if isinstance(like, Likeness):
        return like
    if isinstance(like, str | os.PathLike | bytes):
        return _of_file(like, options)
    if isinstance(like, Iterable) and not isinstance(like, Mapping) and not _is_model(like):
        names = list(like)
        if names and all(isinstance(name, str) for name in names):
            return Likeness(what="the list of names", names=tuple(names))
    bridge = bridge_of(like)
    outline: Outline = bridge.outline(like)
    entries = tuple(ghost(slot.path, slot.dtype, slot.shape) for slot in outline if slot.problem is None)
    layers = outline.layers
    return Likeness(
        what=f"the {type(like).__name__}",
        entries=entries,
        layout=outline.convention,
        layers=layers if outline.convention is None else tell_facts(layers, entries, outline.convention),
        modules=outline.modules,
        variants=frozenset(variants_of(outline)),
        told=_is_model(like) and outline.convention is not None and not outline.bare,
    )


def telling_of(like: Likeness, job: LoadJob, *, linen_only: bool = False) -> Callable[[Outline], Outline]:
    """Give what adds the layers of a model to the outline of a tree that does not tell them; with `linen_only` to no other tree.

    The model's names are those of the tree, or those of which the load's surgery and rename rules make them.
    """
    if not (like.layers or like.told) or like.layout is None:
        raise RuleError(
            f"{like.what} does not tell what layers its tensors belong to",
            remedy="Give like= a model, or a PyTorch file of a whole model.",
        )
    reader = like.read_by(job.surgery, job.remapper)

    def tell(outline: Outline) -> Outline:
        if outline.convention is None or (linen_only and outline.convention != "linen"):
            return outline
        ghosts = [ghost(slot.path, slot.dtype, slot.shape) for slot in outline if slot.problem is None]
        try:
            _, layers = reader.evidence(ghosts, layout=None, source=outline.convention)
        except RuleError:
            if linen_only:
                return outline
            raise
        return replace(outline, layers=tell_facts(layers, ghosts, outline.convention), bare=False)

    return tell


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


def _layers_holding(reader: Likeness, entries: Sequence[TensorEntry]) -> tuple[Layer, ...]:
    """Give the layers of a reader; refuses tensors that lie in none and have no name of its: nothing tells how these lie."""
    known = {entry.name for entry in reader.entries}
    paths = {layer.path for layer in reader.layers}
    unclear = [entry.name for entry in entries if entry.name not in known and paths.isdisjoint(_parts(entry.name))]
    if unclear := [name for name in unclear if name.rpartition(".")[2] != _COUNTER]:
        raise RuleError(
            f"{reader.what} has nothing like {some(unclear)}, so that nothing tells how they lie",
            remedy="Give like= a model or a file that has them, rename them to the names it has, or leave them out with exclude.",
        )
    return reader.layers


def _is_model(obj: Any) -> bool:
    """Tell a model from a tree of arrays, and from names: a `nn.ModuleDict` gives the names of its parts when asked for all."""
    return any(row.door().owns(obj) for row in BRIDGES.values() if row.name != "plain")


def _of_file(like: Any, options: OpenOptions) -> Likeness:
    with open_file(like, options) as opened:
        layout = layout_of(opened.format, opened.metadata, content=opened.container.layout).name
        return Likeness(
            what=str(opened.path or "the file"),
            entries=tuple(
                ghost(name, entry.dtype, entry.shape)
                for name, entry in opened.filled().items()
                if entry.dtype is not None and entry.problem is None
            ),
            layout=next((known for known in CONVENTIONS if known == layout), None),
            layers=opened.container.layers,
            modules=opened.container.submodules,
        )


def outline_of_file(
    source: Any,
    options: OpenOptions,
    supply: Supply,
    job: LoadJob = LoadJob(),  # noqa: B008 - frozen
) -> tuple[Outline, str]:
    """Describe a file as if it were a model that wants what it holds, and give its name.

    Where the file and the supply lie in two layouts, their layers are those that either tells, and for the rest what the shapes of
    tensors that would be paired tell. Raises `RuleError` for square ones, of which nothing tells.
    """
    like = _of_file(source, options)
    layers, own = like.layers, like.layout
    said = None if supply.layout is None else supply.layout.name
    read = job.layout or next((known for known in CONVENTIONS if known == said), None)
    other = next((known for known in CONVENTIONS if known in (read, said) and known != own), None)
    slots = tuple(Slot(path=entry.name, dtype=entry.require(), shape=entry.shape, layer=None) for entry in like.entries)
    if own is not None and other is not None and not layers:
        turned = {slot.path for slot in slots if read != own and job.chosen.accepts(slot)}
        layers = _layers_of_both(like, supply, job, other=other, turned=turned)
    known = own if layers or read == own else None
    return Outline(slots=slots, convention=known, layers=layers, modules=like.modules), like.what


def _layers_of_both(
    like: Likeness, supply: Supply, job: LoadJob, *, other: Convention, turned: set[str]
) -> tuple[Layer, ...]:
    """Give the layers of a file that tells none, as the supply tells them and as its shapes do.

    Square tensors are refused where they are among those that may have to be turned round.
    """
    own: Convention = like.layout or other
    names = job.remapper.rename(supply.entries).names
    parts = {part for entry in like.entries for part in _parts(entry.name)}
    told = translate_layers(tuple(moved(supply.layers, names)), source=other, target=own)
    told = tuple(layer for layer in told if layer.path in parts)
    if {own, other} != set(BURNS):
        if not told:
            raise RuleError(
                f"{like.what} lies as {own!r} has it and the other as {other!r}, and neither tells what layers its tensors belong to",
                remedy="Give the models, whose layers say it, or a PyTorch file of a whole model.",
            )
        return told
    paths = {layer.path for layer in told}
    offered = [entry.renamed(names[name]) for name, entry in supply.entries.items() if entry.problem is None]
    pairs = [
        (mine, theirs)
        for mine, theirs in _paired(like, offered)
        if paths.isdisjoint(_parts(mine.name))
        and (theirs.shape == mine.shape or _is_turned(mine, theirs))
        and (mine.name in turned or not _is_square(mine))
    ]
    mine, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = layers_from_like(mine, theirs) if own == "torch" else layers_from_like(theirs, mine)
    return (*told, *(found if own == "torch" else translate_layers(found, source="torch", target=own)))


def _is_square(entry: TensorEntry) -> bool:
    return len(entry.shape) == 2 and entry.shape[0] == entry.shape[1]


def _is_turned(mine: TensorEntry, theirs: TensorEntry) -> bool:
    return len(mine.shape) == 2 and theirs.shape == mine.shape[::-1] and theirs.name.rpartition(".")[2] == "weight"


def _paired(like: Likeness, offered: Sequence[TensorEntry]) -> Iterator[tuple[TensorEntry, TensorEntry]]:
    """Pair tensors by their names alone; those of the supply come in the layers of the other, under their own last names.

    Names that no step finds are paired by their ends where only one of the supply has such an end: a rename may be wanting that makes
    the rest of them equal, and what is said of it should be true.
    """
    wants = [Want(name=entry.name, shape=(), spellings=tuple(_other_names(entry.name))) for entry in like.entries]
    blind = [ghost(entry.name, BY_NAME["U8"], ()) for entry in offered]
    found = plan(wants, blind, options=like.options())
    names = [(pair.want.name, pair.offer.name) for pair in found.pairs]
    entries = {entry.name: entry for entry in like.entries}
    theirs = {entry.name: entry for entry in offered}
    names += [(want, offer) for want, offer in _ends(found) if not _is_square(entries[want])]
    for want, offer in names:
        layer, dot, _ = want.rpartition(".")
        yield entries[want], theirs[offer].renamed(f"{layer}{dot}{offer.rpartition('.')[2]}")


def _ends(found: Plan) -> Iterator[tuple[str, str]]:
    ends: dict[str, list[str]] = {}
    for offer in found.unused:
        for end in _tails(offer.name):
            ends.setdefault(end, []).append(offer.name)
    for want in found.missing:
        for name in (want.name, *want.spellings):
            having = next((ends[end] for end in _tails(name) if end in ends), [])
            if len(having) == 1:
                yield want.name, having[0]
                break


def _tails(name: str) -> Iterator[str]:
    """Give the ends of a name that have a layer's name in them, the longest first."""
    while "." in name:
        yield name
        name = name.partition(".")[2]


def _other_names(name: str) -> Iterator[str]:
    layer, dot, role = name.rpartition(".")
    yield from (f"{layer}{dot}{other}" for other in _SPELLINGS.get(role, ()))


def moved(layers: Sequence[_Part], names: Mapping[str, str]) -> Iterator[_Part]:
    """Give layers, and their parents, the paths that renames of their tensors give them; one whose tensors change otherwise is left out."""
    held = {part: name for name in names for part in _parts(name)}
    parents: dict[int, Layer | None] = {}
    for layer in layers:
        path = _moved_path(layer.path, held, names)
        if path is None:
            continue
        if isinstance(layer, Layer):
            yield replace(layer, path=path, parent=_moved_parent(layer, held, names, parents))
        else:
            yield replace(layer, path=path)


def _moved_path(path: str, held: Mapping[str, str], names: Mapping[str, str]) -> str | None:
    old = held.get(path)
    if old is None:
        return None
    tail, new = old[len(path) + 1 :] if path else old, names[old]
    if new == tail:
        return ""
    return new[: -len(tail) - 1] if new.endswith(f".{tail}") else None


def _moved_parent(
    layer: Layer, held: Mapping[str, str], names: Mapping[str, str], known: dict[int, Layer | None]
) -> Layer | None:
    """Give the nearest layer around one that is still whole."""
    parent = layer.parent
    if parent is None:
        return None
    if id(parent) not in known:
        around = _moved_parent(parent, held, names, known)
        path = _moved_path(parent.path, held, names)
        known[id(parent)] = around if path is None else replace(parent, path=path, parent=around)
    return known[id(parent)]


def _parts(name: str) -> Iterator[str]:
    """Give the paths of all that a name lies in."""
    while name:
        name = name.rpartition(".")[0]
        yield name
