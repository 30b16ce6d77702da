"""From an object to named tensors, as `state_dict()` and PyTorch's own keys name them.

Dictionaries give their keys, lists and tuples their indices, joined with dots. Foreign objects come last: what they hold is
listed under names of firekeep's own, since no state dict has any for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, LimitError, MetadataError
from firekeep.formats.pytorch._inert import Call, Global, InertDict, InertSet, StorageRef, name_of
from firekeep.formats.pytorch._modules import (
    ScriptClasses,
    is_scripted,
    module_attributes,
    module_state,
    module_tensors,
    script_tensors,
    state_parts,
    without_compile,
)
from firekeep.formats.pytorch._numpy import is_array
from firekeep.formats.pytorch._rebuild import Rebuilder
from firekeep.formats.pytorch._tensors import RawTensor, Tensor
from firekeep.limits import Limits

_LEAVES = frozenset((str, int, float, bool, type(None), bytes, complex, Global))
_MAX_BITS = 14_000
"""Python prints integers of up to 4,300 digits, unless it is told otherwise."""
_HEAVIEST = 64
"""How many times over the names below an object count that is met again and again: lists of shared lists multiply them."""
_PLAIN, _ATTRIBUTE, _FOREIGN = range(3)
"""Where the walk is: in what names are given for; among a module's other attributes; inside a foreign object."""

Child = tuple[Any, str, int]


class _Left(NamedTuple):
    """Marks on the stack where a container was left: its `id`, and how much had been found before."""

    place: int
    before: int


