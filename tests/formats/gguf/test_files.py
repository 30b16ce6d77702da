"""GGUF: shapes turned round, quantized blocks kept or computed, values, and files that lie."""

import math
import random
import struct
import sys

import gguf as peer
import numpy as np
import pytest

import firekeep
from firekeep.errors import FirekeepError, FormatError, LimitError, MetadataError, TruncatedError, UnsupportedError
from firekeep.formats import FORMATS, OpenOptions
from firekeep.formats.gguf._types import BLOCKS, PLAIN
from firekeep.sources import MemorySource
from formats.gguf.made import ARRAY, BOOL, F32, I32, STRING, U8, U32, U64, Tensor, gguf

FOUR = np.arange(4, dtype="<f4").tobytes()
VALUES = {
    "general.architecture": (STRING, "llama"),
    "n": (U32, 7),
    "yes": (BOOL, 1),
    "rate": (F32, 0.5),
    "big": (U64, 1 << 60),
    "tokens": (ARRAY, (STRING, ["a", "", "é"])),
    "ids": (ARRAY, (I32, [1, -2])),
    "flags": (ARRAY, (BOOL, [1, 0])),
    "nested": (ARRAY, (ARRAY, [(U8, [1, 2]), (U8, [])])),
}


def opened(data: bytes, **options):
    return FORMATS["gguf"].reader()(MemorySource(data), OpenOptions(**options))


def test_the_tables_are_those_of_the_package():
    for code, row in BLOCKS.items():
        assert peer.GGMLQuantizationType(code).name == row.name
        assert peer.GGML_QUANT_SIZES[peer.GGMLQuantizationType(code)] == row.block
    for code, row in PLAIN.items():
        assert peer.GGMLQuantizationType(code).name == row.name


