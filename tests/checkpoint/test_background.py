"""Saves beside the loop: a copy is written, one at a time, and nothing that goes wrong is lost."""

from __future__ import annotations

import mmap
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from checkpoint import states
from checkpoint.states import State
from firekeep.arrays import as_array
from firekeep.blobs import DeferredBlob
from firekeep.checkpoint import CheckpointManager, KeepAll
from firekeep.checkpoint import _snapshot as snapshot
from firekeep.checkpoint._snapshot import Buffers, size_of
from firekeep.checkpoint._store import Store
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry, find_ties
from firekeep.errors import EntryError
from firekeep.formats import FORMATS, Contents
from firekeep.saving import gather
from firekeep.sections import Section

TESTS = str(Path(states.__file__).parents[1])


class Gate:
    """Holds every commit until it is opened."""

    def __init__(self, monkeypatch):
        self.open = threading.Event()
        self.running = 0
        self.most = 0
        real = Store.save

        def save(store, *args, **kwargs):
            self.running += 1
            self.most = max(self.most, self.running)
            assert self.open.wait(60)
            try:
                return real(store, *args, **kwargs)
            finally:
                self.running -= 1

        monkeypatch.setattr(Store, "save", save)


@pytest.fixture
def manager(tmp_path):
    with CheckpointManager(tmp_path / "run", background=True, keep=KeepAll(), durable=False) as manager:
        yield manager


def test_the_state_may_change_while_it_is_written(manager, monkeypatch):
    gate = Gate(monkeypatch)
    state = State(1)
    report = manager.save(state, step=1)
    assert report.background
    assert "is being saved" in str(report)
    for part in state.parts.values():
        part["a"][:] = 77
    assert manager.steps() == []
    gate.open.set()
    assert not manager.wait().background
    manager.restore(state)
    assert state.value == 1


def test_one_save_is_in_flight_at_most(manager, monkeypatch):
    gate = Gate(monkeypatch)
    manager.save(State(1), step=1)
    second = threading.Thread(target=lambda: manager.save(State(2), step=2))
    second.start()
    second.join(0.2)
    assert second.is_alive(), "the second save waits for the first"
    gate.open.set()
    second.join()
    manager.wait()
    assert gate.most == 1
    assert [info.step for info in manager.steps()] == [1, 2]


def test_the_memory_is_that_of_one_state_and_is_used_again(manager):
    for step in range(4):
        manager.save(State(step, size=100_000), step=step)
        if step == 0:
            first = manager._buffers._view.obj
    assert manager._buffers._view.obj is first
    assert manager._buffers.nbytes < 2 * size_of(State(size=100_000).sections()) + snapshot.HUGE_PAGE
    manager.close()
    assert manager._buffers.nbytes == 0


def test_memory_is_taken_beforehand_where_that_is_asked_for(tmp_path):
    state = State(size=10_000)
    by_tick = CheckpointManager(tmp_path, background=True, preallocate=True)
    assert by_tick._buffers.nbytes == 0
    by_tick.tick(state, step=1)
    assert by_tick._buffers.nbytes >= size_of(state.sections())
    by_tick.save(state, step=1)
    by_tick.close()
    by_restore = CheckpointManager(tmp_path, background=True, preallocate=True)
    by_restore.restore(state)
    assert by_restore._buffers.nbytes >= size_of(state.sections())
    assert CheckpointManager(tmp_path, background=True, preallocate=12_345)._buffers.nbytes >= 12_345
    assert CheckpointManager(tmp_path, preallocate=True)._buffers.nbytes == 0
    by_tick.close()


@pytest.mark.parametrize("call", ["save", "tick", "restore", "prune", "wait", "close"])
def test_what_went_wrong_is_raised_by_the_next_call_once(tmp_path, monkeypatch, call):
    manager = CheckpointManager(tmp_path, background=True, durable=False)
    manager.save(State(1), step=1)
    manager.wait()
    monkeypatch.setattr(Store, "save", lambda *args, **kwargs: 1 / 0)
    manager.save(State(2), step=2)
    if call == "tick":
        manager._every = 1
    calls = {
        "save": lambda: manager.save(State(3), step=3),
        "tick": lambda: manager.tick(State(3), step=3),
        "restore": lambda: manager.restore(State()),
        "prune": manager.prune,
        "wait": manager.wait,
        "close": manager.close,
    }
    with pytest.raises(ZeroDivisionError) as caught:
        calls[call]()
    assert any("in the background" in note for note in caught.value.__notes__)
    monkeypatch.undo()
    manager.save(State(2), step=2)
    manager.close()
    assert [info.step for info in manager.steps()] == [1, 2]


