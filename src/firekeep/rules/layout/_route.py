"""The way between two models' tensors: one translation, or several where both sides have facts of their own for a layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from firekeep.entry import TensorEntry
from firekeep.rules.layout._facts import join_facts, unlike_facts
from firekeep.rules.layout._names import rename_paths, translate_layers
from firekeep.rules.layout._translate import Translation, translate
from firekeep.slots import Convention, Layer

_MADE = "made up"
_PARTED = ("taken", "zeroed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A translation; its layers are called as in the source."""

    layers: tuple[Layer, ...]
    source: Convention
    target: Convention

    def there(self) -> tuple[Layer, ...]:
        """Give the layers as they are called in the target."""
        return translate_layers(self.layers, source=self.source, target=self.target)

    def back(self) -> Leg:
        """Give the way back."""
        return Leg(layers=self.there(), source=self.target, target=self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Translations one after another, none where tensors are what is wanted as they are. `layers` are called as at the end."""

    legs: tuple[Leg, ...]
    layers: tuple[Layer, ...]

    def forth(self, entries: Sequence[TensorEntry], *, sums: Literal["add", "refuse"] = "add") -> Translation:
        """Translate from the beginning to the end."""
        return _follow(entries, self.legs, sums)

    def back(self, entries: Sequence[TensorEntry], *, sums: Literal["add", "refuse"] = "add") -> Translation:
        """Translate from the end to the beginning."""
        return _follow(entries, tuple(leg.back() for leg in reversed(self.legs)), sums)

    def paths(self, paths: Iterable[str]) -> frozenset[str]:
        """Give the paths of parts as they are at the end."""
        found = frozenset(paths)
        for leg in self.legs:
            found = frozenset(rename_paths(found, leg.layers, source=leg.source, target=leg.target).values())
        return found


def route_of(layers: Sequence[Layer], others: Iterable[Layer], *, source: Convention, target: Convention) -> Route:
    """Find the way from a model's own tensors to those of another, of whose layers `others` tell, called as in the target convention.

    Layers that differ where both conventions ask for the fact go by PyTorch's way, which asks for none: there by their own facts, and
    on by the other's.
    """
    others = tuple(others)
    unlike = unlike_facts(layers, others, source=source, target=target) if others else {}
    joined = layers if source == target else join_facts(layers, others, source=source, target=target)
    rest = tuple(layer for layer in joined if layer.path not in unlike)
    own = tuple(layer for layer in layers if layer.path in unlike)
    found = (
        Leg(layers=own, source=source, target="torch"),
        Leg(layers=rest, source=source, target=target),
        Leg(layers=tuple(unlike.values()), source="torch", target=target),
    )
    legs = tuple(leg for leg in found if leg.layers and leg.source != leg.target)
    if not legs and source != target:
        legs = (Leg(layers=(), source=source, target=target),)
    there = translate_layers(rest, source=source, target=target)
    return Route(legs=legs, layers=(*there, *unlike.values()))


def _follow(entries: Sequence[TensorEntry], legs: Sequence[Leg], sums: Literal["add", "refuse"]) -> Translation:
    """Translate by all legs, and tell of what comes out by the names of what went in."""
    if not legs:
        names = {entry.name: (entry.name,) for entry in entries}
        return Translation(entries=tuple(entries), origins=names, steps={}, no_counterpart={}, problems={})
    made = translate(entries, legs[0].layers, source=legs[0].source, target=legs[0].target, sums=sums)
    for leg in legs[1:]:
        made = _after(made, translate(made.entries, leg.layers, source=leg.source, target=leg.target, sums=sums))
    return made


def _after(first: Translation, second: Translation) -> Translation:
    origins = {
        new: tuple(dict.fromkeys(name for old in olds for name in first.origins[old]))
        for new, olds in second.origins.items()
    }
    used = {name for olds in origins.values() for name in olds}
    steps = {
        new: _told([first.steps.get(old, "") for old in olds], second.steps.get(new, ""))
        for new, olds in second.origins.items()
    }
    dropped = {name: why for old, why in second.no_counterpart.items() for name in first.origins[old]}
    lost = {*first.without_id, *second.without_id}
    return Translation(
        entries=second.entries,
        origins=origins,
        steps={new: step for new, step in steps.items() if step},
        no_counterpart={name: why for name, why in {**first.no_counterpart, **dropped}.items() if name not in used},
        problems={
            **first.problems,
            **{name: why for old, why in second.problems.items() for name in first.origins[old]},
        },
        without_id=tuple(new for new, olds in second.origins.items() if new in lost or not lost.isdisjoint(olds)),
    )


def _told(before: Sequence[str], now: str) -> str:
    """Say in one what was done one after the other."""
    if now.startswith(_MADE) or any(step.startswith(_MADE) for step in before):
        return now if now.startswith(_MADE) else next(step for step in before if step.startswith(_MADE))
    if now.startswith("summed") and all(step.startswith(_PARTED) for step in before):
        return "joined again of what was taken apart"
    return " and ".join(dict.fromkeys(filter(None, (*before, now))))
