"""Convolutions in the table of layouts: which axis of a kernel is which, and which way round it runs."""

from __future__ import annotations

from collections.abc import Sequence

from firekeep.rules.layout._forms import SAME, Form, column, depthwise, in_groups, permuting
from firekeep.rules.layout._row import SIDES, Facts, Field, Row
from firekeep.slots import Convention, Layer

GROUPLESS: frozenset[Convention] = frozenset(("flax", "linen", "keras"))
"""Conventions whose transposed convolutions have no groups."""

_NO_GROUPS = "{side}'s ConvTranspose has no groups"


def conv(kind: str, facts: Facts) -> Row:
    """Lay out a convolution or a transposed one of so many spatial axes.

    The facts `groups` and, of Flax's transposed convolutions, `transpose_kernel`; `depthwise` of Keras' with a filter for each channel.
    """
    dims, groups = int(kind[-2]), int(facts.get("groups", 1))
    transposed = kind.startswith("conv_transpose")
    refused: dict[Convention, str] = {}
    if transposed and groups > 1:
        refused = {side: _NO_GROUPS.format(side=SIDES[side]) for side in GROUPLESS}
    forms = _transposed(dims, groups, facts) if transposed else _straight(dims, facts)
    names: dict[Convention, str] = {"torch": "weight", "burn": "weight", "equinox": "weight"}
    fields: dict[Convention, tuple[Field, ...]] = {
        side: (
            Field(names.get(side, "kernel"), ("weight",), form),
            Field("bias", ("bias",), column(dims) if side == "equinox" else SAME),
        )
        for side, form in forms.items()
    }
    return Row(kind=kind, fields=fields, refused=refused)


def groups_told(layer: Layer, wanted: Sequence[int], found: Sequence[int]) -> int:
    """Say in how many groups a kernel is that another one is wanted for, by their shapes in PyTorch's way; 1 where that is not it."""
    if not layer.kind.startswith("conv_transpose") or len(wanted) < 3 or not found[1:2] or not found[1]:
        return 1
    alike = (*wanted[:1], *wanted[2:]) == (*found[:1], *found[2:])
    return wanted[1] // found[1] if alike and wanted[1] % found[1] == 0 else 1


def _straight(dims: int, facts: Facts) -> dict[Convention, Form]:
    last = permuting(f"kernel of {dims}", (*range(2, 2 + dims), 1, 0))
    keras = last
    if facts.get("depthwise") is True:
        keras = depthwise(int(facts["groups"]) if "groups" in facts else None, dims)
    return {"torch": SAME, "burn": SAME, "flax": last, "linen": last, "equinox": SAME, "keras": keras}


def _transposed(dims: int, groups: int, facts: Facts) -> dict[Convention, Form]:
    spatial = tuple(range(2, 2 + dims))
    last = permuting(f"kernel of {dims}", (*spatial, 1, 0))
    turned = permuting(f"flipped kernel of {dims}", (*spatial, 0, 1), flip=True)
    flax = last if facts.get("transpose_kernel") is True else turned
    swapped = permuting(f"swapped kernel of {dims}", (1, 0, *spatial), flip=True)
    equinox = swapped if groups == 1 else in_groups(groups, dims)
    return {"torch": SAME, "burn": SAME, "flax": flax, "linen": flax, "equinox": equinox, "keras": last}
