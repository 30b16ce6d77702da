from __future__ import annotations

import bz2
import gzip
import importlib.resources
import io
import lzma
import os
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

import firekeep
from firekeep import FirekeepError, TensorNotFoundError, TruncatedError, WrongFormatError
from use.checkpoints import training

ARRAYS = {"fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "fc.bias": np.ones(2, np.float16)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return firekeep.save_file(ARRAYS, tmp_path / "model.safetensors", metadata={"run": "a1"})


def same(opened: firekeep.OpenedFile) -> bool:
    return sorted(opened) == sorted(ARRAYS) and all(np.array_equal(opened[name], ARRAYS[name]) for name in ARRAYS)


def test_paths_of_every_kind_are_opened(path: Path):
    with os.scandir(path.parent) as listing:
        found = next(listing)
    for source in (path, str(path), found):
        with firekeep.open(source) as file:
            assert same(file)
            assert file.path == str(path)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_every_kind_are_opened(path: Path, kind: type):
    with firekeep.open(kind(path.read_bytes())) as file:
        assert same(file)
        assert file.path is None


def test_file_objects_are_opened_and_left_open(path: Path):
    for buffering in (-1, 0):
        with path.open("rb", buffering=buffering) as handle, firekeep.open(handle) as file:
            assert same(file)
            assert file.path == str(path)
            assert not handle.closed


def test_a_file_object_is_read_from_where_it_stands(path: Path, tmp_path: Path):
    (tmp_path / "joined").write_bytes(b"header" + path.read_bytes())
    with (tmp_path / "joined").open("rb") as handle:
        handle.seek(6)
        with firekeep.open(handle) as file:
            assert same(file)


def test_streams_in_memory_are_opened(path: Path):
    with firekeep.open(io.BytesIO(path.read_bytes())) as file:
        assert same(file)


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
def test_objects_that_decompress_give_what_is_inside(module, path: Path, tmp_path: Path):
    packed = tmp_path / "packed"
    with module.open(packed, "wb") as out:
        out.write(path.read_bytes())
    with module.open(packed, "rb") as handle, firekeep.open(handle) as file:
        assert same(file)


def test_members_of_archives_are_opened(path: Path, tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(path, "inner/model.safetensors")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        with archive.open("inner/model.safetensors") as handle, firekeep.open(handle) as file:
            assert same(file)
        with firekeep.open(zipfile.Path(archive, "inner/model.safetensors")) as file:
            assert same(file)


def test_resources_of_packages_are_opened(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "weights_of_a_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "model.safetensors").write_bytes(path.read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    with firekeep.open(importlib.resources.files("weights_of_a_package") / "model.safetensors") as file:
        assert same(file)
    sys.modules.pop("weights_of_a_package", None)


def test_temporary_files_are_opened(path: Path):
    with tempfile.NamedTemporaryFile() as handle:
        handle.write(path.read_bytes())
        handle.seek(0)
        with firekeep.open(handle) as file:
            assert same(file)
    with tempfile.TemporaryFile() as handle:
        handle.write(path.read_bytes())
        handle.seek(0)
        with firekeep.open(handle) as file:
            assert same(file)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_are_opened(path: Path, tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    writer.start()
    with firekeep.open(pipe) as file:
        assert same(file)
    writer.join()


def test_a_file_object_whose_name_is_another_file_by_now_is_read_itself(path: Path, tmp_path: Path):
    with path.open("rb") as handle:
        path.rename(tmp_path / "moved")
        path.write_bytes(b"something else")
        with firekeep.open(handle) as file:
            assert same(file)


def test_files_open_as_text_are_refused(path: Path):
    with path.open(encoding="latin-1") as handle, pytest.raises(TypeError, match="open it with 'rb'"):
        firekeep.open(handle)
    with pytest.raises(TypeError, match="'rb'"):
        firekeep.open(io.StringIO("x"))


@pytest.mark.parametrize("source", [None, 3, object(), ["a"]])
def test_what_is_no_file_is_refused(source):
    with pytest.raises(TypeError, match="a path, bytes, a binary file or a resource is needed"):
        firekeep.open(source)


def test_a_missing_file_is_the_error_of_the_system(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        firekeep.open(tmp_path / "nothing.bpk")


def test_errors_name_the_file(path: Path, tmp_path: Path):
    broken = tmp_path / "cut.safetensors"
    broken.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TruncatedError) as caught:
        firekeep.open(broken)
    assert str(caught.value).startswith(str(broken))
    with pytest.raises(WrongFormatError, match=str(tmp_path)):
        firekeep.open(tmp_path)


def test_a_directory_with_one_file_is_opened(path: Path):
    with firekeep.open(path.parent) as file:
        assert same(file)


def test_an_unknown_name_lists_near_ones(path: Path):
    with firekeep.open(path) as file:
        for wrong in ("fc.weigth", "model.fc.weight", "weight"):
            with pytest.raises(TensorNotFoundError, match=r"Near: 'fc\.weight'") as caught:
                file.array(wrong)
            assert caught.value.path == str(path)
        with pytest.raises(KeyError, match=r"there is no tensor 'zzz' among 2$"):
            file["zzz"]


def test_an_open_file_is_a_mapping_of_arrays(path: Path):
    with firekeep.open(path) as file:
        assert len(file) == 2
        assert "fc.weight" in file
        assert "fc" not in file
        assert list(file) == file.keys() == list(file.entries)
        assert file.metadata == {"run": "a1"}
        assert file.entry("fc.bias").shape == (2,)
        with pytest.raises(TypeError):
            file.metadata["x"] = "y"
        assert "safetensors, 2 tensors" in repr(file)


def test_arrays_outlive_the_file_and_its_name(path: Path):
    with firekeep.open(path) as file:
        array = file["fc.weight"]
    path.unlink()
    assert np.array_equal(array, ARRAYS["fc.weight"])
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="closed"):
        file["fc.bias"]


def test_tied_names_that_the_file_does_not_hold_are_given(tmp_path: Path):
    shared = np.ones((2, 2), np.float32)
    path = firekeep.save_file({"head.weight": shared, "embed.weight": shared}, tmp_path / "m.safetensors")
    with firekeep.open(path) as file:
        assert file.keys() == ["embed.weight"]
        assert file.ties == {"head.weight": "embed.weight"}
        assert "head.weight" in file
        assert np.array_equal(file["head.weight"], shared)
        assert file.entry("head.weight").name == "head.weight"
        assert list(file.filled()) == ["embed.weight", "head.weight"]


def test_part_of_a_checkpoint_is_opened_by_its_key():
    data = training(ARRAYS | {"fc.bias": np.ones(2, np.float32)})
    with firekeep.open(data) as file:
        assert file.subtrees == ("state_dict",)
        assert "state_dict.fc.weight" in file
        assert file.values()["epoch"] == 3
    with firekeep.open(data, top_level_key="state_dict") as file:
        assert sorted(file) == sorted(ARRAYS)
    with firekeep.open(data, top_level_key="") as file:
        assert "optimizer.state.0.exp_avg" in file
    with pytest.raises(FirekeepError, match="state_dict"):
        firekeep.open(data, top_level_key="state_dcit")


@pytest.mark.parametrize("key", [0, 5, b"model", ["model"]])
def test_a_key_that_is_no_text_is_refused_by_every_door(key: object, path: Path):
    doors = (
        lambda: firekeep.open(path, top_level_key=key),
        lambda: firekeep.load_file(path, top_level_key=key),
        lambda: firekeep.load_into(dict(ARRAYS), path, top_level_key=key),
        lambda: firekeep.convert(path, path.with_suffix(".bpk"), top_level_key=key),
        lambda: firekeep.PytorchStore(path, top_level_key=key).keys(),
    )
    for door in doors:
        with pytest.raises(firekeep.RuleError, match=f"top_level_key: .* is {type(key).__name__}.*'model'"):
            door()


def test_no_key_and_the_key_of_the_whole_file_are_the_same(path: Path):
    with firekeep.open(path, top_level_key="") as file:
        assert same(file)


def test_limits_that_are_none_are_refused(path: Path):
    with pytest.raises(firekeep.RuleError, match=r"limits: 5 is int.*firekeep\.Limits"):
        firekeep.load_file(path, limits=5)
