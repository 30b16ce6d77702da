"""Variables of Linen beside the layers that somebody else tells: a tree under the names that its layers have, filled and read like one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from firekeep.bridges._protocol import Filling
from firekeep.bridges._states import OptimizerState, Restoration
from firekeep.entry import TensorEntry
from firekeep.slots import Layer, Outline


@dataclass(frozen=True, slots=True, eq=False)
class Variables:
    """A tree with layers. `names` maps the tree's own names to those that its tensors have in their layers."""

    tree: Any
    names: Mapping[str, str]
    layers: tuple[Layer, ...]
    modules: frozenset[str]

    def described(self, own: Outline) -> Outline:
        """Give the outline of the tree with the layers, under their names."""
        slots = tuple(
            replace(
                slot,
                path=self.names[slot.path],
                tied_to=None if slot.tied_to is None else self.names[slot.tied_to],
            )
            for slot in own
        )
        return replace(own, slots=slots, convention="linen", layers=self.layers, modules=self.modules, bare=False)

    def called(self, own: Iterable[TensorEntry]) -> list[TensorEntry]:
        """Give entries of the tree their names in the layers."""
        return [entry.renamed(self.names[entry.name]) for entry in own]

    def own(self, fillings: Sequence[Filling]) -> list[Filling]:
        """Give fillings under the names that the tree has."""
        back = {told: name for name, told in self.names.items()}
        return [
            replace(
                one,
                slot=replace(one.slot, path=back[one.slot.path]),
                entry=one.entry.renamed(back[one.slot.path]),
            )
            for one in fillings
        ]

    def finished(self, own: Iterable[str], done: list[str]) -> None:
        """Note what was filled, by its name in the layers."""
        done += [self.names[path] for path in own]

    def moved(self, state: OptimizerState) -> OptimizerState:
        """Give the state of an optimizer of the tree by the names of the layers."""
        params = tuple(replace(one, path=self.names[one.path]) for one in state.params)
        return replace(state, params=params, convention="linen")

    def back(self, restoration: Restoration) -> Restoration:
        """Give a restoration by the names that the tree has."""
        back = {told: name for name, told in self.names.items()}
        return replace(restoration, states={back[path]: state for path, state in restoration.states.items()})
