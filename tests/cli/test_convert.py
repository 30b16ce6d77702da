"""`firekeep convert`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firekeep

Run = Callable[..., Any]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of two layers, one of them under two names."""
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensors = {"model.fc.weight": weight, "model.fc.bias": np.ones(2, np.float32), "model.tied": weight}
    return firekeep.save_file(tensors, tmp_path / "in.safetensors", metadata={"who": "me"})


def names(file: Path) -> list[str]:
    with firekeep.open(file) as opened:
        return sorted({*opened.keys(), *opened.ties})


def test_a_file_becomes_another_of_equal_tensors(fk: Run, source: Path, tmp_path: Path):
    out = tmp_path / "out.bpk"
    done = fk("convert", source, out)
    assert (done.code, done.err) == (0, "")
    assert "3 tensors" in done.text
    assert firekeep.diff(source, out).equal


def test_all_options_arrive(fk: Run, source: Path, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    done = fk(
        *("convert", source, out, "--include", "fc", "--exclude", "bias$", "--rename", r"^model\.=>", "--digest"),
        *("--rename", "(fc)=>head.$1", "--dtype", "bf16", "--metadata", "run=a=b", "--no-fsync", "--ties", "expand"),
    )
    assert done.code == 0, done.err
    with firekeep.open(out) as opened:
        assert opened.keys() == ["head.fc.weight"]
        assert str(opened.entry("head.fc.weight").dtype) == "BF16"
        assert opened.metadata["run"] == "a=b"
        assert opened.metadata["who"] == "me"
        assert "firekeep.digests" in opened.metadata
    assert "in 1" in done.text


def test_ties_are_kept_or_expanded(fk: Run, source: Path, tmp_path: Path):
    kept, expanded = tmp_path / "kept.safetensors", tmp_path / "expanded.safetensors"
    assert fk("convert", source, kept).code == fk("convert", source, expanded, "--ties", "expand").code == 0
    assert names(kept) == names(expanded)
    assert expanded.stat().st_size > kept.stat().st_size - 100
    with firekeep.open(expanded) as opened:
        assert opened.ties == {}


def test_an_existing_file_is_refused_and_left_alone(fk: Run, source: Path, tmp_path: Path):
    out = tmp_path / "out.bpk"
    out.write_bytes(b"precious")
    done = fk("convert", source, out)
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("Use --overwrite to replace it.\n")
    assert out.read_bytes() == b"precious"
    assert fk("convert", source, out, "--overwrite").code == 0
    assert firekeep.diff(source, out).equal


def test_a_dry_run_tells_and_writes_nothing(fk: Run, source: Path, tmp_path: Path):
    done = fk("convert", source, tmp_path / "out.bpk", "--dry-run")
    assert done.code == 0
    assert "would become" in done.text
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


def test_a_part_of_a_checkpoint_is_chosen_by_its_key(fk: Run, cases: Path, tmp_path: Path):
    file = cases / "burn" / "burn_checkpoint.pt"
    part, everything = tmp_path / "part.bpk", tmp_path / "all.bpk"
    assert fk("convert", file, part, "--top-level-key", "model_state_dict").code == 0
    assert names(part) == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]
    assert fk("convert", file, everything, "--top-level-key", "").code == 0
    assert "optimizer_state_dict.state.0.momentum_buffer" in names(everything)


def test_what_was_left_out_is_told_with_the_option_that_takes_it(fk: Run, cases: Path, tmp_path: Path):
    out = fk("convert", cases / "burn" / "burn_checkpoint.pt", tmp_path / "part.bpk").text
    assert "--top-level-key ''" in out
    assert "top_level_key" not in out


def test_shards_are_written_with_their_index(fk: Run, cases: Path, tmp_path: Path):
    file = cases / "burn" / "burn_mnist.safetensors"
    done = fk("convert", file, tmp_path / "m.safetensors", "--max-shard-size", "1MB")
    assert done.code == 0, done.err
    assert (tmp_path / "m.safetensors.index.json").exists()
    assert firekeep.diff(file, tmp_path / "m.safetensors.index.json").equal


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-shard-size", "5XB"], "5XB"),
        (["--metadata", "nothing"], "'nothing' is not of the form KEY=VALUE"),
        (["--metadata", "=x"], "'=x' is not of the form KEY=VALUE"),
        (["--rename", "a"], "PATTERN=>REPLACEMENT"),
        (["--rename", "(=>a"], "not a regular expression"),
        (["--include", "["], "not a regular expression"),
        (["--dtype", "int8"], "'int8'"),
        (["--ties", "some"], "'some'"),
        (["--rename", "weight|bias=>x"], "--exclude"),
    ],
)
def test_what_is_wrong_with_an_option_is_one_line(
    options: list[str], message: str, fk: Run, source: Path, tmp_path: Path
):
    done = fk("convert", source, tmp_path / "out.safetensors", *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


def test_a_suffix_that_names_no_format_is_refused(fk: Run, source: Path, tmp_path: Path):
    done = fk("convert", source, tmp_path / "out.pt")
    assert done.code == 2
    assert ".safetensors" in done.err


def test_a_folder_that_is_not_there_is_one_line(fk: Run, source: Path, tmp_path: Path):
    done = fk("convert", source, tmp_path / "nowhere" / "out.bpk")
    assert done.code == 2
    assert done.err.startswith(f"firekeep: {tmp_path / 'nowhere'}")


def test_json_is_the_whole_report(fk: Run, source: Path, tmp_path: Path):
    report = fk("convert", source, tmp_path / "out.bpk", "--json", "--rename", "fc=>f").json
    assert report["tensors"] == 3
    assert report["renames"] == [{"rule": "fc=>f", "hits": 2}]


def test_bytes_behind_the_tensors_can_be_allowed(fk: Run, source: Path, tmp_path: Path):
    source.write_bytes(source.read_bytes() + b"more")
    out = tmp_path / "out.bpk"
    assert fk("convert", source, out).code == 2
    assert fk("convert", source, out, "--allow-trailing").code == 0
