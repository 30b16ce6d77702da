from __future__ import annotations

import enum
import functools
import json
import math
import pathlib
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firekeep.errors import FormatError, LimitError, UnsupportedError
from firekeep.tagged import MAX_DEPTH, TensorAt, decode, encode, join_tensors, split_tensors


def float_of(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def exact(value):
    """A form of a value in which equal means: the same types, the same bits, the same order."""
    kind = type(value).__name__
    if isinstance(value, np.generic):
        return (str(value.dtype), value.tobytes())
    if isinstance(value, float):
        return (kind, struct.pack("<d", value))
    if isinstance(value, complex):
        return (kind, struct.pack("<dd", value.real, value.imag))
    if isinstance(value, dict):
        return (kind, [(exact(key), exact(item)) for key, item in value.items()])
    if isinstance(value, set | frozenset):
        return (kind, sorted(map(repr, map(exact, value))))
    if isinstance(value, deque):
        return (kind, list(map(exact, value)), value.maxlen)
    if isinstance(value, list | tuple):
        return (kind, list(map(exact, value)))
    return (kind, value)


floats = st.integers(0, 2**64 - 1).map(float_of) | st.floats()
atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**2000), 2**2000),
    floats,
    st.text(),
    st.characters(categories=["Cs"]),  # halves of surrogate pairs, which UTF-8 has no bytes for
    st.binary(),
    st.builds(complex, floats, floats),
    floats.map(np.float64),
    st.integers(-128, 127).map(np.int8),
    st.booleans().map(np.bool_),
    st.floats(width=16).map(np.float16),
    st.floats(width=32).map(np.complex64),
    st.floats(-8, 8).map(ml_dtypes.bfloat16),
    st.text().map(TensorAt),
)
plain_keys = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.just("$tuple") | st.just("$dict")
keys = st.recursive(plain_keys, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)


def containers(inner):
    lists = st.lists(inner, max_size=4)
    dicts = st.dictionaries(keys, inner, max_size=4)
    return st.one_of(
        lists,
        lists.map(tuple),
        dicts,
        dicts.map(OrderedDict),
        st.dictionaries(keys, st.integers(), max_size=4).map(Counter),
        st.sets(keys, max_size=4),
        lists.map(deque),
        lists.map(lambda items: deque(items, maxlen=len(items) + 1)),
    )


values = st.recursive(atoms, containers, max_leaves=12)


@given(values)
@settings(max_examples=400)
def test_every_value_comes_back_to_the_bit(value):
    text = encode(value)
    assert exact(decode(text)) == exact(value)
    assert text.isascii()


@given(values)
def test_the_text_is_strict_json(value):
    def refuse(name):
        raise AssertionError(name)

    json.loads(encode(value), parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, None, True], "b": {}}, '{"a":[1,2.5,null,true],"b":{}}'),
        (-0.0, "-0.0"),
        (math.inf, '{"$float":"inf"}'),
        (float_of(0x7FF8 << 48 | 5), '{"$float":"0x7ff8000000000005"}'),
        ((1, (2,)), '{"$tuple":[1,{"$tuple":[2]}]}'),
        ({"$tuple": [1]}, '{"$dict":[["$tuple",[1]]]}'),
        ({3: 2}, '{"$dict":[[3,2]]}'),
        (Counter({30: 1}), '{"$counter":[[30,1]]}'),
        (deque([1], 2), '{"$deque":[[1],2]}'),
        (b"\0\xff", '{"$bytes":"AP8="}'),
        (np.float32(0.5), '{"$numpy":["float32","0000003f"]}'),
        ({3, 1, 2}, '{"$set":[1,2,3]}'),
        (TensorAt("a.b"), '{"$tensor":"a.b"}'),
    ],
)
def test_how_values_are_spelled(value, text):
    assert encode(value) == text


def test_keys_keep_their_order_and_sets_do_not_show_theirs():
    assert list(decode(encode({"b": 1, "a": 2}))) == ["b", "a"]
    assert encode({"x", "y", "z"}) == encode({"z", "y", "x"})


class Colour(enum.Enum):
    RED = 1


@dataclass
class Data:
    x: int


class Dictish(dict):
    pass


