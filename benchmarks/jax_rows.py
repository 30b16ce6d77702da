"""The rows about runs in JAX, beside orbax and Flax's msgpack: a save, the loop's stall at one, and a restore into arrays.

JAX may be imported here, and not more: its threads would not be there any more in the forked children. Each child makes a state of its
own, in memory of JAX's own, before it is timed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import jobs
from benchmarks.bench import FEW, Made, Row
from benchmarks.jobs import Files
from benchmarks.measure import Job, Operation
from benchmarks.state_rows import Finished, give_back_memory
from firekeep import CheckpointManager, KeepLast, TrainingState

Tree = Any
ORBAX, ASYNC, MSGPACK = "orbax", "orbax async", "flax msgpack + fsync"
TIME, MEMORY = 0.35, 0.3


@dataclass(frozen=True, slots=True)
class Run:
    """The parameters of a model, and what AdamW of optax keeps of them."""

    params: Tree
    moments: Tree
    tx: Any
    values: np.ndarray[Any, Any]
    """What all of it was made of: held on to, since JAX lets go of it some time later, perhaps while memory is measured."""

    def state(self) -> TrainingState:
        """Give it as firekeep takes it."""
        return TrainingState(model=self.params, optimizer=self.moments, tx=self.tx)

    def tree(self) -> Tree:
        """Give it as the others take it."""
        return {"params": self.params, "moments": self.moments}


class Runs:
    """Makes runs of the language model in f32, one for each process."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._of_process: Callable[[int], Run] = cache(self._make)

    def here(self) -> Run:
        """Give the run of this process."""
        return self._of_process(os.getpid())

    def _make(self, process: int) -> Run:
        import jax
        import optax

        shapes: Tree = {}
        for name, array in self._files.arrays("lm").items():
            *path, leaf = name.split(".")
            parent = shapes
            for step in path:
                parent = parent.setdefault(step, {})
            parent[leaf] = jax.ShapeDtypeStruct(array.shape, np.float32)
        sizes = [shape.size for shape in jax.tree.leaves(shapes)]
        values = np.random.default_rng(process).random(max(sizes), np.float32)
        tx = optax.adamw(1e-4)

        def fill(shape: Any) -> Any:
            if shape.dtype != np.float32:
                return jax.numpy.ones(shape.shape, shape.dtype)
            return jax.numpy.array(values[: shape.size].reshape(shape.shape), copy=True)

        run = Run(jax.tree.map(fill, shapes), jax.tree.map(fill, jax.eval_shape(tx.init, shapes)), tx, values)
        jax.block_until_ready(run.tree())
        return run


def make_jax_rows(files: Files) -> Made:
    """Give the rows about runs in JAX."""
    _import_all()
    runs = Runs(files)
    rows: tuple[tuple[str, Callable[[str], Row]], ...] = (
        ("save a JAX state of 1.6 GB durable", partial(_save, files, runs)),
        ("stall of a background save of a JAX state", partial(_stall, files, runs)),
        ("restore a JAX state of 1.6 GB", partial(_restore, files, runs)),
    )
    for title, make in rows:
        yield title, partial(make, title)


def _import_all() -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import flax.serialization  # noqa: F401
    import jax  # noqa: F401
    import optax  # noqa: F401
    from orbax import checkpoint  # noqa: F401

    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)


def _save(files: Files, runs: Runs, title: str) -> Row:
    timed: dict[str, Job] = {
        "firekeep": partial(_prepare_save, files, runs, background=False),
        ORBAX: partial(_prepare_orbax_save, files, runs, wait=True),
        MSGPACK: partial(_prepare_msgpack_save, files, runs),
    }
    return Row(
        name=title,
        jobs=timed,
        targets=[((ORBAX,), TIME)],
        memory_targets=[(ORBAX, MEMORY)],
        repeats=FEW,
    )


def _stall(files: Files, runs: Runs, title: str) -> Row:
    timed: dict[str, Job] = {
        "firekeep": partial(_prepare_save, files, runs, background=True),
        ASYNC: partial(_prepare_orbax_save, files, runs, wait=False),
    }
    return Row(name=title, jobs=timed, targets=[((ASYNC,), TIME)], repeats=FEW)


def _prepare_save(files: Files, runs: Runs, *, background: bool) -> Operation:
    run = runs.here()
    folder, state = files.fresh(".run"), run.state()
    manager = CheckpointManager(folder, background=background, keep=KeepLast(1))
    os.sync()

    def save() -> object:
        manager.save(state, step=1)
        return Finished(folder, manager.close)

    return save


def _prepare_orbax_save(files: Files, runs: Runs, *, wait: bool) -> Operation:
    from orbax import checkpoint

    tree = runs.here().tree()
    folder = files.fresh(".orbax").absolute()
    saver = checkpoint.StandardCheckpointer()
    os.sync()

    def save() -> object:
        saver.save(folder, tree)
        if wait:
            saver.wait_until_finished()
        return Finished(folder, saver.close)

    return save


def _prepare_msgpack_save(files: Files, runs: Runs) -> Operation:
    from flax import serialization

    tree = runs.here().tree()
    write = partial(jobs.fsynced, lambda path: path.write_bytes(serialization.to_bytes(tree)))
    return jobs.saving(files, ".msgpack", write)()


def _restore(files: Files, runs: Runs, title: str) -> Row:
    folder = files.folder / "jax"
    timed: dict[str, Job] = {
        "firekeep": partial(_prepare_restore, runs, folder),
        ORBAX: partial(_prepare_orbax_restore, runs, folder),
        MSGPACK: partial(_prepare_msgpack_restore, runs, folder),
    }
    return Row(
        name=title,
        jobs=timed,
        targets=[((ORBAX,), TIME)],
        memory_targets=[(ORBAX, MEMORY)],
        result_bytes=3 * 4 * sum(array.size for array in files.arrays("lm").values()),
        repeats=FEW,
    )


def _prepare_restore(runs: Runs, folder: Path) -> Operation:
    run, saved = runs.here(), folder / "ours"
    state = replace(run, params=_others(run.params)).state()  # dicts of its own: what is in them is there to the end
    with CheckpointManager(saved, durable=False) as manager:
        if manager.latest() is None:
            manager.save(state, step=1)
    give_back_memory()

    def restore() -> object:
        with CheckpointManager(saved) as manager:
            manager.restore(state)
        return _ready((state.model, state.optimizer))

    return restore


def _prepare_orbax_restore(runs: Runs, folder: Path) -> Operation:
    import jax
    from orbax import checkpoint

    tree, saved = runs.here().tree(), (folder / "orbax").absolute()
    saver = checkpoint.StandardCheckpointer()
    if not saved.exists():
        saver.save(saved, tree)
        saver.wait_until_finished()
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree)
    give_back_memory()
    return lambda: _ready(saver.restore(saved, shapes))


def _prepare_msgpack_restore(runs: Runs, folder: Path) -> Operation:
    import jax
    from flax import serialization

    tree, saved = runs.here().tree(), folder / "state.msgpack"
    if not saved.exists():
        folder.mkdir(exist_ok=True)
        saved.write_bytes(serialization.to_bytes(tree))
    give_back_memory()
    return lambda: _ready(jax.device_put(serialization.from_bytes(tree, saved.read_bytes())))


def _others(tree: Tree) -> Tree:
    import jax

    return jax.tree.map(lambda leaf: leaf, tree)


def _ready(tree: Tree) -> Tree:
    import jax

    return jax.block_until_ready(tree)
