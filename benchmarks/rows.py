"""The jobs themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import firekeep
from benchmarks import data
from benchmarks.bench import MiB, Result, Row
from benchmarks.measure import Job, Operation

Arrays = Mapping[str, np.ndarray[Any, Any]]
Tensors = dict[str, torch.Tensor]


def to_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """View an array as a tensor, without a copy; bf16 goes by way of int16, which both know."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def tensors_of(arrays: Arrays) -> Tensors:
    return {name: to_torch(array) for name, array in arrays.items()}


class Files:
    """Models, made once and kept, and the files with them, written by the peers."""

    def __init__(self, folder: Path, sizes: data.Sizes) -> None:
        self.folder = folder
        makers = {"lm": data.language_model, "large": data.large_model, "small": data.small_tensors}
        self.arrays: Callable[[str], dict[str, np.ndarray[Any, Any]]] = cache(lambda name: makers[name](sizes))
        self.path: Callable[[str, str], Path] = cache(self._write)
        self._numbers = iter(range(1 << 30))

    def fresh(self, suffix: str) -> Path:
        """Give a path that nothing has been written to."""
        return self.folder / f"fresh-{os.getpid()}-{next(self._numbers)}{suffix}"

    def _write(self, name: str, suffix: str) -> Path:
        path = self.folder / f"{name}{suffix}"
        if suffix == ".safetensors":
            safetensors.numpy.save_file(self.arrays(name), path)
        elif suffix == ".pt":
            torch.save(tensors_of(self.arrays(name)), path)
        else:
            firekeep.save_file(self.arrays(name), path, durable=False)
        read_through(path)
        return path


def read_through(path: Path) -> None:
    """Bring a file into the page cache."""
    with path.open("rb") as file:
        while file.read(8 * MiB):
            pass


def saving(files: Files, suffix: str, write: Callable[[Path], object]) -> Job:
    """Time a save to a new file, which is removed afterwards."""

    def prepare() -> Operation:
        path = files.fresh(suffix)

        def operation() -> object:
            return _Removed(path, write(path))

        return operation

    return prepare


class _Removed:
    """Removes a file when its time is over."""

    def __init__(self, path: Path, kept: object) -> None:
        self._path = path
        self._kept = kept

    def __del__(self) -> None:
        self._path.unlink(missing_ok=True)


def plainly(operation: Operation) -> Job:
    return lambda: operation


