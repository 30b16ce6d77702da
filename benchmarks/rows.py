"""The rows: which jobs stand beside each other, and how fast firekeep's must be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import safetensors.numpy
import safetensors.torch
import torch

import firekeep
from benchmarks import jobs
from benchmarks.bench import FEW, MANY, Made, MiB, Result, Row
from benchmarks.jax_rows import make_jax_rows
from benchmarks.jobs import Files, Write, plainly, saving
from benchmarks.model_rows import make_model_rows
from benchmarks.state_rows import make_state_rows

Load = Callable[[Path], object]


def make_rows(files: Files) -> Made:
    """Give the rows that are timed inside forked children."""
    jobs.warm_up(files.folder)
    yield from _saves(files, "lm", "269 MB bf16", repeats=MANY)
    yield from _loads(files)
    yield from _conversions(files, "lm", "269 MB", repeats=MANY)
    yield from _small_tensors(files)
    yield from _saves(files, "large", "2 GB f32", repeats=FEW)
    yield from _conversions(files, "large", "2 GB", repeats=FEW)
    yield from make_model_rows(files)
    yield from make_state_rows(files)
    yield from make_jax_rows(files)


def _saves(files: Files, model: str, size: str, *, repeats: int) -> Made:
    for durable, word in ((False, "to page cache"), (True, "durable")):
        title = f"save {size} {word}"
        yield title, partial(_save, files, model, title, durable=durable, repeats=repeats)


def _save(files: Files, model: str, title: str, *, durable: bool, repeats: int) -> Row:
    arrays = files.arrays(model)
    tensors = jobs.tensors_of(arrays)
    peers: dict[str, tuple[str, Write]] = {
        "safetensors.numpy": (".safetensors", lambda path: safetensors.numpy.save_file(dict(arrays), path)),
        "safetensors.torch": (".safetensors", lambda path: safetensors.torch.save_file(tensors, path)),
        "torch.save": (".pt", lambda path: torch.save(tensors, path)),
    }
    timed = {"firekeep": saving(files, ".safetensors", lambda path: firekeep.save_file(arrays, path, durable=durable))}
    for name, (suffix, write) in peers.items():
        timed[name] = saving(files, suffix, partial(jobs.fsynced, write) if durable else write)
    timed["firekeep .bpk"] = saving(files, ".bpk", lambda path: firekeep.save_file(arrays, path, durable=durable))
    both = ("safetensors.numpy", "safetensors.torch")
    targets = [(both, 0.65)] if durable else [(both, 0.80), (("torch.save",), 0.45)]
    return Row(name=title, jobs=timed, targets=targets, repeats=repeats)


def _loads(files: Files) -> Made:
    as_torch, as_numpy = safetensors.torch.load_file, safetensors.numpy.load_file
    touched = jobs.touched(jobs.load_torch), jobs.touched(as_torch)
    rows: tuple[tuple[str, str, Load, str, Load, float], ...] = (
        ("load 269 MB to torch, zero copy", ".safetensors", jobs.load_torch, "safetensors.torch", as_torch, 0.35),
        ("load 269 MB to torch, every page touched", ".safetensors", touched[0], "safetensors.torch", touched[1], 0.8),
        ("load 269 MB to numpy, zero copy", ".safetensors", firekeep.load_file, "safetensors.numpy", as_numpy, 0.10),
        ("load 269 MB to own memory", ".safetensors", jobs.load_own_memory, "safetensors.numpy", as_numpy, 0.30),
        ("read a .pt of 269 MB to arrays", ".pt", firekeep.load_file, "torch.load(mmap)", jobs.load_mapped, 0.5),
    )
    for name, suffix, ours, peer, theirs, target in rows:
        yield name, partial(_load, files, name, suffix, ours, peer, theirs, target)


def _load(files: Files, name: str, suffix: str, ours: Load, peer: str, theirs: Load, target: float) -> Row:
    path = files.path("lm", suffix)
    timed = {"firekeep": plainly(partial(ours, path)), peer: plainly(partial(theirs, path))}
    return Row(name=name, jobs=timed, targets=[((peer,), target)], repeats=MANY)


def _conversions(files: Files, model: str, size: str, *, repeats: int) -> Made:
    for suffix in (".safetensors", ".bpk"):
        title = f"convert .pt to {suffix} {size}"
        yield title, partial(_convert, files, model, title, suffix, repeats=repeats)


def _convert(files: Files, model: str, title: str, suffix: str, *, repeats: int) -> Row:
    source = files.path(model, ".pt")
    largest = max(array.nbytes for array in files.arrays(model).values())
    timed = {
        "firekeep": saving(files, suffix, partial(jobs.convert_firekeep, source)),
        "torch + safetensors": saving(files, ".safetensors", partial(jobs.convert_torch, source, mmap=False)),
        "torch (mmap) + safetensors": saving(files, ".safetensors", partial(jobs.convert_torch, source, mmap=True)),
    }
    targets = [(("torch + safetensors",), 0.6)]
    limit = 100 * MiB + largest
    return Row(name=title, jobs=timed, targets=targets, repeats=repeats, anonymous_limit=limit)


def _small_tensors(files: Files) -> Made:
    def paths() -> tuple[Path, Path]:
        return files.path("small", ".safetensors"), files.path("small", ".bpk")

    def listing() -> Row:
        path, pack = paths()
        timed = {
            "firekeep": plainly(partial(jobs.list_firekeep, path)),
            "safe_open": plainly(partial(jobs.list_safetensors, path)),
            "firekeep .bpk": plainly(partial(jobs.list_firekeep, pack)),
        }
        return Row(name="open and list 20,000", jobs=timed, targets=[(("safe_open",), 0.5)], repeats=MANY)

    def one() -> Row:
        path, pack = paths()
        names = list(files.arrays("small"))
        name = names[len(names) // 2]
        timed = {
            "firekeep": plainly(partial(jobs.one_firekeep, path, name)),
            "safe_open": plainly(partial(jobs.one_safetensors, path, name)),
            "firekeep .bpk": plainly(partial(jobs.one_firekeep, pack, name)),
        }
        return Row(name="one tensor of 20,000", jobs=timed, targets=[(("safe_open",), 0.2)], repeats=MANY)

    def load() -> Row:
        path, pack = paths()
        timed = {
            "firekeep": plainly(partial(jobs.load_torch, path)),
            "safetensors.torch": plainly(partial(safetensors.torch.load_file, path)),
            "firekeep .bpk": plainly(partial(jobs.load_torch, pack)),
        }
        return Row(
            name="load 20,000 small tensors to torch", jobs=timed, targets=[(("safetensors.torch",), 0.4)], repeats=MANY
        )

    def save() -> Row:
        arrays = files.arrays("small")
        timed = {
            "firekeep": saving(files, ".safetensors", lambda path: firekeep.save_file(arrays, path, durable=False)),
            "safetensors.numpy": saving(
                files, ".safetensors", lambda path: safetensors.numpy.save_file(dict(arrays), path)
            ),
            "firekeep .bpk": saving(files, ".bpk", lambda path: firekeep.save_file(arrays, path, durable=False)),
        }
        return Row(name="save 20,000 small tensors", jobs=timed, targets=[(("safetensors.numpy",), 0.95)], repeats=MANY)

    yield "open and list 20,000", listing
    yield "one tensor of 20,000", one
    yield "load 20,000 small tensors to torch", load
    yield "save 20,000 small tensors", save


def make_whole_process_rows(files: Files, *, quick: bool) -> Iterator[tuple[str, Callable[[], Result]]]:
    """Give the rows that time whole processes."""
    repeats = 1 if quick else 15
    yield "firekeep inspect of 269 MB, whole process", partial(_inspect, files, repeats)
    yield "import firekeep", partial(_import, repeats)


def _inspect(files: Files, repeats: int) -> Result:
    command = [str(Path(sys.executable).parent / "firekeep"), "inspect", str(files.path("lm", ".safetensors"))]
    seconds = [_time_process(command) for _ in range(repeats + 1)][1:]
    return Result(
        row="firekeep inspect of 269 MB, whole process",
        against="",
        note=f"under 150 ms ({1e3 * min(seconds):.0f} to {1e3 * max(seconds):.0f})",
        ours_ms=1e3 * median(seconds),
        met=median(seconds) < 0.150,
    )


def _time_process(command: list[str]) -> float:
    # Installed, a module is compiled once; told to keep no bytecode, the process would compile all of it every time.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - start


_IMPORT = """
import json, sys, time
before = set(sys.modules)
start = time.perf_counter()
import firekeep
seconds = time.perf_counter() - start
print(json.dumps([seconds, len(set(sys.modules) - before), "numpy" in sys.modules]))
"""


def _import(repeats: int) -> Result:
    command = [sys.executable, "-c", _IMPORT]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats + 1)][1:]
    return Result(
        row="import firekeep",
        against="",
        note=f"{max(modules for _, modules, _ in runs)} modules, no numpy",
        ours_ms=1e3 * median(seconds for seconds, _, _ in runs),
        met=not any(with_numpy for _, _, with_numpy in runs),
    )
