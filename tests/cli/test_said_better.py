"""What commands say where somebody new was left without help."""

from __future__ import annotations

import io
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import firekeep

Run = Callable[..., Any]


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def alone(model: nn.Module, tmp_path: Path) -> Path:
    torch.save(model.state_dict(), tmp_path / "sd.pt")
    return tmp_path / "sd.pt"


@pytest.fixture
def checkpoint(model: nn.Module, tmp_path: Path) -> Path:
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    held = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save(held, tmp_path / "ck.pt")
    return tmp_path / "ck.pt"


@pytest.fixture
def two(model: nn.Module, tmp_path: Path) -> Path:
    torch.save({"model": model.state_dict(), "ema": model.state_dict(), "epoch": 3}, tmp_path / "two.pt")
    return tmp_path / "two.pt"


def test_a_training_checkpoint_stands_for_the_model_in_it(fk: Run, alone: Path, checkpoint: Path):
    done = fk("match", alone, "--like", checkpoint)
    assert done.code == 0
    assert "ck.pt, the part 'model'" in done.text
    assert fk("match", checkpoint, "--like", checkpoint).code == 0
    assert fk("match", alone, "--like", checkpoint, "--like-top-level-key", "").code == 1
    assert firekeep.preview(alone, checkpoint, like_top_level_key="").missing
    with firekeep.open(checkpoint) as opened:
        assert firekeep.preview(alone, opened).exact
        assert firekeep.preview(alone, opened, like_top_level_key="model").exact


def test_of_several_models_one_is_chosen_by_the_option_that_is_named(fk: Run, alone: Path, two: Path):
    done = fk("match", alone, "--like", two)
    assert done.code == 2
    assert "Choose one, --like-top-level-key model" in done.err
    assert fk("match", alone, "--like", two, "--like-top-level-key", "ema").code == 0
    with pytest.raises(firekeep.RuleError) as caught:
        firekeep.preview(alone, two)
    assert caught.value.remedy.startswith("Choose one, like_top_level_key='model'")


@pytest.mark.parametrize("options", [[], ["--max-shard-size", "5GB"]])
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_folder_that_is_not_there_is_refused_for_one_file_and_for_many(
    options: list[str], dry: list[str], fk: Run, alone: Path, tmp_path: Path
):
    done = fk("convert", alone, tmp_path / "nodir" / "y.safetensors", *options, *dry)
    assert done.code == 2
    assert "nodir: there is no such folder to save in: make it first (mkdir -p)" in done.err
    assert not (tmp_path / "nodir").exists()


def test_the_folder_of_a_set_is_made(fk: Run, alone: Path, tmp_path: Path):
    assert fk("convert", alone, tmp_path / "set", "--max-shard-size", "5GB").code == 0
    assert (tmp_path / "set" / "model.safetensors").is_file()


def test_where_no_pickle_is_that_is_said(fk: Run, tmp_path: Path):
    places = [tmp_path / name for name in ("text.pt", "empty.pt", "folder")]
    places[0].write_text("hello there\n")
    places[1].write_bytes(b"")
    places[2].mkdir()
    done = fk("scan", *places)
    assert done.code == 0
    assert done.out.count("nothing to scan, no pickle in it") == 3
    assert [one["scanned"] for one in fk("scan", "--json", *places).json] == [False] * 3
    assert str(firekeep.scan(places[0])).endswith("nothing to scan: there is no pickle in it")


def test_text_in_a_folder_is_no_damaged_pickle(fk: Run, tmp_path: Path):
    (tmp_path / "debian_version").write_text("13.1\n")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"a": 1}))
    done = fk("scan", tmp_path)
    assert done.code == 0
    assert "safe, 0 names, all harmless (1 pickle)" in done.text


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("cut.pkl", pickle.dumps({"a": [1, 2, 3]}, 0)[:-3]),
        ("blob", pickle.dumps({"a": [1, 2, 3]})[:-3]),
        ("evil.txt", b"cos\nsystem\n(S'true'\ntR"),
    ],
)
def test_damaged_pickles_in_a_folder_are_found_still(name: str, data: bytes, fk: Run, tmp_path: Path):
    (tmp_path / name).write_bytes(data)
    assert fk("scan", tmp_path).code == 1


