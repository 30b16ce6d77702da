"""Odd objects where a file or a path is due: an error of firekeep's, with a remedy that works when it is followed."""

from __future__ import annotations

import io
import os
import pathlib
from typing import Any

import numpy as np
import pytest

import firekeep
from firekeep import WrongTypeError

WEIGHTS = {"fc.weight": np.arange(6, dtype="f4").reshape(2, 3)}


class Named(os.PathLike):  # type: ignore[type-arg]
    def __init__(self, name: Any) -> None:
        self.name = name

    def __fspath__(self) -> Any:
        return self.name


class Sub(type(pathlib.Path())):  # type: ignore[misc]
    """A path of somebody else's."""


READERS = {
    "open": firekeep.open,
    "load_file": firekeep.load_file,
    "verify": firekeep.verify,
    "scan": firekeep.scan,
    "doctor": firekeep.doctor,
    "dequantize": lambda source: firekeep.dequantize(source, "fc.weight"),
    "diff": lambda source: firekeep.diff("a.bpk", source),
    "diff from": lambda source: firekeep.diff(source, "a.bpk"),
    "convert": lambda source: firekeep.convert(source, "b.safetensors"),
}
WRITERS = {
    "convert": lambda path: firekeep.convert("a.bpk", path),
    "save_file": lambda path: firekeep.save_file(WEIGHTS, path),
    "save": lambda path: firekeep.save(WEIGHTS, path),
}
ODD: dict[str, Any] = {
    "None": None,
    "int": 3,
    "float": 1.5,
    "class": dict,
    "set": {1},
    "tree": WEIGHTS,
    "module": firekeep.module.Linear(2, 2),
    "paths": ["a.bpk", "b.bpk"],
    "no path": Named(5),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    firekeep.save_file(WEIGHTS, "a.bpk")
    return tmp_path


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_in_firekeeps_words(reader: str, odd: str):
    with pytest.raises(WrongTypeError, match=r"cannot open|a path is due") as refused:
        READERS[reader](ODD[odd])
    if odd in ("tree", "module"):
        assert "firekeep.save(obj, path)" in str(refused.value)
    if odd == "paths":
        assert "One file is read at a time" in str(refused.value)


@pytest.mark.parametrize("odd", [*ODD, "buffer"])
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_no_path_to_write_is_refused_in_firekeeps_words(folder, writer: str, odd: str):
    given = io.BytesIO() if odd == "buffer" else ODD[odd]
    with pytest.raises(WrongTypeError, match="a path is due") as refused:
        WRITERS[writer](given)
    assert refused.value.remedy or odd == "no path"
    assert [one.name for one in folder.iterdir()] == ["a.bpk"]


def test_a_model_in_the_place_of_the_source_is_told_what_writes_it():
    model = firekeep.module.Linear(2, 2)
    with pytest.raises(WrongTypeError, match=r"cannot open Linear: .*firekeep\.save\(obj, path\) writes the tensors"):
        firekeep.convert(model, "b.safetensors", layout="torch")
    assert firekeep.save(model, "b.safetensors", layout="torch").tensors == 2


def test_a_model_in_the_place_of_the_destination_is_told_what_fills_it():
    model = firekeep.module.Linear(3, 2)
    firekeep.save(model, "m.bpk")
    with pytest.raises(WrongTypeError, match=r"firekeep\.load_into\(obj, path\)"):
        firekeep.convert("m.bpk", model)
    assert firekeep.load_into(model, "m.bpk").exact


def test_a_buffer_in_the_place_of_the_destination_is_told_how_to_come_by_bytes():
    with pytest.raises(WrongTypeError, match=r"firekeep\.convert\(src, path\), and pathlib\.Path\(path\)\.read_bytes"):
        firekeep.convert("a.bpk", io.BytesIO())
    with pytest.raises(WrongTypeError, match=r"firekeep\.save_bytes\(tensors, format='safetensors'\)"):
        firekeep.save_file(WEIGHTS, io.BytesIO())
    assert firekeep.load_file(firekeep.save_bytes(WEIGHTS, format="safetensors")).keys() == WEIGHTS.keys()


@pytest.mark.parametrize("reader", READERS)
def test_an_open_file_is_told_its_path(reader: str):
    with firekeep.open("a.bpk") as file, pytest.raises(WrongTypeError, match=r"open already: .*'a\.bpk'"):
        READERS[reader](file)
    data = pathlib.Path("a.bpk").read_bytes()
    with firekeep.open(data) as file, pytest.raises(WrongTypeError, match="the bytes that it was opened from"):
        READERS[reader](file)


@pytest.mark.parametrize("reader", [*READERS, "load_into"])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_the_path_of_a_file_as_bytes_is_not_taken_for_its_content(reader: str, kind: Any):
    read = READERS.get(reader, lambda source: firekeep.load_into(dict(WEIGHTS), source))
    with pytest.raises(WrongTypeError, match=r"these are the path of one, 'a\.bpk'\. Give it as text"):
        read(kind(b"a.bpk"))
    if reader != "dequantize":
        read("a.bpk")


@pytest.mark.parametrize("reader", READERS)
def test_files_open_as_text_are_refused(reader: str):
    with (
        pathlib.Path("a.bpk").open(encoding="latin-1") as file,
        pytest.raises(WrongTypeError, match="open it with 'rb'"),
    ):
        READERS[reader](file)
    with pytest.raises(WrongTypeError, match="open it with 'rb'"):
        READERS[reader](io.StringIO("x"))


@pytest.mark.parametrize("path", [Sub("a.bpk"), Named("a.bpk"), Named(b"a.bpk")])
@pytest.mark.parametrize("reader", [one for one in READERS if one != "dequantize"])
def test_paths_of_all_kinds_are_read(reader: str, path: Any):
    READERS[reader](path)


@pytest.mark.parametrize("path", [Sub("b.bpk"), Named("b.bpk"), Named(b"b.bpk"), b"b.bpk"])
@pytest.mark.parametrize("writer", WRITERS)
def test_paths_of_all_kinds_are_written(writer: str, path: Any):
    WRITERS[writer](path)
    assert firekeep.load_file("b.bpk").keys() == WEIGHTS.keys()


@pytest.mark.parametrize("path", ["", b""])
@pytest.mark.parametrize("writer", WRITERS)
def test_an_empty_path_is_not_the_folder_we_are_in(writer: str, path: Any):
    with pytest.raises(FileNotFoundError, match="an empty path is not a file's"):
        WRITERS[writer](path)


def test_what_is_no_mapping_of_tensors_is_told_what_writes_it():
    with pytest.raises(WrongTypeError, match=r"not Linear\. firekeep\.save\(obj, path\) writes the tensors"):
        firekeep.save_file(firekeep.module.Linear(2, 2), "b.bpk")
    with pytest.raises(WrongTypeError, match=r"not dict\. The tensors come first, and the path after"):
        firekeep.save_file("b.bpk", WEIGHTS)  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match=r"not str\. The tensors come first"):
        firekeep.save_bytes("b.bpk", format="safetensors")  # type: ignore[arg-type]
    with firekeep.open("a.bpk") as file, pytest.raises(WrongTypeError, match=r"firekeep\.convert\(path, other\)"):
        firekeep.save_file(file, "b.bpk")
    with pytest.raises(WrongTypeError, match="a mapping of names to tensors is needed, not NoneType"):
        firekeep.save_bytes(None, format="safetensors")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["opened", "buffer", "bytearray", "path"])
def test_like_takes_a_file_in_whatever_form(kind: str):
    """One that is open was taken for a list of names, and told no layers."""
    torch = pytest.importorskip("torch")
    state = torch.nn.Linear(3, 2).state_dict()
    firekeep.save(torch.nn.Linear(3, 2), "like.bpk")
    data = pathlib.Path("like.bpk").read_bytes()
    with firekeep.open("like.bpk") as file:
        forms = {"opened": file, "buffer": io.BytesIO(data), "bytearray": bytearray(data), "path": "like.bpk"}
        firekeep.save(state, "b.bpk", layout="burn", like=forms[kind])
    assert firekeep.load_file("b.bpk")["weight"].shape == (3, 2)
