"""The rows about runs: how long the loop stands still for a save, how long until a save is on disk, and until a run goes on."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import jobs
from benchmarks.bench import FEW, Made, Row
from benchmarks.jobs import Files
from benchmarks.measure import Job, Operation
from benchmarks.model_rows import Model, module_of
from firekeep import CheckpointManager, KeepLast, TrainingState

BETAS = (0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Run:
    """A model, its AdamW and its schedule, as they are in the middle of a training."""

    model: Model
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler

    def state(self) -> TrainingState:
        """Give it as firekeep takes it."""
        return TrainingState(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)

    def state_dicts(self) -> dict[str, Any]:
        """Give it as PyTorch takes it."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """Give all memory of the state."""
        held = [parameter.detach().numpy() for parameter in self.model.parameters()]
        moments = [value.numpy() for kept in self.optimizer.state.values() for value in kept.values() if value.ndim]
        return [*held, *moments]


def make_state_rows(files: Files) -> Made:
    """Give the rows about runs."""
    run = cache(lambda: _run_of(files))
    folder = files.folder / "warm"
    _warm_up(folder)
    rows: tuple[tuple[str, Callable[[str], Row]], ...] = (
        ("stall of the first background save of 1.6 GB", partial(_stall, files, run, "first")),
        ("stall of the first, its memory preallocated", partial(_stall, files, run, "preallocated")),
        ("stall of the second background save of 1.6 GB", partial(_stall, files, run, "second")),
        ("save a training state of 1.6 GB durable", partial(_save, files, run)),
        ("resume a training state of 1.6 GB", partial(_resume, files, run)),
    )
    for title, make in rows:
        yield title, partial(make, title)


def _run_of(files: Files) -> Run:
    """Make a run of the language model in f32, with moments. As in `module_of`, no kernel of torch runs here."""
    arrays = files.arrays("lm")
    values = np.random.default_rng(4).random(max(array.size for array in arrays.values()), np.float32)
    model = module_of({name: values[: array.size].reshape(array.shape) for name, array in arrays.items()})
    run = _fresh(model)
    for parameter in model.parameters():
        moments = (torch.from_numpy(parameter.detach().numpy().copy()) for _ in range(2))
        run.optimizer.state[parameter] = {"step": torch.tensor(1.0), **dict(zip(_MOMENTS, moments, strict=True))}
    return run


_MOMENTS = ("exp_avg", "exp_avg_sq")


def _fresh(model: Model) -> Run:
    optimizer = torch.optim.AdamW(model.parameters(), betas=BETAS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimizer has made no step yet, and will make none
        return Run(model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000))


class Finished:
    """Waits for what an operation has left running, and removes what it wrote, once its time has been taken."""

    def __init__(self, folder: Path, wait: Callable[[], object]) -> None:
        self._folder = folder
        self._wait = wait

    def __del__(self) -> None:
        self._wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _stall(files: Files, run: Callable[[], Run], which: str, title: str) -> Row:
    held = run()
    timed: dict[str, Job] = {
        "firekeep": partial(_prepare_stall, files, held, which),
        "one memcpy": partial(_prepare_copy, held),
    }
    if which == "second":  # each of them writes all of it once more in every turn
        timed["DCP async_save"] = partial(_prepare_async_save, files, held)
        if find_spec("orbax") is not None and find_spec("orbax.checkpoint") is not None:
            timed["orbax async"] = partial(_prepare_orbax, files, held)
    targets = [] if which == "first" else [(("one memcpy",), 1.2)]
    return Row(name=title, jobs=timed, targets=targets, repeats=FEW)


def _prepare_stall(files: Files, run: Run, which: str) -> Operation:
    folder, state = files.fresh(".run"), run.state()
    manager = CheckpointManager(
        folder, background=True, preallocate=which == "preallocated", keep=KeepLast(1), durable=False, every=1000
    )
    manager.tick(state, step=1)  # where memory is taken beforehand, it is here
    if which == "second":
        manager.save(state, step=1)
        manager.wait()
    os.sync()

    def save() -> object:
        manager.save(state, step=2)
        return Finished(folder, manager.close)

    return save


def _prepare_copy(run: Run) -> Operation:
    """Copy the whole state once, into memory that is there."""
    sources = run.arrays()
    whole = np.zeros(sum(array.nbytes for array in sources), np.uint8)
    whole.fill(1)
    targets, begin = [], 0
    for array in sources:
        targets.append(whole[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape))
        begin += array.nbytes

    def copy() -> object:
        for target, source in zip(targets, sources, strict=True):
            np.copyto(target, source)
        return targets

    return copy


def _prepare_async_save(files: Files, run: Run) -> Operation:
    from torch.distributed import checkpoint

    warnings.filterwarnings(
        "ignore", "torch.distributed is disabled"
    )  # in a thread, and here there is one process only
    folder, states = files.fresh(".dcp"), run.state_dicts()
    os.sync()

    def save() -> object:
        future = checkpoint.async_save(states, checkpoint_id=str(folder))
        return Finished(folder, future.result)

    return save


def _prepare_orbax(files: Files, run: Run) -> Operation:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from orbax import checkpoint

    folder = files.fresh(".orbax").absolute()
    arrays = {str(number): array for number, array in enumerate(run.arrays())}
    saver = checkpoint.AsyncCheckpointer(checkpoint.PyTreeCheckpointHandler())
    os.sync()

    def save() -> object:
        saver.save(folder, args=checkpoint.args.PyTreeSave(arrays))
        return Finished(folder, saver.close)

    return save


def _save(files: Files, run: Callable[[], Run], title: str) -> Row:
    held = run()

    def ours() -> Operation:
        folder, state = files.fresh(".run"), held.state()
        manager = CheckpointManager(folder, keep=KeepLast(1))
        os.sync()

        def save() -> object:
            manager.save(state, step=1)
            return Finished(folder, manager.close)

        return save

    write = partial(jobs.fsynced, lambda path: torch.save(held.state_dicts(), path))
    timed = {"firekeep": ours, "torch.save + fsync": jobs.saving(files, ".pt", write)}
    return Row(name=title, jobs=timed, targets=[(("torch.save + fsync",), 1.0)], repeats=FEW)


def _resume(files: Files, run: Callable[[], Run], title: str) -> Row:
    held = run()
    folder, pickled = files.folder / "resumed", files.folder / "resumed.pt"
    with CheckpointManager(folder, durable=False) as manager:
        manager.save(held.state(), step=1, overwrite=True)
    torch.save(held.state_dicts(), pickled)
    timed: dict[str, Job] = {
        "firekeep": partial(_prepare_restore, held.model, folder),
        "torch.load + load_state_dict": partial(_prepare_load, held.model, pickled, mmap=False),
        "torch.load(mmap) + load_state_dict": partial(_prepare_load, held.model, pickled, mmap=True),
    }
    return Row(name=title, jobs=timed, targets=[(("torch.load + load_state_dict",), 0.5)], repeats=FEW)


def _prepare_restore(model: Model, folder: Path) -> Operation:
    run = _fresh(model)
    state = run.state()
    give_back_memory()

    def restore() -> object:
        with CheckpointManager(folder) as manager:
            manager.restore(state)
        return run

    return restore


def _prepare_load(model: Model, path: Path, *, mmap: bool) -> Operation:
    """Load as the manual of PyTorch does. With `mmap` the moments stay in the file until the first step touches them."""
    run = _fresh(model)
    give_back_memory()

    def load() -> object:
        saved = torch.load(path, weights_only=True, mmap=mmap)
        run.model.load_state_dict(saved["model"])
        run.optimizer.load_state_dict(saved["optimizer"])
        run.scheduler.load_state_dict(saved["scheduler"])
        return run

    return load


def give_back_memory() -> None:
    """Have no memory that an earlier run has left: a run is resumed in a process that has just started."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def _warm_up(folder: Path) -> None:
    """Do everything once on a tiny run, so that no child is the first to import something; peers are treated alike."""
    model = module_of({"a.weight": np.ones((4, 4), np.float32)})
    run = _fresh(model)
    for parameter in model.parameters():
        run.optimizer.state[parameter] = {"step": torch.tensor(1.0)} | {key: torch.zeros(4, 4) for key in _MOMENTS}
    with CheckpointManager(folder, durable=False) as manager:
        manager.save(run.state(), step=1)
        manager.restore(_fresh(model).state())
    torch.save(run.state_dicts(), folder / "warm.pt")
    for mmap in (False, True):
        _prepare_load(model, folder / "warm.pt", mmap=mmap)()
    shutil.rmtree(folder)
