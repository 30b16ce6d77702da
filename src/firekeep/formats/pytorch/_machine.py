"""The pickle machine: all opcodes of protocols 0 to 5, and nothing that runs.

A global becomes a `Global`, a call a `Call`, a persistent id whatever the container's reader makes of it. Every other reader of
pickles imports and calls; the standard library's C unpickler with stand-ins would too be inert, but takes 2 GB for a memo index
in a file of 9 bytes and overflows the C stack on a deeply nested key. This machine reads 20,000 tensors in a tenth of a second.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any, NoReturn

from firekeep.errors import FirekeepError, LimitError, TruncatedError, UnsafePickleError
from firekeep.formats.pytorch._inert import Call, Global, InertDict, InertSet, Maker, checked_key
from firekeep.formats.pytorch._makers import MAKERS, size_of
from firekeep.formats.pytorch._opcodes import NAMES, argument_end
from firekeep.formats.pytorch._rare import AFTER_MARK, RARE
from firekeep.limits import Limits

Persistent = Callable[[Any], Any]

_CHUNK = 1 << 16
_U32 = struct.Struct("<I").unpack_from
_I32 = struct.Struct("<i").unpack_from
_U16 = struct.Struct("<H").unpack_from
_F64 = struct.Struct(">d").unpack_from
_READ_ERRORS = (IndexError, KeyError, struct.error, ValueError, OverflowError)
_SHORT_TEXT = 255
_BEYOND_LATIN1 = re.compile(rb"[\xc4-\xff]")
_BEYOND_PLANE0 = re.compile(rb"[\xf0-\xff]")


def _refuse_persistent(pid: Any) -> NoReturn:
    raise UnsafePickleError(f"a persistent id ({type(pid).__name__}) in a pickle that has nothing beside it")


class Machine:
    """Reads one pickle of `data` from `position`. `run` gives its value and moves `position` behind it.

    `globals` holds every name met, also when `run` raises. `base` is where `data` starts in the file, for the offsets in
    messages; `place` names the pickle in them.
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
        self.made = 0
        self.text = 0
        self._base = base
        self._place = place
        self._makers = makers

    def run(self) -> Any:  # noqa: C901 - one branch an opcode, the frequent ones first: a table of functions is three times slower
        """Read the pickle up to its STOP.

        Raises `UnsafePickleError` for damaged pickles and for what is more than data, `TruncatedError` for a pickle that ends
        before its STOP, `LimitError` beyond the limits; all say the byte and the opcode.
        """
        data, memo, persistent = self.data, self.memo, self.persistent
        pos = self.position
        stack: list[Any] = []
        meta: list[list[Any]] = []
        made = 0
        left = self.limits.pickle_opcodes
        try:
            while left > 0:
                chunk = min(left, _CHUNK)
                left -= chunk
                for _ in repeat(None, chunk):
                    op = data[pos]
                    if op == 0x72:  # LONG_BINPUT
                        index = _U32(data, pos + 1)[0]
                        if index == len(memo):
                            memo.append(stack[-1])
                        else:
                            self.put(index, stack[-1])
                        pos += 5
                    elif op == 0x4B:  # BININT1
                        stack.append(data[pos + 1])
                        pos += 2
                    elif op == 0x68:  # BINGET
                        index = data[pos + 1]
                        stack.append(memo[index] if index < len(memo) else self.get(index))
                        pos += 2
                    elif op == 0x71:  # BINPUT
                        index = data[pos + 1]
                        if index == len(memo):
                            memo.append(stack[-1])
                        else:
                            self.put(index, stack[-1])
                        pos += 2
                    elif op == 0x28:  # MARK
                        meta.append(stack)
                        stack = []
                        pos += 1
                    elif op == 0x74:  # TUPLE
                        value = tuple(stack)
                        stack = meta.pop()
                        stack.append(value)
                        made += 1
                        pos += 1
                    elif op == 0x58:  # BINUNICODE
                        end = pos + 5 + _U32(data, pos + 1)[0]
                        stack.append(self.decode(pos + 5, end))
                        made += 1
                        pos = end
                    elif op > 0x7F:
                        if op == 0x86:  # TUPLE2
                            value = stack.pop()
                            stack[-1] = (stack[-1], value)
                            made += 1
                            pos += 1
                        elif op == 0x94:  # MEMOIZE
                            memo.append(stack[-1])
                            pos += 1
                        elif op == 0x8C:  # SHORT_BINUNICODE
                            end = pos + 2 + data[pos + 1]
                            stack.append(self.decode(pos + 2, end))
                            made += 1
                            pos = end
                        elif op == 0x89:  # NEWFALSE
                            stack.append(False)
                            pos += 1
                        elif op == 0x85:  # TUPLE1
                            stack[-1] = (stack[-1],)
                            made += 1
                            pos += 1
                        elif op == 0x87:  # TUPLE3
                            value = stack.pop()
                            middle = stack.pop()
                            stack[-1] = (stack[-1], middle, value)
                            made += 1
                            pos += 1
                        elif op == 0x88:  # NEWTRUE
                            stack.append(True)
                            pos += 1
                        elif op == 0x81:  # NEWOBJ
                            value = stack.pop()
                            stack[-1] = self.call(stack[-1], value)
                            made += 1
                            pos += 1
                        elif op in AFTER_MARK:
                            items = stack
                            stack = meta.pop()
                            made += 1
                            pos = AFTER_MARK[op](self, stack, items, pos)
                        else:
                            made += 1
                            pos = RARE[op](self, stack, pos)
                    elif op == 0x52:  # REDUCE
                        value = stack.pop()
                        stack[-1] = self.call(stack[-1], value)
                        made += 1
                        pos += 1
                    elif op == 0x4D:  # BININT2
                        stack.append(_U16(data, pos + 1)[0])
                        made += 1
                        pos += 3
                    elif op == 0x51:  # BINPERSID
                        stack[-1] = persistent(stack[-1])
                        made += 1
                        pos += 1
                    elif op == 0x29:  # EMPTY_TUPLE
                        stack.append(())
                        pos += 1
                    elif op == 0x4A:  # BININT
                        stack.append(_I32(data, pos + 1)[0])
                        made += 1
                        pos += 5
                    elif op == 0x6A:  # LONG_BINGET
                        index = _U32(data, pos + 1)[0]
                        stack.append(memo[index] if index < len(memo) else self.get(index))
                        pos += 5
                    elif op == 0x47:  # BINFLOAT
                        stack.append(_F64(data, pos + 1)[0])
                        made += 1
                        pos += 9
                    elif op == 0x4E:  # NONE
                        stack.append(None)
                        pos += 1
                    elif op == 0x73:  # SETITEM
                        value = stack.pop()
                        key = stack.pop()
                        self.set_items(stack[-1], [key, value])
                        made += 1
                        pos += 1
                    elif op == 0x75:  # SETITEMS
                        self.set_items(meta[-1][-1], stack)
                        made += 1 + (len(stack) >> 3)
                        stack = meta.pop()
                        pos += 1
                    elif op == 0x65:  # APPENDS
                        self.extend(meta[-1][-1], stack)
                        made += 1 + (len(stack) >> 3)
                        stack = meta.pop()
                        pos += 1
                    elif op == 0x7D:  # EMPTY_DICT
                        stack.append({})
                        made += 1
                        pos += 1
                    elif op == 0x61:  # APPEND
                        value = stack.pop()
                        self.extend(stack[-1], [value])
                        made += 1
                        pos += 1
                    elif op == 0x5D:  # EMPTY_LIST
                        stack.append([])
                        made += 1
                        pos += 1
                    elif op == 0x62:  # BUILD
                        value = stack.pop()
                        self.build(stack[-1], value)
                        made += 1
                        pos += 1
                    elif op == 0x30:  # POP
                        if stack:
                            stack.pop()
                        else:
                            stack = meta.pop()
                        made += 1
                        pos += 1
                    elif op == 0x31:  # POP_MARK
                        stack = meta.pop()
                        made += 1
                        pos += 1
                    elif op == 0x2E:  # STOP
                        value = stack.pop()
                        self.position = pos + 1
                        self._check(made, stack=0, depth=0)
                        return value
                    elif op in AFTER_MARK:
                        items = stack
                        stack = meta.pop()
                        made += 1
                        pos = AFTER_MARK[op](self, stack, items, pos)
                    else:
                        made += 1
                        pos = RARE[op](self, stack, pos)
                self._check(made, stack=len(stack) + sum(map(len, meta[-_CHUNK:])), depth=len(meta))
            self._refuse_beyond("pickle_opcodes", self.limits.pickle_opcodes, self.limits.pickle_opcodes + 1, "opcodes")
        except UnsafePickleError as error:
            raise self._at(pos, error.message, error.remedy) if error.offset is None else error from None
        except FirekeepError:
            raise
        except _READ_ERRORS as error:
            raise self._explain(pos, error) from None
        finally:
            self.position = max(self.position, pos)

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
            self.made += size_of(made)
            if self.made > self.limits.pickle_nodes:
                self._refuse_beyond("pickle_nodes", self.limits.pickle_nodes, self.made, "values")

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
            held[key if type(key) is str else checked_key(key)] = items[at + 1]

    def _check(self, made: int, *, stack: int, depth: int) -> None:
        nodes = self.limits.pickle_nodes
        if (count := max(made + self.made + stack, len(self.memo))) > nodes:
            self._refuse_beyond("pickle_nodes", nodes, count, "values")
        if depth > self.limits.pickle_depth:
            self._refuse_beyond("pickle_depth", self.limits.pickle_depth, depth, "open marks")
        self._check_text()

    def _check_text(self) -> None:
        if self.text > self.limits.text_bytes:
            self._refuse_beyond("text_bytes", self.limits.text_bytes, self.text, "bytes of text")

    def _refuse_beyond(self, field: str, limit: int, actual: int, what: str) -> NoReturn:
        raise LimitError(
            f"{self._place} holds more than {limit:,} {what}",
            limit=limit,
            actual=actual,
            remedy=f"If the file is honest, open it with a larger firekeep.Limits({field}=...).",
        )

    def _at(self, position: int, message: str, remedy: str | None = None) -> UnsafePickleError:
        name = NAMES.get(self.data[position]) if position < len(self.data) else None
        where = f"byte {self._base + position}" + (f", opcode {name}" if name else "")
        return UnsafePickleError(f"{self._place} at {where}: {message}", offset=self._base + position, remedy=remedy)

    def _explain(self, position: int, error: Exception) -> UnsafePickleError | TruncatedError:
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
            return self._at(position, f"0x{data[position]:02x} is not an opcode")
        if isinstance(error, IndexError):
            return self._at(position, "the stack holds too few values")
        return self._at(position, f"its argument cannot be read ({error})")


def _width(raw: bytes) -> int:
    """Say how many bytes Python takes for each character of a text: as many as its widest one needs."""
    if raw.isascii() or _BEYOND_LATIN1.search(raw) is None:
        return 1
    return 4 if _BEYOND_PLANE0.search(raw) else 2


def _merge(old: Any, new: Any) -> Any:
    """Give the state after a further BUILD: both, as a class with slots has them."""
    return new if old is None else (old, new)
