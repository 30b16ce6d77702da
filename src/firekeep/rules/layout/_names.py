"""Names of layers and tensors across conventions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from firekeep.rules.layout._row import Field, Row
from firekeep.rules.layout._table import row_of
from firekeep.slots import Convention, Layer

_REPARAMETRISED = re.compile(r"parametrizations\..+|\w+_(g|v|u|orig)")
_PLAINLY = {
    "parametrizations": "parametrize.remove_parametrizations",
    "g": "remove_weight_norm",
    "v": "remove_weight_norm",
    "u": "remove_spectral_norm",
    "orig": "remove_spectral_norm or torch.nn.utils.prune.remove",
}
"""What makes a weight a plain one again, by how its parts are called."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A tensor that a layer's row knows: the layer, its row, and the field the tensor is."""

    layer: Layer
    row: Row
    field: Field


class Names:
    """The layers of a model by path, and what their rows call things in two conventions."""

    __slots__ = ("_places", "_rows", "source", "target")

    def __init__(self, layers: Iterable[Layer], *, source: Convention, target: Convention) -> None:
        self.source = source
        self.target = target
        self._rows: dict[str, tuple[Layer, Row, dict[str, Field]]] = {}
        self._places: dict[str, str | None] = {}
        roles: dict[int, dict[str, Field]] = {}  # rows are few and layers many
        for layer in layers:
            row = row_of(layer)
            if id(row) not in roles:
                roles[id(row)] = row.roles(source)
            self._rows.setdefault(layer.path, (layer, row, roles[id(row)]))

    def claim(self, name: str) -> Claim | None:
        """Find whose tensor this is: the outermost layer's that has one of the name."""
        for layer, row, roles, role in self._around(name):
            if role in roles:
                return Claim(layer, row, roles[role])
        return None

    def fault(self, name: str) -> str | None:
        """Say what is wrong with a tensor that nobody claims: a part of a weight that is made of several."""
        for layer, _row, roles, role in self._around(name):
            if roles and _REPARAMETRISED.fullmatch(role) and _made_of(role) in roles:
                return (
                    f"it is a part of a reparametrised weight of {layer.path!r}, which has no form of its own here "
                    f"(torch.nn.utils.{_plainly(role)} makes it a plain one)"
                )
        return None

    def _around(self, name: str) -> Iterable[tuple[Layer, Row, dict[str, Field], str]]:
        cut = 0
        while True:
            found = self._rows.get(name[: cut - 1] if cut else "")
            if found is not None:
                yield (*found, name[cut:])
            cut = name.find(".", cut) + 1
            if not cut:
                return

    def place(self, path: str) -> str | None:
        """Give the path in the target convention, or None where it has no such part."""
        if self.source == self.target or not path:
            return path
        if path not in self._places:
            self._places[path] = self._place(path)
        return self._places[path]

    def _place(self, path: str) -> str | None:
        segments = path.split(".")
        renamed: list[str] = []
        here = 0
        while here < len(segments):
            found = self._rows.get(".".join(segments[:here]))
            child = None if found is None else self._child(found[1], segments[here:])
            if child is not None:
                old, new = child
                if new is None:
                    return None
                renamed.append(new)
                here += old
            else:
                renamed.append(segments[here])
                here += 1
        return ".".join(renamed)

    def _child(self, row: Row, rest: Sequence[str]) -> tuple[int, str | None] | None:
        """Find the child of a layer at the beginning of a path: how many segments its name has, and its new name."""
        for child in row.children:
            old = child[self.source].split(".")
            if old == list(rest[: len(old)]):
                return len(old), child.get(self.target)
        between = any(child[self.source].startswith(".".join(rest) + ".") for child in row.children)
        return (0, None) if row.closed or between else None


def _plainly(role: str) -> str:
    return _PLAINLY.get(role.partition(".")[0]) or _PLAINLY[role.rpartition("_")[2]]


def _made_of(role: str) -> str:
    if role.startswith("parametrizations."):
        return role.split(".")[1]
    return role.rpartition("_")[0]


def translate_layers(layers: Sequence[Layer], *, source: Convention, target: Convention) -> tuple[Layer, ...]:
    """Give the same layers as the target convention calls them; those that it has not are left out.

    The kinds and facts stay, so that the way back gives the layers as they were.
    """
    if source == target:
        return tuple(layers)
    names = Names(layers, source=source, target=target)
    made: dict[int, Layer | None] = {}

    def translated(layer: Layer) -> Layer | None:
        if id(layer) not in made:
            path = names.place(layer.path)
            parent = layer.parent
            while parent is not None and translated(parent) is None:
                parent = parent.parent
            around = None if parent is None else translated(parent)
            made[id(layer)] = None if path is None else replace(layer, path=path, parent=around)
        return made[id(layer)]

    return tuple(found for layer in layers if (found := translated(layer)) is not None)


def rename_paths(
    paths: Iterable[str], layers: Sequence[Layer], *, source: Convention, target: Convention
) -> dict[str, str]:
    """Map the paths of parts of a model to those the target convention calls them; what that has not stays as it is.

    The names of the tensors themselves are for `translate`.
    """
    names = Names(layers, source=source, target=target)
    return {path: path if (found := names.place(path)) is None else found for path in paths}


def spellings(layer: Layer, role: str, convention: Convention) -> tuple[str, ...]:
    """List other names that a tensor of a layer goes by, in the same form: gamma and weight, beta and bias, alpha and weight."""
    row = row_of(layer)
    own = {one.name for one in row.of(convention)}
    found = (group for group in row.spelled(convention) if role in group and not own.isdisjoint(group))
    return tuple(name for group in found for name in group if name != role)
