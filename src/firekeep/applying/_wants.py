"""What a model wants from a file: its slots, under the names and in the forms that the file's convention gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from firekeep.applying._norms import Norms
from firekeep.blobs import Blob
from firekeep.entry import TensorEntry
from firekeep.matching import Want
from firekeep.rules.layout import Route, Translation, route_of, spellings, stacked, tell_facts
from firekeep.slots import Convention, Layer, Outline, Slot
from firekeep.views import ghost, permuted


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The wants of a model for a file in one layout.

    `layers` are the model's, as that layout calls them. `no_counterpart` are slots that a file in it never has, and `unholdable` those
    of which it has no form, both with the reason.
    """

    outline: Outline
    layout: Convention | None
    wants: tuple[Want, ...]
    layers: tuple[Layer, ...]
    modules: frozenset[str]
    keyed: frozenset[str] = frozenset()
    no_counterpart: Mapping[str, str] = field(default_factory=dict)
    unholdable: Mapping[str, str] = field(default_factory=dict)
    spare: frozenset[str] = frozenset()
    """Wants that fill no slot: what the layout's layers may have, and the model's never do."""
    turned: frozenset[str] = frozenset()
    """Slots whose tensors are turned round when they are put in: linear weights that lie as [out, in] in the model alone."""
    route: Route | None = None
    """The way from the model's tensors to those of the file; None where these lie alike."""

    def narrowed(self, chosen: set[str]) -> Wanted:
        """Keep what the chosen slots want."""
        return replace(
            self,
            wants=tuple(want for want in self.wants if not chosen.isdisjoint(want.slots)),
            no_counterpart={name: why for name, why in self.no_counterpart.items() if name in chosen},
            unholdable={name: why for name, why in self.unholdable.items() if name in chosen},
        )

    def spell(self, norms_in: Callable[[Convention], Norms] | None = None) -> None:
        """Add to each want the other names under which it may be found; `norms_in` gives the source's norms, as a layout has them."""
        layers = {layer.path: layer for layer in self.layers}
        variants = frozenset(variants_of(self.outline))
        own, convention = self.outline.convention, self.layout or self.outline.convention
        for want in self.wants:
            if convention is not None:
                want.spellings = _spellings(want.name, layers, convention)
            if variants:
                want.short = without_variants(want.name, variants)
        if norms_in is not None and own is not None and convention not in (None, own) and not self.outline.bare:
            self._spell_norms(norms_in(convention), own)

    def _spell_norms(self, norms: Norms, own: Convention) -> None:
        """Do the same for vectors of classes that nobody knows, which may be norms."""
        slots = {slot.path: slot for slot in self.outline}
        for want in self.wants:
            if not want.spellings and len(want.slots) == 1:
                want.spellings = tuple(norms.spellings(want.name, slots[want.slots[0]], own))

    def settle(self, entries: Sequence[TensorEntry]) -> Translation:
        """Give tensors of the file, called as they are wanted, the names and forms of the model's slots."""
        if self.route is None:
            origins = {entry.name: (entry.name,) for entry in entries}
            entries = [permuted(entry, (1, 0)) if entry.name in self.turned else entry for entry in entries]
            return Translation(entries=tuple(entries), origins=origins, steps={}, no_counterpart={}, problems={})
        return self.route.back(entries)


def list_wants(
    outline: Outline, layout: Convention | None, *, in_rows: bool = False, layers: Iterable[Layer] = ()
) -> Wanted:
    """Say what the slots of a model want from a file in a layout; None takes the model's own. `layers` are those the file tells of.

    A file in the model's own layout has other tensors, too, where its layers have other facts: a kernel that is turned.

    With `in_rows` the linear weights of a file in Burn's layout all lie as [in, out], be the model's layers of LinearLayout::Col or not.
    """
    own = outline.convention
    layers, route, ghosts = tuple(layers), None, []
    if own is not None and layout is not None and (own != layout or (layers and own != "torch")):
        ghosts = [ghost(slot.path, slot.dtype, slot.shape) for slot in outline if slot.problem is None]
        route = route_of(tell_facts(outline.layers, ghosts, own), layers, source=own, target=layout)
    if route is None or not route.legs:
        turned = frozenset(slot.path for slot in outline if in_rows and own == "burn" and _is_column(slot))
        return Wanted(
            outline=outline,
            layout=layout,
            wants=tuple(_own_want(slot, turned) for slot in outline if slot.problem is None),
            layers=outline.layers,
            modules=outline.modules,
            keyed=outline.keyed,
            turned=turned,
        )
    slots = {slot.path: slot for slot in outline}
    made = route.forth(ghosts)
    held = {entry.name: entry.blob for entry in ghosts}
    wants = [_want(entry, made.origins[entry.name], slots, held) for entry in made.entries]
    return Wanted(
        outline=outline,
        layout=layout,
        wants=tuple(wants),
        layers=route.layers,
        modules=route.paths(outline.modules),
        keyed=route.paths(outline.keyed),
        spare=frozenset(name for name, step in made.steps.items() if step.startswith("made up")),
        no_counterpart=made.no_counterpart,
        unholdable=made.problems,
        route=route,
    )


def _is_column(slot: Slot) -> bool:
    return slot.layer is not None and slot.layer.kind == "linear_col" and slot.role == "weight"


def _own_want(slot: Slot, turned: frozenset[str]) -> Want:
    return Want(
        name=slot.path,
        shape=slot.shape[::-1] if slot.path in turned else slot.shape,
        dtype=slot.dtype,
        slots=(slot.path,),
        container=".".join(slot.containers),
    )


def _want(entry: TensorEntry, origins: tuple[str, ...], slots: Mapping[str, Slot], held: Mapping[str, Blob]) -> Want:
    return Want(
        name=entry.name,
        shape=entry.shape,
        dtype=entry.dtype,
        slots=origins,
        container=".".join(slots[origins[0]].containers),
        turned=len(entry.shape) == 2 and len(origins) == 1 and entry.blob is not held[origins[0]],
    )


def _spellings(name: str, layers: Mapping[str, Layer], convention: Convention) -> tuple[str, ...]:
    for path in prefixes(name):
        if (layer := layers.get(path)) is not None:
            role = name[len(path) + 1 :] if path else name
            before = f"{path}." if path else ""
            own = tuple(f"{before}{other}" for other in spellings(layer, role, convention))
            return (*own, *stacked(layer, role)) if convention == "torch" else own
    return ()


def prefixes(name: str) -> Iterator[str]:
    """Give the paths of all that a name lies in, the innermost first, and "" last."""
    end = name.rfind(".")
    while end > 0:
        yield name[:end]
        end = name.rfind(".", 0, end)
    yield ""


def variants_of(outline: Iterable[Slot]) -> Iterator[str]:
    """Give the paths that end in the name of an enum's variant."""
    for slot in outline:
        if not any(label.startswith("Enum:") for label in slot.containers):
            continue
        segments = slot.path.split(".")
        for place, label in enumerate(slot.containers[: len(segments)]):
            if label.startswith("Enum:"):
                yield ".".join(segments[: place + 1])


def without_variants(name: str, variants: frozenset[str]) -> str | None:
    """Give a name without the segments that are variants, or None where it has none."""
    segments = name.split(".")
    kept = [segment for place, segment in enumerate(segments) if ".".join(segments[: place + 1]) not in variants]
    return ".".join(kept) if len(kept) < len(segments) else None
