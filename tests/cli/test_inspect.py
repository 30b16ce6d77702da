"""`firekeep inspect`."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import firekeep
from use.checkpoints import state_dict, training

Run = Callable[..., Any]


def safetensors(path: Path, names: list[str], *, metadata: dict[str, str] | None = None, dtype: str = "U8") -> Path:
    """Write a file of one-element tensors with these names."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    for place, name in enumerate(names):
        header[name] = {"dtype": dtype, "shape": [1], "data_offsets": [place, place + 1]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(len(names)))
    return path


def test_a_tree_shows_names_dtypes_shapes_bytes_and_ids(fk: Run, cases: Path):
    done = fk("inspect", cases / "burn" / "mnist_web_model.bpk")
    assert done.code == 0
    assert "mnist_web_model.bpk: burnpack, 18 tensors, 1.04 MB" in done.text
    assert "│   ├── bias          F32  [64]              256 B  e4gfnnsqgnlo6" in done.lines
    assert "F32         18   260,810  1.04 MB" in done.lines
    assert max(map(len, done.lines[1:])) <= 80


def test_a_table_shows_one_whole_name_a_line_in_natural_order(fk: Run, tmp_path: Path):
    file = safetensors(tmp_path / "a.safetensors", ["l.10.w", "l.2.w", "l.2"])
    lines = fk("inspect", file, "--table").lines
    start = next(place for place, line in enumerate(lines) if line.startswith("dtype"))
    assert [line.split()[-1] for line in lines[start : start + 4]] == [
        "name",
        "l.2",
        "l.2.w",
        "l.10.w",
    ]


def test_alike_layers_are_folded_unless_all_are_asked_for(fk: Run, tmp_path: Path):
    file = safetensors(tmp_path / "a.safetensors", [f"layers.{i}.{p}" for i in range(3) for p in "ab"])
    folded, whole = fk("inspect", file), fk("inspect", file, "--all")
    assert any(line.startswith("layers.{0") for line in folded.lines)
    assert "Alike subtrees are shown once: --all shows every tensor." in folded.lines
    assert len([line for line in whole.lines if " U8 " in line and "[1]" in line]) == 6
    assert "--all" not in whole.out


def test_json_has_every_tensor_and_what_stands_beside_them(fk: Run, cases: Path):
    found = fk("inspect", cases / "burn" / "mnist_web_model.bpk", "--json").json
    assert found["format"] == "burnpack"
    assert found["file_bytes"] == 1_044_776
    assert len(found["tensors"]) == 18
    assert found["tensors"][0] == {
        "name": "conv1.conv.bias",
        "dtype": "F32",
        "shape": [64],
        "bytes": 256,
        "param_id": "e4gfnnsqgnlo6",
    }
    assert found["totals"] == {"F32": {"tensors": 18, "elements": 260_810, "bytes": 1_043_240}}


def test_values_of_a_checkpoint_are_shown_on_request(fk: Run, cases: Path):
    file = cases / "burn" / "burn_weights_with_config.pt"
    assert "Values" not in fk("inspect", file).out
    assert "Values" in fk("inspect", file, "--values").lines
    values = fk("inspect", file, "--values", "--json").json["values"]
    assert any(str(value).startswith("<tensor ") or isinstance(value, dict) for value in values.values())


def test_a_top_level_key_shows_a_part_alone(fk: Run, cases: Path):
    done = fk("inspect", cases / "burn" / "burn_checkpoint.pt", "--top-level-key", "model_state_dict", "--json")
    assert [tensor["name"] for tensor in done.json["tensors"]] == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]


def test_parts_that_look_like_models_are_pointed_out(fk: Run, cases: Path):
    assert (
        "See a part alone: --top-level-key model_state_dict" in fk("inspect", cases / "burn" / "burn_checkpoint.pt").out
    )


def test_a_top_level_key_that_is_not_there_lists_those_that_are(fk: Run, cases: Path):
    done = fk("inspect", cases / "burn" / "burn_checkpoint.pt", "--top-level-key", "nothing")
    assert (done.code, done.out) == (2, "")
    assert "model_state_dict" in done.err
    assert done.err.count("\n") == 1


