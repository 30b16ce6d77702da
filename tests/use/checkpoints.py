"""PyTorch files for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import pickles

_STORAGES = {"float32": "FloatStorage", "float64": "DoubleStorage", "int64": "LongStorage", "float16": "HalfStorage"}


class Checkpoint:
    """Collects arrays as storages; `state` gives an ordered dict of some of them."""

    def __init__(self) -> None:
        self.storages: dict[str, bytes] = {}

    def tensor(self, array: np.ndarray) -> bytes:
        key = str(len(self.storages))
        self.storages[key] = array.tobytes()
        return pickles.tensor(_STORAGES[array.dtype.name], key, array.size, shape=array.shape)

    def state(self, arrays: Mapping[str, np.ndarray]) -> bytes:
        return pickles.ordered({name: self.tensor(array) for name, array in arrays.items()})

    def file(self, root: bytes) -> bytes:
        return pickles.zip_file(pickles.pickled(root), self.storages)


def state_dict(arrays: Mapping[str, np.ndarray]) -> bytes:
    """A file that is a state dict and nothing else."""
    made = Checkpoint()
    return made.file(made.state(arrays))


def training(arrays: Mapping[str, np.ndarray], **others: Mapping[str, np.ndarray]) -> bytes:
    """A checkpoint: a model under `state_dict`, further ones under their own keys, an optimizer's moments, an epoch."""
    made = Checkpoint()
    parts = {"epoch": pickles.number(3), "state_dict": made.state(arrays)}
    parts |= {key: made.state(held) for key, held in others.items()}
    moments = pickles.mapping({"exp_avg": made.tensor(np.zeros(2, np.float32)), "step": pickles.number(9)})
    groups = pickles.sequence(pickles.mapping({"lr": pickles.number(1)}))
    parts["optimizer"] = pickles.mapping({"state": pickles.mapping({"0": moments}), "param_groups": groups})
    return made.file(pickles.mapping(parts))
