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
from checkpoint.states import State
from firekeep.checkpoint import CheckpointManager, KeepAll
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


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A run of two steps, with digests."""
    manager = CheckpointManager(tmp_path / "kept", keep=KeepAll(), durable=False, digest=True)
    for step in (1, 2):
        manager.save(State(step), step=step)
    return tmp_path / "kept"


def test_a_run_and_a_step_are_compared_with_their_manifests(fk: Run, kept: Path):
    done = fk("verify", kept)
    assert (done.code, done.err) == (0, "")
    assert f"{kept}: ok (2 complete steps)" in done.text
    assert "step 2: 2 files; checked: structure, sizes, 2 digests" in done.text
    flip(kept / "step-00000002" / "model.bpk", -1)
    for place, others in ((kept, True), (kept / "step-00000002", False)):
        done = fk("verify", place)
        assert (done.code, done.err) == (1, "")
        assert "NOT OK" in done.text
        assert "error: 'step-00000002/model.bpk': its bytes are not those that were written" in done.text
        assert ("step 1:" in done.text) == others
    assert fk("verify", kept / "step-00000001").code == 0
    (found,) = fk("verify", "--json", kept).json
    assert (found["ok"], found["digests_checked"], found["steps"][1]["changed"]) == (False, 4, ["model.bpk"])
    assert found["findings"][0]["place"] == "step-00000002/model.bpk"


def test_a_step_in_the_working_directory_is_found(fk: Run, kept: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(kept / "step-00000001")
    assert "step 1: 2 files" in fk("verify", ".").text
    assert fk("verify", "model.bpk").code == 0


def test_a_file_of_a_step_is_compared_with_the_manifest(fk: Run, kept: Path, tmp_path: Path):
    file = kept / "step-00000002" / "model.bpk"
    done = fk("verify", file)
    assert done.code == 0
    assert "the manifest's digest of the file" in done.text
    flip(file, -1)
    done = fk("verify", file)
    assert done.code == 1
    assert "error: its bytes are not those that were written: the manifest of the step has another digest" in done.text
    assert fk("verify", "--json", file).json[0]["manifest_checked"] is True
    assert not firekeep.verify(file)
    (file.parent / "other.bpk").write_bytes(file.read_bytes())
    assert "the manifest beside it does not name it" in fk("verify", file.parent / "other.bpk").text
    file.write_bytes(file.read_bytes()[:-1])
    done = fk("verify", file)
    assert done.code == 1
    assert "were written, as the manifest of the step says" in done.text
    (file.parent / "manifest.json").write_text("{")
    beside = file.with_name("optimizer.bpk")
    done = fk("verify", beside)
    assert done.code == 0
    assert "it was not compared with the manifest beside it: manifest.json cannot be used" in done.text
    beside.rename(tmp_path / "optimizer.bpk")
    (tmp_path / "manifest.json").write_text("{}")
    assert "manifest" not in fk("verify", tmp_path / "optimizer.bpk").text


def test_what_was_compared_is_said_where_no_digests_were_kept(fk: Run, tmp_path: Path):
    CheckpointManager(tmp_path, durable=False).save(State(1), step=1)
    for place in (tmp_path, tmp_path / "step-00000001", tmp_path / "step-00000001" / "model.bpk"):
        done = fk("verify", place)
        assert done.code == 0
        assert "note: no digests were kept, and flipped bits are not seen without" in done.text
    assert "checked: structure, sizes alone: no digests were kept" in fk("verify", tmp_path).text


def test_what_is_wrong_with_steps_is_found(fk: Run, kept: Path, tmp_path: Path):
    CheckpointManager(tmp_path / "nan", durable=False).save(State(np.nan), step=1)
    assert fk("verify", tmp_path / "nan").code == 0
    done = fk("verify", "--values", tmp_path / "nan")
    assert done.code == 1
    assert "'step-00000001/model.bpk': 'a': 100 of 100 numbers are NaN" in done.text
    (kept / "step-00000001" / "model.bpk").unlink()
    done = fk("verify", kept)
    assert done.code == 1
    assert "error: 'step-00000001': it is incomplete: model.bpk is not there" in done.text
    assert fk("verify", kept / "step-00000001").code == 1


def test_a_file_of_another_save_is_found(fk: Run, tmp_path: Path):
    manager = CheckpointManager(tmp_path, keep=KeepAll(), durable=False)
    for step in (1, 2):
        manager.save(State(step), step=step)
    one, other = (tmp_path / f"step-0000000{step}" / "model.bpk" for step in (1, 2))
    other.write_bytes(one.read_bytes())
    done = fk("verify", tmp_path)
    assert done.code == 1
    assert "this file is of step 1, saved at another time than the step 2 it lies in" in done.text


def test_burns_steps_have_no_digests(fk: Run, tmp_path: Path):
    CheckpointManager(tmp_path, durable=False, layout="burn").save(State(1), step=1)
    done = fk("verify", tmp_path)
    assert done.code == 0
    assert "no digests were kept" in done.text


def test_a_folder_without_steps_is_no_run(fk: Run, tmp_path: Path):
    done = fk("verify", tmp_path)
    assert (done.code, done.out) == (2, "")
