"""The pickle machine reads what Python's own pickler writes, in every protocol, and does nothing."""

from __future__ import annotations

import collections
import contextlib
import pickle
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firekeep.errors import FirekeepError, LimitError, TruncatedError, UnsafePickleError
from firekeep.formats.pytorch._inert import Call, Global, InertDict, InertSet
from firekeep.formats.pytorch._machine import Machine
from firekeep.limits import DEFAULT_LIMITS
from pickles import (
    APPEND,
    BUILD,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    MARK,
    NEWOBJ,
    NONE,
    REDUCE,
    SETITEM,
    STOP,
    call,
    group,
    mapping,
    name,
    new,
    number,
    pickled,
    text,
)

PROTOCOLS = range(6)

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 40), 1 << 40)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
keys = st.text(max_size=5) | st.integers(-(1 << 63), 1 << 63) | st.booleans() | st.none() | st.tuples(st.integers(0, 9))
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=5)
        | st.sets(st.integers(0, 99), max_size=4)
        | st.frozensets(st.text(max_size=3), max_size=4)
        | st.binary(max_size=9).map(bytearray)
    ),
    max_leaves=25,
)


def run(data: bytes, **limits: int) -> Any:
    return Machine(data, limits=replace(DEFAULT_LIMITS, **limits)).run()


def plain(value: Any) -> Any:
    """What the machine gives for data, in the types of Python."""
    if isinstance(value, InertSet):
        elements = [plain(element) for element in value.elements]
        return frozenset(elements) if value.frozen else set(elements)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    return value


