"""Several processes on one directory: nothing is lost, and the loser is told."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoint import states
from checkpoint.states import State, names_in
from firekeep.checkpoint import CheckpointManager, DirectoryBusyError, KeepAll, StepExistsError, _held, scan_steps
from firekeep.checkpoint import _names as names
from firekeep.checkpoint import _store as store
from firekeep.checkpoint._lock import locked
from firekeep.checkpoint._store import Store

TESTS = str(Path(states.__file__).parents[1])

SAVER = """
import sys
from checkpoint.states import State
from firekeep.checkpoint import CheckpointManager, KeepAll, StepExistsError

folder, mode, first, every, times, layout = sys.argv[1:]
manager = CheckpointManager(folder, keep=KeepAll(), durable=False, background=mode == "background", layout=layout)
print("ready", flush=True)
sys.stdin.readline()
won = []
for turn in range(int(times)):
    step = int(first) + turn * int(every)
    try:
        manager.save(State(step), step=step)
        manager.wait()
        won.append(step)
    except StepExistsError:
        pass
print(*won)
"""


def run(*words):
    savers = [
        subprocess.Popen(
            [sys.executable, "-c", SAVER, *map(str, each)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": TESTS},
        )
        for each in words
    ]
    for saver in savers:
        assert saver.stdout.readline() == "ready\n"
    for saver in savers:
        saver.stdin.write("go\n")
        saver.stdin.flush()
    won = [list(map(int, saver.communicate()[0].split())) for saver in savers]
    assert [saver.returncode for saver in savers] == [0] * len(savers)
    return won


@pytest.mark.parametrize("layout", ["firekeep", "burn"])
def test_two_processes_that_save_fifty_times_lose_nothing(tmp_path, layout):
    first, second = run((tmp_path, "foreground", 0, 2, 50, layout), (tmp_path, "background", 1, 2, 50, layout))
    assert (len(first), len(second)) == (50, 50)
    manager = CheckpointManager(tmp_path, layout=layout, keep=KeepAll())
    assert [info.step for info in manager.steps()] == list(range(100))
    assert manager.catalog().incomplete == ()
    assert not any("tmp" in name for name in names_in(tmp_path))
    for step in (0, 1, 49, 98, 99):
        state = State()
        manager.restore(state, step)
        assert state.value == step


def test_each_step_is_saved_by_one_of_two_processes_and_the_other_is_told(tmp_path):
    first, second = run(*[(tmp_path, "foreground", 0, 1, 30, "firekeep")] * 2)
    assert sorted(first + second) == list(range(30))
    assert [info.step for info in scan_steps(tmp_path).steps] == list(range(30))


def test_the_second_of_two_that_save_one_step_at_once_is_told(tmp_path, monkeypatch):
    manager = CheckpointManager(tmp_path, durable=False)
    other = CheckpointManager(tmp_path, durable=False)
    state = State(1)
    real = state.sections

    def meanwhile():
        other.save(State(7), step=1)
        return real()

    state.sections = meanwhile
    with pytest.raises(StepExistsError, match="step 1 has been saved already"):
        manager.save(state, step=1)
    assert names_in(tmp_path) == [names.LOCK, "step-00000001"]
    found = State()
    manager.restore(found)
    assert found.value == 7


def test_a_directory_that_stays_locked_is_told_with_the_holder(tmp_path):
    manager = CheckpointManager(tmp_path, lock_timeout=0.05)
    with (
        locked(tmp_path, timeout=1),
        pytest.raises(DirectoryBusyError, match=f"process {os.getpid()} on .* 0.05 seconds"),
    ):
        manager.save(State(), step=1)
    assert isinstance(DirectoryBusyError(""), TimeoutError)
    manager.save(State(), step=1)
    assert manager.latest().step == 1


def test_steps_can_be_read_while_another_process_saves(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.save(State(3), step=3)
    with locked(tmp_path, timeout=1):
        state = State()
        manager.restore(state)
        assert state.value == 3


def test_a_save_that_is_being_written_is_not_taken_for_a_dead_one(tmp_path):
    mine = Store(directory=tmp_path)
    with mine._draft(5) as scratch:
        (scratch / "model.bpk").write_bytes(b"half")
        CheckpointManager(tmp_path, keep=KeepAll()).save(State(1), step=1)
        assert (scratch / "model.bpk").read_bytes() == b"half"
    assert not scratch.exists()


def test_where_there_are_no_locks_old_scratch_of_dead_processes_goes_and_new_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "try_flock", lambda fd: None)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    kinds = {
        f".step-00000001.{dead.pid}-0.new.tmp": True,
        f".step-00000002.{os.getpid()}-0.new.tmp": False,
        f".step-00000003.{dead.pid}-1.new.tmp": False,
    }
    for name in kinds:
        (tmp_path / name).mkdir()
        if "00000003" not in name:
            os.utime(tmp_path / name, (0, 0))
    CheckpointManager(tmp_path)
    assert {name: not (tmp_path / name).exists() for name in kinds} == kinds


def test_a_step_deleted_while_it_is_chosen_is_chosen_anew(tmp_path, monkeypatch):
    manager = CheckpointManager(tmp_path, keep=KeepAll())
    for step in (1, 2):
        manager.save(State(step), step=step)
    real = _held.hold_file

    def open_late(path):
        if "00000002" in str(path):
            (tmp_path / "step-00000002").rename(tmp_path / "gone")
        return real(path)

    monkeypatch.setattr(_held, "hold_file", open_late)
    state = State()
    assert manager.restore(state).step == 1
    assert state.value == 1


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_directory_that_may_only_be_read_is_read(tmp_path, monkeypatch, number):
    CheckpointManager(tmp_path).save(State(1), step=1)
    (tmp_path / names.scratch_name(9, names.DOOMED)).mkdir()
    real = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_CREAT:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    state = State()
    CheckpointManager(tmp_path).restore(state)
    assert state.value == 1
