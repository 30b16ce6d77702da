"""What an optimizer keeps, in words that no framework owns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firekeep.dtypes import DType
from firekeep.ids import ParamId
from firekeep.slots import Convention

Nested = Any
"""Plain data with tensors in it, as `TensorEntry`, at any depth of lists, tuples and dicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamState:
    """One parameter of an optimizer, and what the optimizer keeps of it: `Nested`, {} where it has not made a step yet.

    `path` is the parameter's first name in the model, `group` the place of its group, `position` its place among all parameters as the
    optimizer counts them.
    """

    path: str
    param_id: ParamId
    dtype: DType
    shape: tuple[int, ...]
    group: int
    position: int
    state: Mapping[str, Nested]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """An optimizer: its class, the options of its groups, and its parameters in the order of the model.

    `base` is the class of the framework's own that it derives from, "" where there is none. `extra` is what its state dict holds
    besides states and groups. `convention` is the one that the model's names and shapes follow, None where nothing tells its layers.
    Without `has_ids` the ids are made of the names, and tell no more than they do. `frozen` names what of the model takes no gradient,
    in the optimizer or not.
    """

    kind: str
    base: str
    groups: tuple[Mapping[str, Nested], ...]
    params: tuple[ParamState, ...]
    extra: Mapping[str, Nested] = field(default_factory=dict)
    convention: Convention | None = "torch"
    has_ids: bool = True
    frozen: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """What is to be put into an optimizer: states by path of the parameter, options by place of the group.

    Parameters without a state here start afresh; groups without options keep theirs.
    """

    states: Mapping[str, Mapping[str, Nested]]
    groups: Mapping[int, Mapping[str, Nested]] = field(default_factory=dict)
    extra: Mapping[str, Nested] = field(default_factory=dict)
