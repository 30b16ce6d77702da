from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xxhash

import firekeep
from firekeep import digests
from firekeep.blobs import DeferredBlob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.errors import MetadataError

SUFFIXES = pytest.mark.parametrize("suffix", [".safetensors", ".bpk"])
ARRAYS = {
    "b.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.ones(3, np.int8),
    "empty": np.empty((0, 2), np.float64),
    "é\n\"'": np.zeros(1),
}


def recorded(path: Path) -> dict[str, str]:
    with firekeep.open(path) as file:
        document = json.loads(file.metadata["firekeep.digests"])
    assert document["algorithm"] == "xxh3-128"
    return document["tensors"]


@SUFFIXES
def test_every_tensor_has_the_digest_of_its_bytes(suffix: str, tmp_path: Path):
    path = firekeep.save_file(ARRAYS, tmp_path / f"m{suffix}", digest=True, metadata={"a": "b"})
    assert recorded(path) == {name: xxhash.xxh3_128_hexdigest(array.tobytes()) for name, array in ARRAYS.items()}
    with firekeep.open(path) as file:
        assert file.metadata["a"] == "b"
        assert all(np.array_equal(file[name], ARRAYS[name]) for name in ARRAYS)
    assert firekeep.verify(path).digests == len(ARRAYS)


@SUFFIXES
def test_tensors_are_drawn_once(suffix: str, tmp_path: Path):
    drawn: list[str] = []

    def entry(name: str) -> TensorEntry:
        return TensorEntry(name, BY_NAME["U8"], (3,), DeferredBlob(3, lambda: drawn.append(name) or name.encode() * 3))

    path = firekeep.save_file({name: entry(name) for name in "cab"}, tmp_path / f"m{suffix}", digest=True)
    assert sorted(drawn) == ["a", "b", "c"]
    assert recorded(path) == {name: xxhash.xxh3_128_hexdigest(name.encode() * 3) for name in "abc"}


@SUFFIXES
def test_a_tied_tensor_has_one_digest(suffix: str, tmp_path: Path):
    array = np.ones(4, np.float32)
    path = firekeep.save_file({"x.w": array, "y.w": array}, tmp_path / f"m{suffix}", digest=True)
    assert len(recorded(path)) == 1
    assert not [finding for finding in firekeep.verify(path).findings if finding.severity != "note"]


def test_the_value_is_compact_and_sorted():
    text = digests.render({"b": "1", "a": "2"})
    assert text == '{"algorithm":"xxh3-128","tensors":{"a":"2","b":"1"}}'


def test_room_is_left_for_the_digests():
    digester = digests.Digester(["b", "a", "never"])
    digester.observe("a", memoryview(b"xy"))
    digester.observe("b", memoryview(b"x"))
    digester.observe("a", memoryview(b"z"))
    text = digester.finish()
    assert len(text) == len(digests.placeholder(["b", "a", "never"]))
    assert digests.parse(text) == {
        "a": xxhash.xxh3_128_hexdigest(b"xyz"),
        "b": xxhash.xxh3_128_hexdigest(b"x"),
        "never": xxhash.xxh3_128_hexdigest(b""),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no table of digests"),
        ("{}", "no table of digests"),
        ('{"algorithm":"xxh3-128","tensors":[]}', "no table of digests"),
        ('{"algorithm":"xxh3-128","tensors":{"a":1}}', "no table of digests"),
        ('{"algorithm":"md5","tensors":{"a":"x"}}', "algorithm 'md5'"),
        ('{"tensors":{}}', "algorithm 'None'"),
    ],
)
def test_what_is_no_record_of_digests_is_refused(text: str, message: str):
    with pytest.raises(MetadataError, match=message):
        digests.parse(text)


@SUFFIXES
def test_digests_given_as_metadata_are_those_of_another_file_and_go(suffix: str, tmp_path: Path):
    first = firekeep.save_file(ARRAYS, tmp_path / f"a{suffix}", digest=True)
    with firekeep.open(first) as file:
        metadata = dict(file.metadata)
    second = firekeep.save_file({"a": np.zeros(3, np.int8)}, tmp_path / f"b{suffix}", metadata=metadata | {"k": "v"})
    with firekeep.open(second) as file:
        assert file.metadata == {"k": "v"}
    third = firekeep.save_file({"a": np.zeros(3, np.int8)}, second, metadata=metadata, digest=True)
    assert recorded(third) == {"a": xxhash.xxh3_128_hexdigest(bytes(3))}
