"""`firekeep verify`."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firekeep
import pickles
from use.checkpoints import Checkpoint, state_dict

Run = Callable[..., Any]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A file with digests."""
    return firekeep.save_file({"w": np.arange(8, dtype=np.float32)}, tmp_path / "a.safetensors", digest=True)


def flip(file: Path, offset: int) -> None:
    """Change one byte."""
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)


def test_a_whole_file_is_ok(fk: Run, saved: Path):
    done = fk("verify", saved)
    assert (done.code, done.err) == (0, "")
    assert "ok (safetensors)" in done.text
    assert "1 digest" in done.text


def test_a_changed_byte_is_found_by_its_digest(fk: Run, saved: Path):
    flip(saved, -1)
    done = fk("verify", saved)
    assert done.code == 1
    assert "'w'" in done.text
    assert "digest" in done.text


def test_a_damaged_table_is_an_answer_and_no_error(fk: Run, tmp_path: Path):
    file = tmp_path / "a.safetensors"
    file.write_bytes(struct.pack("<Q", 900) + b"{}")
    done = fk("verify", file)
    assert (done.code, done.err) == (1, "")
    assert "error:" in done.text


def test_nan_is_found_on_request(fk: Run, tmp_path: Path):
    file = firekeep.save_file({"w": np.array([1, np.nan], np.float32)}, tmp_path / "a.bpk")
    assert fk("verify", file).code == 0
    done = fk("verify", "--values", file)
    assert done.code == 1
    assert "NaN" in done.text


def test_many_files_give_the_worst_code_and_each_its_answer(fk: Run, saved: Path, tmp_path: Path):
    missing = tmp_path / "missing.bpk"
    done = fk("verify", missing, saved)
    assert done.code == 2
    assert done.err == f"firekeep: {missing}: No such file or directory\n"
    assert "a.safetensors: ok" in done.text


def test_a_file_that_is_no_format_could_not_be_checked(fk: Run, cases: Path):
    done = fk("verify", cases / "other" / "mnist.onnx")
    assert (done.code, done.out) == (2, "")
    assert "ONNX model" in done.err


def test_json_has_an_answer_for_every_file(fk: Run, saved: Path, tmp_path: Path):
    whole, missing = fk("verify", "--json", saved, tmp_path / "missing.bpk").json
    assert whole["ok"] is True
    assert "No such file" in missing["error"]


def test_no_progress_is_drawn_where_there_is_no_terminal(fk: Run, saved: Path):
    assert fk("verify", "--values", saved).err == ""


def test_no_name_in_a_damaged_file_reaches_the_terminal_raw(fk: Run, tmp_path: Path):
    file = tmp_path / "a.safetensors"
    name = "w\x1b[31m\nfake: ok"
    header = json.dumps({name: {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    done = fk("verify", file)
    assert done.code == 1
    assert done.out.replace("\n", "").isprintable()
    assert not any(line.startswith("fake") for line in done.lines)


def test_trailing_bytes_are_told_once_with_the_option_of_the_commands_that_have_it(fk: Run, saved: Path):
    saved.write_bytes(saved.read_bytes() + b"more")
    done = fk("verify", saved)
    assert done.code == 1
    assert "Use --allow-trailing with inspect or convert to read" in done.text
    assert done.text.count("--allow-trailing") == done.text.count("bytes follow") == 1
    assert all(len(line) <= 80 for line in done.lines[1:])


def test_a_damaged_member_is_told_by_its_tensor(fk: Run, tmp_path: Path):
    arrays = {"fc.bias": np.full(5, 7, np.float32), "fc.weight": np.full(50, 9, np.float32)}
    data = bytearray(state_dict(arrays))
    data[data.index(arrays["fc.weight"].tobytes()) + 60] ^= 1
    (tmp_path / "m.pt").write_bytes(data)
    done = fk("verify", tmp_path / "m.pt")
    assert done.code == 1
    assert "error: 'fc.weight': zip member 'archive/data/1' is damaged" in done.text
    assert done.text.count("archive/data/1") == 1
    assert "fc.bias" not in done.text


def test_a_lost_storage_is_told_once_by_its_tensor(fk: Run, tmp_path: Path):
    made = Checkpoint()
    state = {"fine": made.tensor(np.ones(2, np.float32)), "lost": pickles.tensor("FloatStorage", "7", 4)}
    (tmp_path / "m.pt").write_bytes(made.file(pickles.ordered(state)))
    done = fk("verify", tmp_path / "m.pt")
    assert done.code == 1
    assert "error: 'lost': its storage 'archive/data/7' is not in the file" in done.text
    assert done.text.count("'lost'") == 1


def test_an_empty_table_of_digests_is_told(fk: Run, saved: Path):
    data = saved.read_bytes()
    start, end = data.index(b"{", data.index(b"tensors")), data.index(b"}}", data.index(b"tensors")) + 1
    saved.write_bytes(data[:start] + b"{" + b" " * (end - start - 2) + b"}" + data[end:])
    done = fk("verify", saved)
    assert done.code == 0
    assert "note: its table of digests names no tensor" in done.text
