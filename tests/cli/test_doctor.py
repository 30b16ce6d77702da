"""`firekeep doctor`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firekeep
from firekeep.records import FieldStates, OptimizerRecord

Run = Callable[..., Any]


def test_a_file_that_opens_is_told_with_its_facts(fk: Run, cases: Path):
    done = fk("doctor", cases / "burn" / "burn_mnist.pt")
    assert done.code == 0
    assert "burn_mnist.pt: a PyTorch file (zip)" in done.lines[0]
    assert "  firekeep opens it." in done.lines


def test_a_file_of_another_kind_is_named_with_a_next_step(fk: Run, cases: Path):
    done = fk("doctor", cases / "other" / "mnist.onnx")
    assert done.code == 1
    assert "an ONNX model" in done.lines[0]
    assert "  firekeep does not open it." in done.lines
    assert any(line.startswith("  Next: ") for line in done.lines)


def test_next_steps_speak_of_options(fk: Run, cases: Path):
    out = "".join(fk("doctor", path).out for path in sorted((cases / "pytorch").glob("*.ckpt")))
    assert "top_level_key=" not in out


def test_json_is_a_list_with_an_answer_for_every_file(fk: Run, cases: Path):
    done = fk("doctor", "--json", cases / "burn" / "burn_mnist.pt", cases / "other" / "mnist.onnx")
    assert done.code == 1
    assert [answer["opens"] for answer in done.json] == [True, False]


def test_a_text_that_imitates_the_answer_is_escaped(fk: Run, tmp_path: Path):
    file = tmp_path / "weights.bin"
    file.write_text("hello\x1b[31m\r\n  firekeep opens it.\n")
    done = fk("doctor", file)
    assert done.code == 1
    assert "  firekeep opens it." not in done.lines
    assert done.out.replace("\n", "").isprintable()


@pytest.mark.parametrize("folder", ["burn", "safetensors", "pytorch", "hostile", "other"])
def test_every_real_file_gets_an_answer(folder: str, fk: Run, cases: Path):
    files = [path for path in sorted((cases / folder).rglob("*")) if path.is_file()]
    done = fk("doctor", *files)
    assert done.code in (0, 1)
    assert done.err == ""
    assert done.out.replace("\n", "").isprintable()
    answers = fk("doctor", "--json", *files).json
    assert len(answers) == len(files)
    assert all(answer["title"] and (answer["opens"] or answer["next_step"] or answer["findings"]) for answer in answers)


def test_a_file_that_opens_is_not_called_whole(fk: Run, tmp_path: Path):
    file = firekeep.save_file({"a": np.ones(2000)}, tmp_path / "my b.bpk")
    done = fk("doctor", file)
    assert done.code == 0
    assert f"`firekeep verify '{file}'` checks the bytes" in done.text
    assert "bytes of tensors  16 kB (16,000 bytes)" in done.out


def test_the_next_step_fits_a_terminal_and_its_command_stays_whole(
    fk: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    path = f"{'long' * 8}.safetensors"
    firekeep.save_file({"w": np.zeros(2)}, path)
    done = fk("doctor", path)
    assert max(map(len, done.lines)) <= 80
    assert f"`firekeep verify {path}`" in done.out


def test_the_ids_of_a_record_are_not_listed(fk: Run, tmp_path: Path):
    moments = {"moment_1": np.zeros((3, 2), np.float32), "moment_2": np.ones((3, 2), np.float32), "time": 7}
    state = FieldStates(param_id=4242424242, path="fc.weight", rank=2, fields={"momentum": moments})
    done = fk("doctor", OptimizerRecord.of_states([state]).save(tmp_path / "optim-1"))
    assert "record of an optimizer" in done.text
    assert "4242424242" not in done.out
