"""The opcodes of pickle protocols 0 to 5: their names, and how long what follows them is."""

from __future__ import annotations

from typing import Literal

Form = Literal["none", "fixed", "line", "two lines", "sized"]

# name, form, and for "fixed" the bytes that follow, for "sized" the bytes of the length that precedes the data.
_ROWS: tuple[tuple[int, str, Form, int], ...] = (
    (0x28, "MARK", "none", 0),
    (0x29, "EMPTY_TUPLE", "none", 0),
    (0x2E, "STOP", "none", 0),
    (0x30, "POP", "none", 0),
    (0x31, "POP_MARK", "none", 0),
    (0x32, "DUP", "none", 0),
    (0x42, "BINBYTES", "sized", 4),
    (0x43, "SHORT_BINBYTES", "sized", 1),
    (0x46, "FLOAT", "line", 0),
    (0x47, "BINFLOAT", "fixed", 8),
    (0x49, "INT", "line", 0),
    (0x4A, "BININT", "fixed", 4),
    (0x4B, "BININT1", "fixed", 1),
    (0x4C, "LONG", "line", 0),
    (0x4D, "BININT2", "fixed", 2),
    (0x4E, "NONE", "none", 0),
    (0x50, "PERSID", "line", 0),
    (0x51, "BINPERSID", "none", 0),
    (0x52, "REDUCE", "none", 0),
    (0x53, "STRING", "line", 0),
    (0x54, "BINSTRING", "sized", 4),
    (0x55, "SHORT_BINSTRING", "sized", 1),
    (0x56, "UNICODE", "line", 0),
    (0x58, "BINUNICODE", "sized", 4),
    (0x5D, "EMPTY_LIST", "none", 0),
    (0x61, "APPEND", "none", 0),
    (0x62, "BUILD", "none", 0),
    (0x63, "GLOBAL", "two lines", 0),
    (0x64, "DICT", "none", 0),
    (0x65, "APPENDS", "none", 0),
    (0x67, "GET", "line", 0),
    (0x68, "BINGET", "fixed", 1),
    (0x69, "INST", "two lines", 0),
    (0x6A, "LONG_BINGET", "fixed", 4),
    (0x6C, "LIST", "none", 0),
    (0x6F, "OBJ", "none", 0),
    (0x70, "PUT", "line", 0),
    (0x71, "BINPUT", "fixed", 1),
    (0x72, "LONG_BINPUT", "fixed", 4),
    (0x73, "SETITEM", "none", 0),
    (0x74, "TUPLE", "none", 0),
    (0x75, "SETITEMS", "none", 0),
    (0x7D, "EMPTY_DICT", "none", 0),
    (0x80, "PROTO", "fixed", 1),
    (0x81, "NEWOBJ", "none", 0),
    (0x82, "EXT1", "fixed", 1),
    (0x83, "EXT2", "fixed", 2),
    (0x84, "EXT4", "fixed", 4),
    (0x85, "TUPLE1", "none", 0),
    (0x86, "TUPLE2", "none", 0),
    (0x87, "TUPLE3", "none", 0),
    (0x88, "NEWTRUE", "none", 0),
    (0x89, "NEWFALSE", "none", 0),
    (0x8A, "LONG1", "sized", 1),
    (0x8B, "LONG4", "sized", 4),
    (0x8C, "SHORT_BINUNICODE", "sized", 1),
    (0x8D, "BINUNICODE8", "sized", 8),
    (0x8E, "BINBYTES8", "sized", 8),
    (0x8F, "EMPTY_SET", "none", 0),
    (0x90, "ADDITEMS", "none", 0),
    (0x91, "FROZENSET", "none", 0),
    (0x92, "NEWOBJ_EX", "none", 0),
    (0x93, "STACK_GLOBAL", "none", 0),
    (0x94, "MEMOIZE", "none", 0),
    (0x95, "FRAME", "fixed", 8),
    (0x96, "BYTEARRAY8", "sized", 8),
    (0x97, "NEXT_BUFFER", "none", 0),
    (0x98, "READONLY_BUFFER", "none", 0),
)

NAMES = {code: name for code, name, _, _ in _ROWS}
FORMS = {code: (form, width) for code, _, form, width in _ROWS}


def argument_end(data: bytes, position: int) -> int | None:
    """Give where the argument of the opcode at `position` ends; None when the data end before it does.

    An unknown opcode takes no argument.
    """
    form, width = FORMS.get(data[position], ("none", 0))
    start = position + 1
    if form in ("line", "two lines"):
        for _ in range(1 if form == "line" else 2):
            start = data.find(b"\n", start) + 1
            if start == 0:
                return None
        return start
    end = start + width
    if end > len(data):
        return None
    if form == "sized":
        end += int.from_bytes(data[start:end], "little")
    return end if end <= len(data) else None
