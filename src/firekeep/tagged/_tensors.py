"""Tensors out of values, and back into them."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any

from firekeep.errors import FormatError, LimitError
from firekeep.tagged._words import MAX_DEPTH, TensorAt, below, place


def split_tensors(
    value: object, is_tensor: Callable[[object], bool], *, path: str = ""
) -> tuple[Any, dict[str, object]]:
    """Take the tensors out of nested lists, tuples, dictionaries and deques: the value with a `TensorAt` for each, and they by path.

    A path is the keys and numbers that lead to a tensor, joined by dots. A tensor that stands in two places has one path.
    What is not a container of a kind that `encode` takes is left as it is.
    """
    found: dict[str, object] = {}

    def keep(path: str, tensor: object) -> TensorAt:
        found[path] = tensor
        return TensorAt(path)

    return replace_tensors(value, is_tensor, keep, path=path), found


def replace_tensors(
    value: object, is_tensor: Callable[[object], bool], replace: Callable[[str, Any], object], *, path: str = ""
) -> Any:
    """Put something else in the place of each tensor: `replace` is told its path, once where it stands in two places."""
    places = _Places(is_tensor, replace)
    return _map_leaves(value, places.leave, 0, path)


def join_tensors(value: object, tensors: Mapping[str, object]) -> Any:
    """Put tensors back where `TensorAt` stands for them; raises `FormatError` naming one that is not there."""
    return _map_leaves(value, lambda leaf, _path: _joined(leaf, tensors), 0)


class _Places:
    """The tensors that were met, by their paths, and what stands for each."""

    def __init__(self, is_tensor: Callable[[object], bool], replace: Callable[[str, Any], object]) -> None:
        self._is_tensor = is_tensor
        self._replace = replace
        self._met: dict[str, object] = {}
        self._made: dict[int, object] = {}

    def leave(self, leaf: object, path: str) -> object:
        if not self._is_tensor(leaf):
            return leaf
        if id(leaf) not in self._made:
            known, again = path or "value", 1
            while known in self._met:  # the keys 0 and "0", or "a.b" and "a" above "b"
                again += 1
                known = f"{path}~{again}"
            self._met[known] = leaf  # holds it, so that no other object gets its identity meanwhile
            self._made[id(leaf)] = self._replace(known, leaf)
        return self._made[id(leaf)]


def _map_leaves(value: Any, change: Callable[[Any, str], Any], depth: int, path: str = "") -> Any:
    if depth > MAX_DEPTH:
        raise LimitError(place(path, "values lie too deep in one another, or in themselves"), limit=MAX_DEPTH)
    kind = type(value)
    if kind in (list, tuple):
        return kind(_map_leaves(item, change, depth + 1, below(path, number)) for number, item in enumerate(value))
    if kind in (dict, OrderedDict, Counter):
        made: Any = kind()
        for key, item in value.items():
            made[key] = _map_leaves(item, change, depth + 1, below(path, key))
        return made
    if kind is deque:
        items = [_map_leaves(item, change, depth + 1, below(path, number)) for number, item in enumerate(value)]
        return deque(items, value.maxlen)
    return change(value, path)


def _joined(leaf: object, tensors: Mapping[str, object]) -> object:
    if not isinstance(leaf, TensorAt):
        return leaf
    if leaf.path not in tensors:
        raise FormatError(f"the tensor {leaf.path!r} of the values is not there")
    return tensors[leaf.path]
