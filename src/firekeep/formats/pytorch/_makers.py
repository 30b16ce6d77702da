"""Calls that only make plain data: containers, bytes, sizes. Their results are made here; every other call stays inert.

A maker takes the arguments of the call and gives the data, or `NotImplemented` for arguments it does not know.
"""

from __future__ import annotations

from typing import Any

from firekeep.formats.pytorch._inert import Call, Global, InertDict, InertSet, Maker, checked_key, crowded, is_crowded

_BUILTINS = ("builtins", "__builtin__")


def _make_dict(args: tuple[Any, ...]) -> Any:
    if not args:
        return InertDict()
    if len(args) > 1:
        return NotImplemented
    if isinstance(args[0], dict):
        return InertDict(args[0])
    if type(args[0]) not in (list, tuple):
        return NotImplemented
    if not all(type(pair) in (list, tuple) and len(pair) == 2 for pair in args[0]):
        return NotImplemented
    keys = [checked_key(key) for key, _ in args[0]]
    if is_crowded(keys):
        raise crowded()
    return InertDict(zip(keys, (value for _, value in args[0]), strict=True))


def _make_defaultdict(args: tuple[Any, ...]) -> Any:
    return _make_dict(args[1:])


def _make_set(args: tuple[Any, ...]) -> Any:
    return _make_any_set(args, frozen=False)


def _make_frozenset(args: tuple[Any, ...]) -> Any:
    return _make_any_set(args, frozen=True)


def _make_any_set(args: tuple[Any, ...], *, frozen: bool) -> Any:
    if not args:
        return InertSet([], frozen=frozen)
    if len(args) == 1 and type(args[0]) in (list, tuple):
        return InertSet(list(args[0]), frozen=frozen)
    if len(args) == 1 and isinstance(args[0], InertSet):
        return InertSet(list(args[0].elements), frozen=frozen)
    return NotImplemented


def _make_list(args: tuple[Any, ...]) -> Any:
    if not args:
        return []
    return list(args[0]) if len(args) == 1 and type(args[0]) in (list, tuple) else NotImplemented


def _make_tuple(args: tuple[Any, ...]) -> Any:
    if not args:
        return ()
    return tuple(args[0]) if len(args) == 1 and type(args[0]) in (list, tuple) else NotImplemented


def _make_bytes(args: tuple[Any, ...]) -> Any:
    """Read `bytes(b"..")`, `bytearray(b"..")` and `bytearray("..", "latin-1")`; a number would ask for memory."""
    if not args:
        return b""
    if type(args[0]) is bytes and len(args) == 1:
        return args[0]
    return _encode(args)


def _encode(args: tuple[Any, ...]) -> Any:
    """Read `_codecs.encode(text, "latin1")`, which is how protocols below 3 hold bytes."""
    if len(args) != 2 or type(args[0]) is not str or args[1] not in ("latin1", "latin-1", "utf-8", "utf8", "ascii"):
        return NotImplemented
    try:
        return args[0].encode(args[1])
    except UnicodeEncodeError:
        return NotImplemented


def _make_complex(args: tuple[Any, ...]) -> Any:
    if len(args) != 2 or any(type(part) not in (int, float) for part in args):
        return NotImplemented
    try:
        return complex(*args)
    except OverflowError:
        return NotImplemented


def _first_argument(args: tuple[Any, ...]) -> Any:
    return args[0] if args else NotImplemented


def _reconstruct(args: tuple[Any, ...]) -> Any:
    """Read `copyreg._reconstructor(cls, base, state)`, which is how protocols 0 and 1 make objects."""
    if len(args) != 3 or not isinstance(args[0], Global):
        return NotImplemented
    cls, base, state = args
    cls.called = True
    if cls.make is not None:
        made = cls.make(() if state is None else (state,))
        if made is not NotImplemented:
            return made
    call = Call(cls, ())
    if isinstance(state, dict):
        call.items = dict(state)
    elif type(state) is list:
        call.elements = list(state)
    elif state is not None or not isinstance(base, Global):
        call.args = (state,)
    return call


def _new_object(args: tuple[Any, ...]) -> Any:
    """Read `copyreg.__newobj__(cls, *args)`."""
    if not args or not isinstance(args[0], Global):
        return NotImplemented
    cls = args[0]
    cls.called = True
    made = NotImplemented if cls.make is None else cls.make(args[1:])
    return Call(cls, args[1:]) if made is NotImplemented else made


def _rows() -> dict[tuple[str, str], Maker]:
    rows: dict[tuple[str, str], Maker] = {
        ("collections", "OrderedDict"): _make_dict,
        ("collections", "Counter"): _make_dict,
        ("collections", "defaultdict"): _make_defaultdict,
        ("_codecs", "encode"): _encode,
        ("torch", "Size"): _make_tuple,
        ("torch.jit._pickle", "build_intlist"): _first_argument,
        ("torch.jit._pickle", "build_doublelist"): _first_argument,
        ("torch.jit._pickle", "build_boollist"): _first_argument,
        ("torch.jit._pickle", "build_tensorlist"): _first_argument,
        ("torch.jit._pickle", "restore_type_tag"): _first_argument,
    }
    plain: dict[str, Maker] = {
        "dict": _make_dict,
        "set": _make_set,
        "frozenset": _make_frozenset,
        "list": _make_list,
        "tuple": _make_tuple,
        "bytes": _make_bytes,
        "bytearray": _make_bytes,
        "complex": _make_complex,
    }
    for module in _BUILTINS:
        rows.update({(module, name): maker for name, maker in plain.items()})
    for module in ("copyreg", "copy_reg"):
        rows[module, "_reconstructor"] = _reconstruct
        rows[module, "__newobj__"] = _new_object
    return rows


MAKERS = _rows()


def size_of(made: Any) -> int:
    """Say how many values a maker copied: a short call can copy a long list."""
    if isinstance(made, InertSet):
        return len(made.elements)
    if isinstance(made, dict | list | tuple):
        return len(made)
    if isinstance(made, Call):
        return len(made.items or ()) + len(made.elements or ()) + len(made.args)
    return 0