Point = namedtuple("Point", "x y")  # noqa: PYI024 - what users have


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Colour.RED, "Give its .value"),
        (defaultdict(list), "Give dict"),
        (Point(1, 2), "_asdict"),
        (Data(1), "asdict"),
        (pathlib.PurePosixPath("a"), "Give str"),
        (np.zeros(2), "tolist"),
        (len, "code is never kept"),
        (lambda: 0, "code is never kept"),
        (functools.partial(len), "code is never kept"),
        (Dictish(), "Give dict"),
        (np.str_("a"), "plain value"),
        (np.longdouble(1), "NumPy scalar of"),
        (np.datetime64("2020-01-01"), "NumPy scalar of"),
        (range(3), "Leave it out"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_place(value, words):
    with pytest.raises(UnsupportedError, match=r"'state\.a\.1'") as caught:
        encode({"a": [0, value]}, path="state")
    assert words in str(caught.value)


def test_values_inside_themselves_are_refused():
    value = []
    value.append(value)
    with pytest.raises(LimitError, match="themselves"):
        encode(value)


def nested(depth):
    value = 0
    for _ in range(depth):
        value = (value,)
    return value


def test_what_is_as_deep_as_allowed_comes_back():
    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(LimitError, match="deep"):
        encode(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000 + "]" * 5000,
        '{"$tuple":[' * 120 + "]}" * 120,
        "[" + "0," * 1_000_001 + "0]",
        '["' + '\\"' * 2_000_000 + '",' + "0," * 1_000_001 + "0]",
    ],
)
def test_texts_that_ask_for_too_much(text):
    with pytest.raises(LimitError):
        decode(text)


def test_commas_in_texts_are_no_values():
    assert decode(encode("," * 1_500_000)) == "," * 1_500_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[Infinity]",
        "9" * 5000,
        '{"a":1,"a":2}',
        '{"$tuple":[1],"x":2}',
        '{"$module":"os"}',
        '{"$tuple":1}',
        '{"$dict":[[1]]}',
        '{"$dict":[[1,2],[1,3]]}',
        '{"$dict":[[[],2]]}',
        '{"$set":[1,1]}',
        '{"$set":[[]]}',
        '{"$int":"0xfg"}',
        '{"$float":"0x3ff0000000000000"}',
        '{"$float":"1"}',
        '{"$bytes":"?"}',
        '{"$bytes":"A"}',
        '{"$deque":[[1,2],1]}',
        '{"$deque":[[],true]}',
        '{"$complex":[1.0]}',
        '{"$complex":[1,2]}',
        '{"$numpy":["object","00"]}',
        '{"$numpy":["float32","00"]}',
        '{"$numpy":["bool","02"]}',
        '{"$tensor":1}',
    ],
)
def test_texts_that_nobody_wrote(text):
    with pytest.raises(FormatError):
        decode(text)


def is_array(value):
    return isinstance(value, np.ndarray)


@given(values)
def test_a_value_without_tensors_stays_as_it_is(value):
    skeleton, found = split_tensors(value, is_array)
    assert exact(skeleton) == exact(value)
    assert found == {}


def test_tensors_are_taken_out_and_put_back():
    one, two, three = np.zeros(1), np.ones(2), np.ones(3)
    value = {"a": [one, (two, 5)], 0: three, "again": OrderedDict(x=one), "d": deque([two], 3)}
    skeleton, found = split_tensors(value, is_array, path="s")
    assert {path: id(array) for path, array in found.items()} == {
        "s.a.0": id(one),
        "s.a.1.0": id(two),
        "s.0": id(three),
    }
    back = join_tensors(decode(encode(skeleton)), found)
    assert back["a"][0] is one
    assert back["again"]["x"] is one
    assert back["a"][1] == (two, 5) or back["a"][1][0] is two
    assert back[0] is three
    assert type(back["again"]) is OrderedDict
    assert back["d"].maxlen == 3


def test_paths_that_look_alike_stay_apart():
    one, two, three = np.zeros(1), np.ones(1), np.full(1, 2.0)
    skeleton, found = split_tensors({0: one, "0": two, "x": {"y": three}, "x.y": one}, is_array)
    assert list(found) == ["0", "0~2", "x.y"]
    back = join_tensors(skeleton, found)
    assert back[0] is one
    assert back["0"] is two
    assert back["x.y"] is one


def test_a_tensor_alone_and_one_that_is_missing():
    skeleton, found = split_tensors(np.zeros(1), is_array)
    assert skeleton == TensorAt("value")
    assert join_tensors(skeleton, found) is found["value"]
    with pytest.raises(FormatError, match=r"'a\.b'"):
        join_tensors([TensorAt("a.b")], {})