def test_shards_of_safetensors_are_no_damaged_pickles(fk: Run, tmp_path: Path):
    text = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})
    header = text.ljust(ord("}"))  # the first byte of such a file is an opcode of pickles
    assert struct.pack("<Q", len(header))[:1] == b"}"
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header.encode() + bytes(4)
    )
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "model-00001-of-00001.safetensors"}}))
    report = firekeep.scan(index)
    assert report.damaged is None
    assert not report.scanned
    assert fk("scan", index).code == 0


def test_a_pickle_among_the_shards_is_found_whatever_it_is_called(tmp_path: Path):
    (tmp_path / "evil.safetensors").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "evil.safetensors"}}))
    assert firekeep.scan(index).dangerous


def test_arrays_that_are_no_tensors_are_told_of(fk: Run, tmp_path: Path):
    held = {"w": torch.ones(3), "stats": np.ones((2, 3)), "many": [np.zeros(2)], "odd": np.array([1, "a"], object)}
    torch.save(held, tmp_path / "np.pt")
    done = fk("inspect", tmp_path / "np.pt")
    assert "3 NumPy arrays are no tensors, and not listed: 'stats', 'many.0', 'odd'" in done.text
    assert "inspect --values shows them" in done.text
    with firekeep.open(tmp_path / "np.pt") as opened:
        assert opened.values()["stats"].tolist() == [[1] * 3] * 2
    torch.save({"w": torch.ones(3), "n": np.ones(2)}, tmp_path / "one.pt")
    assert "a NumPy array is no tensor, and not listed: 'n'" in fk("inspect", tmp_path / "one.pt").text


def test_a_pattern_that_meets_nothing_is_in_the_report_and_no_failure(fk: Run, alone: Path, tmp_path: Path):
    done = fk("convert", alone, tmp_path / "out.safetensors", "--exclude", "lm_haed", "--json")
    assert done.code == 0
    assert done.json["notes"] == ["the pattern 'lm_haed' was found in no name"]


def test_a_file_that_is_its_own_like_is_named_once(fk: Run, tmp_path: Path):
    path = firekeep.save_file({"w": np.ones((2, 2), np.float32)}, tmp_path / "net.safetensors")
    done = fk("convert", path, tmp_path / "out.bpk", "--layout", "burn", "--like", path)
    assert done.code == 2
    assert done.err.count("net.safetensors") == 1
    assert "the file itself, given as --like, does not tell what layers" in done.err


def test_arrows_stand_below_one_another(fk: Run, tmp_path: Path):
    names = ["model.a.weight", f"model.{'long.' * 12}weight", "model.embed.weight", f"model.{'mid.' * 6}weight"]
    firekeep.save_file({name: np.ones(1, np.float32) for name in names}, tmp_path / "it.safetensors")
    lines = fk("keys", tmp_path / "it.safetensors", "--rename", r"^model\.=>").lines[3:]
    beside = {line.index("->") for line in lines if "->" in line and not line.startswith("    ->")}
    assert len(beside) == 1
    assert sum(line.startswith("    ->") for line in lines) == 1
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("door", ["renamed_keys", "saved_metadata", "source", "like"])
def test_odd_arguments_are_refused_as_at_the_other_doors(door: str, alone: Path, model: nn.Module):
    def ask(given: Any) -> Any:
        if door in ("source", "like"):
            return firekeep.preview(*((given, alone) if door == "source" else (alone, given)))
        return getattr(firekeep, door)(given)

    for given in (None, 3, [str(alone)], model):
        with pytest.raises(firekeep.WrongTypeError, match="cannot open"):
            ask(given)
    with pytest.raises(firekeep.WrongTypeError, match="open it with 'rb'"):
        ask(io.StringIO("x"))
    with pytest.raises(firekeep.WrongTypeError, match="these are the path of one"):
        ask(str(alone).encode())
