"""Sharded sets whose index and files do not agree, and values that are wrong in a file of the right size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import firekeep
import pickles
from firekeep import MetadataError
from reports.files import described, raw_safetensors, state_dict_file

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def shard(*names: str) -> bytes:
    header = {name: described("F32", [1], 4 * place, 4 * place + 4) for place, name in enumerate(names)}
    return raw_safetensors(header, b"".join(pickles.floats(ord(name[0])) for name in names))


def lay(folder: Path, files: dict[str, bytes], weight_map: dict[str, str]) -> Path:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


# huggingface_hub#4725, #4728: a tensor of the index that its shard does not hold.
def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path):
    index = lay(tmp_path, {FIRST: shard("a"), SECOND: shard("b")}, {"a": FIRST, "b": SECOND, "c": SECOND})
    with pytest.raises(MetadataError, match=f"'c' is not in {SECOND}"):
        firekeep.open(index)


def test_a_tensor_in_another_shard_than_the_index_says_is_named(tmp_path: Path):
    index = lay(tmp_path, {FIRST: shard("a", "b"), SECOND: shard("c")}, {"a": FIRST, "b": SECOND, "c": SECOND})
    with pytest.raises(MetadataError, match=f"'b' is in {FIRST}, not in {SECOND}"):
        firekeep.open(index)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path):
    index = lay(tmp_path, {FIRST: shard("a", "b"), SECOND: shard("b")}, {"a": FIRST, "b": SECOND})
    with pytest.raises(MetadataError, match=f"'b'.*in two shards, {FIRST} and {SECOND}"):
        firekeep.open(index)


def test_a_tensor_that_the_index_forgets_is_shown_and_noted(tmp_path: Path):
    index = lay(tmp_path, {FIRST: shard("a"), SECOND: shard("b", "x")}, {"a": FIRST, "b": SECOND})
    with firekeep.open(index) as file:
        assert file.keys() == ["a", "b", "x"]
        assert any("'x'" in note for note in file.notes)


# CoSER#3, mlx-vlm#1827: an index of 30 shards, and 15 complete ones beside it.
def test_a_stale_index_is_told_from_missing_data(tmp_path: Path):
    named = {name: f"model-{place:05d}-of-00004.safetensors" for place, name in enumerate("abcd", 1)}
    index = lay(tmp_path, {FIRST: shard("a", "b"), SECOND: shard("c", "d")}, named)
    with firekeep.open(index) as file:
        assert sorted(file) == list("abcd")
        assert file["d"][0] == ord("d")
        assert any("index stale, headers complete" in note for note in file.notes)
    assert [finding for finding in firekeep.verify(index).findings if "index stale" in finding.message]


@pytest.mark.parametrize("gone", [FIRST, SECOND])
def test_a_missing_shard_is_named_with_what_is_there(gone: str, tmp_path: Path):
    files = {FIRST: shard("a", "b"), SECOND: shard("c")}
    index = lay(
        tmp_path, {name: data for name, data in files.items() if name != gone}, {"a": FIRST, "b": FIRST, "c": SECOND}
    )
    held = 1 if gone == FIRST else 2
    with pytest.raises(MetadataError, match=f"1 of the 2 files .* missing \\({gone}\\).* {held} of its 3 tensors"):
        firekeep.open(index)


# unsloth-zoo#900: shards with names of another form.
@pytest.mark.parametrize(
    "form", ["model.safetensors-{}-of-00002.safetensors", "part {}.safetensors", "{}.bin.safetensors"]
)
def test_shards_may_be_called_anything(form: str, tmp_path: Path):
    first, second = form.format("00001"), form.format("00002")
    index = lay(tmp_path, {first: shard("a"), second: shard("b")}, {"a": first, "b": second})
    for place in (index, tmp_path):
        with firekeep.open(place) as file:
            assert {name: file[name].tolist() for name in file} == {"a": [ord("a")], "b": [ord("b")]}


@pytest.mark.parametrize(
    "path", ["../outside.safetensors", "/tmp/x.safetensors", "sub/x.safetensors", "C:\\x.safetensors", "", ".."]
)
def test_a_shard_name_is_never_a_path(path: str, tmp_path: Path):
    (tmp_path / "set").mkdir()
    (tmp_path / "outside.safetensors").write_bytes(shard("a"))
    index = lay(tmp_path / "set", {}, {"a": path})
    with pytest.raises(MetadataError, match="path"):
        firekeep.open(index)


def test_an_index_of_pytorch_files_opens_as_one(tmp_path: Path):
    index = tmp_path / "pytorch_model.bin.index.json"
    (tmp_path / "pytorch_model-00001-of-00001.bin").write_bytes(state_dict_file(a=pickles.floats(1)))
    index.write_text(json.dumps({"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}))
    with firekeep.open(index) as file:
        assert file["a"].tolist() == [1]


def test_a_set_that_was_written_in_shards_holds_everything(tmp_path: Path):
    arrays = {f"layer.{number}": np.full((25,), number, np.float32) for number in range(10)}
    firekeep.save_file(arrays, tmp_path / "whole.safetensors", metadata={"format": "pt"})
    (tmp_path / "set").mkdir()
    firekeep.convert(tmp_path / "whole.safetensors", tmp_path / "set" / "model.safetensors", max_shard_size=250)
    index = json.loads((tmp_path / "set" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 5
    with firekeep.open(tmp_path / "set") as file:
        assert file.metadata == {"format": "pt"}
        assert {name: file[name].tolist() for name in file} == {name: array.tolist() for name, array in arrays.items()}


# vllm#53537, aprender#2337: a file of the right size with wrong bytes, or with tensors of nothing but zeros.
@pytest.mark.parametrize("suffix", [".safetensors", ".bpk"])
def test_a_changed_byte_is_found_where_a_digest_was_recorded(suffix: str, tmp_path: Path):
    path = tmp_path / f"model{suffix}"
    firekeep.save_file({"a": np.arange(64, dtype=np.float32), "b": np.ones(64, np.float32)}, path, digest=True)
    assert firekeep.verify(path).ok
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    report = firekeep.verify(path)
    assert not report.ok
    named = {finding.place for finding in report.findings if finding.severity == "error"}
    assert len(named & {"a", "b"}) == 1
    with firekeep.open(path) as file:  # a digest is checked when asked for, not on every open
        assert sorted(file) == ["a", "b"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_found_on_request(value: float, tmp_path: Path):
    array = np.ones((4, 4), np.float32)
    array[2, 1] = value
    firekeep.save_file({"fine": np.ones(3, np.float32), "bad": array}, tmp_path / "model.safetensors")
    plain, deep = (firekeep.verify(tmp_path / "model.safetensors", values=values) for values in (False, True))
    assert not [finding for finding in plain.findings if finding.place == "bad"]
    assert [finding.place for finding in deep.findings if finding.place in ("bad", "fine")] == ["bad"]


def test_tensors_of_nothing_but_zeros_are_found_on_request(tmp_path: Path):
    arrays = {"fine": np.ones(8, np.float32), "zero.weight": np.zeros((8, 8), np.float32)}
    firekeep.save_file(arrays, tmp_path / "model.safetensors")
    report = firekeep.verify(tmp_path / "model.safetensors", values=True)
    assert [finding.place for finding in report.findings if "zero" in finding.message] == ["zero.weight"]
