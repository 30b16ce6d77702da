"""What firekeep and its peers do, as functions to be timed, and the files they do it with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import firekeep
from benchmarks import data
from benchmarks.measure import Job, Operation

Arrays = dict[str, np.ndarray[Any, Any]]
Tensors = dict[str, torch.Tensor]
Write = Callable[[Path], object]

_BFLOAT16, _INT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.int16)

_MAKERS = {"lm": data.language_model, "large": data.large_model, "small": data.small_tensors}


class Files:
    """Models, made once and kept, and files with them."""

    def __init__(self, folder: Path, sizes: data.Sizes) -> None:
        self.folder = folder
        self.arrays: Callable[[str], Arrays] = cache(lambda name: _MAKERS[name](sizes))
        self.path: Callable[[str, str], Path] = cache(self._write)
        self._fresh = 0

    def fresh(self, suffix: str) -> Path:
        """Give a path that nothing has been written to."""
        self._fresh += 1
        return self.folder / f"fresh-{os.getpid()}-{self._fresh}{suffix}"

    def _write(self, name: str, suffix: str) -> Path:
        path = self.folder / f"{name}{suffix}"
        if suffix == ".safetensors":
            safetensors.numpy.save_file(self.arrays(name), path)
        elif suffix == ".pt":
            torch.save(tensors_of(self.arrays(name)), path)
        else:
            firekeep.save_file(self.arrays(name), path, durable=False)
        with path.open("rb") as file:  # into the page cache
            while file.read(8 << 20):
                pass
        return path


class _Removed:
    """Removes a file once its operation's time has been taken."""

    def __init__(self, path: Path, kept: object) -> None:
        self._path = path
        self._kept = kept

    def __del__(self) -> None:
        self._path.unlink(missing_ok=True)


def plainly(operation: Operation) -> Job:
    """Time an operation that needs no preparation."""
    return lambda: operation


def saving(files: Files, suffix: str, write: Write) -> Job:
    """Time a save to a new file, which is removed afterwards."""

    def prepare() -> Operation:
        path = files.fresh(suffix)
        os.sync()  # what earlier jobs left to be written is not for this one to wait for
        return lambda: _Removed(path, write(path))

    return prepare


def fsynced(write: Write, path: Path) -> None:
    """Save with a peer and make it durable: the file and its folder."""
    write(path)
    for place in (path, path.parent):
        descriptor = os.open(place, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def to_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """View an array as a tensor, without a copy; bf16 goes by way of int16, which both know."""
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(_INT16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def tensors_of(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Tensors:
    return {name: to_torch(array) for name, array in arrays.items()}


def load_torch(path: Path) -> Tensors:
    """Load as zero-copy tensors with firekeep."""
    return tensors_of(firekeep.load_file(path))


def load_own_memory(path: Path) -> Arrays:
    return firekeep.load_file(path, copy=True)


def touched(load: Callable[[Path], Tensors]) -> Callable[[Path], object]:
    """Load, and read a byte of every page."""

    def operation(path: Path) -> object:
        tensors = load(path)
        return tensors, sum(int(value.reshape(-1).view(torch.uint8)[::4096].sum()) for value in tensors.values())

    return operation


def load_mapped(path: Path) -> object:
    return torch.load(path, weights_only=True, mmap=True)


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


def convert_firekeep(source: Path, target: Path) -> object:
    return firekeep.convert(source, target, durable=False)


def convert_torch(source: Path, target: Path, *, mmap: bool) -> object:
    return safetensors.torch.save_file(torch.load(source, weights_only=True, mmap=mmap), target)


def warm_up(folder: Path) -> None:
    """Do everything once on tiny files, so that no child is the first to import something; peers are treated alike."""
    arrays: Arrays = {"w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float16)}
    torch.save(tensors_of(arrays), folder / "warm.pt")
    load_mapped(folder / "warm.pt")
    safetensors.torch.save_file(tensors_of(arrays), folder / "warm.safetensors")
    safetensors.numpy.save_file(arrays, folder / "warm.safetensors")
    safetensors.torch.load_file(folder / "warm.safetensors")
    safetensors.numpy.load_file(folder / "warm.safetensors")
    for suffix in (".safetensors", ".bpk"):
        path = folder / f"warm-ours{suffix}"
        firekeep.save_file(arrays, path)
        convert_firekeep(folder / "warm.pt", path)
        for place in (path, folder / "warm.pt"):
            load_own_memory(place)
            load_torch(place)
        list_firekeep(path)
        one_firekeep(path, "w")
    for path in folder.glob("warm*"):
        path.unlink()
