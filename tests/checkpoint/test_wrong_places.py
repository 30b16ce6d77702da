"""Directories that hold no steps: what they are is said, and what was meant; none is made by a look."""

from __future__ import annotations

import pytest

from checkpoint.states import State
from firekeep.checkpoint import CheckpointManager, NoStepError, hint, scan_steps
from firekeep.errors import RuleError


def manager(folder):
    return CheckpointManager(folder, durable=False)


def test_a_mistyped_directory_is_not_left_behind_by_a_restore(tmp_path):
    asked = manager(tmp_path / "a" / "b")
    with pytest.raises(NoStepError, match="no such directory"):
        asked.restore(State(0))
    assert list(tmp_path.iterdir()) == []
    asked.save(State(1), step=1)
    assert [info.step for info in scan_steps(tmp_path / "a" / "b").steps] == [1]


def test_a_directory_that_was_there_or_is_in_use_stays(tmp_path):
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "there", tmp_path / "used"):
        asked = manager(folder)
        (folder / "log.txt").touch() if folder.name == "used" else None
        with pytest.raises(NoStepError):
            asked.restore(State(0))
        assert folder.is_dir()


def test_a_file_is_no_directory_of_steps(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"weights")
    with pytest.raises(RuleError, match="no directory") as caught:
        manager(tmp_path / "weights.pt")
    assert "load_into" in str(caught.value)
    assert (tmp_path / "weights.pt").read_bytes() == b"weights"


def test_a_single_step_is_told_from_its_run(tmp_path):
    with manager(tmp_path / "run") as kept:
        kept.save(State(1), step=10)
    step = tmp_path / "run" / "step-00000010"
    with pytest.raises(NoStepError) as caught:
        manager(step).restore(State(0))
    assert f"It is one step, 10, of the 1 step of {tmp_path / 'run'}" in caught.value.remedy
    assert manager(tmp_path / "run").restore(State(0), step=10).info.step == 10


def test_steps_further_in_are_named(tmp_path):
    with manager(tmp_path / "run" / "checkpoints") as kept:
        kept.save(State(1), step=1)
    with pytest.raises(NoStepError, match=r"There are steps in .*checkpoints"):
        manager(tmp_path / "run").restore(State(0))


@pytest.mark.parametrize("inner", ["", "2"])
def test_a_directory_of_orbax_is_called_so(inner, tmp_path):
    place = tmp_path / inner
    place.mkdir(exist_ok=True)
    (place / "_CHECKPOINT_METADATA").write_text("{}")
    with pytest.raises(NoStepError, match="Orbax"):
        manager(tmp_path).restore(State(0))
    assert "orbax.checkpoint" in hint(tmp_path)


def test_of_an_empty_directory_there_is_nothing_to_say(tmp_path):
    assert hint(tmp_path) is None
