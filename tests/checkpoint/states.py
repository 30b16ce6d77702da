"""A state of arrays, small enough to be followed, that takes itself apart into files and comes back from them."""

from __future__ import annotations

import numpy as np

from firekeep.arrays import as_array
from firekeep.formats import FORMATS
from firekeep.saving import gather
from firekeep.sections import Section


class State:
    """Sections of arrays by name; `restored` are the names of the sections that came back."""

    def __init__(self, value=0.0, *, size=100, names=("model", "optimizer")):
        self.parts = {
            name: {"a": np.full(size, value + index, np.float32), "b": np.arange(index + 1)}
            for index, name in enumerate(names)
        }
        self.restored = None

    def sections(self):
        row = FORMATS["burnpack"]
        return [
            Section(name, gather(arrays, row, scalars={"value": float(arrays["a"][0])}))
            for name, arrays in self.parts.items()
        ]

    def restore(self, opened):
        self.restored = sorted(opened)
        for name, file in opened.items():
            assert file.scalars["value"].value == float(file.array("a")[0])
            self.parts[name] = {key: np.array(as_array(file.entry(key))) for key in file.keys()}  # noqa: SIM118
        return f"{len(opened)} sections"

    @property
    def value(self):
        first = next(iter(self.parts.values()))["a"]
        assert (first == first[0]).all()
        return float(first[0])


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())
