"""The pickle machine: all opcodes of protocols 0 to 5, and nothing that runs.

A global becomes a `Global`, a call a `Call`, a persistent id whatever the container's reader makes of it. Every other reader of
pickles imports and calls. The standard library's C unpickler with stand-ins would be inert too, but takes 2 GB for a memo index
in a file of 9 bytes and overflows the C stack on a deeply nested key; this machine reads 20,000 tensors in a fifth of a second.
"""

from __future__ import annotations

import struct
from itertools import repeat
from typing import Any

from firekeep.errors import FirekeepError, UnsafePickleError
from firekeep.formats.pytorch._rare import AFTER_MARK, RARE
from firekeep.formats.pytorch._work import Work

_CHUNK = 1 << 16
"""Opcodes between two looks at the limits."""
_WASTE = 4
"""What throwing a value away counts for: a pickler hardly ever does, and who makes values only to drop them wants the time."""
_U32 = struct.Struct("<I").unpack_from
_I32 = struct.Struct("<i").unpack_from
_U16 = struct.Struct("<H").unpack_from
_F64 = struct.Struct(">d").unpack_from
_READ_ERRORS = (IndexError, KeyError, struct.error, ValueError, OverflowError)


class Machine(Work):
    """Reads one pickle. `run` gives its value and moves `position` behind it."""

    def run(self) -> Any:  # noqa: C901 - one branch an opcode, the frequent ones first: a table of functions is three times slower
        """Read the pickle up to its STOP.

        Raises `UnsafePickleError` for damaged pickles and for what is more than data, `TruncatedError` for a pickle that ends
        before its STOP, `LimitError` beyond the limits; all say the byte and the opcode.
        """
        data, memo, persistent = self.data, self.memo, self.persistent
        pos = start = self.position
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
                            made += 2
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
                        made += 2
                        pos += 1
                    elif op == 0x75:  # SETITEMS
                        self.set_items(meta[-1][-1], stack)
                        made += 3 + (len(stack) >> 3)
                        stack = meta.pop()
                        pos += 1
                    elif op == 0x65:  # APPENDS
                        self.extend(meta[-1][-1], stack)
                        made += 2 + (len(stack) >> 3)
                        stack = meta.pop()
                        pos += 1
                    elif op == 0x7D:  # EMPTY_DICT
                        stack.append({})
                        made += 1
                        pos += 1
                    elif op == 0x61:  # APPEND
                        value = stack.pop()
                        self.extend(stack[-1], [value])
                        made += 2
                        pos += 1
                    elif op == 0x5D:  # EMPTY_LIST
                        stack.append([])
                        made += 1
                        pos += 1
                    elif op == 0x62:  # BUILD
                        value = stack.pop()
                        self.build(stack[-1], value)
                        made += 2
                        pos += 1
                    elif op == 0x30:  # POP
                        if stack:
                            stack.pop()
                        else:
                            stack = meta.pop()
                        made += _WASTE
                        pos += 1
                    elif op == 0x31:  # POP_MARK
                        stack = meta.pop()
                        made += _WASTE
                        pos += 1
                    elif op == 0x2E:  # STOP
                        value = stack.pop()
                        self.position = pos + 1
                        self.check(made, stack=0, depth=0)
                        return value
                    elif op in AFTER_MARK:
                        items = stack
                        stack = meta.pop()
                        made += 2
                        pos = AFTER_MARK[op](self, stack, items, pos)
                    else:
                        made += 1
                        pos = RARE[op](self, stack, pos)
                self.check(made, stack=len(stack) + sum(map(len, meta[-_CHUNK:])), depth=len(meta))
            self.refuse_beyond("pickle_opcodes", self.limits.pickle_opcodes, self.limits.pickle_opcodes + 1, "opcodes")
        except UnsafePickleError as error:
            raise self.at(pos, error.message, error.remedy) if error.offset is None else error from None
        except FirekeepError:
            raise
        except _READ_ERRORS as error:
            raise self.explain(pos, error) from None
        finally:
            self.made += made
            self.position = max(self.position, pos)
            self.opcodes = min(self.limits.pickle_opcodes - left, self.position - start)  # each takes a byte or more