def test_an_error_in_the_block_is_not_hidden_by_one_in_the_background(tmp_path, monkeypatch):
    monkeypatch.setattr(Store, "save", lambda *args, **kwargs: 1 / 0)

    def train():
        with CheckpointManager(tmp_path, background=True) as manager:
            manager.save(State(1), step=1)
            raise KeyError("loop")

    with pytest.raises(KeyError, match="loop") as caught:
        train()
    assert any("failed, too: ZeroDivisionError" in note for note in caught.value.__notes__)


PROGRAM = """
import sys
from checkpoint.states import State
from firekeep.checkpoint import CheckpointManager
from firekeep.checkpoint._store import Store

manager = CheckpointManager(sys.argv[1], background=True)
manager.save(State(1), step=1)
if sys.argv[2] == "failing":
    manager.wait()
    Store.save = lambda *args, **kwargs: 1 / 0
    manager.save(State(2), step=2)
"""


@pytest.mark.parametrize("mode", ["working", "failing"])
def test_a_program_that_ends_waits_for_its_save_and_tells_what_went_wrong(tmp_path, mode):
    words = [sys.executable, "-c", PROGRAM, str(tmp_path), mode]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={"PYTHONPATH": TESTS})
    assert ("ZeroDivisionError" in done.stderr) is (mode == "failing"), done.stderr
    assert CheckpointManager(tmp_path).latest().step == 1


def section(arrays):
    return Section("model", gather(arrays, FORMATS["burnpack"]))


def copied(buffers, arrays):
    (found,) = buffers.snapshot([section(arrays)])
    return list(found.contents.entries)


@pytest.mark.parametrize("cpus", [1, 2])
def test_snapshots_hold_every_byte(monkeypatch, cpus):
    monkeypatch.setattr(snapshot, "_cpus", lambda: cpus)
    monkeypatch.setattr(snapshot, "BATCH", 300_000)
    monkeypatch.setattr(snapshot, "PIECE", 50_000)
    rng = np.random.default_rng(0)
    arrays = {f"t{size}": rng.integers(0, 256, size, np.uint8) for size in (1, 63, 64, 65, 40_000, 299_999, 1_000_000)}
    arrays["none"] = np.zeros((0, 3), np.float32)
    arrays["turned"] = rng.random((300, 500)).T
    arrays["scalar"] = np.float64(2.5)
    buffers = Buffers()
    for _ in range(2):
        entries = copied(buffers, arrays)
        assert [entry.name for entry in entries] == list(arrays)
        for entry in entries:
            np.testing.assert_array_equal(as_array(entry), arrays[entry.name])
            memory = entry.read()
            assert not memory.nbytes or isinstance(memory.obj, mmap.mmap)


def test_tied_tensors_are_copied_once_and_stay_tied():
    weights = np.arange(1000.0)
    entries = copied(Buffers(), {"a": weights, "b": np.zeros(9), "c": weights})
    assert find_ties(entries) == {"c": "a"}
    assert size_of([section({"a": weights, "c": weights})]) == size_of([section({"a": weights})])


@pytest.mark.parametrize("came", [10, 1_000_000])
@pytest.mark.parametrize("declared", [100, 500_000])
def test_bytes_that_do_not_come_as_declared_name_their_tensor(monkeypatch, declared, came):
    monkeypatch.setattr(snapshot, "BATCH", 300_000)
    entry = TensorEntry("w", BY_NAME["U8"], (declared,), DeferredBlob(declared, lambda: bytes(came)))
    with pytest.raises(EntryError, match="'w'"):
        Buffers().snapshot([Section("model", Contents(entries=[entry]))])


@pytest.mark.parametrize("mode", ["on the second thread", "on this one"])
def test_a_failure_while_copying_reaches_the_caller(monkeypatch, mode):
    here = threading.current_thread()
    real = np.copyto

    def copyto(target, source):
        if (threading.current_thread() is here) is (mode == "on this one"):
            raise MemoryError(mode)
        real(target, source)
        threading.Event().wait(0.01)

    monkeypatch.setattr(snapshot, "_cpus", lambda: 2)
    monkeypatch.setattr(snapshot, "PIECE", 50_000)
    monkeypatch.setattr(np, "copyto", copyto)
    with pytest.raises(MemoryError, match=mode):
        copied(Buffers(), {"a": np.zeros(1_000_000)})
    assert not [thread for thread in threading.enumerate() if thread.name == "firekeep-snapshot"]
