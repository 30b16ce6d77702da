# ruff: noqa: ARG001 - every function of the tables has one signature
"""Opcodes that are rare in files of tensors: text forms, long integers, bytes, globals, sets.

A function of `RARE` takes the machine, the stack and the opcode's position and gives the next position; one of `AFTER_MARK` also
takes the items that were stacked since the last MARK, which is already gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import Struct
from typing import Any, Protocol

from firekeep.errors import UnsafePickleError
from firekeep.formats.pytorch._inert import Call, Global, InertSet

_U32 = Struct("<I").unpack_from
_U64 = Struct("<Q").unpack_from
_LONGEST_GLOBAL = 4096
_LONG_STRING = 1 << 20
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|.)", re.DOTALL)
_PRINTED = re.compile(rb"(?:[^\\]++|\\(?:[\\'\"nrt]|x[0-9a-fA-F]{2}))*+")
_ESCAPED = {
    b"\\": b"\\",
    b"'": b"'",
    b'"': b'"',
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
}
_STORAGE_TEXT = re.compile(
    r"\('storage', <class '(?P<module>[\w.]+)\.(?P<name>\w+)'>, '(?P<key>[^']*)', '(?P<location>[^']*)', (?P<numel>\d+)"
    r"(?P<view>, None)?\)"
)


class _Machine(Protocol):
    data: bytes
    protocol: int
    made: int
    persistent: Callable[[Any], Any]

    @property
    def memo(self) -> list[Any]: ...
    def put(self, index: int, value: Any) -> None: ...
    def get(self, index: int) -> Any: ...
    def decode(self, start: int, end: int) -> str: ...
    def take(self, start: int, end: int) -> bytes: ...
    def require(self, start: int, end: int) -> None: ...
    def extend(self, target: Any, items: list[Any]) -> None: ...
    def find(self, module: str, name: str, position: int) -> Global: ...
    def call(self, func: Any, args: Any) -> Any: ...
    def set_items(self, target: Any, items: list[Any]) -> None: ...
    def charge(self, values: int) -> None: ...


Rare = Callable[[Any, list[Any], int], int]
AfterMark = Callable[[Any, list[Any], list[Any], int], int]


def _line(machine: _Machine, start: int) -> tuple[bytes, int]:
    """Read up to the end of the line."""
    end = machine.data.find(b"\n", start)
    if end < 0:
        raise IndexError
    return machine.take(start, end), end + 1


def _integer(raw: bytes) -> int:
    """Read the decimal text of an integer; Python's own limit on its length holds."""
    return int(raw.removesuffix(b"L"))


def _int(machine: _Machine, stack: list[Any], pos: int) -> int:
    raw, end = _line(machine, pos + 1)
    stack.append(raw == b"01" if raw in (b"00", b"01") else _integer(raw))
    return end


def _long(machine: _Machine, stack: list[Any], pos: int) -> int:
    raw, end = _line(machine, pos + 1)
    stack.append(_integer(raw))
    return end


def _float(machine: _Machine, stack: list[Any], pos: int) -> int:
    raw, end = _line(machine, pos + 1)
    stack.append(float(raw))
    return end


def _long_binary(machine: _Machine, stack: list[Any], pos: int) -> int:
    wide = machine.data[pos] == 0x8B
    size = _U32(machine.data, pos + 1)[0] if wide else machine.data[pos + 1]
    start = pos + (5 if wide else 2)
    raw = machine.take(start, start + size)
    stack.append(int.from_bytes(raw, "little", signed=True))
    return int(start + size)


def _python2_text(raw: bytes) -> str | bytes:
    """A `str` of Python 2 is text where it is UTF-8, else bytes. Long ones are arrays, unless they are ASCII."""
    if len(raw) > _LONG_STRING and not raw.isascii():
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _unescape(found: re.Match[bytes]) -> bytes:
    """Undo one escape of a printed `str`; an unknown one stays as it is."""
    what = found[1]
    if what[:1] == b"x":
        return bytes((int(what[1:], 16),))
    if what.isdigit():
        return bytes((int(what, 8) & 0xFF,))
    return _ESCAPED.get(what, found[0])


