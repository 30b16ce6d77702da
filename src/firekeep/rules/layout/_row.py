"""The words of the table of layouts: parts of a layer, and the fields that hold them in each convention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from firekeep.entry import TensorEntry
from firekeep.errors import UnsupportedError
from firekeep.slots import Convention
from firekeep.views import permuted

CONVENTIONS: tuple[Convention, ...] = get_args(Convention)
"""The conventions that rows of the table speak of, in the order of its columns."""

Form = Literal["same", "transposed"]
"""How a tensor lies in a convention, seen from PyTorch's way: what is done to it there."""


def _transpose(entry: TensorEntry) -> TensorEntry:
    if len(entry.shape) != 2:
        raise UnsupportedError(f"its shape {list(entry.shape)} has not the two axes of a linear map", tensor=entry.name)
    return permuted(entry, (1, 0))


FORMS: Mapping[Form, tuple[Callable[[TensorEntry], TensorEntry], Callable[[TensorEntry], TensorEntry]]] = {
    "same": (lambda entry: entry, lambda entry: entry),
    "transposed": (_transpose, _transpose),
}
"""For each form, what makes it of a tensor in PyTorch's way, and what undoes that."""


@dataclass(frozen=True, slots=True)
class Field:
    """A tensor of a layer in one convention: `parts` joined along `axis`, each of equal extent there, and then put in a form.

    `rank`, where set, is the only number of axes it may have, and `why` says so in words.
    """

    name: str
    parts: tuple[str, ...]
    form: Form = "same"
    axis: int = 0
    rank: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Homeless:
    """Why a part has no place in some conventions; `state` where no model misses it."""

    reason: str
    state: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A kind of layer in all conventions.

    `children` are the names of inner layers, in each convention that has them. A layer that is `closed` names all tensors below it,
    so inner layers not among its children are of no account. `refused` says for a convention that cannot hold such a layer why.
    `synonyms` are names of one tensor in one form.
    """

    kind: str
    fields: Mapping[Convention, tuple[Field, ...]]
    homeless: Mapping[str, Homeless] = field(default_factory=dict)
    children: tuple[Mapping[Convention, str], ...] = ()
    closed: bool = False
    refused: Mapping[Convention, str] = field(default_factory=dict)
    synonyms: tuple[tuple[str, ...], ...] = ()

    def roles(self, convention: Convention) -> dict[str, Field]:
        """Map every name that a tensor of the layer may have to its field."""
        named = {one.name: one for one in self.fields[convention]}
        for group in self.synonyms:
            known = next((named[name] for name in group if name in named), None)
            if known is not None:
                named.update((name, known) for name in group if name not in named)
        return named
