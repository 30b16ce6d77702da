"""Burn's adapters by their names: layouts and casts that are chosen by the type of the module around a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.errors import RuleError, UnsupportedError
from firekeep.rules.cast import Losses, cast, cast_target
from firekeep.rules.layout import CONVENTIONS, translate, translate_layers
from firekeep.slots import Convention, Outline

HALF_MODULES = frozenset(
    (
        *("Linear", "Embedding", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
        *("DeformConv2d", "LayerNorm", "GroupNorm", "InstanceNorm", "RmsNorm", "PRelu"),
    )
)
"""The types whose tensors go to half precision. BatchNorm is none of them: small variances would become 0."""

_HALVED = ("F32", "F16")
_CAST = ("F64", "F32", "FLEX32", "F16", "BF16")
_TYPES = {
    **dict.fromkeys(("linear", "linear_col", "linear_in_out", "swiglu", "multi_head_attention"), "Linear"),
    **dict.fromkeys(("lstm", "gru", "rnn"), "Linear"),  # Burn's gates are Linear maps
    **{f"conv{n}d": f"Conv{n}d" for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": f"ConvTranspose{n}d" for n in (1, 2, 3)},
    **{kind: "".join(map(str.title, kind.split("_"))) for kind in ("batch_norm", "layer_norm", "group_norm")},
    "instance_norm": "InstanceNorm",
    "rms_norm": "RmsNorm",
    "prelu": "PRelu",
    "embedding": "Embedding",
}
"""The type in Burn that owns the tensors of a layer, by kind."""


class Adapter(Protocol):
    """What makes entries of other entries, knowing the model that they are of."""

    def adapt(self, entries: Sequence[TensorEntry], outline: Outline) -> list[TensorEntry]:
        """Give the entries as they are wanted; nothing is drawn."""
        ...


@dataclass(frozen=True, slots=True)
class PyTorchToBurnAdapter:
    """PyTorch's layout into Burn's, for all kinds of layers that the table of layouts knows."""

    def adapt(self, entries: Sequence[TensorEntry], outline: Outline) -> list[TensorEntry]:
        """Translate; what Burn has no use for is left out. Raises `UnsupportedError` naming what it cannot hold."""
        return _translated(entries, outline, source="torch", target="burn")


@dataclass(frozen=True, slots=True)
class BurnToPyTorchAdapter:
    """Burn's layout into PyTorch's, for all kinds of layers that the table of layouts knows."""

    def adapt(self, entries: Sequence[TensorEntry], outline: Outline) -> list[TensorEntry]:
        """Translate. Raises `UnsupportedError` naming what PyTorch cannot hold."""
        return _translated(entries, outline, source="burn", target="torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfPrecisionAdapter:
    """F32 and F16 tensors of some types of modules into `dtype`, which is not guessed from what they are.

    `with_module` and `without_module` are types added to those of `HALF_MODULES` and taken from them: "MyBlock", or "Enum:MyBlock"
    for one that is an enum. Other dtypes pass as they are, and so do tensors that no module of these types owns.
    """

    dtype: DType | str = "F16"
    with_module: Iterable[str] = ()
    without_module: Iterable[str] = ()
    losses: Losses = field(default_factory=Losses, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _target(self.dtype))
        object.__setattr__(self, "with_module", _names(self.with_module))
        object.__setattr__(self, "without_module", _names(self.without_module))

    @property
    def modules(self) -> frozenset[str]:
        """The types whose tensors are cast, spelled as containers are: "Struct:Linear"."""
        return (frozenset(map(_label, HALF_MODULES)) | frozenset(self.with_module)) - frozenset(self.without_module)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was asked for in vain: types left out that would not have been cast."""
        known = frozenset(map(_label, HALF_MODULES)) | frozenset(self.with_module)
        return tuple(
            f"{name} is not among the types that are cast to half precision: leaving it out changes nothing"
            for name in self.without_module
            if name not in known
        )

    def adapt(self, entries: Sequence[TensorEntry], outline: Outline) -> list[TensorEntry]:
        """Cast the tensors of these types, looked up by path in the outline, under the names of any convention."""
        target, modules, types = _target(self.dtype), self.modules, _types(outline)

        def chosen(entry: TensorEntry) -> bool:
            owners = types.get(entry.name) or types.get(entry.name.rpartition(".")[0]) or frozenset()
            return _is(entry, _HALVED) and not owners.isdisjoint(modules) and owners.isdisjoint(self.without_module)

        return [cast(entry, target, self.losses) if chosen(entry) else entry for entry in entries]


