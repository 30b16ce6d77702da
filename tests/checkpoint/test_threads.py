"""One manager that several threads use: each step holds the state that was given, and nobody waits for ever."""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings

import pytest

from checkpoint.states import State
from firekeep.checkpoint import CheckpointManager, KeepAll
from firekeep.checkpoint._background import Background
from firekeep.checkpoint._numbers import Numbers
from firekeep.checkpoint._store import Store

PATIENCE = 60


def make(folder, **options):
    return CheckpointManager(folder, **{"durable": False, "keep": KeepAll(), "background": True, **options})


def values(folder):
    manager = CheckpointManager(folder)
    found = {}
    for info in manager.steps():
        state = State()
        manager.restore(state, info.step)
        found[info.step] = {name: float(part["a"][0]) - index for index, (name, part) in enumerate(state.parts.items())}
    return found


def each(*numbers):
    return {number: {"model": number, "optimizer": number} for number in numbers}


class Asking(State):
    """A state that has something done while it is taken apart."""

    def __init__(self, value, do):
        super().__init__(value)
        self.do = do

    def sections(self):
        self.do()
        return super().sections()


class Announced:
    """A lock that tells when a thread has to wait for it."""

    def __init__(self, contended):
        self.lock, self.contended = threading.RLock(), contended

    def __enter__(self):
        if not self.lock.acquire(blocking=False):
            self.contended.set()
            self.lock.acquire()

    def __exit__(self, *error):
        self.lock.release()


def held_commits(monkeypatch):
    """Hold what is written until an event."""
    opened = threading.Event()
    real = Store.save

    def save(store, *args, **kwargs):
        assert opened.wait(PATIENCE)
        return real(store, *args, **kwargs)

    monkeypatch.setattr(Store, "save", save)
    return opened


def run(*jobs):
    """Run jobs on threads of their own, and raise what went wrong in one."""
    errors = []

    def guarded(job):
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_no_copy_is_overwritten_by_that_of_another_thread(tmp_path, monkeypatch):
    opened, second_went_on = held_commits(monkeypatch), threading.Event()
    manager = make(tmp_path)
    manager._turn._lock = Announced(second_went_on)

    def second():
        manager.save(State(2), step=2)
        second_went_on.set()  # where it does not wait for its turn, its copy is made and not written yet

    other = threading.Thread(target=second)

    def let_another_in():
        other.start()
        assert second_went_on.wait(PATIENCE)

    manager.save(Asking(1, let_another_in), step=1)
    opened.set()
    other.join()
    manager.close()
    assert values(tmp_path) == each(1, 2)


@pytest.mark.parametrize("background", [True, False])
def test_threads_that_save_in_turn_leave_their_own_steps(tmp_path, background):
    manager = make(tmp_path, background=background)
    both = threading.Barrier(2)

    def work(first):
        state = State()
        for number in range(first, 21, 2):
            for index, part in enumerate(state.parts.values()):
                part["a"][:] = number + index
            both.wait(PATIENCE)
            manager.save(state, step=number)

    run(lambda: work(1), lambda: work(2))
    manager.close()
    assert values(tmp_path) == each(*range(1, 21))


def test_what_reads_beside_saves_sees_whole_steps(tmp_path):
    manager = make(tmp_path, digest=True)
    manager.save(State(0), step=0)
    manager.wait()
    over = threading.Event()

    def write():
        try:
            for number in range(1, 15):
                manager.save(State(number), step=number)
        finally:
            over.set()

    def read():
        while not over.is_set():
            state = State()
            assert manager.restore(state).step == state.value
            assert not manager.verify()
            assert manager.steps()
            manager.wait()

    run(write, read)
    manager.close()
    assert values(tmp_path) == each(*range(15))


def test_a_state_that_asks_the_manager_while_it_is_taken_apart_gets_its_answers(tmp_path):
    manager = make(tmp_path)
    asked = []

    def ask():
        asked.append([info.step for info in manager.steps()])
        manager.wait()
        manager.save(State(7), step=7)
        manager.reserve(State())

    manager.save(State(1), step=1)
    manager.save(Asking(2, ask), step=2)
    manager.close()
    assert asked == [[1]]
    assert values(tmp_path) == each(1, 2, 7)


@pytest.mark.parametrize("at", ["copy", "wait"])
def test_a_handler_of_a_signal_may_save(tmp_path, monkeypatch, at):
    manager = make(tmp_path)
    saved = []

    def handle(number, frame):
        saved.append(manager.save(State(9), step=9))

    old = signal.signal(signal.SIGUSR2, handle)
    try:
        if at == "copy":
            manager.save(Asking(1, lambda: signal.raise_signal(signal.SIGUSR2)), step=1)
        else:
            real, main = Store.save, threading.get_ident()

            def save(store, *args, **kwargs):
                if not saved and threading.get_ident() != main:
                    signal.pthread_kill(main, signal.SIGUSR2)
                return real(store, *args, **kwargs)

            monkeypatch.setattr(Store, "save", save)
            manager.save(State(1), step=1)
            manager.wait()
    finally:
        signal.signal(signal.SIGUSR2, old)
    manager.close()
    assert len(saved) == 1
    assert values(tmp_path) == each(1, 9)


def test_a_process_forked_while_another_thread_saves_can_save(tmp_path):
    manager = make(tmp_path)
    inside, forked = threading.Event(), threading.Event()

    def stay():
        inside.set()
        assert forked.wait(PATIENCE)

    other = threading.Thread(target=lambda: manager.save(Asking(1, stay), step=1))
    other.start()
    assert inside.wait(PATIENCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks beside threads, which is what this is about
        child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        try:
            manager.save(State(5), step=5)
            manager.wait()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    forked.set()
    other.join()
    manager.close()
    assert status == 0
    assert values(tmp_path) == each(1, 5)


def test_a_thread_that_the_system_refuses_is_nothing_to_wait_for(monkeypatch):
    background = Background()

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            background.start(lambda: 1, name="one")
    assert background.wait() is None
    background.start(lambda: 2, name="two")
    assert (background.wait(), background.wait()) == (2, None)
    background.close()


def test_the_numbers_of_several_states_are_told_apart():
    numbers, one, other = Numbers(), State(), State()
    one.step = other.step = 0
    for step in (1, 2, 3, 4, 5):
        state = (one, other)[step % 2]
        numbers.give(state, step)
        assert state.step == step
    del one, other, state
    gc.collect()
    assert numbers._of_each == {}


def test_a_higher_step_of_another_thread_is_of_this_run(tmp_path):
    manager = make(tmp_path, every=1)
    run(lambda: manager.tick(State(2), step=2))
    manager.wait()
    manager.tick(State(1), step=1)
    manager.close()  # a warning is an error here
    assert values(tmp_path) == each(1, 2)
