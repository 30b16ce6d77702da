"""What Burn's reader tolerates in a table, and what it rejects."""

from __future__ import annotations

from typing import Any

import pytest

from firekeep.dtypes import BY_NAME, QuantScheme, qfloat
from firekeep.errors import LimitError, MetadataError
from firekeep.scalars import Scalar
from formats.burnpack.raw import Pairs, Raw, cbor, descriptor, open_descriptor, open_table, raw_file

BLOCK_SCHEME = {
    "value": "Q4S",
    "store": {"PackedU32": 0},
    "mode": "Symmetric",
    "tensor": None,
    "block": {"size": {"storage": [32, 1, 1, 1, 1], "len": 1}, "dtype": "F16"},
}


def indefinite_map(*pairs: Any) -> Raw:
    return Raw(b"\xbf" + b"".join(map(cbor, pairs)) + b"\xff")


def indefinite_list(*items: Any) -> Raw:
    return Raw(b"\x9f" + b"".join(map(cbor, items)) + b"\xff")


def pieces(*texts: str) -> Raw:
    return Raw(b"\x7f" + b"".join(map(cbor, texts)) + b"\xff")


def tagged(tag: int, value: Any) -> Raw:
    return Raw(b"\xda" + tag.to_bytes(4, "big") + cbor(value))


TOLERATED_DESCRIPTORS = {
    "keys in another order": {"data_offsets": [0, 8], "shape": [2], "dtype": "F32"},
    "an unknown key": descriptor(extra=1),
    "an unknown key with anything under it": descriptor(
        extra=[{"a": Raw(b"\xa2\x01\x02\x01\x02")}, 1.5, True, None, b"x", Raw(b"\xf7\x00"[:1]), tagged(35, "[")]
    ),
    "an unknown key twice": Pairs([*descriptor().items(), ("x", 1), ("x", 2)]),
    "a key as byte string": {"dtype": "F32", b"shape": [2], b"data_offsets": [0, 8]},
    "an unknown key as bytes that are no text": {**descriptor(), b"\xff": 0},
    "a map of unknown length": indefinite_map("dtype", "F32", "shape", [2], "data_offsets", [0, 8]),
    "lists of unknown length": descriptor(shape=indefinite_list(2), data_offsets=indefinite_list(0, 8)),
    "lists as byte strings": descriptor(shape=b"\x02", data_offsets=b"\x00\x08"),
    "byte strings in pieces": descriptor(shape=Raw(b"\x5f\x41\x02\xff")),
    "integers wider than needed": descriptor(shape=[Raw(b"\x1b" + (2).to_bytes(8, "big"))]),
    "big integers": descriptor(shape=[Raw(b"\xc2\x43\x00\x00\x02")]),
    "big integers in pieces": descriptor(shape=[Raw(b"\xc2\x5f\x41\x00\x41\x02\xff")]),
    "tags around values": tagged(
        55799, descriptor(dtype=tagged(35, "F32"), shape=tagged(4, [tagged(0, 2)]), param_id=tagged(37, 5))
    ),
    "a tag around a key": {Raw(b"\xc0" + cbor("dtype")): "F32", "shape": [2], "data_offsets": [0, 8]},
    "an id of null": descriptor(param_id=None),
    "an id of undefined": descriptor(param_id=Raw(b"\xf7")),
}


@pytest.mark.parametrize("spelled", TOLERATED_DESCRIPTORS.values(), ids=TOLERATED_DESCRIPTORS)
def test_a_descriptor_may_be_spelled_in_ways_burn_reads(spelled: Any) -> None:
    entry = open_descriptor(spelled, bytes(range(8))).entries["w"]
    assert (entry.dtype, entry.shape, bytes(entry.read())) == (BY_NAME["F32"], (2,), bytes(range(8)))
    assert entry.param_id in (None, 5)


TOLERATED_TABLES = {
    "maps of unknown length": indefinite_map("tensors", indefinite_map("w", descriptor())),
    "a name in pieces": {"tensors": {pieces("", "w"): descriptor()}},
    "a tagged name": {"tensors": {tagged(1, "w"): descriptor()}},
    "unknown keys": {"a": 1, "tensors": {"w": descriptor()}, "z": [[]]},
    "an unknown key of 4096 bytes": {"k" * 4096: 1, "tensors": {"w": descriptor()}},
    "keys in another order": {"scalars": {}, "metadata": {}, "tensors": {"w": descriptor()}},
    "a key as byte string": {b"tensors": {"w": descriptor()}},
    "a tag around the whole": tagged(55799, {"tensors": {"w": descriptor()}}),
}


