"""Each call that a manager's save makes of the file system fails once: the steps that were there stay, and nothing else is left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from checkpoint.crashes import each_call
from checkpoint.states import State, names_in
from firekeep.checkpoint import CheckpointManager, KeepAll

NEW = 30.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def start(folder: Path, layout: str) -> CheckpointManager:
    manager = CheckpointManager(folder, layout=layout, keep=KeepAll())
    for step in (1, 2):
        manager.save(State(step), step=step)
    return manager


def calls_of(folder, layout, step):
    calls = []

    def act(name, call):
        calls.append(name)
        return call()

    manager = start(folder, layout)
    with each_call(act):
        manager.save(State(NEW), step=step, overwrite=True)
    return calls


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt("now")], ids=["EIO", "interrupt"]
)
@pytest.mark.parametrize("step", [3, 2], ids=["a new step", "over a step"])
@pytest.mark.parametrize("layout", ["firekeep", "burn"])
def test_whichever_call_fails_every_step_is_whole(tmp_path, layout, step, error):
    calls = calls_of(tmp_path / "counted", layout, step)
    assert {"mkdir", "rename", "fsync", "pwrite", "flock"} <= set(calls)
    told = []
    for failing, name in enumerate(calls):
        manager = start(tmp_path / str(failing), layout)
        before = names_in(manager.directory)
        count = iter(range(1 << 30))

        def act(called, call, failing=failing, count=count):
            if next(count) == failing:
                raise error
            return call()

        where = f"call {failing} ({name}) of {calls}"
        raised = None
        with each_call(act):
            try:
                manager.save(State(NEW), step=step, overwrite=True)
            except (OSError, KeyboardInterrupt) as caught:
                raised = caught
                notes, caught.__notes__ = caught.__notes__, []
        # What could not be removed or put back then is by the next run.
        again = CheckpointManager(manager.directory, layout=layout, keep=KeepAll())
        states = {info.step: State() for info in again.steps()}
        for number, state in states.items():
            again.restore(state, number)
        values = {number: state.value for number, state in states.items()}
        old = {1: 1.0, 2: 2.0}
        assert values in (old, {**old, step: NEW}), where
        if raised is None:
            assert values == {**old, step: NEW}, where
        else:
            saved = values[step] == NEW if step in values else False
            assert any("was not saved" in note for note in notes) is not saved, where
            told.append(saved)
        if values == old:
            assert names_in(manager.directory) == before, where
        assert again.catalog().incomplete == (), where
    assert False in told
    assert told == sorted(told)
