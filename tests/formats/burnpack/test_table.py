"""Three ways lead to the columns of a table, and all of them come to the same."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firekeep.blobs import DeferredBlob, MemoryBlob
from firekeep.dtypes import BY_NAME, DType, QuantScheme, qfloat
from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, MetadataError
from firekeep.formats import Contents
from firekeep.formats.burnpack import _table as ways
from firekeep.formats.burnpack import plan
from firekeep.formats.burnpack._decode import decode_quickly
from firekeep.formats.burnpack._table import Table, read_table
from firekeep.ids import ParamId
from firekeep.limits import DEFAULT_LIMITS
from firekeep.scalars import Scalar
from formats.burnpack.raw import Raw, cbor, descriptor, open_raw, raw_file

DTYPES = [*(BY_NAME[name] for name in ("F32", "FLEX32", "I8", "BOOL", "BOOL_U32")), qfloat(QuantScheme(value="Q8S"))]


def table_bytes(entries: list[TensorEntry], **beside: object) -> bytes:
    head = plan(Contents(entries=entries, **beside), DEFAULT_LIMITS).parts[0].blob.view()  # type: ignore[arg-type]
    return bytes(head[10:])


def by_scan(data: bytes) -> Table | None:
    return ways._scanned(data, DEFAULT_LIMITS)


def by_quick_decoder(data: bytes) -> Table | None:
    return ways._decoded(decode_quickly(data, DEFAULT_LIMITS))


def by_strict_decoder(data: bytes) -> Table | None:
    try:
        return ways._read_strictly(data, DEFAULT_LIMITS)
    except FirekeepError:
        return None


def entry(name: str, dtype: DType, shape: tuple[int, ...], param_id: int | None = None) -> TensorEntry:
    nbytes = dtype.nbytes(shape)
    identity = None if param_id is None else ParamId(param_id)
    return TensorEntry(name, dtype, shape, DeferredBlob(nbytes, lambda: bytes(nbytes)), identity)


NAMES = st.text(max_size=30) | st.sampled_from(["n" * 23, "n" * 24, "n" * 255, "n" * 256, "n" * 5000])
EXTENTS = st.sampled_from([0, 1, 2, 23, 24, 255, 256, 65_535, 65_536])
ROWS = st.tuples(
    st.sampled_from(DTYPES),
    st.just(()) | st.tuples(EXTENTS) | st.tuples(st.integers(0, 3), EXTENTS),
    st.none() | st.sampled_from([0, 23, 24, 256, 65_536, 1 << 32, (1 << 64) - 1]),
)


@settings(deadline=None)
@given(st.dictionaries(NAMES, ROWS, min_size=1, max_size=8), st.dictionaries(st.text(max_size=5), st.text(max_size=5)))
def test_what_we_write_is_the_same_table_in_all_three_ways(
    rows: dict[str, tuple[DType, tuple[int, ...], int | None]], metadata: dict[str, str]
) -> None:
    entries = [entry(name, *row) for name, row in rows.items()]
    data = table_bytes(entries, metadata=metadata, scalars={"s": Scalar("float", 0.5)} if metadata else {})
    table = by_strict_decoder(data)
    assert table is not None
    assert by_quick_decoder(data) == table
    assert by_scan(data) in (None, table)  # a name that ends as a key begins is left to the other two
    assert table.names == sorted(rows)
    assert [form.dtype for form in table.forms] == [rows[name][0] for name in table.names]
    assert table.param_ids == [rows[name][2] for name in table.names]


def test_a_table_of_ordinary_names_is_scanned() -> None:
    entries = [entry(f"layers.{index}.weight", BY_NAME["BF16"], (2, index), index) for index in range(300)]
    data = table_bytes(sorted(entries, key=lambda one: one.name), metadata={"k": "v"})
    table = by_scan(data)
    assert table is not None
    assert table == by_strict_decoder(data)


SMALL = table_bytes(
    [entry("ab", BY_NAME["F32"], (2,), 300), entry("c", BY_NAME["BOOL"], (0, 3)), entry("d", BY_NAME["I8"], (), 7)],
    metadata={"k": "v"},
    scalars={"s": Scalar("int", -1)},
)


@settings(deadline=None, max_examples=500)
@given(
    st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=3),
    st.integers(0, len(SMALL)),
    st.binary(max_size=3),
)
def test_a_quick_way_gives_what_the_strict_one_gives_or_nothing(
    changes: list[tuple[int, int]], place: int, inserted: bytes
) -> None:
    changed = bytearray(SMALL)
    for position, byte in changes:
        changed[position] = byte
    changed[place:place] = inserted
    data = bytes(changed)
    strict = by_strict_decoder(data)
    for table in (by_quick_decoder(data), by_scan(data)):
        assert table is None or table == strict


def test_every_change_of_one_byte_is_judged_alike() -> None:
    for position in range(len(SMALL)):
        for byte in {
            0,
            1,
            0x60,
            0x61,
            0x80,
            0xA0,
            0xA3,
            0xA4,
            0xF6,
            0xFF,
            SMALL[position] ^ 1,
            SMALL[position] + 1 & 255,
        }:
            data = SMALL[:position] + bytes([byte]) + SMALL[position + 1 :]
            strict = by_strict_decoder(data)
            for table in (by_quick_decoder(data), by_scan(data)):
                assert table is None or table == strict, (position, byte)


@pytest.mark.parametrize("length", range(len(SMALL)))
def test_a_table_cut_short_is_a_table_in_no_way(length: int) -> None:
    data = SMALL[:length]
    assert by_scan(data) is None
    assert by_quick_decoder(data) is None
    with pytest.raises(MetadataError):
        read_table(data, DEFAULT_LIMITS)


@pytest.mark.parametrize(
    "name", ["edtype", "x\x65dtype", "ldata_offsets", "a_off", "hparam_id", "dtypdtypdtyp", "_off_off"]
)
def test_names_that_look_like_keys_do_no_harm(name: str) -> None:
    entries = [entry(one, BY_NAME["F32"], (2,), 5) for one in sorted(["a", name, "z"])]
    data = table_bytes(entries)
    table = read_table(data, DEFAULT_LIMITS)
    assert table.names == sorted(["a", name, "z"])
    assert by_scan(data) in (None, table)


@pytest.mark.parametrize("end", ["a", "zz", "long"])
def test_a_large_table_with_a_fault_is_refused_for_its_cause(end: str) -> None:
    tensors = {f"t{index:05}": descriptor(256 * index, 256 * index + 8, param_id=index) for index in range(2000)}
    last = {"a": descriptor(0, 4), "zz": descriptor(0, 4), "long": descriptor(dtype="F128")}[end]
    data = cbor({"tensors": dict(sorted({**tensors, end: last}.items()))})
    assert len(data) > ways.SCAN_FROM
    with pytest.raises(MetadataError, match=r"takes 8 bytes|'F128' is none") as caught:
        read_table(data, DEFAULT_LIMITS)
    assert caught.value.tensor == end


def test_a_large_table_with_a_name_twice_is_refused() -> None:
    tensors = {f"t{index:05}": descriptor(256 * index, 256 * index + 8) for index in range(2000)}
    spelled = cbor({"tensors": tensors}).replace(b"\x66t00700", b"\x66t00699")
    with pytest.raises(MetadataError, match="'t00699' stands in the table twice"):
        read_table(spelled, DEFAULT_LIMITS)


def test_a_large_table_is_read_the_same_with_and_without_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {
        f"t{index:05}": descriptor(256 * (4999 - index), 256 * (4999 - index) + 8, param_id=index << 40)
        for index in range(5000)
    }
    raw = raw_file({"tensors": tensors}, bytes(256 * 4999 + 8))
    scanned = open_raw(raw)
    monkeypatch.setattr(ways, "SCAN_FROM", len(raw))
    decoded = open_raw(raw)
    assert list(scanned.entries) == list(decoded.entries) == sorted(tensors, reverse=True)
    for one, two in zip(scanned.entries.values(), decoded.entries.values(), strict=True):
        assert (one.name, one.dtype, one.shape, one.param_id) == (two.name, two.dtype, two.shape, two.param_id)
        assert one.blob.window()[1] == two.blob.window()[1]  # type: ignore[index]


def test_items_and_values_agree_with_single_entries() -> None:
    raw = raw_file({"tensors": {"b": descriptor(0, 8), "a": descriptor(256, 264, param_id=3)}}, bytes(264))
    entries = open_raw(raw).entries
    assert (
        [name for name, _ in entries.items()] == [one.name for one in entries.values()] == list(entries) == ["b", "a"]
    )
    assert len(entries.values()) == len(entries.items()) == 2
    for name, one in entries.items():
        twin = entries[name]
        assert (one.name, one.shape, one.param_id, type(one.param_id)) == (
            twin.name, twin.shape, twin.param_id, type(twin.param_id)
        )  # fmt: skip
    assert "c" not in entries
    assert 5 not in entries
    assert None not in entries


def test_two_million_bytes_of_keys_are_no_table() -> None:
    data = b"\xa1\x67tensors\xba\x00\x00\xff\xff" + b"\x65dtype\x6cdata_offsets\x82" * 65_535
    assert by_scan(data) is None
    with pytest.raises(MetadataError):
        read_table(data, DEFAULT_LIMITS)


def test_our_table_is_what_cbor2_makes_of_the_same_tree() -> None:
    entries = [TensorEntry(name, BY_NAME["F32"], (2,), MemoryBlob(bytes(8)), ParamId(9)) for name in ("b", "a")]
    tree = {"tensors": {"a": descriptor(256, 264, param_id=9), "b": descriptor(0, 8, param_id=9)}}
    assert table_bytes(entries) == cbor2.dumps(tree) == cbor(Raw(cbor2.dumps(tree)))