def fsynced(write: Callable[[Path], object], path: Path) -> None:
    """Save with a peer and make it durable: the file and its folder."""
    write(path)
    for place in (path, path.parent):
        descriptor = os.open(place, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def save_row(files: Files, model: str, title: str, *, durable: bool, repeats: int) -> Row:
    arrays = files.arrays(model)
    tensors = tensors_of(arrays)
    peers: dict[str, tuple[str, Callable[[Path], object]]] = {
        "safetensors.numpy": (".safetensors", lambda path: safetensors.numpy.save_file(dict(arrays), path)),
        "safetensors.torch": (".safetensors", lambda path: safetensors.torch.save_file(tensors, path)),
        "torch.save": (".pt", lambda path: torch.save(tensors, path)),
    }
    jobs = {"firekeep": saving(files, ".safetensors", lambda path: firekeep.save_file(arrays, path, durable=durable))}
    for name, (suffix, write) in peers.items():
        jobs[name] = saving(files, suffix, partial(fsynced, write) if durable else write)
    jobs["firekeep .bpk"] = saving(files, ".bpk", lambda path: firekeep.save_file(arrays, path, durable=durable))
    both = ("safetensors.numpy", "safetensors.torch")
    targets = [(both, 0.65)] if durable else [(both, 0.80), (("torch.save",), 0.45)]
    return Row(name=title, jobs=jobs, targets=targets, repeats=repeats, rehearse=False)


def list_firekeep(path: Path) -> object:
    with firekeep.open(path) as file:
        return [(name, entry.shape) for name, entry in file.entries.items()]


def list_safetensors(path: Path) -> object:
    with safetensors.safe_open(path, "numpy") as file:
        return [(name, file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118


def one_firekeep(path: Path, name: str) -> object:
    with firekeep.open(path) as file:
        return file.array(name)


def one_safetensors(path: Path, name: str) -> object:
    with safetensors.safe_open(path, "numpy") as file:
        return file.get_tensor(name)


def load_firekeep_torch(path: Path) -> Tensors:
    """Load as zero-copy tensors: views of the file that may be written to without reaching it."""
    return tensors_of(firekeep.load_file(path))


def touch(tensors: Mapping[str, Any]) -> object:
    """Read a byte of every page."""
    total = 0
    for value in tensors.values():
        flat = value.reshape(-1).view(torch.uint8 if isinstance(value, torch.Tensor) else np.uint8)
        total += int(flat[::4096].sum())
    return tensors, total


def convert_firekeep(source: Path, target: Path) -> object:
    return firekeep.convert(source, target, durable=False)


def convert_torch(source: Path, target: Path, *, mmap: bool) -> object:
    tensors = torch.load(source, weights_only=True, mmap=mmap)
    return safetensors.torch.save_file(tensors, target)


def convert_row(files: Files, model: str, title: str, *, repeats: int) -> Iterator[tuple[str, Callable[[], Row]]]:
    for suffix in (".safetensors", ".bpk"):

        def make(suffix: str = suffix) -> Row:
            source = files.path(model, ".pt")
            largest = max(array.nbytes for array in files.arrays(model).values())
            jobs = {
                "firekeep": saving(files, suffix, partial(convert_firekeep, source)),
                "torch + safetensors": saving(files, ".safetensors", partial(convert_torch, source, mmap=False)),
                "torch (mmap) + safetensors": saving(files, ".safetensors", partial(convert_torch, source, mmap=True)),
            }
            return Row(
                name=f"convert .pt to {suffix} {title}",
                jobs=jobs,
                targets=[(("torch + safetensors",), 0.6)],
                repeats=repeats,
                rehearse=False,
                anonymous_limit=100 * MiB + largest,
            )

        yield f"convert .pt to {suffix} {title}", make


def warm_up(folder: Path) -> None:
    """Do everything once on tiny files, so that no child is the first to import something; peers are treated alike."""
    arrays = {"w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float16)}
    tensors = tensors_of(arrays)
    torch.save(tensors, folder / "warm.pt")
    torch.load(folder / "warm.pt", weights_only=True, mmap=True)
    safetensors.torch.save_file(tensors, folder / "warm.safetensors")
    safetensors.numpy.save_file(arrays, folder / "warm.safetensors")
    safetensors.torch.load_file(folder / "warm.safetensors")
    safetensors.numpy.load_file(folder / "warm.safetensors")
    for suffix in (".safetensors", ".bpk"):
        path = folder / f"warm-ours{suffix}"
        firekeep.save_file(arrays, path)
        firekeep.convert(folder / "warm.pt", path)
        for place in (path, folder / "warm.pt"):
            tensors_of(firekeep.load_file(place, copy=True))
            touch(load_firekeep_torch(place))
        list_firekeep(path)
        one_firekeep(path, "w")
    for path in folder.glob("warm*"):
        path.unlink()


def make_rows(files: Files, *, quick: bool) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Give the rows that are timed inside forked children, and what makes each when its turn comes."""
    many, few = (1, 1) if quick else (7, 4)
    warm_up(files.folder)
    yield from _model_rows(files, many=many)
    yield from _small_rows(files, many=many)
    yield from _large_rows(files, few=few)


def _model_rows(files: Files, *, many: int) -> Iterator[tuple[str, Callable[[], Row]]]:
    for durable, word in ((False, "to page cache"), (True, "durable")):
        title = f"save 269 MB bf16 {word}"
        yield title, partial(save_row, files, "lm", title, durable=durable, repeats=many)

    def load_row(name: str, ours: Operation, theirs: dict[str, Operation], target: float) -> Row:
        jobs = {"firekeep": plainly(ours), **{peer: plainly(operation) for peer, operation in theirs.items()}}
        return Row(name=name, jobs=jobs, targets=[(tuple(theirs), target)], repeats=many)

    def loads() -> Iterator[tuple[str, Callable[[Path], Row]]]:
        as_torch = {"safetensors.torch": safetensors.torch.load_file}
        as_numpy = {"safetensors.numpy": safetensors.numpy.load_file}
        for name, ours, peers, target, after in (
            ("load 269 MB to torch, zero copy", load_firekeep_torch, as_torch, 0.35, None),
            ("load 269 MB to torch, every page touched", load_firekeep_torch, as_torch, 0.8, touch),
            ("load 269 MB to numpy, zero copy", firekeep.load_file, as_numpy, 0.10, None),
            ("load 269 MB to own memory", partial(firekeep.load_file, copy=True), as_numpy, 0.30, None),
        ):

            def make(
                path: Path,
                name: str = name,
                ours: Any = ours,
                peers: Any = peers,
                target: float = target,
                after: Any = after,
            ) -> Row:
                wrap = (lambda load: lambda: after(load(path))) if after else (lambda load: lambda: load(path))
                return load_row(name, wrap(ours), {peer: wrap(load) for peer, load in peers.items()}, target)

            yield name, make

    for name, make in loads():
        yield name, lambda make=make: make(files.path("lm", ".safetensors"))

    def read_pt() -> Row:
        path = files.path("lm", ".pt")
        mapped = {"torch.load(mmap)": lambda: torch.load(path, weights_only=True, mmap=True)}
        return load_row("read a .pt of 269 MB to arrays", lambda: firekeep.load_file(path), mapped, 0.5)

    yield "read a .pt of 269 MB to arrays", read_pt
    yield from convert_row(files, "lm", "269 MB", repeats=many)


def _small_rows(files: Files, *, many: int) -> Iterator[tuple[str, Callable[[], Row]]]:
    def row(
        name: str,
        ours: Operation,
        theirs: dict[str, Operation],
        target: float,
        others: dict[str, Operation] | None = None,
    ) -> Row:
        jobs = {"firekeep": ours, **theirs, **(others or {})}
        return Row(
            name=name,
            jobs={contender: plainly(operation) for contender, operation in jobs.items()},
            targets=[(tuple(theirs), target)],
            repeats=many,
        )

    def listing() -> Row:
        path, pack = files.path("small", ".safetensors"), files.path("small", ".bpk")
        peers = {"safe_open": lambda: list_safetensors(path)}
        return row(
            "open and list 20,000",
            lambda: list_firekeep(path),
            peers,
            0.5,
            {"firekeep .bpk": lambda: list_firekeep(pack)},
        )

    def one() -> Row:
        path, pack = files.path("small", ".safetensors"), files.path("small", ".bpk")
        name = list(files.arrays("small"))[len(files.arrays("small")) // 2]
        peers = {"safe_open": lambda: one_safetensors(path, name)}
        return row(
            "one tensor of 20,000",
            lambda: one_firekeep(path, name),
            peers,
            0.2,
            {"firekeep .bpk": lambda: one_firekeep(pack, name)},
        )

    def loading() -> Row:
        path, pack = files.path("small", ".safetensors"), files.path("small", ".bpk")
        peers = {"safetensors.torch": lambda: safetensors.torch.load_file(path)}
        others = {
            "safetensors.numpy": lambda: safetensors.numpy.load_file(path),
            "firekeep .bpk": lambda: load_firekeep_torch(pack),
            "firekeep, arrays": lambda: firekeep.load_file(path),
        }
        return row("load 20,000 small tensors", lambda: load_firekeep_torch(path), peers, 0.4, others)

    def saving_small() -> Row:
        arrays = files.arrays("small")
        jobs = {
            "firekeep": saving(files, ".safetensors", lambda path: firekeep.save_file(arrays, path, durable=False)),
            "safetensors.numpy": saving(
                files, ".safetensors", lambda path: safetensors.numpy.save_file(dict(arrays), path)
            ),
            "firekeep .bpk": saving(files, ".bpk", lambda path: firekeep.save_file(arrays, path, durable=False)),
        }
        return Row(name="save 20,000 small tensors", jobs=jobs, targets=[(("safetensors.numpy",), 0.95)], repeats=many)

    yield "open and list 20,000", listing
    yield "one tensor of 20,000", one
    yield "load 20,000 small tensors", loading
    yield "save 20,000 small tensors", saving_small


def _large_rows(files: Files, *, few: int) -> Iterator[tuple[str, Callable[[], Row]]]:
    for durable, word in ((False, "to page cache"), (True, "durable")):
        title = f"save 2 GB f32 {word}"
        yield title, partial(save_row, files, "large", title, durable=durable, repeats=few)
    yield from convert_row(files, "large", "2 GB", repeats=few)


def make_whole_process_rows(files: Files, *, quick: bool) -> Iterator[tuple[str, Callable[[], Result]]]:
    """Give the rows that time whole processes."""
    repeats = 1 if quick else 15

    def inspect() -> Result:
        command = [str(Path(sys.executable).parent / "firekeep"), "inspect", str(files.path("lm", ".safetensors"))]
        seconds = [_time_process(command) for _ in range(repeats + 1)][1:]
        return Result(
            row="firekeep inspect of 269 MB, whole process",
            against="",
            note="under 150 ms",
            ours_ms=1e3 * median(seconds),
            met=median(seconds) < 0.150,
        )

    def importing() -> Result:
        script = (
            "import sys, time; before = set(sys.modules); start = time.perf_counter(); import firekeep; "
            "seconds = time.perf_counter() - start; import json; "
            "print(json.dumps([seconds, len(set(sys.modules) - before - {'json'}), 'numpy' in sys.modules]))"
        )
        runs = [
            json.loads(
                subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
            )
            for _ in range(repeats + 1)
        ][1:]
        modules = max(count for _, count, _ in runs)
        return Result(
            row="import firekeep",
            against="",
            note=f"{modules} modules, no numpy",
            ours_ms=1e3 * median(seconds for seconds, _, _ in runs),
            met=not any(with_numpy for _, _, with_numpy in runs),
        )

    yield "firekeep inspect of 269 MB, whole process", inspect
    yield "import firekeep", importing


def _time_process(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start
