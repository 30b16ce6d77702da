"""A directory of steps in use: saved, found again, kept and let go of."""

from __future__ import annotations

import errno
import json
import os
import pickle
import warnings

import numpy as np
import pytest

from checkpoint.states import State, names_in
from firekeep.checkpoint import (
    CheckpointManager,
    CheckpointWarning,
    KeepAll,
    KeepBest,
    KeepEvery,
    KeepLast,
    NoStepError,
    StepExistsError,
)
from firekeep.checkpoint._folders import Folders
from firekeep.checkpoint._store import SHELVES
from firekeep.errors import DiskFullError, ExistsError, RuleError

LAYOUTS = ["firekeep", "burn"]


def make(folder, **options):
    return CheckpointManager(folder, **{"durable": False, **options})


def save_to_the_end(manager, state, step):
    manager.save(state, step=step)
    manager.wait()


def restored(manager, step="latest"):
    state = State()
    assert manager.restore(state, step).step == (step if isinstance(step, int) else int(state.value))
    return state


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("background", [False, True])
def test_the_last_two_and_the_best_stay(tmp_path, layout, background):
    with make(tmp_path, layout=layout, background=background) as manager:
        for step, loss in enumerate([0.9, 0.5, 0.7, 0.8, 0.6], 1):
            manager.save(State(step), step=step, metrics={"valid_loss": loss})
        manager.wait()
        assert [info.step for info in manager.steps()] == [2, 4, 5]
        assert manager.latest().step == 5
        assert manager.best().step == 2
        assert restored(manager).value == 5
        assert restored(manager, "best").value == 2
        assert restored(manager, 4).value == 4
    again = make(tmp_path, layout=layout)
    again.save(State(6), step=6, metrics={"valid_loss": 0.55})
    assert [info.step for info in again.steps()] == [2, 5, 6], "a new run knows what the old one kept"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_but_the_steps_is_left(tmp_path, layout):
    manager = make(tmp_path, layout=layout, keep=KeepLast(1))
    for step in range(3):
        manager.save(State(step), step=step)
    expected = ["step-00000002"] if layout == "firekeep" else ["model-2.bpk", "optim-2.bpk", "scheduler-2.bpk"]
    assert names_in(tmp_path) == [".firekeep.lock", *expected]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_is_not_replaced_unless_that_is_said(tmp_path, layout):
    manager = make(tmp_path, layout=layout)
    manager.save(State(1), step=1)
    with pytest.raises(StepExistsError, match="step 1 has been saved already") as caught:
        manager.save(State(9), step=1)
    assert isinstance(caught.value, ExistsError | FileExistsError)
    assert restored(manager).value == 1
    manager.save(State(9), step=1, overwrite=True)
    state = State()
    manager.restore(state)
    assert state.value == 9
    assert [info.step for info in manager.steps()] == [1]
    assert not any("tmp" in name for name in names_in(tmp_path))


def test_reports_say_what_was_done(tmp_path):
    manager = make(tmp_path, keep=KeepLast(1))
    manager.save(State(1), step=1)
    saved = manager.save(State(2), step=2)
    assert saved.deleted == (1,)
    assert saved.sections == ("model", "optimizer")
    assert "step 2 is saved" in str(saved)
    assert "deleted afterwards: 1" in str(saved)
    back = manager.restore(State())
    assert back.report == "2 sections"
    for report in (saved, back, manager.prune()):
        json.dumps(report.to_dict())
        assert all(len(line) <= 80 or str(tmp_path) in line for line in str(report).split("\n"))


