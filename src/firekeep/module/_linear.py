"""Linear layers and tables of vectors."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from firekeep.arrays import Array
from firekeep.module._errors import ModuleError
from firekeep.module._initializers import Fans, Initializer, KaimingUniform, Normal, Seed, generator
from firekeep.module._numeric import numbers
from firekeep.module._param import Mappers, Param
from firekeep.module._tree import Module

_TRANSPOSED = Mappers(init=np.transpose, load=np.transpose, save=np.transpose)


class Linear(Module):
    """`x @ weight + bias`, with a weight of [d_input, d_output] in memory.

    `layout` says how files hold the weight: "row" as it is in memory, "col" as [d_output, d_input]. Either way the default bounds are
    those of d_input, where Burn takes d_output for "col".
    """

    kind: ClassVar[str] = "linear"

    weight: Param
    bias: Param | None
    layout: str

    def __init__(
        self,
        d_input: int,
        d_output: int,
        *,
        bias: bool = True,
        layout: Literal["row", "col"] = "row",
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        initializer = initializer if initializer is not None else KaimingUniform()
        rng = generator(rng)
        fans = Fans(d_input, d_output)
        if layout == "row":
            self.weight = Param.lazy(initializer, (d_input, d_output), fans=fans, rng=rng)
        elif layout == "col":
            self.weight = Param.lazy(
                initializer,
                (d_output, d_input),
                live_shape=(d_input, d_output),
                mappers=_TRANSPOSED,
                fans=fans,
                rng=rng,
            )
            vars(self)["kind"] = "linear_col"  # of this one: the class is the other row of the tables
        else:
            raise ModuleError(f"layout {layout!r} of a Linear is neither 'row' nor 'col'")
        self.bias = Param.lazy(initializer, (d_output,), fans=fans, rng=rng) if bias else None
        self.layout = layout

    def __call__(self, x: Array) -> Array:
        y: Array = x @ numbers(self.weight)
        return y if self.bias is None else y + numbers(self.bias)


class Embedding(Module):
    """A row of [n_embedding, d_model] for every index."""

    kind: ClassVar[str] = "embedding"

    weight: Param

    def __init__(
        self, n_embedding: int, d_model: int, *, initializer: Initializer | None = None, rng: Seed = None
    ) -> None:
        initializer = initializer if initializer is not None else Normal()
        self.weight = Param.lazy(initializer, (n_embedding, d_model), rng=rng)

    def __call__(self, indices: Array) -> Array:
        """Look the rows up; an index outside the table raises `IndexError`."""
        indices = np.asarray(indices)
        if indices.size and indices.min() < 0:
            raise IndexError(f"index {indices.min()} is outside a table of {self.weight.shape[0]} rows")
        return numbers(self.weight)[indices]
