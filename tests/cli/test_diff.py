"""`firekeep diff`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import firekeep

Run = Callable[..., Any]


def save(path: Path, **tensors: Any) -> Path:
    return firekeep.save_file({name: np.asarray(value, np.float32) for name, value in tensors.items()}, path)


def test_equal_tensors_in_two_formats_are_equal(fk: Run, tmp_path: Path):
    a, b = save(tmp_path / "a.bpk", w=[1, 2]), save(tmp_path / "b.safetensors", w=[1, 2])
    done = fk("diff", a, b)
    assert (done.code, done.err) == (0, "")
    assert "equal" in done.text


def test_a_changed_number_is_told_with_its_tensor(fk: Run, tmp_path: Path):
    a, b = save(tmp_path / "a.bpk", w=[1, 2], v=[0]), save(tmp_path / "b.bpk", w=[1, 2.5], v=[0])
    done = fk("diff", a, b)
    assert done.code == 1
    assert "'w'" in done.text
    assert "1 of 2" in done.text


def test_values_can_be_left_alone(fk: Run, tmp_path: Path):
    a, b = save(tmp_path / "a.bpk", w=[1]), save(tmp_path / "b.bpk", w=[2])
    assert fk("diff", "--no-values", a, b).code == 0


def test_names_that_one_side_lacks_are_told(fk: Run, tmp_path: Path):
    a, b = save(tmp_path / "a.bpk", w=[1], old=[1]), save(tmp_path / "b.bpk", w=[1], new=[1])
    done = fk("diff", a, b)
    assert done.code == 1
    assert "'old'" in done.text
    assert "'new'" in done.text
    assert fk("diff", a, b, "--exclude", "old|new").code == 0
    assert fk("diff", a, b, "--include", "^w$").code == 0


def test_json_lists_every_difference(fk: Run, tmp_path: Path):
    a = save(tmp_path / "a.bpk", **{f"t{i}": [i] for i in range(300)})
    b = save(tmp_path / "b.bpk", **{f"t{i}": [i + 1] for i in range(300)})
    done = fk("diff", "--json", a, b)
    assert done.code == 1
    assert len(done.json["changed"]) == 300
    assert done.json["equal"] is False


def test_a_difference_without_bound_is_still_json(fk: Run, tmp_path: Path):
    a, b = save(tmp_path / "a.bpk", w=[np.inf, 1, np.nan]), save(tmp_path / "b.bpk", w=[1, np.nan, np.nan])
    assert fk("diff", "--json", a, b).json["equal"] is False


def test_a_file_that_cannot_be_opened_is_one_line(fk: Run, tmp_path: Path):
    done = fk("diff", save(tmp_path / "a.bpk", w=[1]), tmp_path / "b.bpk")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"firekeep: {tmp_path / 'b.bpk'}: No such file or directory\n"