def _string(machine: _Machine, stack: list[Any], pos: int) -> int:
    raw, end = _line(machine, pos + 1)
    if len(raw) < 2 or raw[:1] not in (b"'", b'"') or raw[-1:] != raw[:1]:
        raise UnsafePickleError("a string is not quoted")
    stack.append(_python2_text(_unescape_all(machine, raw[1:-1])))
    return end


def _unescape_all(machine: _Machine, raw: bytes) -> bytes:
    """Undo the escapes of a printed `str`: at once if all are of the kinds that Python 2 prints, else one by one, and counted."""
    if b"\\" not in raw:
        return raw
    if len(raw) > _LONG_STRING and _PRINTED.fullmatch(raw):
        return raw.decode("unicode_escape").encode("latin-1")
    machine.charge(raw.count(b"\\"))
    return _ESCAPE.sub(_unescape, raw)


def _binary_string(machine: _Machine, stack: list[Any], pos: int) -> int:
    wide = machine.data[pos] == 0x54
    size = _U32(machine.data, pos + 1)[0] if wide else machine.data[pos + 1]
    if size >> 31:
        raise UnsafePickleError(f"a string has the negative length {size - (1 << 32)}")
    start = pos + (5 if wide else 2)
    stack.append(_python2_text(machine.take(start, start + size)))
    return int(start + size)


def _unicode(machine: _Machine, stack: list[Any], pos: int) -> int:
    raw, end = _line(machine, pos + 1)
    stack.append(str(raw, "raw-unicode-escape"))
    return end


def _unicode8(machine: _Machine, stack: list[Any], pos: int) -> int:
    end = pos + 9 + _U64(machine.data, pos + 1)[0]
    stack.append(machine.decode(pos + 9, end))
    return int(end)


def _bytes(machine: _Machine, stack: list[Any], pos: int) -> int:
    op = machine.data[pos]
    if op == 0x43:
        start = pos + 2
        end = start + machine.data[pos + 1]
    elif op == 0x42:
        start = pos + 5
        end = start + _U32(machine.data, pos + 1)[0]
    else:
        start = pos + 9
        end = start + _U64(machine.data, pos + 1)[0]
    stack.append(machine.take(start, end))
    return int(end)


def _proto(machine: _Machine, stack: list[Any], pos: int) -> int:
    version = machine.data[pos + 1]
    if version > 5:
        raise UnsafePickleError(f"pickle protocol {version} is not one of 0 to 5")
    machine.protocol = version
    return pos + 2


def _frame(machine: _Machine, stack: list[Any], pos: int) -> int:
    machine.require(pos + 9, pos + 9 + _U64(machine.data, pos + 1)[0])
    return pos + 9


def _get(machine: _Machine, stack: list[Any], pos: int) -> int:
    raw, end = _line(machine, pos + 1)
    stack.append(machine.get(_integer(raw)))
    machine.made += 1
    return end


def _put(machine: _Machine, stack: list[Any], pos: int) -> int:
    raw, end = _line(machine, pos + 1)
    index = _integer(raw)
    machine.made += 2
    if index == len(machine.memo):
        machine.memo.append(stack[-1])
    else:
        machine.put(index, stack[-1])
    return end


def _dup(machine: _Machine, stack: list[Any], pos: int) -> int:
    stack.append(stack[-1])
    return pos + 1


def _empty_set(machine: _Machine, stack: list[Any], pos: int) -> int:
    stack.append(InertSet([], frozen=False))
    return pos + 1


def _two_lines(machine: _Machine, pos: int) -> tuple[Global, int]:
    module, middle = _line(machine, pos + 1)
    name, end = _line(machine, middle)
    return machine.find(_global_text(module), _global_text(name), pos), end


def _global_text(raw: bytes) -> str:
    if len(raw) > _LONGEST_GLOBAL:
        raise UnsafePickleError(f"a global has a name of {len(raw)} bytes")
    return raw.decode()


def _global(machine: _Machine, stack: list[Any], pos: int) -> int:
    found, end = _two_lines(machine, pos)
    stack.append(found)
    return end