def test_bytes_behind_the_tensors_are_refused_with_an_option_that_works(fk: Run, tmp_path: Path):
    file = safetensors(tmp_path / "a.safetensors", ["a"])
    file.write_bytes(file.read_bytes() + b"more")
    refused = fk("inspect", file)
    assert refused.code == 2
    assert "--allow-trailing" in refused.err
    assert "allow_trailing" not in refused.err
    assert fk("inspect", file, "--allow-trailing").code == 0


def test_a_tensor_that_cannot_be_read_is_listed_with_the_reason(fk: Run, tmp_path: Path):
    file = safetensors(tmp_path / "a.safetensors", ["odd"], dtype="F3")
    done = fk("inspect", file)
    assert done.code == 0
    assert "no bytes: dtype 'F3' is not one firekeep knows" in done.out
    assert fk("inspect", file, "--json").json["tensors"][0]["problem"].startswith("dtype 'F3'")


def test_ties_of_the_metadata_are_shown(fk: Run, tmp_path: Path):
    file = safetensors(tmp_path / "a.safetensors", ["embed.weight"], metadata={"head.weight": "embed.weight"})
    done = fk("inspect", file)
    assert any(line.startswith("head.weight") and line.endswith("= embed.weight") for line in done.lines)
    assert fk("inspect", file, "--json").json["ties"] == {"head.weight": "embed.weight"}
    assert "U8           1         1    1 B" in done.lines


def test_nothing_in_a_file_reaches_the_terminal_raw(fk: Run, tmp_path: Path):
    evil = "\x1b]0;owned\x07\x9b31m\r\nfake\u202e"
    file = safetensors(tmp_path / "a.safetensors", [evil, f"b.{evil}"], metadata={evil: evil})
    for options in ([], ["--table"], ["--all"]):
        out = fk("inspect", file, *options).out
        assert out.replace("\n", "").isprintable()
        assert "\nfake" not in out
        assert r"\x1b]0;owned\x07" in out


def test_markup_in_names_is_text(fk: Run, tmp_path: Path):
    file = safetensors(tmp_path / "a.safetensors", ["[red]w[/red]", "[/]"])
    assert "[red]w[/red]" in fk("inspect", file).out


def test_metadata_scalars_and_notes_are_shown(fk: Run, tmp_path: Path):
    file = tmp_path / "a.bpk"
    firekeep.save_file({"w": np.zeros(2)}, file, metadata={"who": "me"}, scalars={"step": 7, "loss": float("nan")})
    file.write_bytes(file.read_bytes() + b"more")
    done = fk("inspect", file)
    assert done.lines[-9:] == [
        *("", "Metadata", "  who: me", "", "Scalars", "  loss: Float(nan)", "  step: Int(7)", ""),
        "Note: 4 bytes behind the last tensor belong to none",
    ]
    scalars = fk("inspect", file, "--json").json["scalars"]
    assert scalars == {"loss": {"kind": "float", "value": "NaN"}, "step": {"kind": "int", "value": 7}}


def test_a_set_of_shards_counts_all_its_files(fk: Run, cases: Path, tmp_path: Path):
    file = cases / "burn" / "burn_mnist.safetensors"
    firekeep.convert(file, tmp_path / "m.safetensors", max_shard_size=500_000)
    index = tmp_path / "m.safetensors.index.json"
    found = fk("inspect", index, "--json").json
    assert len(found["tensors"]) == 20
    assert found["file_bytes"] == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_pipe_can_be_looked_into(cases: Path):
    file = cases / "burn" / "burn_mnist.safetensors"
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m firekeep inspect <(cat '{file}')"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[0].endswith(": safetensors, 20 tensors")


def test_a_file_without_tensors_is_shown(fk: Run, tmp_path: Path):
    done = fk("inspect", safetensors(tmp_path / "a.safetensors", []))
    assert done.code == 0
    assert "0 tensors" in done.out


def test_a_bare_tensor_has_a_name_that_can_be_seen(fk: Run, cases: Path):
    done = fk("inspect", cases / "burn" / "burn_tensor_2d.pt")
    assert done.code == 0
    assert "1 tensor" in done.out


def test_twenty_thousand_tensors_are_listed(fk: Run, tmp_path: Path):
    file = safetensors(tmp_path / "a.safetensors", [f"b{i % 37}.{i}.w" for i in range(20_000)])
    assert len(fk("inspect", file, "--json").json["tensors"]) == 20_000
    assert len(fk("inspect", file, "--table").lines) > 20_000
    assert "20,000 tensors" in fk("inspect", file).text