@pytest.mark.parametrize("spelled", TOLERATED_TABLES.values(), ids=TOLERATED_TABLES)
def test_a_table_may_be_spelled_in_ways_burn_reads(spelled: Any) -> None:
    container = open_table(spelled)
    assert list(container.entries) == ["w"]
    assert dict(container.metadata) == {}
    assert dict(container.scalars) == {}


def test_names_may_be_longer_than_keys() -> None:
    name = "層" * 5000
    assert list(open_table({"tensors": {name: descriptor()}}).entries) == [name]
    odd = {"tensors": indefinite_map(name, descriptor())}
    assert list(open_table(odd).entries) == [name]


def test_names_are_sorted_by_code_point_whatever_their_order_in_the_file() -> None:
    tensors = {name: descriptor(0, 0, shape=[0]) for name in ("b", "🔥", "aa", "é", "")}
    assert list(open_table({"tensors": tensors}).entries) == ["", "aa", "b", "é", "🔥"]


REJECTED_DESCRIPTORS = {
    "no dtype": ({"shape": [2], "data_offsets": [0, 8]}, "no 'dtype'"),
    "no shape": ({"dtype": "F32", "data_offsets": [0, 8]}, "no 'shape'"),
    "no offsets": ({"dtype": "F32", "shape": [2]}, "no 'data_offsets'"),
    "one offset": (descriptor(data_offsets=[0]), "1 data_offsets where two are due"),
    "three offsets": (descriptor(data_offsets=[0, 8, 8]), "3 data_offsets where two are due"),
    "a negative offset": (descriptor(data_offsets=[-8, 0]), "not 64-bit offsets"),
    "an offset beyond 64 bits": (descriptor(data_offsets=[0, 1 << 64]), "not 64-bit offsets"),
    "a float offset": (descriptor(data_offsets=[0.0, 8]), "a simple value where an integer is due"),
    "a float extent": (descriptor(shape=[2.0]), "a simple value where an integer is due"),
    "a bool extent": (descriptor(shape=[True, 2]), "a simple value where an integer is due"),
    "a negative extent": (descriptor(shape=[-1, -2]), "does not fit 64 bits"),
    "a shape that is no list": (descriptor(shape=2), "an integer where a list of integers is due"),
    "a shape of text": (descriptor(shape=["2"]), "a text where an integer is due"),
    "end before start": (descriptor(8, 0), "before it starts"),
    "a shape that does not fit the length": (descriptor(shape=[3]), "takes 12 bytes, its data_offsets span 8"),
    "a shape beyond 64 bits": (descriptor(0, 0, shape=[1 << 40, 1 << 40, 0]), "does not fit 64 bits"),
    "bytes beyond 64 bits": (descriptor(0, 0, shape=[1 << 63]), "does not fit 64 bits"),
    "a negative id": (descriptor(param_id=-1), "param_id -1 does not fit"),
    "a float id": (descriptor(param_id=1.0), "a simple value where an integer is due"),
    "an id beyond 64 bits": (descriptor(param_id=1 << 64), "does not fit 64 unsigned bits"),
    "a huge id": (descriptor(param_id=Raw(b"\xc2\x59\xff\xff" + b"\xff" * 65535)), "an integer of 65535 bytes"),
    "a bool id": (descriptor(param_id=True), "a simple value where an integer is due"),
    "dtype in lower case": (descriptor(dtype="f32"), "dtype 'f32' is none of burnpack's"),
    "dtype of another format": (descriptor(dtype="F8_E4M3"), "dtype 'F8_E4M3' is none"),
    "dtype as a number": (descriptor(dtype=1), "an integer where a dtype is due"),
    "dtype as bytes": (descriptor(dtype=b"F32"), "a byte string where a dtype is due"),
    "dtype as a map": (descriptor(dtype={"F32": None}), "'F32' is not a dtype with a value"),
    "dtype in pieces": (descriptor(dtype=pieces("F", "32")), "a text where a word is due"),
    "two dtypes": (descriptor(dtype={"Bool": "Native", "F32": 1}), "a map where a dtype is due"),
    "a bool of unknown store": (descriptor(dtype={"Bool": "U16"}), "is none of burnpack's"),
    "a dtype map of unknown length": (descriptor(dtype=indefinite_map("Bool", "U32")), "a map where a dtype is due"),
    "a key twice": (Pairs([*descriptor().items(), ("shape", [2])]), "the key 'shape' twice"),
    "a key twice, once as bytes": (Pairs([*descriptor().items(), (b"shape", [2])]), "the key 'shape' twice"),
    "a key in pieces": (Pairs([*descriptor().items(), (pieces("x", "y"), 0)]), "where a key of at most 4096"),
    "a key of 4097 bytes": ({**descriptor(), "k" * 4097: 0}, "where a key of at most 4096"),
    "a number as key": ({**descriptor(), 1: 0}, "an integer where a key"),
    "a list": (["F32", [2], [0, 8]], "an array where a descriptor is due"),
    "null": (None, "a simple value where a descriptor is due"),
    "text that is not UTF-8": (descriptor(extra=Raw(b"\x61\xff")), "not UTF-8"),
    "a simple value that means nothing": (descriptor(extra=Raw(b"\xe5")), "means nothing"),
}