def test_a_step_reads_well(tmp_path):
    manager = CheckpointManager(tmp_path, durable=False)
    manager.save(State(), step=7, metrics={"valid_loss": 0.25, "acc": float("nan")})
    first, *rest = str(manager.latest()).split("\n")
    assert f"step 7 in {tmp_path / 'step-00000007'}:" in first
    told = "\n".join((first, *rest))
    assert "kB, saved 20" in told
    assert rest[-2:] == ["  model, optimizer", "  metrics: valid_loss 0.25, acc nan"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_latest_step_is_found_without_a_look_at_all(tmp_path, monkeypatch, layout):
    manager = CheckpointManager(tmp_path, durable=False, keep=KeepAll(), layout=layout)
    for step in (1, 2, 3, 4):
        manager.save(State(step), step=step)
    (damaged,) = [path for path in manager.latest().paths.values() if "model" in path.name]
    damaged.write_bytes(b"cut short")
    looked = []
    shelf = type(SHELVES[layout])
    real = shelf.look

    def look(self, directory, step):
        looked.append(step)
        return real(self, directory, step)

    monkeypatch.setattr(shelf, "look", look)
    assert manager.latest().step == 3
    assert looked == [4, 3]
    state = State()
    manager.restore(state)
    assert state.value == 3
    assert 1 not in looked


def test_what_is_asked_for_and_not_there_is_told(tmp_path):
    manager = make(tmp_path, keep=KeepAll())
    with pytest.raises(NoStepError, match="holds no complete step"):
        manager.restore(State())
    for step in (1, 2):
        manager.save(State(step), step=step, metrics={"other": 1})
    with pytest.raises(NoStepError, match=r"step 7 is asked for, and .* holds steps 1, 2"):
        manager.restore(State(), 7)
    with pytest.raises(NoStepError, match="a number for the metric 'valid_loss'"):
        manager.restore(State(), "best")
    with pytest.raises(RuleError, match="'latest', 'best' or a number"):
        manager.restore(State(), "newest")
    (tmp_path / "step-00000002" / "manifest.json").unlink()
    with pytest.raises(NoStepError, match=r"'step-00000002' is incomplete: manifest.json"):
        manager.restore(State(), 2)
    assert restored(manager).value == 1


def test_an_error_of_the_state_names_the_step(tmp_path):
    manager = make(tmp_path)
    manager.save(State(), step=3)
    state = State()
    state.restore = lambda opened: 1 / 0
    with pytest.raises(ZeroDivisionError) as caught:
        manager.restore(state)
    assert "step 3" in caught.value.__notes__[0]


def test_prune_says_what_would_go_before_it_does(tmp_path):
    everything = make(tmp_path, keep=KeepAll())
    for step in range(1, 7):
        everything.save(State(step), step=step, metrics={"valid_loss": 7 - step if step < 4 else 9})
    manager = make(tmp_path, keep=KeepEvery(5))
    dry = manager.prune(dry_run=True)
    assert [info.step for info in dry.deleted] == [1, 2, 4]
    assert [info.step for info in dry.kept] == [3, 5, 6], "the best, a multiple of five, and the newest"
    assert "3 steps would be deleted" in str(dry)
    assert len(manager.steps()) == 6
    done = manager.prune()
    assert (done.deleted, done.nbytes) == (dry.deleted, dry.nbytes)
    assert [info.step for info in manager.steps()] == [3, 5, 6]
    assert manager.prune().deleted == ()


def test_files_of_others_in_a_step_outlive_it(tmp_path):
    manager = make(tmp_path, keep=KeepLast(1))
    manager.save(State(1), step=1)
    (tmp_path / "step-00000001" / "notes.txt").write_text("mine")
    manager.save(State(2), step=2)
    assert [info.step for info in manager.steps()] == [2]
    assert (tmp_path / "step-00000001.left-1" / "notes.txt").read_text() == "mine"
    assert names_in(tmp_path / "step-00000001.left-1") == ["notes.txt"]


def test_a_step_that_is_linked_here_is_read_and_never_deleted(tmp_path):
    make(tmp_path / "archive").save(State(1), step=1)
    manager = make(tmp_path / "run", keep=KeepLast(1))
    (tmp_path / "run" / "step-00000001").symlink_to(tmp_path / "archive" / "step-00000001")
    assert restored(manager).value == 1
    manager.save(State(2), step=2)
    manager.save(State(3), step=3)
    assert [info.step for info in manager.steps()] == [1, 3]
    manager.save(State(4), step=1, overwrite=True)
    assert make(tmp_path / "archive").latest().step == 1


def test_an_incomplete_step_is_set_aside_when_its_number_is_saved_again(tmp_path):
    manager = make(tmp_path)
    manager.save(State(1), step=1)
    (tmp_path / "step-00000001" / "manifest.json").unlink()
    manager.save(State(1), step=1)
    assert restored(manager).value == 1
    assert names_in(tmp_path / "step-00000001.incomplete-1") == ["model.bpk", "optimizer.bpk"]


def test_digests_tell_what_sizes_do_not(tmp_path):
    manager = make(tmp_path, digest=True)
    manager.save(State(1, size=100_000), step=1)
    assert manager.verify() == ()
    path = manager.latest().paths["model"]
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    assert manager.latest().step == 1
    assert manager.verify() == ("model.bpk",)
    assert "NOT as it was written: 'model.bpk'" in str(manager.verify())


def test_what_was_compared_is_told(tmp_path):
    manager = make(tmp_path, digest=True)
    manager.save(State(1), step=1)
    found = manager.verify()
    assert (found, found.compared) == ((), ("model.bpk", "optimizer.bpk"))
    assert "2 files as they were written; checked: sizes, 2 digests" in " ".join(str(found).split())
    plain = make(tmp_path / "plain")
    plain.save(State(1), step=1)
    found = plain.verify()
    assert (found, found.compared, found.files) == ((), (), ("model.bpk", "optimizer.bpk"))
    assert "sizes alone: no digests were kept" in repr(found)
    again = pickle.loads(pickle.dumps(found))
    assert again.to_dict() == found.to_dict()


def test_sections_that_would_be_one_file_are_refused(tmp_path):
    manager = make(tmp_path)
    state = State(names=("model", "Model"))
    with pytest.raises(RuleError, match="differ in case only: 'Model', 'model'"):
        manager.save(state, step=1)
    with pytest.raises(RuleError, match="no sections"):
        manager.save(State(names=()), step=1)
    with pytest.raises(RuleError, match="cannot be the name of a section"):
        State(names=("../up",)).sections()
    with pytest.raises(TypeError, match="a state with sections"):
        manager.save({"model": 1}, step=1)
    assert manager.steps() == []


def test_options_that_mean_nothing_are_refused(tmp_path):
    with pytest.raises(TypeError, match="keep is a policy"):
        CheckpointManager(tmp_path, keep=3)
    with pytest.raises(RuleError, match="every=0"):
        CheckpointManager(tmp_path, every=0)
    with pytest.raises(RuleError, match="layout='torch'"):
        CheckpointManager(tmp_path, layout="torch")


def test_a_folder_that_cannot_be_made_is_told_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        CheckpointManager(tmp_path / "file" / "run")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("background", [False, True])
def test_a_disk_that_is_full_keeps_all_steps(tmp_path, monkeypatch, layout, background):
    manager = make(tmp_path, layout=layout, background=background, keep=KeepLast(1))
    manager.save(State(1), step=1)
    manager.wait()
    before = names_in(tmp_path)
    real, calls = os.pwrite, []

    def fill_up(fd, data, offset):
        calls.append(offset)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", fill_up)
    with pytest.raises(DiskFullError) as caught:
        save_to_the_end(manager, State(2, size=1_000_000), 2)
    monkeypatch.undo()
    assert len(calls) > 3
    assert any("Step 2 was not saved" in note for note in caught.value.__notes__)
    assert names_in(tmp_path) == before
    assert restored(manager).value == 1
    manager.save(State(2), step=2)
    manager.wait()
    assert [info.step for info in manager.steps()] == [2]


def test_a_state_that_fails_while_it_is_drawn_costs_nothing(tmp_path):
    manager = make(tmp_path)
    manager.save(State(1), step=1)
    bad = State(2)
    bad.parts["optimizer"]["a"] = np.array([object()])
    with pytest.raises(Exception, match="object"):
        manager.save(bad, step=2)
    assert [info.step for info in manager.steps()] == [1]
    assert names_in(tmp_path) == [".firekeep.lock", "step-00000001"]


def test_ticks_save_when_a_step_is_due(tmp_path):
    manager = make(tmp_path, every=3, keep=KeepAll())
    for step in range(1, 10):
        assert not manager.tick(State(step), step=step, metrics={"valid_loss": 1})
    assert [info.step for info in manager.steps()] == [3, 6, 9]
    manager.save(State(12), step=12)
    assert not manager.tick(State(12), step=12), "what has been saved in this step is not saved twice"


@pytest.mark.parametrize("background", [False, True])
def test_a_tick_warns_once_of_a_higher_step_of_another_run(tmp_path, background):
    make(tmp_path).save(State(9), step=9)
    manager = make(tmp_path, every=1, background=background)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for step in (1, 2, 3):
            manager.tick(State(step), step=step)
        manager.close()
    assert issubclass(warned[0].category, CheckpointWarning)
    assert len(warned) == 1
    told = str(warned[0].message)
    assert told.startswith(f"step 1 was saved in {tmp_path}, where step 9 of an earlier run lies")
    assert warned[0].filename.endswith(("test_manager.py", "_manager.py"))


def test_a_state_that_nobody_counts_in_has_the_number_of_its_step(tmp_path):
    state = State()
    state.step = 0
    manager = make(tmp_path)
    for step in (5, 10):
        manager.save(state, step=step)
        assert state.step == step
    again = State()
    again.step = 10  # as a state that brings its step back has it
    manager = make(tmp_path)
    manager.restore(again)
    manager.save(again, step=15)
    assert again.step == 15


def test_a_state_that_counts_for_itself_is_left_alone(tmp_path):
    state = State()
    state.step = 0
    manager = make(tmp_path)
    for epoch in (1, 2, 3):
        state.step += 100
        manager.save(state, step=epoch)
        assert state.step == 100 * epoch
    manager = make(tmp_path)
    manager.restore(state)
    manager.save(state, step=4)
    assert state.step == 300


def test_facts_of_a_state_stand_in_its_manifest(tmp_path):
    state = State()
    state.facts = lambda: {"threads": 4, "torch": "2.13"}
    manager = make(tmp_path)
    manager.save(state, step=1)
    assert {"threads": 4, "torch": "2.13"}.items() <= dict(manager.latest().facts).items()
    state.facts = lambda: {"threads": [4]}
    with pytest.raises(RuleError, match="the fact 'threads' is list"):
        manager.save(state, step=2)


def test_an_error_in_the_block_saves_nothing_and_names_the_last_step(tmp_path):
    def train():
        with make(tmp_path) as manager:
            manager.save(State(4), step=4)
            raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged") as caught:
        train()
    assert "holds step 4 as the last complete one" in caught.value.__notes__[-1]
    assert [info.step for info in make(tmp_path).steps()] == [4]
    with pytest.raises(KeyboardInterrupt) as stopped, make(tmp_path / "empty"):
        raise KeyboardInterrupt
    assert "holds no complete step" in stopped.value.__notes__[-1]


def test_best_may_be_the_highest(tmp_path):
    manager = make(tmp_path, best=KeepBest("accuracy", "max"))
    for step, value in enumerate([0.1, 0.9, float("nan"), 0.5, 0.4], 1):
        manager.save(State(step), step=step, metrics={"accuracy": value})
    assert manager.best().step == 2
    assert [info.step for info in manager.steps()] == [2, 4, 5]


def test_steps_that_cannot_be_deleted_do_not_make_a_save_fail(tmp_path, monkeypatch):
    manager = make(tmp_path, keep=KeepLast(1))
    manager.save(State(1), step=1)

    def refuse(*args, **kwargs):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Folders, "take", refuse)
    saved = manager.save(State(2), step=2)
    assert saved.deleted == ()
    assert "old steps could not be deleted" in saved.notes[0]
    monkeypatch.undo()
    assert manager.save(State(3), step=3).deleted == (1, 2)
