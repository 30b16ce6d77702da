"""Timing jobs in forked children, peers by turns, and their memory in children of their own."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

Operation = Callable[[], Any]
Job = Callable[[], Operation]
"""A job prepares, untimed, and gives the operation to be timed."""

_SAMPLE_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Memory:
    """What an operation took beyond what its process had before, at its peak, in bytes."""

    anonymous: int
    resident: int


@dataclass(slots=True)
class Timing:
    """The seconds of each repeat, by contender, and the memory of one more."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)

    def ratios(self, ours: str, peers: tuple[str, ...]) -> list[float]:
        """Compare each repeat with the fastest peer's of the same turn; the fastest is the one with the lowest median."""
        best = min(peers, key=lambda peer: median(self.seconds[peer]))
        return [mine / theirs for mine, theirs in zip(self.seconds[ours], self.seconds[best], strict=True)]


def compare(jobs: Mapping[str, Job], *, repeats: int, quick: bool = False) -> Timing:
    """Time all jobs by turns, each in a fresh child.

    A child does its operation once untimed, right before: else it would pay for its first touch of its parent's memory, and, on a
    virtual machine, for pages that the host has to find first, which can take eight times as long as the operation. `quick` does
    each job once, and that is all.
    """
    timing = Timing({name: [] for name in jobs})
    order = list(jobs.items())
    for turn in range(1 if quick else repeats):
        first = turn % len(order)  # nobody always comes after the same neighbour
        for name, job in order[first:] + order[:first]:
            timing.seconds[name].append(_in_child(partial(_time, job, rehearse=not quick)))
    for name, job in jobs.items():
        timing.memory[name] = _memory_of(job)
    return timing


def _time(job: Job, *, rehearse: bool) -> float:
    if rehearse:
        job()()
    operation = job()
    gc.collect()
    start = time.perf_counter()
    kept = operation()
    seconds = time.perf_counter() - start
    del kept
    return seconds


def _in_child(work: Callable[[], float]) -> float:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _leave(writer, work)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = json.loads(pipe.read() or '{"error": "the child died"}')
    os.waitpid(child, 0)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return float(answer["value"])


def _leave(writer: int, work: Callable[[], float]) -> None:
    try:
        answer: dict[str, Any] = {"value": work()}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    os.write(writer, json.dumps(answer).encode())
    os._exit(0)


def _memory_of(job: Job) -> Memory:
    """Watch a child from outside: it stops itself before the operation and after it."""
    child = os.fork()
    if not child:
        try:
            operation = job()
            gc.collect()
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
            os.kill(os.getpid(), signal.SIGSTOP)
            kept = operation()
            os.kill(os.getpid(), signal.SIGSTOP)
            del kept
        finally:
            os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    before = status_of(child)
    os.kill(child, signal.SIGCONT)
    peak = before["RssAnon"]
    while os.waitpid(child, os.WUNTRACED | os.WNOHANG) == (0, 0):
        peak = max(peak, status_of(child).get("RssAnon", 0))
        time.sleep(_SAMPLE_SECONDS)
    after = status_of(child)
    if not after:
        raise RuntimeError("the child died before its memory could be read")
    os.kill(child, signal.SIGCONT)
    os.waitpid(child, 0)
    return Memory(max(peak, after["RssAnon"]) - before["RssAnon"], after["VmHWM"] - before["VmRSS"])


def status_of(process: int) -> dict[str, int]:
    """Read the memory of a process from /proc, in bytes."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (OSError, ProcessLookupError):
        return {}
    rows = [line.split() for line in lines if line.startswith(("RssAnon:", "VmHWM:", "VmRSS:"))]
    return {name.rstrip(":"): int(kilobytes) * 1024 for name, kilobytes, *_ in rows}