@pytest.mark.parametrize(("spelled", "message"), REJECTED_DESCRIPTORS.values(), ids=REJECTED_DESCRIPTORS)
def test_a_descriptor_that_burn_rejects_is_refused_by_name(spelled: Any, message: str) -> None:
    with pytest.raises(MetadataError, match=message) as caught:
        open_descriptor(spelled)
    assert caught.value.tensor == "w"


REJECTED_TABLES = {
    "nothing": (Raw(b""), "ends 1 bytes short"),
    "a list": ([], "an array where the table is due"),
    "no tensors": ({"metadata": {}}, "the table has no 'tensors'"),
    "tensors as a list": ({"tensors": []}, "an array where a map by tensor is due"),
    "tensors twice": (Pairs([("tensors", {}), ("tensors", {})]), "the key 'tensors' twice"),
    "metadata of null": ({"tensors": {}, "metadata": None}, "where a map by metadata key is due"),
    "metadata that is no text": ({"tensors": {}, "metadata": {"a": 1}}, "an integer where a text is due"),
    "metadata as bytes": ({"tensors": {}, "metadata": {"a": b"x"}}, "a byte string where a text is due"),
    "a metadata key that is no text": ({"tensors": {}, "metadata": {1: "a"}}, "an integer where a text is due"),
    "metadata that is not UTF-8": ({"tensors": {}, "metadata": {"a": Raw(b"\x61\xff")}}, "not UTF-8"),
    "a metadata key twice": (Pairs([("tensors", {}), ("metadata", Pairs([("a", "1"), ("a", "2")]))]), "'a' stands"),
    "a bare scalar": ({"tensors": {}, "scalars": {"a": 1}}, "an integer where a scalar is due"),
    "a scalar of unknown kind": ({"tensors": {}, "scalars": {"a": {"Text": 1}}}, "'Text' is not a scalar"),
    "a kind without value": ({"tensors": {}, "scalars": {"a": "Int"}}, "scalar 'a': 'Int' is not one of"),
    "an integer that is a float": ({"tensors": {}, "scalars": {"a": {"Int": 1.0}}}, "where an integer is due"),
    "a float that is an integer": ({"tensors": {}, "scalars": {"a": {"Float": 1}}}, "an integer where a float is due"),
    "a bool that is an integer": ({"tensors": {}, "scalars": {"a": {"Bool": 1}}}, "where true or false is due"),
    "a negative unsigned": ({"tensors": {}, "scalars": {"a": {"UInt": -1}}}, "scalar 'a': -1 is not a 64-bit UInt"),
    "a signed beyond 63 bits": ({"tensors": {}, "scalars": {"a": {"Int": 1 << 63}}}, "is not a 64-bit Int"),
    "an unsigned beyond 64 bits": ({"tensors": {}, "scalars": {"a": {"UInt": 1 << 64}}}, "is not a 64-bit UInt"),
    "a scalar twice": (Pairs([("tensors", {}), ("scalars", Pairs([("a", {"Int": 1})] * 2))]), "scalar 'a' stands"),
    "a scalar of two kinds": ({"tensors": {}, "scalars": {"a": {"Int": 1, "UInt": 1}}}, "a map where a scalar is due"),
    "a break that ends nothing": (Raw(b"\xff"), "begins nothing"),
    "a table cut short": (Raw(cbor({"tensors": {"w": descriptor()}})[:-1]), "short of what begins there"),
    "a promise of many tensors": (Raw(b"\xa1\x67tensors\xbb" + b"\xff" * 8), "short of what begins there"),
}