def frozen(value: Any) -> Any:
    """Python's data, with byte arrays as bytes: they are given so."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(frozen(item) for item in value)
    return value


@settings(deadline=None)
@given(trees, st.sampled_from(PROTOCOLS))
def test_data_of_every_protocol_are_read(value: Any, protocol: int):
    read = plain(run(pickle.dumps(value, protocol)))
    assert repr(read) == repr(frozen(value)) or read == frozen(value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_types_are_kept(protocol: int):
    value = [True, 1, 1.0, "1", b"1", None, 1 << 70, -(1 << 2100), float("inf"), (), [], {}, "\ud800", "\n\\u0041"]
    read = run(pickle.dumps(value, protocol))
    assert read == value
    assert [type(item) for item in read] == [type(item) for item in value]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shared_objects_stay_shared(protocol: int):
    inner = [1]
    read = run(pickle.dumps({"a": inner, "b": (inner, inner)}, protocol))
    assert read["a"] is read["b"][0] is read["b"][1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cycles_stay_cycles(protocol: int):
    value: list[Any] = []
    value.append((value,))
    read = run(pickle.dumps(value, protocol))
    assert read[0][0] is read


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("length", [0, 1, 2, 999, 1000, 1001, 2500])
def test_long_containers_come_in_batches(protocol: int, length: int):
    value = (list(range(length)), {str(item): item for item in range(length)}, tuple(range(length)))
    assert run(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_memo_entries_are_kept_apart(protocol: int):
    words = [f"word {index}" for index in range(70_000)]
    assert run(pickle.dumps([words, words], protocol))[1] == words


def test_memo_entries_may_start_anywhere_and_leave_gaps():
    assert run(b"X\x01\0\0\0aq\x01X\x01\0\0\0br\xff\xff\xff\x7f0h\x01j\xff\xff\xff\x7f\x86.") == ("a", "b")


def test_a_memo_entry_may_be_overwritten():
    assert run(b"K\x01q\x00K\x02q\x00h\x00\x86.") == (2, 2)


def test_gigantic_memo_indices_cost_nothing():
    assert run(b"\x80\x02Nr\xff\xff\xff\xff.") is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_containers_of_the_collections_module_are_plain_data(protocol: int):
    value = (
        collections.OrderedDict(a=1),
        collections.defaultdict(list, {"b": [2]}),
        collections.Counter("aab"),
    )
    read = run(pickle.dumps(value, protocol))
    assert read == ({"a": 1}, {"b": [2]}, {"a": 2, "b": 1})
    assert {type(item) for item in read} == {InertDict}


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


class Names(dict[str, int]):
    pass


class Rows(list[int]):
    pass


Pair = collections.namedtuple("Pair", "left right")  # noqa: PYI024 - what files hold


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_objects_are_calls_with_their_state(protocol: int):
    read = run(pickle.dumps(Point(7), protocol))
    assert type(read) is Call
    assert read.func.path.endswith("test_machine.Point")
    assert read.state == {"x": 7}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_subclasses_of_containers_keep_what_they_hold(protocol: int):
    names, rows, pair = run(pickle.dumps((Names(a=1), Rows([1, 2]), Pair(1, 2)), protocol))
    assert names.items == {"a": 1}
    assert rows.elements == [1, 2]
    assert pair.args in ((1, 2), ((1, 2),))


def test_objects_with_keyword_arguments_keep_them():
    made = run(name("m", "C") + group(number(1)) + mapping({"size": number(2)}) + b"\x92.")
    assert made.args == (1, {"size": 2})


def test_instances_of_old_classes_are_calls():
    read = run(b"(K\x05im\nC\n.")
    assert (read.func.path, read.args) == ("m.C", (5,))
    read = run(b"(cm\nC\nK\x05o.")
    assert (read.func.path, read.args) == ("m.C", (5,))


def test_text_opcodes_are_read():
    body = b"(I01\nI00\nI-5\nL12345678901234567890L\nF1.5\nS'a\\'b'\nVx\\u20ac\nt."
    assert run(body) == (True, False, -5, 12345678901234567890, 1.5, "a'b", "x\u20ac")


def test_strings_of_python_2_are_text_or_else_bytes():
    assert run(b"U\x02ab.") == "ab"
    assert run(b"U\x02\xff\xfe.") == b"\xff\xfe"
    assert run(b"T\x03\0\0\0\xc3\xa9!.") == "é!"
    assert run(b"S'\\xff'\n.") == b"\xff"


@pytest.mark.parametrize("value", [b"plain", b"a\\b'c\"d\n\r\t\x00\x7f", b"\\", b"'\"", b"\x1b[2J"])
def test_printed_strings_of_python_2_are_unescaped(value: bytes):
    printed = repr(value)[1:].encode()
    assert run(b"S" + printed + b"\n.") == value.decode()


def test_odd_escapes_in_printed_strings_are_taken_as_they_are():
    assert run(b"S'\\q\\101\\a\\b\\f\\v'\n.") == "\\qA\a\b\f\v"


def test_long_bytes_are_not_counted_as_wide_text():
    raw = b"\xff" * 200_000
    assert run(b"B" + struct.pack("<I", len(raw)) + raw + STOP, text_bytes=250_000) == raw


def test_marks_are_popped_as_python_does():
    assert run(b"K\x01(0.") == 1
    assert run(b"K\x01(K\x02K\x031.") == 1
    assert run(b"K\x012\x86.") == (1, 1)


def test_sets_are_not_hashed():
    read = run(b"\x8f(]]\x90.")
    assert read.elements == [[], []]
    assert run(b"(K\x01\x91.").frozen


def test_names_are_counted_and_calls_are_seen():
    machine = Machine(
        pickled(group(call("os", "system", text("true")), name("os", "system"), name("a", "B"))), limits=DEFAULT_LIMITS
    )
    machine.run()
    seen = {found.path: (found.count, found.called, found.offset) for found in machine.globals.values()}
    assert seen == {"os.system": (2, True, 3), "a.B": (1, False, 37)}


def test_a_call_of_a_call_is_remembered():
    read = run(call("functools", "partial", name("os", "system")) + group(text("true")) + REDUCE + STOP)
    assert read.args == ("true",)
    assert read.func.func.path == "functools.partial"
    assert read.func.args[0].path == "os.system"


def test_the_offset_after_the_pickle_is_known():
    machine = Machine(b"K\x01.K\x02.rest", limits=DEFAULT_LIMITS)
    assert (machine.run(), machine.position) == (1, 3)


def test_a_second_state_does_not_hide_the_first():
    read = run(new("m", "C", mapping({"a": number(1)})) + mapping({"b": number(2)}) + BUILD + STOP)
    assert read.state == ({"a": 1}, {"b": 2})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"h\x05.", "byte 0, opcode BINGET: nothing was remembered under memo index 5"),
        (b"g7\n.", "byte 0, opcode GET: nothing was remembered under memo index 7"),
        (b"Np-1\n.", "byte 1, opcode PUT: memo index -1 is negative"),
        (b"t.", "byte 0, opcode TUPLE: the stack holds too few values"),
        (b"K\x01\x86.", "byte 2, opcode TUPLE2: the stack holds too few values"),
        (b"(K\x01(\x86.", "byte 4, opcode TUPLE2: the stack holds too few values"),
        (b".", "byte 0, opcode STOP: the stack holds too few values"),
        (b"\xff.", "byte 0: 0xff is not an opcode"),
        (b"\x80\x06N.", "byte 0, opcode PROTO: pickle protocol 6 is not one of 0 to 5"),
        (b"\x82\x01.", "opcode EXT1: a class is named by a number of the extension registry"),
        (b"\x97.", "opcode NEXT_BUFFER: data are expected in a buffer outside the pickle"),
        (b"K\x01K\x02\x93.", "byte 4, opcode STACK_GLOBAL: a global is named by a int and a int"),
        (b"X\x01\0\0\0aK\x02\x93.", "a global is named by a str and a int"),
        (b"K\x01)R.", "byte 3, opcode REDUCE: a int would be called"),
        (b"cm\nC\nK\x01R.", "the arguments of a call are a int, not a tuple"),
        (b"K\x01}b.", "byte 3, opcode BUILD: a int has no state to set"),
        (b"]}b.", "a list has no state to set"),
        (b"cm\nC\n}b.", "the state of the class m.C itself would be changed"),
        (b"K\x01K\x02a.", "opcode APPEND: values are appended to a int"),
        (b"]K\x01K\x02s.", "opcode SETITEM: a list is given keys"),
        (b"}(K\x01u.", "opcode SETITEMS: a key has no value"),
        (b"}]Ns.", "opcode SETITEM: a dictionary key is a list"),
        (b"}}Ns.", "a dictionary key is a dict"),
        (b"}]\x85Ns.", "a dictionary key is a list"),
        (b"}\x8a\x09" + b"\x01" * 9 + b"Ns.", "a dictionary key is an integer of 65 bits"),
        (b"Iabc\n.", "opcode INT: its argument cannot be read"),
        (b"S'abc\n.", "opcode STRING: a string is not quoted"),
        (b"X\x01\0\0\0\xff.", "opcode BINUNICODE: its argument cannot be read"),
        (b"T\xff\xff\xff\xff.", "a string has the negative length -1"),
        (b"U\x02ab\x8c\x01aQ.", "opcode BINPERSID: a persistent id"),
        (b"P5\n.", "opcode PERSID: a persistent id"),
        (b"I" + b"9" * 5000 + b"\n.", "opcode INT: its argument cannot be read"),
        (b"K\x01K\x02\x90.", "opcode ADDITEMS: the stack holds too few values"),
        (b"K\x01(K\x02\x90.", "elements are added to a int"),
        (b"cm\nC\nK\x01K\x02\x92.", "the arguments of a constructor are not a tuple and a dict"),
    ],
)
def test_damage_is_told_with_its_byte_and_opcode(body: bytes, message: str):
    with pytest.raises(UnsafePickleError) as caught:
        run(body)
    assert message in str(caught.value)
    assert caught.value.offset is not None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_cut_at_any_byte_is_refused(protocol: int):
    data = pickle.dumps({"a": [1, 2.5, "x" * 300, b"y" * 300, 1 << 80], "b": (None, {3}), "c": Point(1)}, protocol)
    for length in range(len(data)):
        with pytest.raises((TruncatedError, UnsafePickleError)):
            run(data[:length])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends at byte 0, before its STOP"),
        (b"K", "ends at byte 1, inside BININT1, before its STOP"),
        (b"cmodule\nname", "ends at byte 12, inside GLOBAL, before its STOP"),
        (b"\x8e" + struct.pack("<Q", 1 << 60) + b".", "inside the 1152921504606846976 bytes that start at 9"),
        (b"\x96" + struct.pack("<Q", 1 << 63) + b".", "inside the 9223372036854775808 bytes that start at 9"),
        (b"\x95" + struct.pack("<Q", 1 << 62) + b"N.", "inside the 4611686018427387904 bytes that start at 9"),
        (b"\x8b\xff\xff\xff\x7f.", "inside the 2147483647 bytes that start at 5"),
    ],
)
def test_a_pickle_that_ends_early_says_where(data: bytes, message: str):
    with pytest.raises(TruncatedError) as caught:
        run(data)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("field", "limit", "body"),
    [
        ("pickle_opcodes", 5, NONE * 9),
        ("pickle_nodes", 3, EMPTY_DICT * 5),
        ("pickle_nodes", 3, b"N" + b"\x94" * 9),
        ("text_bytes", 4, text("12345")),
        ("text_bytes", 300, text("1" * 290 + "\U0001f525")),
    ],
)
def test_limits_are_obeyed_and_named(field: str, limit: int, body: bytes):
    with pytest.raises(LimitError) as caught:
        run(body + STOP, **{field: limit})
    assert caught.value.limit == limit
    assert caught.value.actual is not None
    assert caught.value.actual > limit
    assert f"firekeep.Limits({field}=...)" in str(caught.value)


def test_short_calls_cannot_copy_a_long_list_again_and_again():
    body = EMPTY_LIST + MARK + NONE * 1000 + b"eq\0" + name("builtins", "list") + b"q\1"
    with pytest.raises(LimitError, match="values"):
        run(body + b"h\1h\0\x85R" * 1000 + STOP, pickle_nodes=100_000)


def test_short_calls_cannot_copy_a_long_text_again_and_again():
    body = text("x" * 10_000) + b"q\0" + name("_codecs", "encode") + b"q\1" + text("latin1") + b"q\2"
    with pytest.raises(LimitError, match="bytes of text"):
        run(body + b"h\1h\0h\2\x86R" * 1000 + STOP, text_bytes=1_000_000)


def test_work_that_leaves_nothing_behind_is_counted():
    with pytest.raises(LimitError, match="values"):
        run(b"N0" * 200_000 + b"N.", pickle_nodes=100_000)


def test_a_million_levels_are_let_go_of():
    run(NONE + b"\x85" * 1_000_000 + STOP)


def test_keys_that_are_dangerous_to_hash_are_refused():
    doubled = b"".join(b"q" + bytes([index]) + b"h" + bytes([index]) + b"\x86" for index in range(60))
    with pytest.raises(UnsafePickleError, match="a dictionary key is a tuple of more than 1000 values or 16 levels"):
        run(EMPTY_DICT + EMPTY_TUPLE + doubled + NONE + SETITEM + STOP)
    with pytest.raises(UnsafePickleError, match="a dictionary key is a tuple of more than 1000 values or 16 levels"):
        run(EMPTY_DICT + NONE + b"\x85" * 100_000 + NONE + SETITEM + STOP)


@pytest.mark.parametrize("module", ["copyreg", "copy_reg"])
def test_objects_of_protocols_0_and_1_are_read(module: str):
    body = name(module, "_reconstructor") + group(name("m", "C"), name("builtins", "object"), NONE) + REDUCE
    read = run(body + mapping({"x": number(1)}) + BUILD + STOP)
    assert (read.func.path, read.args, read.state) == ("m.C", (), {"x": 1})
    body = name(module, "_reconstructor") + group(name("m", "C"), name("builtins", "dict"), mapping({"k": number(2)}))
    assert run(body + REDUCE + STOP).items == {"k": 2}


def test_new_objects_of_known_classes_are_plain_data():
    assert run(name("collections", "OrderedDict") + EMPTY_TUPLE + NEWOBJ + STOP) == {}
    assert run(call("copyreg", "__newobj__", name("collections", "OrderedDict")) + STOP) == {}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (call("builtins", "dict"), {}),
        (call("builtins", "dict", mapping({"a": number(1)})), {"a": 1}),
        (call("builtins", "dict", group(group(text("a"), number(1)))), {"a": 1}),
        (call("builtins", "list"), []),
        (call("builtins", "list", group(number(1))), [1]),
        (call("builtins", "tuple"), ()),
        (call("builtins", "tuple", EMPTY_LIST), ()),
        (call("builtins", "bytes"), b""),
        (call("builtins", "bytearray", b"C\1x"), b"x"),
        (call("builtins", "bytearray", text("x"), text("latin-1")), b"x"),
        (call("builtins", "complex", number(1), number(2)), 1 + 2j),
        (call("torch.jit._pickle", "restore_type_tag", group(number(1)), text("Tuple[int]")), (1,)),
        (call("torch.jit._pickle", "build_intlist", EMPTY_LIST), []),
    ],
)
def test_calls_that_only_make_data_make_it(body: bytes, expected: object):
    assert run(body + STOP) == expected


def test_sets_of_sets_are_copied():
    inner = call("builtins", "set", group(number(1)))
    assert run(call("builtins", "frozenset", inner) + STOP).elements == [1]
    assert run(call("builtins", "set") + STOP).elements == []


def test_objects_of_old_protocols_may_hold_other_things():
    made = run(call("copyreg", "_reconstructor", name("m", "C"), name("builtins", "int"), number(5)) + STOP)
    assert made.args == (5,)
    made = run(call("copyreg", "_reconstructor", name("m", "C"), name("builtins", "list"), EMPTY_LIST) + STOP)
    assert made.elements == []


def test_names_of_absurd_length_are_refused():
    with pytest.raises(UnsafePickleError, match="a global has a name of 5000 bytes"):
        run(b"c" + b"m" * 5000 + b"\nC\n.")
    with pytest.raises(UnsafePickleError, match="a global has a name of 5001 characters"):
        run(text("m" * 5000) + text("C") + b"\x93.")
    with pytest.raises(UnsafePickleError, match="a int would be instantiated"):
        run(number(1) + b")}\x92.")


def test_long_strings_of_python_2_that_are_not_ascii_are_bytes():
    raw = "é".encode() * 600_000
    assert run(b"T" + struct.pack("<I", len(raw)) + raw + STOP) == raw
    assert run(b"T" + struct.pack("<I", 1_200_000) + b"a" * 1_200_000 + STOP) == "a" * 1_200_000


def test_calls_with_odd_arguments_stay_calls():
    for body in (
        call("builtins", "set", number(1)),
        call("builtins", "dict", number(1)),
        call("collections", "OrderedDict", group(number(1))),
        call("builtins", "bytearray", number(1 << 40)),
        call("builtins", "bytes", number(1 << 40)),
        call("_codecs", "encode", text("a"), text("rot13")),
        call("builtins", "list", text("abc")),
        call("builtins", "complex", text("1")),
        call("builtins", "complex", number(1 << 2000), number(0)),
        call("builtins", "tuple", number(1)),
        call("builtins", "dict", mapping({}), mapping({})),
        call("_codecs", "encode", text("€"), text("latin1")),
        call("torch.jit._pickle", "build_intlist"),
        call("copyreg", "_reconstructor", number(1), number(1), number(1)),
        call("copyreg", "__newobj__"),
    ):
        assert type(run(body + STOP)) is Call


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_raise_nothing_but_errors_of_ours(data: bytes):
    with contextlib.suppress(FirekeepError):
        run(data)


def test_a_global_is_one_object():
    read = run(group(name("a", "B"), name("a", "B")) + STOP)
    assert type(read[0]) is Global
    assert read[0] is read[1]


def test_appending_to_an_unknown_object_fills_its_elements():
    read = run(new("m", "C") + number(1) + APPEND + MARK + number(2) + number(3) + b"e" + STOP)
    assert read.elements == [1, 2, 3]
