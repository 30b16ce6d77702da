"""Module trees as outlines and as entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from firekeep.blobs import DeferredBlob
from firekeep.entry import TensorEntry
from firekeep.module import Module, Param, Visited, modules, walk
from firekeep.slots import Layer, Outline, Slot
from firekeep.tensors import array_entry

if TYPE_CHECKING:
    from firekeep.bridges.native import Tree

_WITH_CHILDREN = frozenset(
    (
        "swiglu",
        "multi_head_attention",
        "lstm",
        "gru",
        "rnn",
        "feed_forward",
        "transformer_encoder_layer",
        "transformer_decoder_layer",
    )
)
"""Kinds with names of their own for the layers inside them."""


def outline(root: Tree) -> Outline:
    """Describe the parameters and running states of a tree, the layers of known kinds, and all its parts."""
    parts = list(modules(root))
    layers = _layers(parts)
    first: dict[int, str] = {}
    slots = []
    paths = {path for path, _ in parts}
    for visited in walk(root):
        param = visited.param
        known = first.setdefault(id(param), visited.path)
        slots.append(
            Slot(
                path=visited.path,
                dtype=param.dtype,
                shape=param.file_shape,
                layer=_layer_of(visited, layers),
                containers=visited.containers,
                param_id=param.id,
                trainable=param.require_grad,
                tied_to=known if known != visited.path else None,
            )
        )
        paths.add(visited.path.rpartition(".")[0])
    return Outline(
        tuple(slots), convention="burn", layers=tuple(layers.values()), modules=frozenset(_with_outer(paths))
    )


def entries(root: Tree) -> list[TensorEntry]:
    """Describe the tensors of a tree in file form; one parameter in two places has one blob."""
    made: dict[int, TensorEntry] = {}
    found = []
    for visited in walk(root):
        known = made.get(id(visited.param))
        entry = _entry(visited.path, visited.param) if known is None else known.renamed(visited.path)
        made.setdefault(id(visited.param), entry)
        found.append(entry)
    return found


def _entry(path: str, param: Param) -> TensorEntry:
    def draw() -> memoryview:
        return array_entry(path, param.file_form()).read()

    # A parameter takes other arrays: what is drawn from it depends on the object, wherever its numbers are.
    memory = (range(id(param), id(param) + 1),)
    blob = DeferredBlob(param.dtype.nbytes(param.file_shape), draw, identity=("param", id(param)), memory=memory)
    return TensorEntry(path, param.dtype, param.file_shape, blob, param.id)


def _layers(parts: Iterable[tuple[str, Any]]) -> dict[str, Layer]:
    """Give the layers of known kinds by path; `parts` come each before the parts inside it."""
    layers: dict[str, Layer] = {}
    for path, part in parts:
        if isinstance(part, Module) and part.kind:
            parent = next(
                (layers[outer] for outer in _outer(path) if outer in layers and _names_children(layers[outer])), None
            )
            layers[path] = Layer(kind=part.kind, path=path, parent=parent, facts=part.facts)
    return layers


def _layer_of(visited: Visited, layers: dict[str, Layer]) -> Layer | None:
    """Give the nearest layer of a known kind around a parameter."""
    return next((layers[path] for path, owner in reversed(visited.owners) if owner.kind), None)


def _names_children(layer: Layer) -> bool:
    return layer.kind in _WITH_CHILDREN


def _outer(path: str) -> Iterator[str]:
    """Give the paths around a path, the nearest first; "" is the last."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def _with_outer(paths: set[str]) -> set[str]:
    """Add the lists and tuples around parts; the tree itself is no part of it."""
    return {*paths, *(outer for path in paths for outer in _outer(path))} - {""}