def _stack_global(machine: _Machine, stack: list[Any], pos: int) -> int:
    name, module = stack.pop(), stack.pop()
    if type(name) is not str or type(module) is not str:
        raise UnsafePickleError(f"a global is named by a {type(module).__name__} and a {type(name).__name__}")
    if len(name) + len(module) > _LONGEST_GLOBAL:
        raise UnsafePickleError(f"a global has a name of {len(name) + len(module)} characters")
    stack.append(machine.find(module, name, pos))
    return pos + 1


def _new_object_ex(machine: _Machine, stack: list[Any], pos: int) -> int:
    named, args = stack.pop(), stack.pop()
    if type(args) is not tuple or not isinstance(named, dict):
        raise UnsafePickleError("the arguments of a constructor are not a tuple and a dict")
    cls = stack[-1]
    if type(cls) is not Global:
        raise UnsafePickleError(f"a {type(cls).__name__} would be instantiated")
    cls.called = True
    stack[-1] = Call(cls, (*args, named) if named else args)
    return pos + 1


def _persid(machine: _Machine, stack: list[Any], pos: int) -> int:
    """Read a persistent id as text: protocol 0 holds the printed form of a storage's tuple."""
    raw, end = _line(machine, pos + 1)
    text = raw.decode()
    pid: Any = text
    if match := _STORAGE_TEXT.fullmatch(text):
        kind = machine.find(match["module"], match["name"], pos)
        pid = ("storage", kind, match["key"], match["location"], _integer(match["numel"].encode()))
        if match["view"]:
            pid = (*pid, None)
    stack.append(machine.persistent(pid))
    return end


def _extension(machine: _Machine, stack: list[Any], pos: int) -> int:
    raise UnsafePickleError("a class is named by a number of the extension registry, which only its writer knows")


def _buffer(machine: _Machine, stack: list[Any], pos: int) -> int:
    raise UnsafePickleError("data are expected in a buffer outside the pickle")


def _list(machine: _Machine, stack: list[Any], items: list[Any], pos: int) -> int:
    stack.append(items)
    return pos + 1


def _dict(machine: _Machine, stack: list[Any], items: list[Any], pos: int) -> int:
    made: dict[Any, Any] = {}
    machine.set_items(made, items)
    stack.append(made)
    return pos + 1


def _frozen_set(machine: _Machine, stack: list[Any], items: list[Any], pos: int) -> int:
    stack.append(InertSet(items, frozen=True))
    return pos + 1


def _add_items(machine: _Machine, stack: list[Any], items: list[Any], pos: int) -> int:
    target = stack[-1]
    if type(target) is InertSet:
        target.elements.extend(items)
    elif type(target) is Call:
        machine.extend(target, items)
    else:
        raise UnsafePickleError(f"elements are added to a {type(target).__name__}")
    return pos + 1


def _instance(machine: _Machine, stack: list[Any], items: list[Any], pos: int) -> int:
    found, end = _two_lines(machine, pos)
    stack.append(machine.call(found, tuple(items)))
    return end


def _object(machine: _Machine, stack: list[Any], items: list[Any], pos: int) -> int:
    stack.append(machine.call(items[0], tuple(items[1:])))
    return pos + 1


RARE: dict[int, Rare] = {
    0x32: _dup,
    0x42: _bytes,
    0x43: _bytes,
    0x46: _float,
    0x49: _int,
    0x4C: _long,
    0x50: _persid,
    0x53: _string,
    0x54: _binary_string,
    0x55: _binary_string,
    0x56: _unicode,
    0x63: _global,
    0x67: _get,
    0x70: _put,
    0x80: _proto,
    0x82: _extension,
    0x83: _extension,
    0x84: _extension,
    0x8A: _long_binary,
    0x8B: _long_binary,
    0x8D: _unicode8,
    0x8E: _bytes,
    0x8F: _empty_set,
    0x92: _new_object_ex,
    0x93: _stack_global,
    0x95: _frame,
    0x96: _bytes,
    0x97: _buffer,
    0x98: _buffer,
}

AFTER_MARK: dict[int, AfterMark] = {
    0x64: _dict,
    0x69: _instance,
    0x6C: _list,
    0x6F: _object,
    0x90: _add_items,
    0x91: _frozen_set,
}
