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

_TOLD: Mapping[Convention, tuple[str, ...]] = {
    "flax": ("transpose_kernel", "wrapped", "cell", "in_shape", "out_shape"),
    "linen": ("transpose_kernel", "wrapped", "in_shape", "out_shape"),
    "equinox": ("mode", "momentum", "use_bias"),
    "keras": ("wrapped", "in_shape", "out_shape", "depthwise", "groups", "alpha_shape", "reset_after"),
}
"""Facts on which names and forms in a convention depend, and which only its own layers have."""

TELLING = frozenset(_TOLD)
"""Conventions of which a file may have to tell facts of layers."""

_OF_KIND: Mapping[str, tuple[str, ...]] = {
    **{f"conv_transpose{n}d": ("transpose_kernel",) for n in (1, 2, 3)},
    **dict.fromkeys(("gru", "rnn"), ("wrapped",)),
    "lstm": ("wrapped", "cell"),
    "linear": ("in_shape", "out_shape"),
    "batch_norm": ("mode", "momentum"),
    "rms_norm": ("use_bias",),
}
"""Those of them that a file is told, by the kinds that have them."""

_DEFAULTS: Mapping[str, int | bool | str] = {
    "transpose_kernel": False,
    "wrapped": True,
    "cell": "",
    "mode": "batch",
    "momentum": "0.99",
    "use_bias": True,
}
TIED = "tied"
"""The fact by which a file tells that a layer shares its weight with another one: it may be of another kind in its reader."""

TWINS = frozenset(("linear", "embedding"))
"""Kinds of which a layer may be either where its weight is shared: a head is a linear map here, and the embedding itself there."""


def tell_facts(layers: Sequence[Layer], entries: Iterable[TensorEntry], convention: Convention) -> tuple[Layer, ...]:
    """Add to layers the facts that their tensors tell in a convention; what a layer says itself stays.

    They are the heads of attention, the shape of a slope, the channels of a depthwise kernel, and a norm without a bias.
    """
    shapes = {entry.name: entry.shape for entry in entries}
    return tuple(_told(layer, shapes, convention) for layer in layers)


def tellable(layers: Iterable[Layer], convention: Convention) -> tuple[Layer, ...]:
    """Give layers with those facts alone that a reader of a file in the convention cannot know; those without any are left out."""
    made = (replace(layer, parent=None, facts=_telling(layer, convention)) for layer in layers)
    return tuple(layer for layer in made if layer.facts)


def tell_reader(layers: Sequence[Layer], *, source: Convention, target: Convention) -> tuple[Layer, ...]:
    """Give what a reader of a file in the target convention has to be told of layers, as they are called there."""
    told = tellable(layers, target)
    names = rename_paths([layer.path for layer in told], layers, source=source, target=target) if told else {}
    return tuple(replace(layer, path=names[layer.path]) for layer in told)


def _telling(layer: Layer, convention: Convention) -> dict[str, int | bool | str]:
    known = _TOLD.get(convention, ())
    facts = {name: layer.facts.get(name, _DEFAULTS.get(name)) for name in _OF_KIND.get(layer.kind, ()) if name in known}
    if facts.get("mode") == "ema":
        del facts["momentum"]  # which is of the program's next steps alone
    told = {name: value for name, value in facts.items() if value is not None}
    return told | ({TIED: True} if layer.kind in TWINS and layer.facts.get(TIED) is True else {})


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
    # How cells lie in what runs them is told by those who have that: a cell of Equinox says of itself only that it does not.
    own = _TOLD.get(source, ())
    facts = {name: value for name, value in other.facts.items() if name in _FORMS and name not in own}
    return replace(layer, facts={**layer.facts, **facts})


def unlike_facts(
    layers: Sequence[Layer], others: Iterable[Layer], *, source: Convention, target: Convention
) -> dict[str, Layer]:
    """Give, by the paths of layers, the same ones of another model where both sides have facts for their forms, and these differ.

    The others are called as in the target convention, and so is what comes back. No one set of facts is right for both sides.
    """
    told = {layer.path: layer for layer in others if set(_OF_KIND.get(layer.kind, ())) & set(_TOLD.get(target, ()))}
    told |= {layer.path: layer for layer in others if layer.facts.get(TIED) is True}
    if not told:
        return {}
    names = rename_paths([layer.path for layer in layers], layers, source=source, target=target)
    found: dict[str, Layer] = {}
    for layer in layers:
        other = told.get(names[layer.path])
        if other is None or not _differ(layer, other, source, target):
            continue
        facts = {name: value for name, value in layer.facts.items() if name not in _OF_KIND.get(layer.kind, ())}
        found[layer.path] = replace(other, parent=None, facts={**facts, **_telling(other, target)})
    return found


def _differ(layer: Layer, other: Layer, source: Convention, target: Convention) -> bool:
    if layer.kind != other.kind:
        return {layer.kind, other.kind} == TWINS and other.facts.get(TIED) is True
    both = set(_TOLD.get(source, ())) & set(_TOLD.get(target, ()))
    mine, theirs = _telling(layer, source), _telling(other, target)
    return any(mine.get(name) != theirs.get(name) for name in both)


def with_facts(layers: Sequence[Layer], told: Iterable[Layer]) -> tuple[Layer, ...]:
    """Give layers with the facts that a file tells of them, in whose convention they are called."""
    known = {layer.path: layer for layer in told}
    return tuple(
        replace(layer, facts={**layer.facts, **other.facts})
        if (other := known.get(layer.path)) is not None and other.kind == layer.kind
        else layer
        for layer in layers
    )


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