@pytest.mark.parametrize(("spelled", "message"), REJECTED_TABLES.values(), ids=REJECTED_TABLES)
def test_a_table_that_burn_rejects_is_refused(spelled: Any, message: str) -> None:
    with pytest.raises(MetadataError, match=message):
        open_table(spelled)


def test_a_tensor_name_that_stands_twice_is_refused_by_name() -> None:
    twice = Pairs([("a", descriptor(8, 16)), ("w", descriptor()), ("w", descriptor())])
    with pytest.raises(MetadataError, match="'w' stands in the table twice") as caught:
        open_table({"tensors": twice}, bytes(16))
    assert caught.value.tensor == "w"


def test_the_first_tensor_at_fault_by_name_is_the_one_named() -> None:
    tensors = {name: descriptor(shape=[extent]) for name, extent in (("c", 3), ("b", 5), ("a", 2))}
    with pytest.raises(MetadataError, match="takes 20 bytes") as caught:
        open_table({"tensors": tensors})
    assert caught.value.tensor == "b"


def test_bytes_left_over_in_the_table_are_reported() -> None:
    container = open_table(Raw(cbor({"tensors": {"w": descriptor()}}) + b"\x00\xff\x1c"))
    assert list(container.entries) == ["w"]
    assert container.notes == ("3 bytes behind the table, within its stated length, mean nothing",)


def test_unknown_keys_may_be_nested_as_deep_as_in_burn() -> None:
    def nested(levels: int) -> bytes:
        return raw_file(Pairs([("x", Raw(b"\x81" * levels + b"\x00")), ("tensors", {})]))

    from formats.burnpack.raw import open_raw

    assert len(open_raw(nested(127)).entries) == 0
    with pytest.raises(LimitError, match="nested deeper than 128"):
        open_raw(nested(128))


SCALARS = {
    "signed": ({"Int": -3}, Scalar("int", -3)),
    "unsigned": ({"UInt": 3}, Scalar("uint", 3)),
    "a positive signed stays signed": ({"Int": 3}, Scalar("int", 3)),
    "the largest unsigned": ({"UInt": (1 << 64) - 1}, Scalar("uint", (1 << 64) - 1)),
    "a float": ({"Float": 0.1}, Scalar("float", 0.1)),
    "a half float": ({"Float": Raw(b"\xf9\x38\x00")}, Scalar("float", 0.5)),
    "a bool": ({"Bool": True}, Scalar("bool", True)),
    "a tagged number": ({"Int": tagged(1, 7)}, Scalar("int", 7)),
    "a negative big integer": ({"Int": Raw(b"\xc3\x41\x02")}, Scalar("int", -3)),
    "a tagged float": ({"Float": tagged(1, Raw(b"\xfa\x3f\x00\x00\x00"))}, Scalar("float", 0.5)),
}


@pytest.mark.parametrize(("spelled", "scalar"), SCALARS.values(), ids=SCALARS)
def test_scalars_keep_their_kind(spelled: Any, scalar: Scalar) -> None:
    assert dict(open_table({"tensors": {}, "scalars": {"s": spelled}}).scalars) == {"s": scalar}


def scheme_bytes(shape: tuple[int, ...]) -> int:
    return QuantScheme(value="Q4S", store="PackedU32", block=(32,), block_dtype="F16").nbytes(shape)


QUANTIZED = {
    "as Burn writes it": BLOCK_SCHEME,
    "with an unknown key": {**BLOCK_SCHEME, "colour": "blue"},
    "in another order": dict(reversed(BLOCK_SCHEME.items())),
    "with extents as a byte string": {
        **BLOCK_SCHEME,
        "block": {"size": {"storage": bytes([32, 1, 1, 1, 1]), "len": 1}, "dtype": "F16"},
    },
    "with a block of unknown length": {
        **BLOCK_SCHEME,
        "block": indefinite_map("size", {"storage": [32, 1, 1, 1, 1], "len": 1}, "dtype", "F16"),
    },
    "without the key for the tensor's scale": {key: BLOCK_SCHEME[key] for key in BLOCK_SCHEME if key != "tensor"},
    "with level beside the new keys": {**BLOCK_SCHEME, "level": "Tensor", "param": "F32"},
}


