"""What the opcodes of a pickle do: remember, count, make inert objects, and say what is wrong and where."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from firekeep.errors import LimitError, TruncatedError, UnsafePickleError
from firekeep.formats.pytorch._inert import SAME_HASH, Call, Global, InertDict, InertSet, Maker, checked_key, crowded
from firekeep.formats.pytorch._makers import MAKERS, size_of
from firekeep.formats.pytorch._opcodes import NAMES, argument_end
from firekeep.limits import Limits

Persistent = Callable[[Any], Any]

_SHORT_TEXT = 255
_NEW_NAME = 100
"""What a name that was not met before counts for: honest pickles have dozens, and each is judged, listed and sorted."""
_BEYOND_LATIN1 = re.compile(rb"[\xc4-\xff]")
_BEYOND_PLANE0 = re.compile(rb"[\xf0-\xff]")


def _refuse_persistent(pid: Any) -> NoReturn:
    raise UnsafePickleError(f"a persistent id ({type(pid).__name__}) in a pickle that has nothing beside it")


class Work:
    """The state of a machine that reads one pickle: `data` from `position`.

    `made` and `text` count values and bytes of text against the limits, `opcodes` what was done in the end. `globals` holds every name
    met. `base` is where `data` starts in the file, for the offsets in messages; `place` names the pickle in them.
    """

    def __init__(
        self,
        data: bytes,
        *,
        limits: Limits,
        position: int = 0,
        base: int = 0,
        place: str = "the pickle",
        persistent: Persistent = _refuse_persistent,
        makers: Mapping[tuple[str, str], Maker] = MAKERS,
    ) -> None:
        self.data = data
        self.position = position
        self.limits = limits
        self.persistent = persistent
        self.protocol = 0
        self.globals: dict[tuple[str, str], Global] = {}
        self.memo: list[Any] = []
        self.sparse: dict[int, Any] = {}
        self._hashes: dict[int, tuple[dict[Any, Any], dict[int, int]]] = {}
        self.made = 0
        self.text = 0
        self.opcodes = 0
        self._base = base
        self._place = place
        self._makers = makers

    def taken(self) -> dict[str, int]:
        """Say what the pickle took, by the names of the limits."""
        return {
            "pickle_bytes": len(self.data),
            "pickle_opcodes": self.opcodes,
            "pickle_nodes": self.made,
            "text_bytes": self.text,
        }

    def put(self, index: int, value: Any) -> None:
        """Remember a value under an index that is not the next one."""
        self.made += 1
        if 0 <= index < len(self.memo):
            self.memo[index] = value
        elif index < 0:
            raise UnsafePickleError(f"memo index {index} is negative")
        else:
            self.sparse[index] = value

    def get(self, index: int) -> Any:
        """Give what was remembered."""
        if 0 <= index < len(self.memo):
            return self.memo[index]
        if index in self.sparse:
            return self.sparse[index]
        raise UnsafePickleError(f"nothing was remembered under memo index {index}")

    def decode(self, start: int, end: int) -> str:
        """Read UTF-8 text, counting what it takes."""
        size = end - start
        raw = self.data[start:end] if size <= _SHORT_TEXT else self.take(start, end)
        if size > _SHORT_TEXT and (wide := _width(raw)) > 1:
            self.text += (wide - 1) * size
            self._check_text()
        try:
            value = raw.decode()
        except UnicodeDecodeError:
            value = raw.decode("utf-8", "surrogatepass")
        if size <= _SHORT_TEXT:
            self.text += size
            if len(value) != size:
                self.require(start, end)
                self.text += 3 * size
        return value

    def take(self, start: int, end: int) -> bytes:
        """Read bytes, once they are known to be there and allowed."""
        self.require(start, end)
        self.text += end - start
        if end - start > _SHORT_TEXT:
            self._check_text()
        return self.data[start:end]

    def require(self, start: int, end: int) -> None:
        """Refuse what would end behind the data."""
        if end > len(self.data):
            have = self._base + len(self.data)
            raise TruncatedError(
                f"{self._place} ends at byte {have}, inside the {end - start} bytes that start at {self._base + start}: "
                "it was cut short, or a length in it is wrong",
                offset=self._base + start,
                limit=self._base + end,
                actual=have,
            )

    def find(self, module: str, name: str, position: int) -> Global:
        """Give the stand-in for a global; nothing is looked up anywhere."""
        found = self.globals.get((module, name))
        if found is None:
            make = self._makers.get((module, name))
            found = Global(module, name, offset=self._base + position, make=make)
            self.globals[module, name] = found
            self.made += _NEW_NAME
        found.count += 1
        return found

    def call(self, func: Any, args: Any) -> Any:
        """Record a call, or make the data it stands for."""
        if type(args) is not tuple:
            raise UnsafePickleError(f"the arguments of a call are a {type(args).__name__}, not a tuple")
        if type(func) is not Global:
            if type(func) is not Call:
                raise UnsafePickleError(f"a {type(func).__name__} would be called")
            return Call(func, args)
        func.called = True
        if func.make is not None:
            made = func.make(args)
            if made is not NotImplemented:
                if made:
                    self._count_copy(made)
                return made
        return Call(func, args)

    def _count_copy(self, made: Any) -> None:
        """Count what a short call copied: it may be repeated."""
        if isinstance(made, bytes):
            self.text += len(made)
            self._check_text()
        else:
            self.charge(size_of(made))

    def charge(self, values: int) -> None:
        """Count work as so many values, at once: one opcode can do much of it."""
        self.made += values
        if self.made > self.limits.pickle_nodes:
            self.refuse_beyond("pickle_nodes", self.limits.pickle_nodes, self.made, "values")

    def build(self, target: Any, state: Any) -> None:
        """Set the state of an object."""
        kind = type(target)
        if kind is InertDict:
            target.state = _merge(getattr(target, "state", None), state)
        elif kind is Call:
            target.state = _merge(target.state, state)
        elif kind is Global:
            raise UnsafePickleError(f"the state of the class {target.path} itself would be changed")
        elif kind is not InertSet:
            raise UnsafePickleError(f"a {kind.__name__} has no state to set")

    def extend(self, target: Any, items: list[Any]) -> None:
        """Append to a list, or to an object that claims to be one."""
        if type(target) is list:
            target.extend(items)
        elif type(target) is Call:
            if target.elements is None:
                target.elements = []
            target.elements.extend(items)
        else:
            raise UnsafePickleError(f"values are appended to a {type(target).__name__}")

    def set_items(self, target: Any, items: list[Any]) -> None:
        """Set keys of a dict, or of an object that claims to be one."""
        if isinstance(target, dict):
            held = target
        elif type(target) is Call:
            if target.items is None:
                target.items = {}
            held = target.items
        else:
            raise UnsafePickleError(f"a {type(target).__name__} is given keys")
        if len(items) % 2:
            raise UnsafePickleError("a key has no value")
        for at in range(0, len(items), 2):
            key = items[at]
            if type(key) is not str:
                key = checked_key(key)
                if type(key) is tuple:
                    self._count_hash(held, key)
            held[key] = items[at + 1]

    def _count_hash(self, held: dict[Any, Any], key: tuple[Any, ...]) -> None:
        """Refuse a dictionary whose tuple keys were made to have one hash: each would be compared with all others."""
        known = self._hashes.get(id(held))
        if known is None:
            known = self._hashes[id(held)] = (held, {})
        counts, code = known[1], hash(key)
        self.made += 2
        counts[code] = alike = counts.get(code, 0) + 1
        if alike > SAME_HASH:
            raise crowded()

    def check(self, made: int, *, stack: int, depth: int) -> None:
        """Compare what was made, what is stacked and what is remembered with the limits."""
        nodes = self.limits.pickle_nodes
        if (count := max(made + self.made + stack, len(self.memo))) > nodes:
            self.refuse_beyond("pickle_nodes", nodes, count, "values")
        if depth > self.limits.pickle_depth:
            self.refuse_beyond("pickle_depth", self.limits.pickle_depth, depth, "open marks")
        self._check_text()

    def _check_text(self) -> None:
        if self.text > self.limits.text_bytes:
            self.refuse_beyond("text_bytes", self.limits.text_bytes, self.text, "bytes of text")

    def refuse_beyond(self, field: str, limit: int, actual: int, what: str) -> NoReturn:
        """Say that a limit was passed, and which."""
        raise LimitError(
            f"{self._place} holds more than {limit:,} {what}",
            limit=limit,
            actual=actual,
            remedy=f"If the file is honest, open it with a larger firekeep.Limits({field}=...).",
        )

    def at(self, position: int, message: str, remedy: str | None = None) -> UnsafePickleError:
        """Give an error with the byte and the opcode where it happened."""
        name = NAMES.get(self.data[position]) if position < len(self.data) else None
        where = f"byte {self._base + position}" + (f", opcode {name}" if name else "")
        return UnsafePickleError(f"{self._place} at {where}: {message}", offset=self._base + position, remedy=remedy)

    def explain(self, position: int, error: Exception) -> UnsafePickleError | TruncatedError:
        """Say what an exception of the loop means: the end of the data, an unknown opcode, an empty stack."""
        data = self.data
        if position >= len(data) or argument_end(data, position) is None:
            name = NAMES.get(data[position]) if position < len(data) else None
            inside = f", inside {name}" if name else ""
            return TruncatedError(
                f"{self._place} ends at byte {self._base + len(data)}{inside}, before its STOP: it was cut short",
                offset=self._base + position,
                actual=self._base + len(data),
            )
        if data[position] not in NAMES:
            return self.at(position, f"0x{data[position]:02x} is not an opcode")
        if isinstance(error, IndexError):
            return self.at(position, "the stack holds too few values")
        return self.at(position, f"its argument cannot be read ({error})")


def _width(raw: bytes) -> int:
    """Say how many bytes Python takes for each character of a text: as many as its widest one needs."""
    if raw.isascii() or _BEYOND_LATIN1.search(raw) is None:
        return 1
    return 4 if _BEYOND_PLANE0.search(raw) else 2


def _merge(old: Any, new: Any) -> Any:
    """Give the state after a further BUILD: both, as a class with slots has them."""
    return new if old is None else (old, new)
