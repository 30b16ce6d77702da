"""What Flax writes comes back by its keys; what is no tensor is told; what lies is refused."""

import random
import struct

import flax.serialization
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

import firekeep
from firekeep.errors import FirekeepError, FormatError, LimitError, MetadataError, TruncatedError, UnsupportedError
from formats.flax.packed import Ext, array, pack

TREE = {
    "params": {
        "Dense_0": {"kernel": np.arange(72, dtype="f4").reshape(8, 9), "bias": jnp.ones(3, jnp.bfloat16)},
        "layers": {"0": {"scale": np.ones(2, "f2")}, "1": {"scale": np.zeros(2, "f2")}},
    },
    "batch_stats": {"mean": np.arange(4, dtype="f8")},
    "step": 3,
    "rate": 0.5,
    "note": "text",
    "nothing": None,
    "number": 1 + 2j,
    "scalar": np.float32(2),
    "list": [1, np.ones(2, "i8"), {"deep": True}],
    "mask": np.array([True, False]),
    "eight": np.ones(2, ml_dtypes.float8_e5m2),
    "empty": np.zeros((0, 3), "u2"),
}
FLAT = {
    "params.Dense_0.kernel": TREE["params"]["Dense_0"]["kernel"],
    "params.Dense_0.bias": np.ones(3, ml_dtypes.bfloat16),
    "params.layers.0.scale": np.ones(2, "f2"),
    "params.layers.1.scale": np.zeros(2, "f2"),
    "batch_stats.mean": np.arange(4.0),
    "scalar": np.array(2, "f4"),
    "list.1": np.ones(2, "i8"),
    "mask": np.array([True, False]),
    "eight": np.ones(2, ml_dtypes.float8_e5m2),
    "empty": np.zeros((0, 3), "u2"),
}


@pytest.mark.parametrize("chunk", [1 << 30, 64])
def test_a_tree_of_flax_comes_back_whole(chunk, monkeypatch):
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", chunk)
    data = flax.serialization.msgpack_serialize(TREE)
    with firekeep.open(data) as file:
        assert (file.format, file.details["arrays_in_pieces"]) == ("flax", int(chunk == 64))
        assert sorted(file) == sorted(FLAT)
        for name, value in FLAT.items():
            assert (file[name].dtype, file[name].shape) == (value.dtype, value.shape)
            assert file[name].tobytes() == value.tobytes()
        assert file.values() == {
            "step": 3, "rate": 0.5, "note": "text", "nothing": None, "number": 1 + 2j, "list": [1, {"deep": True}],
        }  # fmt: skip
    assert firekeep.verify(data, values=True).ok


def test_arrays_are_windows_of_the_file(tmp_path):
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(flax.serialization.msgpack_serialize(TREE))
    with firekeep.open(path) as file:
        source, place = file.entry("params.Dense_0.kernel").blob.window()
        assert bytes(source.view(place, 288)) == FLAT["params.Dense_0.kernel"].tobytes()
    firekeep.convert(path, tmp_path / "model.safetensors")
    with firekeep.open(tmp_path / "model.safetensors") as file:
        assert file.metadata["firekeep.layout"] == "linen"
        assert file["params.Dense_0.bias"].dtype == ml_dtypes.bfloat16


def test_the_layout_is_told_by_collections_names_of_modules_and_of_tensors():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    one = array("float32", (1,), bytes(4))
    for tree, layout in (
        ({"params": {"x": one}}, "linen"),
        ({"Conv_1": {"w": one}}, "linen"),
        (nnx.to_pure_dict(nnx.state(model)), "flax"),
        ({"cell": {"if_": {"w": one}}}, "flax"),
        ({"w": one}, ""),
    ):
        data = pack(tree) if one in _leaves(tree) else flax.serialization.msgpack_serialize(tree)
        with firekeep.open(data) as file:
            assert file.container.layout == layout


def _leaves(tree):
    return [
        leaf
        for value in tree.values()
        for leaf in (_leaves(value) if isinstance(value, dict) else [value])
        if isinstance(leaf, Ext)
    ]


# orbax/flax#4308, flax#5438: integer keys.
def test_integer_keys_are_names_and_two_that_become_one_name_are_refused():
    one = array("float32", (1,), b"\0\0\x80\x3f")
    with firekeep.open(pack({"layers": {0: {"w": one}, 1: {"w": one}}})) as file:
        assert sorted(file) == ["layers.0.w", "layers.1.w"]
    for tree in ({"a": {0: one, "0": one}}, {"a": {"b": one}, "a.b": one}):
        with pytest.raises(MetadataError, match="two arrays have this name"):
            firekeep.open(pack(tree))


