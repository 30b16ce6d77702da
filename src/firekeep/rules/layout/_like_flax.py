"""Layers that names and shapes tell where a bare PyTorch state dict stands beside a file of Flax."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.rules.layout._names import translate_layers
from firekeep.rules.layout._translate import translate
from firekeep.slots import Convention, Layer
from firekeep.wording import quote

_SHOWN = 3
_COUNTER = "num_batches_tracked"
_FUSED = ("in_proj_weight", "q_proj_weight")

Shape = tuple[int, ...]
Parts = Mapping[str, Shape]


def layers_from_flax(
    torch: Sequence[TensorEntry],
    flax: Sequence[TensorEntry],
    *,
    convention: Convention,
    given: Literal["torch", "flax"] | None = None,
) -> tuple[Layer, ...]:
    """Tell the layers of a model from its tensors in PyTorch's names and in Flax's, as layers in PyTorch's names.

    Flax's last names say what a tensor is (kernel, embedding, scale), its shape how it lies. Raises `RuleError`, naming the tensors, where
    these leave it open: a kernel of a convolution with as many channels in as out may be a transposed one's, which runs the other way.
    All tensors of the `given` side must be told of; without one, those that both have.
    """
    sides = _Sides(_layers_of(torch), _layers_of(flax))
    sides.find()
    layers = tuple(sides.found.values())
    if given is not None:
        sides.unclear |= _left(torch, flax, layers, convention, given, sides.unclear)
    if sides.unclear:
        raise _refusal(sides.unclear)
    return layers


def _layers_of(entries: Iterable[TensorEntry]) -> dict[str, dict[str, Shape]]:
    made: dict[str, dict[str, Shape]] = {}
    for entry in entries:
        path, _, role = entry.name.rpartition(".")
        made.setdefault(path, {})[role] = entry.shape
    return made


@dataclass(slots=True)
class _Sides:
    """Both sides by layers, what was found, and what was not."""

    torch: Mapping[str, Parts]
    flax: Mapping[str, Parts]
    found: dict[str, Layer] = field(default_factory=dict)
    unclear: dict[str, str] = field(default_factory=dict)

    def find(self) -> None:
        square = []
        for path, mine in self.torch.items():
            if self._is_attention(path, mine):
                continue
            theirs = self.flax.get(path, {})
            if "weight" in mine and _is_square(theirs.get("kernel", ())):
                square.append(path)
            elif (kind := self._kind(path, mine, theirs)) is not None:
                self.found[path] = Layer(kind=kind, path=path)
        kinds = {layer.kind for layer in self.found.values()}
        for path in square:
            if "linear" in kinds and "linear_in_out" not in kinds:
                self.found[path] = Layer(kind="linear", path=path)
            else:
                shape = list(self.torch[path]["weight"])
                self.unclear[_named(path, "weight")] = (
                    f"its shape {shape} is square, and no other tells which way round it lies"
                )

    def _is_attention(self, path: str, mine: Parts) -> bool:
        """Take a fused attention for one, with the heads that Flax's kernels have."""
        query = self.flax.get(_named(path, "query"), {}).get("kernel", ())
        if len(query) == 3 and any(role in mine for role in _FUSED):
            self.found[path] = Layer(kind="multi_head_attention", path=path, facts={"num_heads": query[1]})
            return True
        outer, _, last = path.rpartition(".")
        return last == "out_proj" and any(role in self.torch.get(outer, {}) for role in _FUSED)

    def _kind(self, path: str, mine: Parts, theirs: Parts) -> str | None:
        weight = mine.get("weight")
        if (kernel := theirs.get("kernel")) is not None and weight is not None:
            return self._of_kernel(_named(path, "weight"), weight, kernel)
        if "embedding" in theirs and weight is not None:
            return "embedding"
        if "negative_slope" in theirs and weight is not None:
            return "prelu"
        if "running_mean" in mine and not theirs.keys().isdisjoint(("mean", "scale")):
            return "batch_norm"
        return "layer_norm" if "scale" in theirs and weight is not None else None

    def _of_kernel(self, name: str, weight: Shape, kernel: Shape) -> str | None:
        if len(kernel) == 2:
            return "linear_in_out" if weight == kernel else "linear"
        dims = len(kernel) - 2
        if dims not in (1, 2, 3) or len(weight) != len(kernel):
            return None
        straight = weight == (kernel[-1], kernel[-2], *kernel[:-2])
        transposed = weight == (kernel[-2], kernel[-1], *kernel[:-2])
        if straight and transposed:
            self.unclear[name] = (
                f"its shape {list(weight)} may be that of a convolution and of a transposed one, whose kernel runs the other way"
            )
            return None
        return f"conv_transpose{dims}d" if transposed else f"conv{dims}d"


def _is_square(kernel: Shape) -> bool:
    return len(kernel) == 2 and kernel[0] == kernel[1]


def _left(
    torch: Sequence[TensorEntry],
    flax: Sequence[TensorEntry],
    layers: Sequence[Layer],
    convention: Convention,
    given: Literal["torch", "flax"],
    told: Mapping[str, str],
) -> dict[str, str]:
    """Find the tensors of one side that the layers do not make tensors of the other of."""
    if given == "torch":
        made = translate(torch, layers, source="torch", target=convention)
        others, where = {entry.name: entry.shape for entry in flax}, "the Flax file"
    else:
        turned = translate_layers(layers, source="torch", target=convention)
        made = translate(flax, turned, source=convention, target="torch")
        others, where = {entry.name: entry.shape for entry in torch}, "the PyTorch file"
    unclear = {name.rpartition(".")[0] for name in told}
    left: dict[str, str] = {}
    for entry in made.entries:
        old, there = made.origins[entry.name][0], others.get(entry.name)
        layer, _, role = old.rpartition(".")
        if there == entry.shape or role == _COUNTER or layer in unclear:
            continue
        left[old] = (
            f"{where} has nothing like it"
            if there is None
            else f"its shape does not fit that in {where}, {list(there)}"
        )
    return left


def _named(path: str, role: str) -> str:
    return f"{path}.{role}" if path else role


def _refusal(unclear: Mapping[str, str]) -> RuleError:
    shown = "; ".join(f"{quote(name)}: {reason}" for name, reason in list(unclear.items())[:_SHOWN])
    more = f"; and {len(unclear) - _SHOWN} more" if len(unclear) > _SHOWN else ""
    return RuleError(
        f"names and shapes do not tell what layers all tensors belong to: {shown}{more}",
        remedy="Give like= a model, or a PyTorch file of a whole model, or leave the tensors out with exclude.",
    )
