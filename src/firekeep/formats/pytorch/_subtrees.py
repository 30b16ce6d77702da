"""Which part of a file is the model: the subtree asked for by `top_level_key`, and the ones that look like a state dict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from firekeep.errors import TensorNotFoundError
from firekeep.formats.pytorch._flatten import key_name
from firekeep.formats.pytorch._inert import Call, Global, InertDict, InertSet
from firekeep.formats.pytorch._modules import is_scripted, module_state, module_tensors, state_parts, without_compile
from firekeep.formats.pytorch._rebuild import Rebuilder

_DEEPEST = 64
_LONGEST_LIST = 16
_KEYS_SHOWN = 20
_OFTEN = 8
"""Paths on which one object is looked through for models."""
_NO_MODEL = frozenset(
    (
        "callbacks",
        "rng",
        "rng_state",
        "rng_states",
        "random_state",
        "random_states",
        "loops",
        "scaler",
        "amp",
        "buffer",
        "replay_buffer",
    )
)
_NO_MODEL_PARTS = ("optim", "sched")


def select(root: Any, key: str) -> Any:
    """Go down a dotted path: keys with dots of their own are tried longest first, lists take an index.

    Raises `TensorNotFoundError`, listing the keys there are where the path ends.
    """
    found = _descend(root, key, 0)
    if found is not None:
        return found[0]
    node, done = _furthest(root, key)
    names = [name for name, _ in _branches(node)]
    where = f" under {done!r}" if done else ""
    rest = key[len(done) :].lstrip(".")
    raise TensorNotFoundError(
        f"there is no key {rest[:200]!r}{where}: it has {_listing(names)}", remedy=_near(rest, names, done)
    )


def _descend(node: Any, rest: str, depth: int) -> tuple[Any] | None:
    """Give the value under a path, in a tuple of one, or None."""
    if depth > _DEEPEST:
        return None
    fitting = [(name, value) for name, value in _branches(node) if rest == name or rest.startswith(f"{name}.")]
    for name, value in sorted(fitting, key=lambda pair: -len(pair[0])):
        if rest == name:
            return (value,)
        found = _descend(value, rest[len(name) + 1 :], depth + 1)
        if found is not None:
            return found
    return None


def _furthest(node: Any, key: str) -> tuple[Any, str]:
    """Follow a path as far as it goes."""
    done = ""
    for _ in range(_DEEPEST):
        rest = key[len(done) + 1 :] if done else key
        fitting = [(name, value) for name, value in _branches(node) if rest.startswith(f"{name}.")]
        if not fitting:
            break
        name, node = max(fitting, key=lambda pair: len(pair[0]))
        done = f"{done}.{name}" if done else name
    return node, done


def _branches(node: Any) -> Iterator[tuple[str, Any]]:
    """Give what lies directly under an object, by name."""
    for name, value in _held(without_compile(node)):
        yield name, without_compile(value)


def _held(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        yield from ((key_name(key), value) for key, value in node.items())
    elif type(node) in (list, tuple):
        yield from ((str(index), value) for index, value in enumerate(node))
    elif type(node) is InertSet:
        yield from ((str(index), value) for index, value in enumerate(node.elements))
    elif type(node) is Call:
        state = module_state(node)
        if state is not None:
            yield from ((key_name(key), value) for key, value in module_tensors(state))
            return
        yield from ((key_name(key), value) for key, value in (node.items or {}).items())
        for part in state_parts(node.state):
            yield from ((key_name(key), value) for key, value in part.items())


def _listing(names: list[str]) -> str:
    if not names:
        return "none"
    shown = ", ".join(repr(name[:80]) for name in names[:_KEYS_SHOWN])
    return shown + (f" and {len(names) - _KEYS_SHOWN} more" if len(names) > _KEYS_SHOWN else "")


def _near(wanted: str, names: Iterable[str], done: str) -> str | None:
    from rapidfuzz import process
    from rapidfuzz.distance import Jaro

    found = process.extract(wanted, list(names)[:20_000], scorer=Jaro.similarity, score_cutoff=0.7, limit=3)
    near = [f"{done}.{choice}" if done else choice for choice, _, _ in found]
    return f"Near: {', '.join(map(repr, near))}." if near else None


class ModelFinder:
    """Finds the subtrees of an object that look like a model's tensors."""

    def __init__(self, rebuilder: Rebuilder) -> None:
        self._rebuilder = rebuilder
        self._weights: dict[int, tuple[int, int]] = {}
        self._searched: Counter[int] = Counter()

    def find(self, root: Any) -> dict[str, int]:
        """Map dotted paths to numbers of tensors; nothing when the root itself is the model, or when there is none."""
        root = without_compile(root)
        if isinstance(root, dict) and all(map(self._rebuilder.is_tensor, root.values())):
            return {}
        if self._weigh(root, 0)[0] == 0 or self._is_model(root):
            return {}
        return dict(self._search(root, "", 0))

    def _search(self, node: Any, path: str, depth: int) -> Iterator[tuple[str, int]]:
        if depth > _DEEPEST or (type(node) in (list, tuple) and len(node) > _LONGEST_LIST):
            return
        self._searched[id(node)] += 1
        if self._searched[id(node)] > _OFTEN:  # objects in objects that share them: as many paths as there are atoms
            return
        for name, value in _branches(node):
            tensors, _ = self._weigh(value, depth + 1)
            if not tensors or _is_excluded(name) or self._rebuilder.is_tensor(value):
                continue
            below = f"{path}.{name}" if path else name
            if self._is_model(value):
                yield below, tensors
            elif not _is_optimizer(value):
                yield from self._search(value, below, depth + 1)

    def _is_model(self, node: Any) -> bool:
        if self._rebuilder.is_tensor(node):
            return True
        if type(node) is Call:
            return module_state(node) is not None or is_scripted(node)
        if type(node) is InertDict and any("_metadata" in part for part in state_parts(getattr(node, "state", None))):
            return True
        tensors, others = self._weigh(node, 0)
        if not tensors or _is_optimizer(node):
            return False
        direct = sum(self._rebuilder.is_tensor(value) for _, value in _branches(node))
        return others == 0 or direct == tensors

    def _weigh(self, node: Any, depth: int) -> tuple[int, int]:
        """Count the tensors and the other values below a node."""
        if self._rebuilder.is_tensor(node):
            return 1, 0
        if node is None or type(node) is Global:
            return 0, 0
        if not isinstance(node, dict | list | tuple | InertSet | Call):
            return 0, 1
        known = self._weights.get(id(node))
        if known is None:
            self._weights[id(node)] = (0, 0)  # a cycle adds nothing
            tensors = others = 0
            if depth <= _DEEPEST:
                for _, value in _branches(node):
                    more = self._weigh(value, depth + 1)
                    tensors += more[0]
                    others += more[1]
            known = self._weights[id(node)] = (tensors, others)
        return known


def _is_excluded(name: str) -> bool:
    lowered = name.lower()
    return lowered in _NO_MODEL or any(part in lowered for part in _NO_MODEL_PARTS)


def _is_optimizer(node: Any) -> bool:
    return isinstance(node, dict) and "param_groups" in node and "state" in node


def describe(found: dict[str, int], total: int) -> str | None:
    """Say which subtrees were found."""
    if not found:
        return None
    if len(found) == 1:
        ((path, count),) = found.items()
        return f"the model's tensors lie under {path!r} ({count} of {total})"
    shown = ", ".join(f"{path!r} ({count})" for path, count in list(found.items())[:6])
    more = f" and {len(found) - 6} more" if len(found) > 6 else ""
    return f"{len(found)} subtrees look like a model's tensors: {shown}{more}; choose one as top_level_key"
