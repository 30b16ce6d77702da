"""Facts of layers that the shapes of their own tensors tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from firekeep.entry import TensorEntry
from firekeep.rules.layout._names import rename_paths
from firekeep.slots import Convention, Layer

_BY_HEADS = ("flax", "linen", "keras")
_FORMS = (
    "cell",
    "depthwise",
    "groups",
    "in_shape",
    "mode",
    "momentum",
    "out_shape",
    "reset_after",
    "transpose_kernel",
    "use_bias",
    "wrapped",
)
"""Facts on which names and forms depend, and which one side may know and the other not."""


def tell_facts(layers: Sequence[Layer], entries: Iterable[TensorEntry], convention: Convention) -> tuple[Layer, ...]:
    """Add to layers the facts that their tensors tell in a convention; what a layer says itself stays.

    They are the heads of attention, the shape of a slope, the channels of a depthwise kernel, and a norm without a bias.
    """
    shapes = {entry.name: entry.shape for entry in entries}
    return tuple(_told(layer, shapes, convention) for layer in layers)


def join_facts(
    layers: Sequence[Layer], others: Iterable[Layer], *, source: Convention, target: Convention
) -> tuple[Layer, ...]:
    """Add to layers what the same ones of another model, called as in the target convention, know of their forms there."""
    known = {layer.path: layer for layer in others}
    names = rename_paths([layer.path for layer in layers], layers, source=source, target=target) if known else {}
    return tuple(_joined(layer, known.get(names.get(layer.path, "")), source) for layer in layers)


def _joined(layer: Layer, other: Layer | None, source: Convention) -> Layer:
    if other is None or other.kind != layer.kind:
        return layer
    facts = {name: value for name, value in other.facts.items() if name in _FORMS}
    # How cells lie in what runs them is told by those who have that: a cell of Equinox says of itself only that it does not.
    return replace(layer, facts={**facts, **layer.facts} if source in _BY_HEADS else {**layer.facts, **facts})


def _told(layer: Layer, shapes: Mapping[str, tuple[int, ...]], convention: Convention) -> Layer:
    facts = {name: value for name, value in _facts(layer, shapes, convention) if name not in layer.facts}
    return replace(layer, facts={**layer.facts, **facts}) if facts else layer


def _facts(
    layer: Layer, shapes: Mapping[str, tuple[int, ...]], convention: Convention
) -> Iterable[tuple[str, int | bool | str]]:
    before = f"{layer.path}." if layer.path else ""
    if layer.kind == "multi_head_attention" and convention in _BY_HEADS:
        kernel = shapes.get(f"{before}query.kernel", ())
        if len(kernel) == 3:
            yield "num_heads", kernel[1]
    elif layer.kind == "prelu" and convention == "keras" and (alpha := shapes.get(f"{before}alpha")) is not None:
        yield "alpha_shape", ",".join(map(str, alpha))
    elif layer.kind == "rms_norm" and convention == "equinox" and f"{before}weight" in shapes:
        if f"{before}bias" not in shapes:
            yield "use_bias", False
    elif layer.facts.get("depthwise") is True and convention == "keras":
        kernel = shapes.get(f"{before}kernel", ())
        if len(kernel) > 2:
            yield "groups", kernel[-2]