@pytest.mark.parametrize("folder", ["burn", "safetensors", "pytorch", "hostile", "other"])
def test_every_real_file_is_shown_or_refused_in_one_line(folder: str, fk: Run, cases: Path):
    files = [path for path in sorted((cases / folder).rglob("*")) if path.is_file()]
    assert files
    for path in files:
        done = fk("inspect", path, "--values")
        assert done.code in (0, 2), path
        assert done.out.replace("\n", "").isprintable(), path
        if done.code:
            assert done.out == "", path
            assert done.err.startswith("firekeep: "), path
            assert done.err.count("\n") == 1, path
        else:
            assert done.err == "", path
            assert fk("inspect", path, "--values", "--json").json["path"] == str(path)


def test_a_file_without_tensors_points_to_its_values(fk: Run, tmp_path: Path):
    file = tmp_path / "run.ckpt"
    file.write_bytes(pickle.dumps({"epoch": 3}, protocol=2))
    assert "--values shows what it holds" in fk("inspect", file).out
    assert "--values shows" not in fk("inspect", "--values", file).out


def test_values_count_the_tensors_instead_of_listing_them(fk: Run, tmp_path: Path):
    arrays = {"fc.weight": np.ones((2, 3), np.float32), "fc.bias": np.ones(3, np.float32)}
    (tmp_path / "run.ckpt").write_bytes(training(arrays))
    values = fk("inspect", "--values", tmp_path / "run.ckpt").out.split("Values\n")[1]
    assert "state_dict: <2 tensors>" in values
    assert "<tensor " not in values
    assert "<tensor state_dict.fc.bias>" in fk("inspect", "--values", "--all", tmp_path / "run.ckpt").out
    (tmp_path / "m.pt").write_bytes(state_dict(arrays))
    assert "Values: none besides the tensors" in fk("inspect", "--values", tmp_path / "m.pt").out


def test_long_names_and_notes_keep_to_80_columns(fk: Run, tmp_path: Path):
    name = ".".join(f"block{index}" for index in range(60))
    firekeep.save_file({name: np.ones(3)}, tmp_path / "a.safetensors", metadata={"k" * 300: "v"})
    firekeep.save_file({name: np.ones(3)}, tmp_path / "b.bpk")
    for arguments in (("inspect",), ("doctor",), ("verify", "--values")):
        for file in ("a.safetensors", "b.bpk"):
            done = fk(*arguments, tmp_path / file)
            assert done.code == 0
            assert all(len(line) <= 80 for line in done.lines if str(tmp_path) not in line), done.out
    assert name in fk("inspect", "--all", tmp_path / "b.bpk").out


def test_a_key_for_a_file_without_parts_is_refused_with_the_command_that_filters(fk: Run, tmp_path: Path):
    firekeep.save_file({"a": np.ones(3)}, tmp_path / "b.bpk")
    done = fk("inspect", "--top-level-key", "x", tmp_path / "b.bpk")
    assert done.code == 2
    assert "use --include of firekeep convert" in done.err


def test_what_stands_beside_the_tensors_fits_a_terminal(fk: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = " ".join(f"word{number}" for number in range(15))
    firekeep.save_file({"w": np.zeros(2)}, "a.safetensors", metadata={"who": words})
    done = fk("inspect", "a.safetensors")
    assert max(map(len, done.lines)) <= 80
    assert words in done.text
    assert f"  who: {words}" in fk("inspect", "a.safetensors", "--all").lines


def test_names_that_a_model_of_keras_gives_its_layers_are_told(fk: Run, tmp_path: Path):
    file = tmp_path / "m.weights.h5"
    with h5py.File(file, "w") as made:
        for layer, name, shape in (
            ("dense", "head", (3, 2)),
            ("conv2d", "conv2d", (1, 1, 2, 2)),
            ("dropout", "out", None),
        ):
            group = made.create_group(f"layers/{layer}/vars")
            group.attrs["name"] = name
            if shape is not None:
                group["0"] = np.ones(shape, np.float32)
    done = fk("inspect", file)
    told = done.lines.index("Names of layers in the model")
    assert done.lines[told + 1 :] == ["  layers.dense: head"]
    assert "in the model 'layers.dense' is 'head'" in fk("keys", file).text
    assert fk("keys", file, "--json").json["layers"] == {"layers.dense": "head"}