class Flattener:
    """Walks an object once. `entries` are its tensors by name, `names` the first name of each tensor's object by `id`.

    `state_metadata` is what state dicts say of their modules (`_metadata`), by the module's path. `modules` are those of whole models
    by path, each before the ones inside it. `hidden` counts tensors that are plain attributes of a module, which `state_dict()`
    leaves out too, `arrays` are the names of NumPy arrays, `compiled` counts the models of `torch.compile`, whose names are those of the
    models inside, `visited` the values met and `spelled` the bytes of their names, as the limits count them.
    """

    def __init__(self, rebuilder: Rebuilder, limits: Limits, classes: ScriptClasses | None = None) -> None:
        self.entries: dict[str, TensorEntry] = {}
        self.names: dict[int, str] = {}
        self.state_metadata: dict[str, Any] = {}
        self.modules: dict[str, Call] = {}
        self.hidden = 0
        self.compiled = 0
        self.arrays: list[str] = []
        self._rebuilder = rebuilder
        self._limits = limits
        self._classes = classes
        self.visited = 0
        self.spelled = 0
        self._weight = 1
        self._later: deque[Child] = deque()
        self._seen: set[int] = set()
        self._barren: set[int] = set()
        self._skimmed: set[int] = set()
        self._met: dict[int, int] = {}

    def run(self, root: Any) -> None:
        """Collect all tensors below `root`; a root that is one is called "".

        Raises `MetadataError` for two tensors of one name, `LimitError` for objects too large or too deep to walk.
        """
        if type(root) in _LEAVES:
            return
        self._walk((self._uncompiled(root), "", _PLAIN), top=True)
        while self._later:
            child = self._later.popleft()
            self._walk(child, top=child[1] == "")

    def _walk(self, start: Child, *, top: bool) -> None:
        """Go depth first, in order. A container on its own path is a cycle and is not entered again."""
        waiting: list[Child] = [start]
        path: set[int] = set()
        while waiting:
            value, name, mode = waiting.pop()
            if type(value) is _Left:
                self._leave(value, mode, path)
                continue
            place = id(value)
            if self._take(value, name, mode) or place in path or place in self._barren:
                continue
            if mode == _PLAIN and type(value) is Call and self._is_foreign(value):
                self._later.append((value, name, _FOREIGN))
                continue
            if mode == _ATTRIBUTE:
                if place in self._skimmed:
                    continue
                self._skimmed.add(place)
            path.add(place)
            if len(path) > self._limits.pickle_depth:
                self._refuse("pickle_depth", self._limits.pickle_depth, len(path), "levels")
            self._met[place] = times = self._met.get(place, 0) + 1
            self._weight = min(times, _HEAVIEST)
            waiting.append((_Left(place, self._found()), name, mode))
            waiting.extend(reversed(list(self._children(value, name, mode, top=top))))
            top = False

    def _found(self) -> int:
        return len(self.entries) + len(self._later)

    def _leave(self, left: _Left, mode: int, path: set[int]) -> None:
        """Remember what held nothing: objects that share it need not look again."""
        path.discard(left.place)
        if mode != _ATTRIBUTE and self._found() == left.before:
            self._barren.add(left.place)

    def _take(self, value: Any, name: str, mode: int) -> bool:
        """List a value that is a tensor; True when it needs no further look."""
        self.visited += 1
        if self.visited > self._limits.pickle_nodes:
            self._refuse(
                "pickle_nodes", self._limits.pickle_nodes, self.visited, "values, counted each time they are met"
            )
        kind = type(value)
        if kind is not Call and kind is not StorageRef and kind is not RawTensor:
            return False
        if mode == _ATTRIBUTE:
            self.hidden += self._rebuilder.is_tensor(value)
            return self._rebuilder.is_tensor(value)
        if mode == _FOREIGN and id(value) in self.names:
            return True
        try:
            tensor = self._rebuilder.recognise(value)
        except FirekeepError as error:
            raise error.at(tensor=name)  # noqa: B904 - the same error, with its place
        if tensor is None:
            if mode == _PLAIN and kind is Call and is_array(value):
                self.arrays.append(name)
            return kind is not Call
        self._list(value, name, tensor, mode)
        return True

    def _list(self, value: Any, name: str, tensor: Tensor, mode: int) -> None:
        if name in self.entries:
            if mode != _FOREIGN:
                raise MetadataError(f"two values of the file come to one name, {name[:200]!r}", tensor=name)
            name = self._unused(name)
        if value is not None:
            self.names.setdefault(id(value), name)
        self.entries[name] = TensorEntry(name, tensor.dtype, tensor.shape, tensor.blob, problem=tensor.problem)
        if mode == _FOREIGN and tensor.integers is not None:
            self._list(None, f"{name}.int_repr", tensor.integers, mode)

    def _unused(self, name: str) -> str:
        number = 2
        while f"{name}#{number}" in self.entries:
            number += 1
        return f"{name}#{number}"

    def _is_foreign(self, call: Call) -> bool:
        if module_state(call) is not None:
            return False
        return not is_scripted(call) or script_tensors(call, self._classes) is None

    def _children(self, value: Any, name: str, mode: int, *, top: bool) -> Iterator[Child]:
        if isinstance(value, dict):
            if type(value) is InertDict:
                self._note_metadata(value, name)
            yield from self._named(value.items(), name, mode, top=top)
        elif type(value) in (list, tuple):
            yield from self._named(enumerate(value), name, mode, top=top)
        elif type(value) is InertSet:
            yield from self._named(enumerate(value.elements), name, mode, top=top)
        elif type(value) is Call:
            yield from self._object(value, name, mode, top=top)

    def _named(self, items: Any, name: str, mode: int, *, top: bool) -> Iterator[Child]:
        """Spell the names of children, counting what they take: long names and deep nesting multiply."""
        prefix = "" if top else f"{name}."
        weight = self._weight
        for key, value in items:
            if type(value) in _LEAVES:
                continue
            value = self._uncompiled(value)
            text = prefix + (key if type(key) is str else key_name(key))
            self.spelled += len(text) * weight
            if self.spelled > self._limits.text_bytes:
                what = f"bytes of names, where those below an object that is met again count double, and so on up to {_HEAVIEST} times"
                self._refuse("text_bytes", self._limits.text_bytes, self.spelled, what)
            yield value, text, mode

    def _uncompiled(self, value: Any) -> Any:
        if type(value) is not Call or (inner := without_compile(value)) is value:
            return value
        self.compiled += 1
        return inner

    def _object(self, call: Call, name: str, mode: int, *, top: bool) -> Iterator[Child]:
        if mode == _ATTRIBUTE and self._is_foreign(call):
            self._later.append((call, name, _FOREIGN))
            return
        state = module_state(call)
        if state is not None:
            yield from self._module(call, module_tensors(state), module_attributes(state), name, mode, top=top)
        elif is_scripted(call) and (sorted_ := script_tensors(call, self._classes)) is not None:
            yield from self._module(call, sorted_[0], sorted_[1], name, mode, top=top)
        else:
            yield from self._foreign(call, name, top=top)

    def _module(self, call: Call, tensors: Any, attributes: Any, name: str, mode: int, *, top: bool) -> Iterator[Child]:
        if mode != _PLAIN and id(call) in self._seen:
            return
        self._seen.add(id(call))
        if mode == _PLAIN:
            self.modules.setdefault(name, call)
        yield from self._named(tensors, name, mode, top=top)
        if mode != _ATTRIBUTE:
            yield from self._named(attributes, name, _ATTRIBUTE, top=top)

    def _foreign(self, call: Call, name: str, *, top: bool) -> Iterator[Child]:
        if id(call) in self._seen:
            return
        self._seen.add(id(call))
        for items in (enumerate(call.args), (call.items or {}).items(), enumerate(call.elements or ())):
            yield from self._named(items, name, _FOREIGN, top=top)
        parts = list(state_parts(call.state))
        for part in parts:
            yield from self._named(part.items(), name, _FOREIGN, top=top)
        if not parts and call.state is not None:
            yield from self._named([("state", call.state)], name, _FOREIGN, top=top)

    def _note_metadata(self, value: InertDict, name: str) -> None:
        for part in state_parts(getattr(value, "state", None)):
            metadata = part.get("_metadata")
            if isinstance(metadata, dict):
                for path, facts in metadata.items():
                    if type(path) is str and isinstance(facts, dict):
                        full = f"{name}.{path}" if name and path else name or path
                        self.state_metadata[full] = {
                            key: fact
                            for key, fact in facts.items()
                            if type(key) is str and type(fact) in (int, str, bool, float)
                        }

    def _refuse(self, field: str, limit: int, actual: int, what: str) -> None:
        raise LimitError(
            f"the pickled object has more than {limit:,} {what}",
            limit=limit,
            actual=actual,
            remedy=f"If the file is honest, open it with a larger firekeep.Limits({field}=...).",
        )


def key_name(key: Any) -> str:
    """Spell a dictionary key that is no text, as Python prints it."""
    kind = type(key)
    if kind is str:
        return str(key)
    if kind is bytes:
        return str(key.decode("utf-8", "replace"))
    if kind is Global or kind is Call:
        return name_of(key)
    if kind is tuple:
        inner = ", ".join(repr(part) if type(part) is str else key_name(part) for part in key)
        return f"({inner},)" if len(key) == 1 else f"({inner})"
    if kind is int and key.bit_length() > _MAX_BITS:
        return f"an integer of {key.bit_length():,} bits"
    return str(key) if kind in (int, float, bool, type(None)) else f"a {kind.__name__}"