@pytest.mark.parametrize("scheme", QUANTIZED.values(), ids=QUANTIZED)
def test_a_scheme_may_be_spelled_in_ways_burn_reads(scheme: Any) -> None:
    nbytes = scheme_bytes((4, 64))
    container = open_descriptor(descriptor(0, nbytes, dtype={"QFloat": scheme}, shape=[4, 64]), bytes(nbytes))
    expected = qfloat(QuantScheme(value="Q4S", store="PackedU32", block=(32,), block_dtype="F16"))
    assert container.entries["w"].dtype == expected
    assert container.notes == ()


BAD_SCHEMES = {
    "no value": ({key: BLOCK_SCHEME[key] for key in BLOCK_SCHEME if key != "value"}, "no 'value'"),
    "an unknown value": ({**BLOCK_SCHEME, "value": "Q3S"}, "scheme value 'Q3S' is not one of Q8F"),
    "an unknown mode": ({**BLOCK_SCHEME, "mode": "Affine"}, "scheme mode 'Affine' is not one of"),
    "an unknown store": ({**BLOCK_SCHEME, "store": "U8"}, "scheme store 'U8' is not"),
    "an unknown packed store": ({**BLOCK_SCHEME, "store": {"U8": 0}}, "'U8' is not a store with a value"),
    "a negative packed axis": ({**BLOCK_SCHEME, "store": {"PackedU32": -1}}, "scheme store"),
    "a packed axis outside the shape": ({**BLOCK_SCHEME, "store": {"PackedU32": 2}}, "packed dimension 2 is outside"),
    "an unknown scale": ({**BLOCK_SCHEME, "tensor": "F64", "block": None}, "scheme tensor 'F64' is not one of"),
    "a block of four extents": (
        {**BLOCK_SCHEME, "block": {"size": {"storage": [1, 1, 1, 1], "len": 1}, "dtype": "F16"}},
        "not up to five extents",
    ),
    "a block of six axes": (
        {**BLOCK_SCHEME, "block": {"size": {"storage": [1, 1, 1, 1, 1], "len": 6}, "dtype": "F16"}},
        "not up to five extents",
    ),
    "an extent of zero": (
        {**BLOCK_SCHEME, "block": {"size": {"storage": [0, 1, 1, 1, 1], "len": 1}, "dtype": "F16"}},
        "not up to five extents",
    ),
    "an extent of 256": (
        {**BLOCK_SCHEME, "block": {"size": {"storage": [256, 1, 1, 1, 1], "len": 1}, "dtype": "F16"}},
        "not up to five extents",
    ),
    "more block axes than the shape has": (
        {**BLOCK_SCHEME, "block": {"size": {"storage": [2, 2, 2, 1, 1], "len": 3}, "dtype": "F16"}},
        "more axes than shape",
    ),
    "a tensor scale beside blocks that is not F32": ({**BLOCK_SCHEME, "tensor": "F16"}, "beside blocks it is F32"),
    "a scheme that is a word": ("Q8S", "a text where a quantization scheme is due"),
}


@pytest.mark.parametrize(("scheme", "message"), BAD_SCHEMES.values(), ids=BAD_SCHEMES)
def test_a_scheme_that_makes_no_sense_is_refused_by_name(scheme: Any, message: str) -> None:
    with pytest.raises(MetadataError, match=message) as caught:
        open_descriptor(descriptor(0, 160, dtype={"QFloat": scheme}, shape=[4, 64]), bytes(160))
    assert caught.value.tensor == "w"


@pytest.mark.parametrize("length", [0, 8, 143, 145])
def test_a_quantized_length_that_does_not_follow_from_the_scheme_is_refused(length: int) -> None:
    assert scheme_bytes((4, 64)) == 144
    with pytest.raises(MetadataError, match=f"takes 144 bytes, its data_offsets span {length}") as caught:
        open_descriptor(descriptor(0, length, dtype={"QFloat": BLOCK_SCHEME}, shape=[4, 64]), bytes(length))
    assert caught.value.tensor == "w"
