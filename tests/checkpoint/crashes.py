"""Saves of a manager that are killed before each of their calls of the file system, and what the next run finds each time.

Run as a program, it forks once for each call: as many interpreters would take longer to start than to run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from checkpoint.states import State
from firekeep.checkpoint import CheckpointManager, KeepLast, scan_steps
from firekeep.checkpoint import _lock as lock
from firekeep.disk import _system as system

OF_OS = ("open", "pwrite", "write", "fsync", "mkdir", "rmdir", "rename", "link", "unlink", "ftruncate")
"""Calls that change something. To be killed before one that only looks is to be killed before the next of these."""

NEW = 30.0


def manager(folder: Path, layout: str, background: bool = False) -> CheckpointManager:
    return CheckpointManager(folder, layout=layout, background=background, keep=KeepLast(2))


@contextmanager
def each_call(act) -> Iterator[None]:
    """Have `act(name, call)` stand for each call that changes the file system, whichever thread makes it."""

    def stand_in(name, real):
        def call(*args, **kwargs):
            if name == "open" and not args[1] & os.O_CREAT:
                return real(*args, **kwargs)
            return act(name, lambda: real(*args, **kwargs))

        return call

    patches = [mock.patch.object(os, name, stand_in(name, getattr(os, name))) for name in OF_OS]
    patches.append(mock.patch.object(system, "fallocate", stand_in("fallocate", system.fallocate)))
    patches.append(mock.patch.object(lock.fcntl, "flock", stand_in("flock", lock.fcntl.flock)))
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def killed_save(folder: Path, layout: str, background: bool, step: int, last: int) -> None:
    """Save a step in this process, which dies before the call of this number."""
    guard = threading.Lock()
    count = iter(range(1 << 30))

    def act(name, call):
        with guard:
            if next(count) == last:
                os.kill(os.getpid(), signal.SIGKILL)
        return call()

    saver = manager(folder, layout, background)
    with each_call(act):
        saver.save(State(NEW), step=step, overwrite=True)
        saver.wait()


def found_by_next_run(folder: Path, layout: str) -> dict[str, object]:
    """Restore, save one more step, and tell what was found and what is left."""
    seen = [info.step for info in scan_steps(folder, layout=layout).steps]
    following = manager(folder, layout)
    state = State()
    step = following.restore(state).step
    following.save(State(4), step=4)
    catalog = following.catalog()
    return {
        "seen": seen,
        "step": step,
        "value": state.value,
        "steps": [info.step for info in catalog.steps],
        "incomplete": [each.name for each in catalog.incomplete],
        "names": sorted(path.name for path in folder.iterdir()),
    }


def main(place: str, layout: str, background: str, step: str) -> None:
    """Kill a save before each of its calls in turn, and print a line of JSON for each."""
    os.fsync = lambda fd: (
        None
    )  # a killed process leaves the system's cache as it is; the calls are counted all the same
    before = Path(place) / "before"
    with manager(before, layout) as first:
        for number in (1, 2):
            first.save(State(number), step=number, metrics={"valid_loss": 1.0})
    for last in range(1000):
        folder = Path(place) / str(last)
        shutil.copytree(before, folder)
        pid = os.fork()
        if pid == 0:
            try:
                killed_save(folder, layout, background == "background", int(step), last)
            finally:
                os._exit(7 if sys.exc_info()[0] else 0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps({"status": status, **found_by_next_run(folder, layout)}), flush=True)
        shutil.rmtree(folder)
        if status != -signal.SIGKILL:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
