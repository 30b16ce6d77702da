"""What the commands print fits a terminal of 80 columns; a verdict stays on the line of its file, and what is to be copied in one piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firekeep
from firekeep.cli import COMMANDS
from firekeep.cli._output import width

Run = Callable[..., Any]

COMMANDS_OF_ONE_FILE = (
    ("inspect",),
    ("inspect", "--values"),
    ("verify", "--values"),
    ("scan",),
    ("doctor",),
    ("keys",),
)
LONGEST_PATH = 60


def samples(cases: Path) -> Iterator[Path]:
    """Files whose names leave room for a report; each kind once or twice, small ones."""
    for file in sorted(cases.glob("*/*")):
        if file.is_file() and len(str(file.relative_to(cases))) <= LONGEST_PATH and file.stat().st_size < 100_000:
            yield file.relative_to(cases)


@pytest.mark.parametrize("command", COMMANDS_OF_ONE_FILE, ids=" ".join)
def test_reports_on_real_files_fit(fk: Run, cases: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]):
    monkeypatch.chdir(cases)
    files = list(samples(cases))
    assert len(files) > 100
    wide = []
    for file in files[::3]:
        wide += [
            line for line in fk(*command, file).lines if width(line) > 80 and "`" not in line and str(file) not in line
        ]
    assert not wide


def test_what_is_known_of_a_tensor_stands_below_it_where_there_is_no_room(fk: Run, cases: Path):
    done = fk("inspect", cases / "pytorch" / "lightning_mlp-coral_epoch=114-step=2529.ckpt")
    place = next(number for number, line in enumerate(done.lines) if "current_score" in line)
    assert done.lines[place + 1].strip(" │").startswith("= callbacks.ModelCheckpoint{'monitor'")
    assert done.lines[place + 1].endswith(".best_model_score")
    assert max(map(len, done.lines[2:])) <= 80
    whole = fk("inspect", "--all", cases / "pytorch" / "lightning_mlp-coral_epoch=114-step=2529.ckpt")
    assert any("current_score" in line and ".best_model_score" in line for line in whole.lines)


def test_guides_go_on_past_a_line_more(fk: Run, cases: Path):
    done = fk("inspect", cases / "pytorch" / "TestSerialization.test_lstm.state_dict.pt")
    place = next(number for number, line in enumerate(done.lines) if line.startswith("    ├── 0.state"))
    assert done.lines[place + 1].startswith("    │   │   no bytes: it is quantized")
    assert done.lines[place + 3].startswith("    │   └── int_repr")
    assert any(line.startswith("    └── 1.state") for line in done.lines)


def test_a_scan_names_the_member_above_where_lines_would_be_long(fk: Run, cases: Path, monkeypatch):
    monkeypatch.chdir(cases)
    lines = fk("scan", "burn/burn_import_mnist_whole_model.pt").lines
    assert lines[1] == "  in mnist/data.pkl:"
    assert lines[2].split() == ["unknown", "__main__.Net", "called", "1", "x,", "byte", "2"]
    assert (
        fk("scan", "hostile/modelscan_unsafe_zip_pytorch.pt")
        .lines[-1]
        .endswith("byte 2 of unsafe_zip_pytorch/data.pkl")
    )


def test_a_diff_of_two_layouts_begins_with_it(fk: Run, tmp_path: Path):
    firekeep.save(firekeep.module.Linear(3, 2), tmp_path / "net.bpk")
    firekeep.save(firekeep.module.Linear(3, 2), tmp_path / "net.safetensors")
    done = fk("diff", tmp_path / "net.safetensors", tmp_path / "net.bpk")
    assert done.code == 1
    assert "the layouts differ, 'torch' and 'burn'" in done.text.split("1 tensor")[0]
    assert f"`firekeep match {tmp_path / 'net.safetensors'} --like {tmp_path / 'net.bpk'}`" in done.text
    assert fk("match", tmp_path / "net.safetensors", "--like", tmp_path / "net.bpk").code == 0


def test_a_match_tells_options_that_met_nothing(fk: Run, tmp_path: Path):
    firekeep.save_file({"head.weight": np.zeros((2, 3), np.float32)}, tmp_path / "a.safetensors")
    done = fk("match", *[tmp_path / "a.safetensors", "--like", tmp_path / "a.safetensors"], "--exclude", "^haed")
    assert done.code == 0
    assert "note: exclude '^haed' met no tensor of the model" in done.lines[-1]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_may_be_asked_for_in_words(fk: Run, command: str):
    words = [command] if command else []
    done = fk("help", *words)
    assert (done.code, done.out) == (0, fk(*words, "--help").out)
    assert done.out.startswith("Usage: firekeep")


def test_an_empty_folder_is_told_what_was_looked_for(fk: Run, tmp_path: Path):
    done = fk("checkpoints", tmp_path)
    assert done.code == 1
    assert "0 complete steps" in done.text
    assert "looked for: folders step-00000001" in done.text
    assert "model-1.bpk" in done.text


@pytest.mark.parametrize("name", ["net.bpk", "net.safetensors", "net.npy"])
def test_a_truncated_file_and_an_empty_one_are_both_not_whole(fk: Run, tmp_path: Path, name: str):
    path = tmp_path / name
    if name.endswith(".npy"):
        np.save(path, np.zeros(30))
    else:
        firekeep.save_file({"w": np.zeros(30, np.float32)}, path)
    whole = path.read_bytes()
    for size in (0, 20, 60):
        path.write_bytes(whole[:size])
        done = fk("verify", path)
        assert (done.code, done.err) == (1, ""), size
        assert "NOT OK" in done.text
        assert "again" in done.text
        assert "again" in fk("inspect", path).err
    path.write_text("these are no weights\n")
    assert fk("verify", path).code == 2