@pytest.mark.parametrize("endian", [peer.GGUFEndian.LITTLE, peer.GGUFEndian.BIG])
def test_what_the_package_writes_comes_back(endian, tmp_path):
    path = tmp_path / "m.gguf"
    writer = peer.GGUFWriter(path, "llama", endianess=endian)
    writer.add_string("general.name", "é")
    writer.add_array("tokens", ["a", "b"])
    arrays = {
        "a": np.random.default_rng(1).normal(size=(3, 64)).astype("f4"),
        "i": np.arange(5, dtype="i8"),
        "h": np.ones((2, 2), "f2"),
    }
    for name, array in arrays.items():
        writer.add_tensor(name, array.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with firekeep.open(path) as file:
        assert (file.format, file.details["byte_order"]) == ("gguf", endian.name.lower())
        assert file.metadata["general.name"] == "é"
        assert file.values()["tokens"] == ["a", "b"]
        for name, array in arrays.items():
            np.testing.assert_array_equal(file[name], array)
        assert not file.notes


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_values_of_every_type_are_read(order, version):
    container = opened(gguf([Tensor("w", (4,), 0, FOUR)], VALUES, order=order, version=version))
    assert container.values() == {
        "general.architecture": "llama", "n": 7, "yes": True, "rate": 0.5, "big": 1 << 60, "tokens": ["a", "", "é"], "ids": [1, -2],
        "flags": [True, False], "nested": [[1, 2], []],
    }  # fmt: skip
    assert container.metadata == {"general.architecture": "llama"}


def test_blocks_keep_their_bytes_and_are_computed_on_request():
    values = np.random.default_rng(2).normal(size=(2, 256)).astype("f4")
    kinds = [peer.GGMLQuantizationType[name] for name in ("Q8_0", "Q4_0", "Q5_1", "Q4_1", "TQ2_0")]
    packed = {kind: peer.quants.quantize(values, kind) for kind in kinds}
    data = gguf([Tensor(kind.name, (2, 256), kind.value, packed[kind].tobytes()) for kind in kinds])
    kept, computed = opened(data), opened(data, dequantize=True)
    assert any("Q4_0" in note for note in kept.notes)
    for kind in kinds:
        entry = kept.entries[kind.name]
        assert (entry.dtype.name, entry.shape, entry.problem) == (kind.name, (2, 256), None)
        assert bytes(entry.read()) == packed[kind].tobytes()
        with pytest.raises(UnsupportedError, match=kind.name):
            firekeep.open(data).array(kind.name)
        found = computed.entries[kind.name]
        assert (found.dtype.name, found.nbytes) == ("F32", 2048)
        assert bytes(found.read()) == peer.quants.dequantize(packed[kind], kind).astype("<f4").tobytes()


COMPUTED = sorted((kind for kind in peer.quants._type_traits if kind.value in BLOCKS), key=lambda kind: kind.value)


def blocks_of(kind, rows=3):
    """Give random bytes as rows of blocks, and what the package makes of them."""
    elements, size = peer.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(kind.value).integers(0, 256, (rows, 2 * size), np.uint8)
    with np.errstate(all="ignore"):
        return (rows, 2 * elements), data, peer.quants.dequantize(data, kind).astype("<f4")


@pytest.mark.parametrize("kind", COMPUTED, ids=lambda kind: kind.name)
def test_every_kind_that_the_package_computes_is_computed_as_it_does(kind, tmp_path):
    shape, data, values = blocks_of(kind)
    file = gguf([Tensor("a.weight", shape, kind.value, data.tobytes()), Tensor("b", (4,), 0, FOUR)])
    arrays = firekeep.load_file(file, dequantize=True)
    assert arrays["a.weight"].shape == shape
    assert arrays["a.weight"].tobytes() == values.tobytes() == firekeep.dequantize(file, "a.weight").tobytes()
    report = firekeep.convert(file, tmp_path / "a.safetensors", dequantize=True)
    assert report.tensors == 2
    with firekeep.open(tmp_path / "a.safetensors") as made:
        assert bytes(made.entries["a.weight"].read()) == values.tobytes()


def test_more_than_a_handful_of_kinds_is_computed():
    assert {"Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4"} <= {kind.name for kind in COMPUTED}


def test_computed_values_can_be_narrowed_and_split_into_shards(tmp_path):
    shape, data, _ = blocks_of(peer.GGMLQuantizationType.Q8_0)
    file = gguf([Tensor(name, shape, 8, data.tobytes()) for name in ("a", "b")])
    with np.errstate(all="ignore"):
        firekeep.convert(file, tmp_path / "set", dequantize=True, dtype="bf16", max_shard_size=shape[0] * shape[1] * 2)
    with firekeep.open(tmp_path / "set") as made:
        assert {entry.dtype.name for entry in made.entries.values()} == {"BF16"}
        assert len(list((tmp_path / "set").glob("*.safetensors"))) == 2


def test_computed_values_go_into_a_model():
    shape, data, values = blocks_of(peer.GGMLQuantizationType.Q4_0)
    file = gguf([Tensor("w", shape, 2, data.tobytes())])
    model = {"w": np.zeros(shape, np.float32)}
    with pytest.raises(firekeep.LoadError, match=r"quantized blocks \(Q4_0\)"):
        firekeep.load_into(model, file)
    assert firekeep.load_into(model, file, dequantize=True).ok
    assert model["w"].tobytes() == values.tobytes()


def test_arrays_of_blocks_are_refused_with_what_computes_them():
    file = gguf([Tensor("q", (32,), 8, bytes(34)), Tensor("new", (4,), 200, b"")])
    with pytest.raises(UnsupportedError, match=r"dequantize=True\. Leave out .*'\^new\$'"):
        firekeep.load_file(file)
    assert firekeep.load_file(file, exclude="new", dequantize=True)["q"].tolist() == [0.0] * 32


def test_blocks_are_refused_by_name_in_a_conversion_and_can_be_left_out(tmp_path):
    data = gguf([Tensor("q", (32,), 8, bytes(34)), Tensor("w", (4,), 0, FOUR)])
    with pytest.raises(
        UnsupportedError, match=r"Q8_0 \('q'\).*Compute their float32 values with dequantize=True, or leave"
    ):
        firekeep.convert(data, tmp_path / "a.safetensors")
    firekeep.convert(data, tmp_path / "a.safetensors", exclude="q")
    with firekeep.open(tmp_path / "a.safetensors") as file:
        assert file.metadata["firekeep.layout"] == "unspecified"
        assert file["w"].tolist() == [0, 1, 2, 3]
    assert firekeep.verify(data, values=True).ok
    assert firekeep.diff(data, data).equal


def test_without_the_package_blocks_are_listed_and_computing_them_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    data = gguf([Tensor("q", (32,), 8, bytes(34))])
    assert bytes(opened(data).entries["q"].read()) == bytes(34)
    with pytest.raises(firekeep.MissingExtraError, match=r"'q'.*pip install 'firekeep\[gguf\]'"):
        opened(data, dequantize=True).entries["q"].read()


def test_a_kind_that_the_package_cannot_compute_is_named():
    data = gguf([Tensor("q", (32,), 9, bytes(40))])
    with pytest.raises(UnsupportedError, match=r"'q'.*Q8_1"):
        opened(data, dequantize=True).entries["q"].read()


def test_a_type_from_the_future_costs_only_its_tensor():
    with firekeep.open(gguf([Tensor("new", (4,), 200, b""), Tensor("w", (4,), 0, FOUR)])) as file:
        assert file["w"].tolist() == [0, 1, 2, 3]
        with pytest.raises(UnsupportedError, match=r"'new'.*number 200"):
            file.array("new")


def test_blocks_of_a_big_endian_machine_are_listed_and_not_misread():
    data = gguf([Tensor("q", (32,), 8, bytes(34)), Tensor("w", (1,), 0, b"\x3f\x80\0\0")], order=">")
    with firekeep.open(data) as file:
        assert file["w"].tolist() == [1]
        with pytest.raises(UnsupportedError, match=r"'q'.*big-endian"):
            file.array("q")


# ComfyUI-GGUF#63: shapes that were changed so that rows fill whole blocks.
def test_the_shape_that_comfyui_keeps_is_honoured_if_it_holds_as_many_elements():
    key = "comfy.gguf.orig_shape.w"
    tensor = Tensor("w", (1, 4), 0, FOUR)
    with firekeep.open(gguf([tensor], {key: (ARRAY, (I32, [2, 2, 1]))})) as file:
        assert file["w"].tolist() == [[[0], [1]], [[2], [3]]]
    for wrong in ([2, 3], [-2, -2], []):
        with (
            firekeep.open(gguf([tensor], {key: (ARRAY, (I32, wrong))})) as file,
            pytest.raises(UnsupportedError, match="orig_shape"),
        ):
            file.array("w")
    with (
        firekeep.open(gguf([tensor], {key: (ARRAY, (STRING, ["x"]))})) as file,
        pytest.raises(UnsupportedError, match="orig_shape"),
    ):
        file.array("w")


def test_equal_ranges_are_ties_and_overlapping_ones_are_refused():
    both = [Tensor("a", (4,), 0, FOUR), Tensor("b", (4,), 0, b"", offset=0)]
    with firekeep.open(gguf(both)) as file:
        assert file.ties == {"b": "a"}
    with pytest.raises(MetadataError, match="'a' and 'b' both claim"):
        firekeep.open(gguf([Tensor("a", (32,), 0, bytes(128)), Tensor("b", (24,), 0, b"", offset=32)]))


LIES = {
    "version": (gguf(version=3).replace(b"\3\0\0\0", b"\x09\0\0\0"), UnsupportedError, "version 9"),
    "count": (gguf(count=1 << 40), LimitError, "1099511627776 tensors"),
    "count in a small file": (gguf(count=1000), TruncatedError, "claims 1000 tensors"),
    "pairs": (gguf(pairs=1 << 60), TruncatedError, "cut short"),
    "name twice": (gguf([Tensor("w", (4,), 0, FOUR), Tensor("w", (4,), 0, FOUR)]), MetadataError, "'w'.*twice"),
    "name not utf-8": (gguf([Tensor(b"\xff", (4,), 0, FOUR)]), MetadataError, "not UTF-8"),
    "alignment": (gguf([Tensor("w", (4,), 0, FOUR)], {"general.alignment": (U32, 24)}), MetadataError, "no power of two"),
    "offset": (gguf([Tensor("w", (4,), 0, FOUR * 3, offset=8)]), MetadataError, "no multiple of the alignment"),
    "outside": (gguf([Tensor("w", (4,), 0, FOUR, offset=64)]), TruncatedError, "'w'.*cut short"),
    "huge": (gguf([Tensor("w", (1 << 62, 1 << 62), 0, b"")]), LimitError, "the limit is"),
    "rows": (gguf([Tensor("w", (33, 32), 8, b"")]).replace(struct.pack("<Q", 32), struct.pack("<Q", 31)), MetadataError, "do not fill blocks"),
    "axes": (b"GGUF" + struct.pack("<IQQQcI", 3, 1, 0, 1, b"w", 1000) + bytes(99), MetadataError, "1000 axes"),
    "value type": (gguf(values={"k": (U32, 1)}).replace(struct.pack("<II", U32, 1), struct.pack("<II", 77, 1)), MetadataError, "type 77"),
    "array of an unknown type": (gguf(values={"k": (ARRAY, (77, []))}), MetadataError, "type 77"),
    "long array": (gguf(values={"k": (ARRAY, (U8, []))})[:-8] + struct.pack("<Q", 1 << 50), TruncatedError, "cut short"),
    "many texts": (
        gguf(values={"k": (ARRAY, (STRING, []))})[:-8] + struct.pack("<Q", 1 << 50), LimitError, "2000000 values",
    ),
    "deep arrays": (
        b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"k", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 100, MetadataError, "nests too deep",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_file_that_lies_is_refused_with_the_reason_before_memory_is_taken(name):
    data, error, words = LIES[name]
    with pytest.raises(error, match=words):
        opened(data)


def test_long_arrays_are_not_read_unless_asked_for_and_bounded_then():
    data = gguf(values={"k": (ARRAY, (U8, [0] * 100))})
    with pytest.raises(LimitError, match="50 values"):
        opened(data, limits=firekeep.Limits(pickle_nodes=50)).values()


def test_changed_bytes_raise_nothing_but_errors_of_ours():
    chance = random.Random(2)
    whole = gguf([Tensor("w", (4,), 0, FOUR), Tensor("q", (32,), 8, bytes(34))], VALUES)
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            container = opened(bytes(data))
            container.values()
            for entry in container.entries.values():
                if entry.problem is None:
                    assert entry.read().nbytes == entry.dtype.nbytes(entry.shape) or math.prod(entry.shape) == 0
        except FirekeepError:
            continue


def test_bytes_behind_the_tensors_are_told_and_padding_is_not():
    data = gguf([Tensor("w", (4,), 0, FOUR)])
    assert not opened(data + bytes(-len(data) % 32)).notes
    assert any("bytes follow" in note for note in opened(data + bytes(100)).notes)
    with pytest.raises(FormatError):
        opened(data[:-1])
