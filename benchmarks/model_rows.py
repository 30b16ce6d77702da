"""The rows about models: weights put into them, planned for them, and laid out for another framework while they are saved."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import safetensors.torch
import torch

import firekeep
from benchmarks.bench import FEW, MANY, Made, Row
from benchmarks.jobs import Arrays, Files, plainly, saving, tensors_of

Model = torch.nn.Module

RULES = {rf"^blocks\.(\d+)\.layer\.{place}\.": rf"encoder.\1.part{place}." for place in range(10)}
"""Each of ten rules renames a tenth of the small tensors, and is tried on most of the others."""


def make_model_rows(files: Files) -> Made:
    """Give the rows about models."""
    _warm_up(files.folder)
    model = cache(lambda name: module_of(files.arrays(name)))
    for name, size, target, repeats in (("lm", "269 MB bf16", 0.8, MANY), ("large", "2 GB f32", 1.0, FEW)):
        title = f"put {size} into a torch model"
        yield title, partial(_put, files, model, name, title, target=target, repeats=repeats)
    title = "save a 2 GB torch model laid out for Burn"
    yield title, partial(_lay_out, files, model, title)
    for title, prefix, rules, limit in (
        ("plan 20,000 tensors with ten rename rules", "encoder.{}.part{}", RULES, 1.5),
        ("plan 20,000 missing against 20,000 unused", "stages.{}.mixer.{}", {}, 3.0),
    ):
        yield title, partial(_plan, files, title, prefix, rules, limit)


def module_of(arrays: Arrays) -> Model:
    """Make a model with these weights, of linear layers, norms and an embedding, in memory of its own.

    No kernel of torch runs here: its threads would not be there any more in the forked children, who would wait for them.
    """
    root = Model()
    with torch.device("meta"):
        for name, array in arrays.items():
            *path, leaf, _ = name.split(".")
            parent = root
            for step in path:
                if step not in parent._modules:
                    parent.add_module(step, Model())
                parent = parent.get_submodule(step)
            parent.add_module(leaf, _layer(leaf, array.shape))
    own = {name: array.copy() for name, array in arrays.items()}
    root.load_state_dict(tensors_of(own), assign=True)
    return root


def _layer(name: str, shape: tuple[int, ...]) -> Model:
    if len(shape) == 1:
        return torch.nn.RMSNorm(shape)
    if "embed" in name:
        return torch.nn.Embedding(*shape)
    return torch.nn.Linear(shape[1], shape[0], bias=False)


def load_with_safetensors(model: Model, path: Path) -> object:
    return model.load_state_dict(safetensors.torch.load_file(path))


def load_with_torch(model: Model, path: Path) -> object:
    return model.load_state_dict(torch.load(path, weights_only=True, mmap=True))


def _put(files: Files, model: Callable[[str], Model], name: str, title: str, *, target: float, repeats: int) -> Row:
    path, pickled = files.path(name, ".safetensors"), files.path(name, ".pt")
    filled = model(name)
    timed = {
        "firekeep": plainly(partial(firekeep.load_into, filled, path)),
        "safetensors + load_state_dict": plainly(partial(load_with_safetensors, filled, path)),
        "torch.load(mmap) + load_state_dict": plainly(partial(load_with_torch, filled, pickled)),
        "firekeep .pt": plainly(partial(firekeep.load_into, filled, pickled)),
    }
    peers = ("safetensors + load_state_dict", "torch.load(mmap) + load_state_dict")
    return Row(name=title, jobs=timed, targets=[(peers, target)], repeats=repeats)


def _lay_out(files: Files, model: Callable[[str], Model], title: str) -> Row:
    saved = model("large")

    def save(path: Path, layout: str) -> object:
        return firekeep.save(saved, path, layout=layout, durable=False)

    timed = {
        "firekeep": saving(files, ".bpk", partial(save, layout="burn")),
        "firekeep, as it lies": saving(files, ".bpk", partial(save, layout="torch")),
    }
    return Row(name=title, jobs=timed, targets=[(("firekeep, as it lies",), 2.5)], repeats=FEW)


def _plan(files: Files, title: str, prefix: str, rules: dict[str, str], limit: float) -> Row:
    arrays = files.arrays("small")
    path = files.path("small", ".safetensors")
    names = (prefix.format(number // 10, number % 10) for number in range(len(arrays)))
    model = module_of({f"{name}.weight": array for name, array in zip(names, arrays.values(), strict=True)})
    renames = firekeep.KeyRemapper.of(rules) if rules else ()

    def plan() -> object:
        report = firekeep.load_into(model, path, rename=renames, dry_run=True)
        assert report.ok == bool(rules), "without renames nothing should have matched"
        return str(report)

    return Row(name=title, jobs={"firekeep": plainly(plan)}, repeats=FEW, seconds_limit=limit)


def _warm_up(folder: Path) -> None:
    """Do everything once on a tiny model, so that no child is the first to import something; peers are treated alike."""
    import numpy as np

    model = module_of({"a.weight": np.ones((4, 4), np.float32)})
    path, pickled = folder / "warm.safetensors", folder / "warm.pt"
    firekeep.save(model, path)
    firekeep.save(model, folder / "warm.bpk")
    torch.save(model.state_dict(), pickled)
    for source in (path, pickled):
        firekeep.load_into(model, source)
    load_with_safetensors(model, path)
    load_with_torch(model, pickled)
    for file in folder.glob("warm*"):
        file.unlink()
