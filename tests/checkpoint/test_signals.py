"""A signal asks a run to end: it is saved at the end of the step. A second one ends it at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from checkpoint import states
from checkpoint.states import State
from firekeep.checkpoint import CheckpointManager

TESTS = str(Path(states.__file__).parents[1])
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("number", SIGNALS)
def test_the_next_tick_saves_and_says_stop(tmp_path, number, background, capfd):
    with CheckpointManager(tmp_path, background=background) as manager, manager.handle_signals():
        assert not manager.tick(State(1), step=1)
        os.kill(os.getpid(), number)
        assert manager.stopping
        assert manager.steps() == []
        assert manager.tick(State(2), step=2, metrics={"valid_loss": 0.5})
        assert manager.latest().metrics == {"valid_loss": 0.5}, "complete when tick returns"
        assert manager.tick(State(2), step=2), "what is saved is not saved twice"
    assert manager.latest().step == 2
    assert number.name in capfd.readouterr().err


def test_a_step_that_an_earlier_run_has_left_is_replaced(tmp_path):
    CheckpointManager(tmp_path).save(State(1), step=2)
    with CheckpointManager(tmp_path) as manager, manager.handle_signals(signal.SIGUSR1):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert manager.tick(State(5), step=2)
    state = State()
    manager.restore(state)
    assert state.value == 5


def test_the_old_handlers_come_back(tmp_path):
    before = [signal.getsignal(number) for number in SIGNALS]
    manager = CheckpointManager(tmp_path)
    with manager.handle_signals():
        assert all(signal.getsignal(number) not in before for number in SIGNALS)
        manager.handle_signals()
    assert [signal.getsignal(number) for number in SIGNALS] == before
    manager.handle_signals(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGTERM) is before[0]
    manager.close()
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_another_thread_is_told_that_it_cannot(tmp_path):
    raised = []

    def install():
        try:
            CheckpointManager(tmp_path).handle_signals()
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert "main thread" in raised[0]


PROGRAM = """
import os, signal, sys, time
from checkpoint.states import State
from firekeep.checkpoint import CheckpointManager

with CheckpointManager(sys.argv[1]) as manager, manager.handle_signals():
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), int(sys.argv[2]))
    time.sleep(60)
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_the_process_at_once(tmp_path, number):
    words = [sys.executable, "-c", PROGRAM, str(tmp_path), str(int(number))]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={"PYTHONPATH": TESTS})
    assert done.returncode == -number
    assert CheckpointManager(tmp_path).steps() == []