@dataclass(frozen=True, slots=True)
class FloatCastAdapter:
    """Every float tensor into one dtype, whatever owns it."""

    target: DType | str
    losses: Losses = field(default_factory=Losses, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", _target(self.target))

    def adapt(self, entries: Sequence[TensorEntry], outline: Outline) -> list[TensorEntry]:  # noqa: ARG002
        """Cast all floats of 16 bits and more; integers, booleans and quantized tensors pass as they are."""
        target = _target(self.target)
        return [cast(entry, target, self.losses) if _is(entry, _CAST) else entry for entry in entries]


@dataclass(frozen=True, slots=True)
class ChainAdapter:
    """Adapters one after the other."""

    adapters: tuple[Adapter, ...]

    def adapt(self, entries: Sequence[TensorEntry], outline: Outline) -> list[TensorEntry]:
        """Give what the last makes of what those before it made."""
        made = list(entries)
        for adapter in self.adapters:
            made = adapter.adapt(made, outline)
        return made


def chain(*adapters: Adapter) -> ChainAdapter:
    """Put adapters behind one another, the first to be asked first."""
    return ChainAdapter(adapters)


def _translated(
    entries: Sequence[TensorEntry], outline: Outline, *, source: Convention, target: Convention
) -> list[TensorEntry]:
    layers = translate_layers(outline.layers, source=outline.convention or source, target=source)
    found = translate(entries, layers, source=source, target=target)
    for name, reason in found.problems.items():
        others = f" ({len(found.problems) - 1} more like it)" if len(found.problems) > 1 else ""
        raise UnsupportedError(
            f"it cannot be put in {target} layout: {reason}{others}", tensor=name, remedy="Leave it out with exclude."
        )
    return list(found.entries)


def _types(outline: Outline) -> dict[str, frozenset[str]]:
    """Map the paths of slots and layers to the types that own their tensors."""
    found: dict[str, set[str]] = {}
    for path, label in _labels(outline):
        found.setdefault(path, set()).add(label)
    return {path: frozenset(labels) for path, labels in found.items()}


def _labels(outline: Outline) -> Iterator[tuple[str, str]]:
    for slot in outline:
        if slot.layer is not None and slot.layer.kind in _TYPES:
            yield slot.path, _label(_TYPES[slot.layer.kind])
        owner = next((one for one in reversed(slot.containers) if one.startswith(("Struct:", "Enum:"))), None)
        if owner is not None:
            yield slot.path, owner
    if outline.convention is None:
        return
    for convention in CONVENTIONS:
        for layer in translate_layers(outline.layers, source=outline.convention, target=convention):
            if layer.kind in _TYPES:
                yield layer.path, _label(_TYPES[layer.kind])


def _is(entry: TensorEntry, names: tuple[str, ...]) -> bool:
    return entry.problem is None and entry.dtype is not None and entry.dtype.name in names


def _label(name: str) -> str:
    return name if ":" in name else f"Struct:{name}"


def _names(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(_label, (given,) if isinstance(given, str) else given))


def _target(given: DType | str) -> DType:
    target = given if isinstance(given, DType) else cast_target(given)
    if target.name not in _CAST:
        known = ", ".join(name.lower() for name in _CAST)
        raise RuleError(f"{target} is not one of the floats that adapters cast to: {known}")
    return target