def test_a_dtype_that_is_not_known_costs_only_its_tensor():
    with firekeep.open(
        pack({"odd": array("int4", (2,), b"\1\2"), "w": array("float32", (1,), b"\0\0\x80\x3f")})
    ) as file:
        assert file["w"].tolist() == [1]
        with pytest.raises(UnsupportedError, match=r"'odd'.*int4"):
            file.array("odd")


def test_old_files_hold_bytes_as_text_and_are_read():
    old = Ext(1, b"\x93" + pack([1]) + b"\xa7float32" + b"\xa4" + b"\0\0\x80\x3f")
    with firekeep.open(pack({"w": old})) as file:
        assert file["w"].tolist() == [1]


def test_messagepack_that_is_not_of_flax_opens_without_tensors_and_says_so():
    with firekeep.open(pack({"a": {"b": [1, "x", b"y"]}, "e": Ext(7, b"abc")})) as file:
        assert file.keys() == []
        assert file.values() == {"a": {"b": [1, "x", b"y"]}}
        assert any("no array of Flax" in note for note in file.notes)
        assert any("1 values are extensions" in note for note in file.notes)


ONE = array("float32", (1,), b"\0\0\x80\x3f")
CHUNKS = {"shape": {"0": 2}, "chunks": {"0": ONE, "1": ONE}}
LIES = {
    "shape and bytes": (pack({"w": array("float32", (3,), bytes(4))}), "needs 12 bytes, and it has 4"),
    "no shape": (pack({"w": Ext(1, pack(["float32", bytes(4)]))}), "does not say shape"),
    "negative": (pack({"w": array("float32", (-1,), b"")}), "does not say shape"),
    "bool extent": (pack({"w": array("float32", (True,), bytes(4))}), "does not say shape"),
    "rest in an extension": (pack({"w": Ext(1, ONE.data + b"x")}), "an extension that ends"),
    "complex of text": (pack({"w": Ext(2, pack(["a", 1.0]))}), "no pair of numbers"),
    "twice": (b"\x82" + (pack("w") + pack(ONE)) * 2, "has the key 'w' twice"),
    "list as key": (b"\x81" + pack("w") + b"\x81\x90\xc0", "a key that is"),
    "not utf-8": (b"\x81" + pack("w") + b"\xa1\xff", "not UTF-8"),
    "no such code": (b"\x81" + pack("w") + b"\xc1", "begins no value"),
    "pieces without shape": (pack({"w": {"__msgpack_chunked_array__": True, "chunks": CHUNKS["chunks"]}}), "no list of them"),
    "pieces with a gap": (pack({"w": {"__msgpack_chunked_array__": True, **CHUNKS, "chunks": {"0": ONE, "2": ONE}}}), "no list"),
    "pieces of two dtypes": (
        pack({"w": {"__msgpack_chunked_array__": True, **CHUNKS, "chunks": [ONE, array("int32", (1,), bytes(4))]}}), "several dtypes",
    ),
    "no pieces": (pack({"w": {"__msgpack_chunked_array__": True, **CHUNKS, "chunks": {}}}), "none are there"),
    "a list for a shape": (pack({"w": {"__msgpack_chunked_array__": True, **CHUNKS, "shape": {"0": "x"}}}), "does not say"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_what_contradicts_itself_is_refused_with_the_reason(name):
    data, words = LIES[name]
    with pytest.raises(FormatError, match=words):
        firekeep.open(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x81\xa1w\xdf\xff\xff\xff\xff",
        b"\x81\xa1w\xdd\xff\xff\xff\xff",
        b"\x81\xa1w\xdb\xff\xff\xff\xff",
        b"\x81\xa1w\xc9\xff\xff\xff\xff\x01",
        b"\x81\xa1w\xc7\x10\x01\x93\x91\x01\xa7float32\xc6\xff\xff\xff\xff",
    ],
)
def test_what_claims_more_than_the_file_has_is_refused_before_memory_is_taken(data):
    with pytest.raises(TruncatedError):
        firekeep.open(data)


def test_depth_and_names_that_multiply_are_bounded():
    deep = b"\x81\xa1a" * 2000 + b"\xc0"
    with pytest.raises(LimitError, match="1000 maps within maps"):
        firekeep.open(deep)
    long = {"a": {"k" * (1 << 20): {str(index): ONE for index in range(100)}}}
    with pytest.raises(LimitError, match="joined from their keys"):
        firekeep.open(pack(long))
    zeros = b"\x81\xa1w\xdd" + struct.pack(">I", 3_000_000) + bytes(3_000_000)
    with pytest.raises(LimitError, match="2000000 values"):
        firekeep.open(zeros)


def test_changed_bytes_raise_nothing_but_errors_of_ours():
    chance = random.Random(1)
    whole = flax.serialization.msgpack_serialize(TREE)
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            with firekeep.open(bytes(data)) as file:
                for name in file:
                    if file.entry(name).problem is None:
                        file.array(name)
                file.values()
        except FirekeepError:
            continue
