"""The parameters of a model as a file in some layout has them: some are split there, some turned round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from firekeep.bridges import bridge_of, jax
from firekeep.bridges._states import ParamState
from firekeep.entry import TensorEntry
from firekeep.ids import ParamId
from firekeep.records._derived_ids import derive_ids
from firekeep.rules.layout import Route, route_of
from firekeep.slots import Convention, Layer
from firekeep.views import ghost


@dataclass(frozen=True, slots=True, kw_only=True)
class FileParam:
    """A parameter under its name in a file. `origins` are the model's own names of what it is made of, `step` what was done to it."""

    name: str
    param_id: ParamId
    shape: tuple[int, ...]
    origins: tuple[str, ...]
    step: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it is one parameter of the model, as it is or turned round."""
        return len(self.origins) == 1 and not self.step.startswith(("split", "joined"))

    @property
    def is_turned(self) -> bool:
        """Whether its two axes are the other way round."""
        return "transposed" in self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """All parameters of an optimizer as files have them, and the way there and back for tensors of the same shapes."""

    layout: Convention | None
    params: tuple[FileParam, ...]
    route: Route | None = None
    """The way from the model's tensors to those of the file; None where these lie alike."""
    crossed: frozenset[str] = frozenset()
    """Parameters of the model that lie otherwise in a file of its own layout, which was taken of layers with other facts."""

    @classmethod
    def of(
        cls,
        params: Sequence[ParamState],
        layers: tuple[Layer, ...],
        layout: Convention | None,
        source: Convention | None = "torch",
        told: Sequence[Layer] = (),
    ) -> FileLayout:
        """Lay out parameters that are named and shaped as `source` has them; `told` are layers as the file tells of them.

        What the layout has no form of keeps its own; where one of the two is not known, all do.
        """
        ghosts = [ghost(one.path, one.dtype, one.shape, one.param_id) for one in params]
        route = None
        if layout is not None and source is not None and (layout != source or told):
            route = route_of(layers, told, source=source, target=layout)
        if route is None or not route.legs:
            return cls(layout=layout, params=tuple(map(_as_it_is, ghosts)))
        made = route.forth(ghosts, sums="refuse")
        ids: dict[str, ParamId | None] = {one.path: one.param_id for one in params}
        found = [
            FileParam(
                name=entry.name,
                param_id=entry.param_id or ParamId.fresh(),
                shape=entry.shape,
                origins=made.origins[entry.name],
                step=made.steps.get(entry.name, ""),
            )
            for entry in derive_ids(made.entries, made.origins, ids)
        ]
        housed = {name for one in found for name in one.origins}
        found += [_as_it_is(entry) for entry in ghosts if entry.name not in housed]
        crossed = {name for new in made.steps for name in made.origins[new]} if layout == source else set()
        return cls(layout=layout, params=tuple(found), route=route, crossed=frozenset(crossed))

    def by_name(self) -> dict[str, FileParam]:
        """Map the names in the file to the parameters."""
        return {one.name: one for one in self.params}

    def lay_out(self, entries: Sequence[TensorEntry]) -> list[TensorEntry]:
        """Give tensors that lie as the model's parameters do, and are called like them, as the file has them."""
        if self.route is None:
            return list(entries)
        made = self.route.forth(entries, sums="refuse")
        homeless = {*made.problems, *made.no_counterpart}
        return [*made.entries, *(entry for entry in entries if entry.name in homeless)]

    def take_back(self, entries: Sequence[TensorEntry]) -> tuple[list[TensorEntry], Mapping[str, str]]:
        """Give tensors that lie as the file has them as the model does; and for each name in the file what went wrong with it."""
        if self.route is None:
            return list(entries), {}
        kept = {one.name for one in self.params if one.origins == (one.name,) and not one.step}
        plain = [entry for entry in entries if entry.name in kept]
        made = self.route.back([entry for entry in entries if entry.name not in kept], sums="refuse")
        return [*plain, *made.entries], made.problems


def _as_it_is(entry: TensorEntry) -> FileParam:
    return FileParam(
        name=entry.name, param_id=entry.param_id or ParamId.fresh(), shape=entry.shape, origins=(entry.name,)
    )


def layers_of(model: Any) -> tuple[Layer, ...]:
    """Give the layers of a model of known kinds, or of all models in a dict, under their names there."""
    if not isinstance(model, Mapping) or jax.owns(model):
        return bridge_of(model).outline(model).layers
    return tuple(
        _below(name, layer)
        for name, part in model.items()
        if not hasattr(part, "dtype")  # a parameter by itself
        for layer in layers_of(part)
    )


def _below(name: str, layer: Layer) -> Layer:
    parent = None if layer.parent is None else _below(name, layer.parent)
    return replace(layer, path=f"{name}.{layer.path}" if layer.path else name, parent=parent)
