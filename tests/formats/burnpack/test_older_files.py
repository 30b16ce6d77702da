"""Files as older releases of Burn wrote them, under the same version number."""

from __future__ import annotations

import pytest

from firekeep.arrays import as_array
from firekeep.dtypes import BY_NAME, QuantScheme, qfloat
from firekeep.errors import MetadataError, TruncatedError
from firekeep.formats import Finding
from formats.burnpack.raw import descriptor, open_descriptor, open_raw, open_table, raw_file

DATA = bytes(range(1, 17))


def packed(data: bytes) -> bytes:
    """A file as Burn 0.19 wrote it: nothing between table and data, nothing between tensors."""
    table = {"tensors": {"a": descriptor(0, 8), "b": descriptor(8, 20, shape=[3]), "c": descriptor(20, 20, shape=[0])}}
    return raw_file(table, data, aligned=False)


def test_data_directly_behind_the_table_is_read_where_it_lies() -> None:
    data = bytes(range(1, 21))
    container = open_raw(packed(data))
    assert container.notes == (
        "written as Burn 0.19 did: the data begins directly behind the table, without alignment",
    )
    assert container.details["data_offset"] == 10 + container.details["metadata_bytes"]
    assert bytes(container.entries["a"].read()) == data[:8]
    assert bytes(container.entries["b"].read()) == data[8:]
    assert list(container.check()) == []


def test_a_single_tensor_directly_behind_the_table_is_read_where_it_lies() -> None:
    raw = raw_file({"tensors": {"w": descriptor()}}, DATA[:8], aligned=False)
    assert bytes(open_raw(raw).entries["w"].read()) == DATA[:8]


def test_old_placement_is_taken_only_for_the_exact_length() -> None:
    raw = packed(bytes(range(1, 21)))
    for length in range(len(raw)):
        with pytest.raises(TruncatedError):
            open_raw(raw[:length])
    for more in (1, 20, 104):
        with pytest.raises(TruncatedError):
            open_raw(raw + bytes([7]) * more)


def test_old_placement_that_nothing_proves_is_refused() -> None:
    # All zeros: it may as well be a newer file that lost its end.
    with pytest.raises(TruncatedError, match=r"as a file of Burn 0\.19 it would be whole, but nothing shows"):
        open_raw(packed(bytes(20)))


def test_unaligned_tensors_behind_padding_are_read_as_burn_reads_them() -> None:
    table = {"tensors": {"a": descriptor(0, 8), "b": descriptor(8, 16)}}
    container = open_table(table, DATA)
    assert container.notes == ("tensors do not lie at multiples of 256 bytes, as Burn places them",)
    assert bytes(container.entries["b"].read()) == DATA[8:]
    assert list(container.check()) == [Finding("note", "b", "it lies at 8, not a multiple of 256")]


def test_unaligned_tensors_whose_start_is_uncertain_are_refused() -> None:
    raw = bytearray(raw_file({"tensors": {"a": descriptor(0, 8), "b": descriptor(8, 16)}}, bytes(16)))
    raw[-40] = 1
    with pytest.raises(MetadataError, match="cannot be told where the data begins"):
        open_raw(bytes(raw))


OLD_BOOL = "booleans are spelled as Burn up to 0.20 did, without a store: read as one byte each"
OLD_STORE = "the quantized store is spelled 'U32', as in Burn 0.20: read as PackedU32 along the last axis"
OLD_SCHEME = "quantization schemes are spelled with level and param, as before Burn 0.22"


def test_a_bool_without_store_is_read_as_bytes_and_reported() -> None:
    container = open_descriptor(descriptor(0, 2, dtype="Bool"), b"\1\0")
    assert container.entries["w"].dtype == BY_NAME["BOOL"]
    assert as_array(container.entries["w"]).tolist() == [True, False]
    assert container.notes == (OLD_BOOL,)


def old_scheme(**fields: object) -> dict[str, object]:
    return {"value": "Q8S", "param": "F32", "store": "Native", "level": "Tensor", "mode": "Symmetric", **fields}


BLOCKS_OF_32 = {"Block": {"storage": [32, 1, 1, 1, 1], "len": 1}}
OLD_SCHEMES = {
    "one scale": (old_scheme(), QuantScheme(value="Q8S"), {OLD_SCHEME}),
    "one small scale": (old_scheme(param="F16"), QuantScheme(value="Q8S", tensor="F16"), {OLD_SCHEME}),
    "blocks": (
        old_scheme(level=BLOCKS_OF_32, param="F16"),
        QuantScheme(value="Q8S", block=(32,), block_dtype="F16"),
        {OLD_SCHEME},
    ),
    "blocks of a plain size": (
        old_scheme(level={"Block": 32}),
        QuantScheme(value="Q8S", block=(32,), block_dtype="F32"),
        {OLD_SCHEME},
    ),
    "the old store": (
        old_scheme(value="Q4F", store="U32"),
        QuantScheme(value="Q4F", store="PackedU32"),
        {OLD_SCHEME, OLD_STORE},
    ),
}


@pytest.mark.parametrize(("spelled", "scheme", "notes"), OLD_SCHEMES.values(), ids=OLD_SCHEMES)
def test_old_schemes_are_read_and_reported(spelled: object, scheme: QuantScheme, notes: set[str]) -> None:
    nbytes = scheme.nbytes((4, 64))
    container = open_descriptor(descriptor(0, nbytes, dtype={"QFloat": spelled}, shape=[4, 64]), bytes(nbytes))
    assert container.entries["w"].dtype == qfloat(scheme)
    assert set(container.notes) == notes


@pytest.mark.parametrize(
    "fields",
    [{"level": "Channel"}, {"level": {"Block": 0}}, {"level": {"Block": -1}}, {"level": {"Row": 1}}, {"param": "F64"}],
)
def test_old_schemes_that_are_not_understood_are_refused_by_name(fields: dict[str, object]) -> None:
    with pytest.raises(MetadataError, match=r"scheme (level|param)|block size") as caught:
        open_descriptor(descriptor(dtype={"QFloat": old_scheme(**fields)}))
    assert caught.value.tensor == "w"


def test_an_old_block_scheme_is_never_taken_for_a_single_scale() -> None:
    one_scale = QuantScheme(value="Q8S").nbytes((4, 64))
    spelled = descriptor(0, one_scale, dtype={"QFloat": old_scheme(level=BLOCKS_OF_32)}, shape=[4, 64])
    with pytest.raises(MetadataError, match="takes 288 bytes") as caught:
        open_descriptor(spelled, bytes(one_scale))
    assert caught.value.tensor == "w"
