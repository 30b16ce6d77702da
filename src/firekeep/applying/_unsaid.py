"""What a file does not say of its layers: found by how it was matched, or told to be taken for what is usual."""

from __future__ import annotations

from collections.abc import Iterator

from firekeep.applying._wants import Wanted
from firekeep.matching import Plan
from firekeep.rules.layout import TELLING, moved, tellable
from firekeep.slots import Convention, Layer
from firekeep.wording import some

_FLAX: tuple[Convention | None, ...] = ("flax", "linen")
_SEVERAL_AXES: tuple[Convention | None, ...] = (*_FLAX, "keras")


def told_elsewhere(found: Plan, wanted: Wanted, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Give layers that tell more than was known when the wants were made.

    They are those of the file that matching found under other names of the model, behind a wrapper, and linear maps of several axes in
    the model that have one in the file, as their shapes show.
    """
    layout = wanted.layout
    if layout not in TELLING:
        return ()
    told = tellable(layers, layout)
    known = {layer.path for layer in told}
    names = {pair.offer.name: pair.want.name for pair in (*found.pairs, *found.mismatched)} if told else {}
    elsewhere = (layer for layer in moved(told, names) if layer.path not in known)
    return (*elsewhere, *(layer for layer in _plain(found, wanted) if layer.path not in known))


def _plain(found: Plan, wanted: Wanted) -> Iterator[Layer]:
    if wanted.layout not in _SEVERAL_AXES or wanted.outline.convention not in _SEVERAL_AXES or not found.mismatched:
        return
    linear = {layer.path for layer in wanted.layers if layer.kind == "linear"}
    for pair in found.mismatched:
        path, _, role = pair.want.name.rpartition(".")
        if role == "kernel" and path in linear and len(pair.offer.shape) == 2 < len(pair.want.shape):
            yield Layer(kind="linear", path=path)


def untold_kernels(found: Plan, wanted: Wanted, layers: tuple[Layer, ...]) -> Iterator[str]:
    """Tell of transposed convolutions in a file of Flax's that fit either way, where it does not say which."""
    if wanted.layout not in _FLAX or wanted.outline.convention in _FLAX:
        return
    told = {layer.path for layer in layers if "transpose_kernel" in layer.facts}
    kinds = {layer.path: layer.kind for layer in wanted.layers}
    unsaid = []
    for pair in found.pairs:
        path, _, role = pair.want.name.rpartition(".")
        turned = role == "kernel" and path not in told and kinds.get(path, "").startswith("conv_transpose")
        if turned and pair.want.shape[-1:] == pair.want.shape[-2:-1]:
            unsaid.append(pair.want.name)
    if unsaid:
        yield f"whether transpose_kernel turned a kernel the file does not say, and these are taken as without it: {some(unsaid)}"
