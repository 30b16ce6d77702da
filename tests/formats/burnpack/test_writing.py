"""Plans of burnpack files: placement, ties, refusals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firekeep.arrays import entry_of
from firekeep.blobs import DeferredBlob, MemoryBlob
from firekeep.disk import WritePlan, to_bytes
from firekeep.dtypes import BY_NAME, QuantScheme, qfloat
from firekeep.entry import TensorEntry
from firekeep.errors import LimitError, MetadataError, UnsupportedError
from firekeep.formats import Container, Contents
from firekeep.formats.burnpack import plan
from firekeep.ids import ParamId
from firekeep.limits import DEFAULT_LIMITS
from firekeep.scalars import Scalar
from formats.burnpack.raw import Pairs, descriptor, open_raw, open_table, raw_file

F32, U8 = BY_NAME["F32"], BY_NAME["U8"]


def blank(name: str, nbytes: int = 4, *, param_id: int | None = None) -> TensorEntry:
    identity = None if param_id is None else ParamId(param_id)
    return TensorEntry(name, U8, (nbytes,), MemoryBlob(bytes([1]) * nbytes), identity)


def planned(entries: Sequence[TensorEntry], **beside: Any) -> WritePlan:
    return plan(Contents(entries=entries, **beside), DEFAULT_LIMITS)


def table_of(raw: bytes) -> Any:
    return cbor2.loads(raw[10 : 10 + int.from_bytes(raw[6:10], "little")])


def rewritten(container: Container) -> bytes:
    contents = Contents(entries=container.entries.values(), metadata=container.metadata, scalars=container.scalars)
    return to_bytes(plan(contents, DEFAULT_LIMITS))


def test_data_lies_in_the_order_given_and_descriptors_in_the_order_of_names() -> None:
    raw = to_bytes(planned([blank(name, size) for name, size in (("m", 300), ("aa", 1), ("z", 256), ("b", 2))]))
    table = table_of(raw)
    assert list(table) == ["tensors"]
    assert [(name, one["data_offsets"]) for name, one in table["tensors"].items()] == [
        ("aa", [512, 513]),
        ("b", [1024, 1026]),
        ("m", [0, 300]),
        ("z", [768, 1024]),
    ]
    assert len(raw) == 256 + 1026


def test_names_are_sorted_by_code_point_and_not_by_length() -> None:
    names = ["b", "aa", "🔥", "\uffff", "é", "", "B"]
    table = table_of(to_bytes(planned([blank(name) for name in names])))
    assert list(table["tensors"]) == ["", "B", "aa", "b", "é", "\uffff", "🔥"]
    assert sorted(names, key=str.encode) == list(table["tensors"])


@pytest.mark.parametrize("name_length", range(170, 200))
def test_the_data_begins_at_the_next_multiple_of_256(name_length: int) -> None:
    raw = to_bytes(planned([blank("n" * name_length)]))
    end = 10 + int.from_bytes(raw[6:10], "little")
    start = -(-end // 256) * 256
    assert len(raw) == start + 4
    assert raw[end:start] == bytes(start - end)
    assert open_raw(raw).details["data_offset"] == start


def test_a_table_that_ends_at_a_multiple_of_256_has_no_padding() -> None:
    lengths = [len(to_bytes(planned([blank("n" * length)]))) for length in range(100, 400)]
    assert set(lengths) == {260, 516}
    length = 100 + lengths.index(516) - 1
    raw = to_bytes(planned([blank("n" * length)]))
    assert 10 + int.from_bytes(raw[6:10], "little") == 256
    assert list(open_raw(raw).entries) == ["n" * length]


def test_an_empty_tensor_at_the_end_still_has_its_place() -> None:
    raw = to_bytes(planned([blank("a", 1), blank("b", 0)]))
    assert len(raw) == 256 + 256
    assert table_of(raw)["tensors"]["b"]["data_offsets"] == [256, 256]


def test_metadata_and_scalars_are_left_out_when_empty_and_sorted_when_not() -> None:
    assert list(table_of(to_bytes(planned([])))) == ["tensors"]
    raw = to_bytes(
        planned([], scalars={"s": Scalar("int", 1), "aa": Scalar("uint", 1)}, metadata={"y": "1", "xx": "2"})
    )
    table = table_of(raw)
    assert list(table) == ["tensors", "metadata", "scalars"]
    assert list(table["metadata"]) == ["xx", "y"]
    assert list(table["scalars"].items()) == [("aa", {"UInt": 1}), ("s", {"Int": 1})]


def test_plain_numbers_are_taken_as_scalars() -> None:
    scalars: Any = {"a": 3, "b": 0.5, "c": True, "d": np.uint8(7), "e": np.float32(0.1)}
    assert dict(open_raw(to_bytes(planned([], scalars=scalars))).scalars) == {
        "a": Scalar("int", 3),
        "b": Scalar("float", 0.5),
        "c": Scalar("bool", True),
        "d": Scalar("uint", 7),
        "e": Scalar("float", 0.10000000149011612),
    }


@pytest.mark.parametrize("value", ["text", None, 1 << 64, [1]])
def test_what_is_no_scalar_is_refused_by_name(value: object) -> None:
    scalars: Any = {"steps": value}
    with pytest.raises(MetadataError, match="scalar 'steps'"):
        planned([], scalars=scalars)


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"x"}])
def test_metadata_that_is_no_text_is_refused(metadata: Any) -> None:
    with pytest.raises(MetadataError, match="is not a text under a text"):
        planned([], metadata=metadata)


@pytest.mark.parametrize("metadata", [{"\udc80": "x"}, {"x": "\udc80"}])
def test_metadata_that_is_not_unicode_is_refused(metadata: Any) -> None:
    with pytest.raises(MetadataError, match="surrogate"):
        planned([], metadata=metadata)


def test_a_name_that_is_not_unicode_is_refused_by_name() -> None:
    with pytest.raises(MetadataError, match="surrogate") as caught:
        planned([blank("a"), blank("\udc80")])
    assert caught.value.tensor == "\udc80"


# Ties


def test_tied_tensors_are_stored_once_under_all_their_names() -> None:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    raw = to_bytes(planned([entry_of("emb", weights), blank("x"), entry_of("head", weights)]))
    tensors = table_of(raw)["tensors"]
    assert tensors["emb"] == tensors["head"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert tensors["x"]["data_offsets"] == [256, 260]
    container = open_raw(raw)
    assert bytes(container.entries["head"].read()) == weights.tobytes()
    assert rewritten(container) == raw


def test_each_name_of_a_tied_tensor_keeps_its_own_id() -> None:
    weights = np.ones(2, np.float32)
    one, two = (replace(entry_of(name, weights), param_id=ParamId(n)) for n, name in enumerate("ab", 1))
    entries = open_raw(to_bytes(planned([one, two]))).entries
    assert [entry.param_id for entry in entries.values()] == [1, 2]


def test_a_tied_tensor_is_drawn_once() -> None:
    drawn = itertools.count()

    def provide() -> bytes:
        next(drawn)
        return bytes(8)

    entries = [TensorEntry(name, F32, (2,), DeferredBlob(8, provide, identity="same")) for name in "abc"]
    assert len(to_bytes(planned(entries))) == 256 + 8
    assert next(drawn) == 1


@pytest.mark.parametrize(
    ("dtype", "shape"), [("I32", (2, 3)), ("F32", (3, 2)), ("F32", (6,)), ("FLEX32", (2, 3))], ids=str
)
def test_the_same_bytes_in_another_form_are_stored_again(dtype: str, shape: tuple[int, ...]) -> None:
    def entry(name: str, dtype: str, shape: tuple[int, ...]) -> TensorEntry:
        return TensorEntry(name, BY_NAME[dtype], shape, MemoryBlob(bytes(24), identity="same"))

    tensors = table_of(to_bytes(planned([entry("a", "F32", (2, 3)), entry("b", dtype, shape)])))["tensors"]
    assert [tensors[name]["data_offsets"] for name in "ab"] == [[0, 24], [256, 280]]


def test_equal_bytes_of_different_tensors_are_stored_twice() -> None:
    tensors = table_of(to_bytes(planned([blank("a"), blank("b")])))["tensors"]
    assert [tensors[name]["data_offsets"] for name in "ab"] == [[0, 4], [256, 260]]


# Limits and refusals


def test_what_burn_would_not_read_is_not_written() -> None:
    ten = 10 << 30
    huge = TensorEntry("huge", U8, (ten + 1,), DeferredBlob(ten + 1, bytes))
    with pytest.raises(LimitError, match=f"{ten + 1} bytes: the limit is {ten}, beyond which Burn") as caught:
        planned([blank("a"), huge])
    assert caught.value.tensor == "huge"
    many = [TensorEntry(f"t{index:02}", U8, (ten,), DeferredBlob(ten, bytes)) for index in range(10)]
    with pytest.raises(LimitError, match=f"the file would have {100 * (1 << 30) + 768} bytes"):
        planned(many)
    assert planned(many[:9]).nbytes == 90 * (1 << 30) + 768
    with pytest.raises(LimitError, match=r"the table would have \d+ bytes: the limit is 104857600"):
        planned([], metadata={"config": "x" * 104_857_600})


def test_the_tensor_beyond_the_count_is_named() -> None:
    limits = replace(DEFAULT_LIMITS, burnpack_tensors=2)
    with pytest.raises(LimitError, match="more than 2 tensors") as caught:
        plan(Contents(entries=[blank(name) for name in "zyx"]), limits)
    assert caught.value.tensor == "x"


def test_a_dtype_that_safetensors_has_is_sent_there() -> None:
    entry = TensorEntry("w", BY_NAME["F8_E4M3"], (4,), MemoryBlob(bytes(4)))
    with pytest.raises(UnsupportedError, match="burnpack has no dtype F8_E4M3") as caught:
        planned([entry])
    assert ".safetensors" in str(caught.value.remedy)
    entry = TensorEntry("w", BY_NAME["C128"], (1,), MemoryBlob(bytes(16)))
    with pytest.raises(UnsupportedError, match="burnpack has no dtype C128") as caught:
        planned([entry])
    assert caught.value.remedy == "Leave the tensor out."


def test_extents_that_are_no_sizes_are_refused_by_name() -> None:
    for shape in ((-1, -4), (1 << 64, 0), (1 << 40, 1 << 40, 0)):
        with pytest.raises(MetadataError, match="does not fit 64 bits") as caught:
            planned([TensorEntry("w", U8, shape, MemoryBlob(b""))])
        assert caught.value.tensor == "w"


BAD_SCHEMES = [
    QuantScheme(value="Q3S"),
    QuantScheme(value="Q8S", store="PackedU16"),
    QuantScheme(value="Q8S", mode="Affine"),
    QuantScheme(value="Q8S", tensor="F64"),
    QuantScheme(value="Q8S", tensor="F16", block=(4,), block_dtype="F16"),
    QuantScheme(value="Q8S", block=(0,), block_dtype="F16"),
    QuantScheme(value="Q8S", block=(256,), block_dtype="F16"),
    QuantScheme(value="Q8S", block=(2, 2, 2, 2, 2, 2), block_dtype="F16"),
    QuantScheme(value="Q8S", block=(4,), block_dtype="I8"),
    QuantScheme(value="Q8S", store="PackedU32", packed_dim=-1),
]


@pytest.mark.parametrize("scheme", BAD_SCHEMES, ids=str)
def test_a_scheme_that_could_not_be_read_back_is_refused_by_name(scheme: QuantScheme) -> None:
    with pytest.raises(MetadataError) as caught:
        planned([TensorEntry("w", qfloat(scheme), (1, 1, 1, 1, 4, 4), MemoryBlob(bytes(20)))])
    assert caught.value.tensor == "w"


def test_a_quantized_length_must_follow_from_the_scheme() -> None:
    entry = TensorEntry("w", qfloat(QuantScheme(value="Q8S")), (2, 2), MemoryBlob(bytes(7)))
    with pytest.raises(MetadataError, match="takes 8 bytes, 7 are declared") as caught:
        planned([entry])
    assert caught.value.tensor == "w"


SCHEMES = {
    "5138466573746f7265a1695061636b656455333200646d6f64656953796d6d65747269636674656e736f72f665626c6f636bf6": QuantScheme(
        value="Q8F", store="PackedU32"
    ),
    "5138536573746f7265664e6174697665646d6f64656953796d6d65747269636674656e736f72f665626c6f636bf6": QuantScheme(
        value="Q8S"
    ),
    "5134536573746f7265a1695061636b656455333200646d6f64656953796d6d65747269636674656e736f72f665626c6f636ba26473697a65a2"
    "6773746f7261676585182001010101636c656e0165647479706563463136": QuantScheme(
        value="Q4S", store="PackedU32", block=(32,), block_dtype="F16"
    ),
    "5138466573746f7265a1695061636b656455333200646d6f64656953796d6d65747269636674656e736f726346333265626c6f636bf6": (
        QuantScheme(value="Q8F", store="PackedU32", tensor="F32")
    ),
}
NVFP4 = QuantScheme(value="E2M1", store="PackedNative", tensor="F32", block=(16,), block_dtype="UE4M3")
NVFP4_SPELLED = (
    "a56576616c75656445324d316573746f7265a16c5061636b65644e617469766500646d6f64656953796d6d65747269636674656e736f7263463332"
    "65626c6f636ba26473697a65a26773746f72616765851001010101636c656e01656474797065655545344d33"
)
SPELLED = {f"a56576616c756563{text}": scheme for text, scheme in SCHEMES.items()} | {NVFP4_SPELLED: NVFP4}


@pytest.mark.parametrize(("spelled", "scheme"), SPELLED.items(), ids=map(str, SPELLED.values()))
def test_schemes_are_spelled_as_burn_spells_them(spelled: str, scheme: QuantScheme) -> None:
    dtype = qfloat(scheme)
    entry = TensorEntry("w", dtype, (4, 64), MemoryBlob(bytes(dtype.nbytes((4, 64)))))
    raw = to_bytes(planned([entry]))
    assert bytes.fromhex("a16651466c6f6174" + spelled) in raw
    assert open_raw(raw).entries["w"].dtype == dtype


def test_leading_ones_of_a_block_are_dropped_as_burn_does() -> None:
    scheme = QuantScheme(value="Q8S", block=(1, 4, 8), block_dtype="F16")
    dtype = qfloat(scheme)
    entry = TensorEntry("w", dtype, (2, 8, 8), MemoryBlob(bytes(dtype.nbytes((2, 8, 8)))))
    tree = table_of(to_bytes(planned([entry])))["tensors"]["w"]["dtype"]["QFloat"]
    assert tree["block"] == {"size": {"storage": [4, 8, 1, 1, 1], "len": 2}, "dtype": "F16"}


# Reading and writing


def test_tensors_read_unaligned_are_written_aligned() -> None:
    table = {"tensors": {"a": descriptor(0, 8), "b": descriptor(8, 16)}}
    again = open_raw(rewritten(open_table(table, bytes(range(16)))))
    assert again.notes == ()
    assert [bytes(entry.read()) for entry in again.entries.values()] == [bytes(range(8)), bytes(range(8, 16))]


def test_a_foreign_spelling_is_written_as_burn_spells_it() -> None:
    odd = raw_file(Pairs([("x", 1), ("scalars", {}), ("tensors", {"w": descriptor(param_id=None)})]), bytes(8))
    plain = raw_file({"tensors": {"w": descriptor()}}, bytes(8))
    assert rewritten(open_raw(odd)) == plain


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=12),
        st.tuples(st.sampled_from([0, 0, 1, 4, 255, 256, 257, 600]), st.none() | st.integers(0, (1 << 64) - 1)),
        max_size=12,
    )
)
def test_order_ids_and_empty_tensors_survive_rewriting(rows: dict[str, tuple[int, int | None]]) -> None:
    raw = to_bytes(planned([blank(name, size, param_id=identity) for name, (size, identity) in rows.items()]))
    container = open_raw(raw)
    assert {name: entry.param_id for name, entry in container.entries.items()} == {
        name: identity for name, (_, identity) in rows.items()
    }
    assert [name for name in container.entries if rows[name][0]] == [name for name in rows if rows[name][0]]
    assert rewritten(container) == raw
