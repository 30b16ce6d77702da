"""What the scale and the shift of a norm are called, whatever kind of norm it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from types import MappingProxyType

from firekeep.rules.layout._table import KINDS, row_of
from firekeep.slots import Convention, Layer

_ROWS = tuple(row_of(Layer(kind=kind, path="")) for kind in KINDS if kind.endswith("_norm"))
_AFFINE = ("scale", "shift")
_COMMON = ("weight", "bias")
"""What layers of other kinds have, too."""


def is_norm(kind: str) -> bool:
    """Say whether layers of a kind are norms."""
    return kind.endswith("_norm")


def norm_names(role: str, *, source: Convention, target: Convention) -> tuple[str, ...]:
    """List what the target convention calls a tensor that is called `role` in a norm of the source's; none where no norm has such."""
    part = _parts(source).get(role)
    return tuple(name for name, other in _parts(target).items() if other == part and name != role) if part else ()


def are_of_a_norm(roles: Collection[str], convention: Convention) -> bool:
    """Say whether the names of all tensors of a layer are those of a norm, and one of them is no other layer's."""
    own = [row.roles(convention) for row in _ROWS]
    telling = any(role in _parts(convention) and role not in _COMMON for role in roles)
    return telling and any(all(role in known for role in roles) for known in own)


@lru_cache
def _parts(convention: Convention) -> Mapping[str, str]:
    """Map the names of scales and shifts to which of the two they are."""
    found: dict[str, str] = {}
    for row in _ROWS:
        for name, one in row.roles(convention).items():
            if len(one.parts) == 1 and one.parts[0] in _AFFINE:
                found.setdefault(name, one.parts[0])
    return MappingProxyType(found)
