"""The words of the table of layouts: parts of a layer, and the fields that hold them in each convention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import get_args

from firekeep.rules.layout._forms import SAME, Form
from firekeep.slots import Convention

CONVENTIONS: tuple[Convention, ...] = get_args(Convention)
"""The conventions that rows of the table speak of, in the order of its columns."""

SIDES: Mapping[Convention, str] = {
    "torch": "PyTorch",
    "burn": "Burn",
    "flax": "Flax NNX",
    "linen": "Flax Linen",
    "equinox": "Equinox",
    "keras": "Keras",
}
"""The names of those whose conventions they are."""

Facts = Mapping[str, int | bool | str]

PLUS = "+"
"""Joins the names of two parts that a convention has the sum of."""


@dataclass(frozen=True, slots=True)
class Field:
    """A tensor of a layer in one convention: `parts` joined along `axis`, each of equal extent there, and then put in a form.

    A part "a+b" is the sum of two. `rank`, where set, is the only number of axes it may have, and `why` says so in words.
    """

    name: str
    parts: tuple[str, ...]
    form: Form = SAME
    axis: int = 0
    rank: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Homeless:
    """Why a part has no place in some conventions, with "{side}" for whose they are.

    `state` where no model misses it; `zero` where it is not missed as long as it is all zeros.
    """

    reason: str
    state: bool = False
    zero: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """What a part is that the source has never: a number throughout, of the dtype and shape of the part `like` unless given."""

    like: str
    value: int = 0
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A kind of layer in all conventions.

    `children` are the names of inner layers, in each convention that has them. A layer that is `closed` names all tensors below it,
    so inner layers not among its children are of no account. `refused` says for a convention that cannot hold such a layer why.
    `synonyms` are names of one tensor in one form, in PyTorch's and Burn's conventions. `made` are parts that are made up where a
    source has not, and cannot have, what the target needs. `adapt`, given the shapes of the parts that there are and the target,
    gives parts that are another one in this layer, by name; what it raises refuses the layer.
    """

    kind: str
    fields: Mapping[Convention, tuple[Field, ...]]
    homeless: Mapping[str, Homeless] = field(default_factory=dict)
    children: tuple[Mapping[Convention, str], ...] = ()
    closed: bool = False
    refused: Mapping[Convention, str] = field(default_factory=dict)
    synonyms: tuple[tuple[str, ...], ...] = ()
    made: Mapping[str, Made] = field(default_factory=dict)
    adapt: Callable[[Mapping[str, tuple[int, ...]], Convention], Mapping[str, str]] | None = None

    def of(self, convention: Convention) -> tuple[Field, ...]:
        """List the fields of a convention, none where it has no such layer."""
        return self.fields.get(convention, ())

    def parts(self, convention: Convention) -> frozenset[str]:
        """Name the parts that a convention holds, sums and what they are of."""
        own = [part for one in self.of(convention) for part in one.parts]
        return frozenset(own).union(*(part.split(PLUS) for part in own))

    def roles(self, convention: Convention) -> dict[str, Field]:
        """Map every name that a tensor of the layer may have to its field."""
        named = {one.name: one for one in self.of(convention)}
        for group in self.spelled(convention):
            known = next((named[name] for name in group if name in named), None)
            if known is not None:
                named.update((name, known) for name in group if name not in named)
        return named

    def spelled(self, convention: Convention) -> tuple[tuple[str, ...], ...]:
        """Give the synonyms of a convention."""
        return self.synonyms if convention in ("torch", "burn") else ()
