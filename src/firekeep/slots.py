"""Places in a model that want a tensor, and the layers they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, overload

from firekeep.dtypes import DType
from firekeep.ids import ParamId

Convention = Literal["torch", "burn", "flax", "linen", "equinox", "keras"]
"""How the tensors of layers are named and laid out: the way of PyTorch, Burn, Flax NNX, Flax Linen, Equinox, or Keras."""

_NO_FACTS: Mapping[str, int | bool | str] = MappingProxyType({})


# Not frozen, as a TensorEntry is not: a model may have thousands.
@dataclass(slots=True, kw_only=True)
class Layer:
    """A layer of a known kind in a model.

    `kind` is a row of the table of layouts ("linear", "batch_norm"), `path` the layer's name in the model, "" for the model itself.
    `facts` are what a row may need and no tensor tells. `parent` is the nearest layer of a known kind around it, where that one has
    names of its own for its children. The facts are, by kind (shapes are text, as in "2,4"):

    * transformer layers: `norm_first`; attention: `num_heads`
    * recurrent ones: `num_layers`, `bidirectional`, `proj_size`, `reset_after` (GRU), `wrapped=False` where the layer is a cell by itself
      and not what one lies in, under `cell` (nnx.RNN, a layer of Keras), and `cell="optimized"` for nnx.OptimizedLSTMCell
    * convolutions: `groups`; `transpose_kernel` of Flax's transposed ones; `depthwise` of Keras' DepthwiseConv
    * linear maps with several axes (nnx.LinearGeneral, EinsumDense): `in_shape` and `out_shape`
    * norms: `affine`; `use_bias` of Equinox's RMSNorm; `mode` and `momentum` (as text) of Equinox's BatchNorm
    * PReLU: `alpha_shape`, Keras' shape of it; SwiGlu: `columns` where Burn's weights lie as [out, in]
    """

    kind: str
    path: str
    parent: Layer | None = None
    facts: Mapping[str, int | bool | str] = field(default_factory=lambda: _NO_FACTS)


Constant = int | float | bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What a part of a model computes with and no tensor tells: `epsilon`, `padding`, the form of a GELU.

    `kind` is a layer's, or "activation"; `path` the part's name in the model. Every framework's are spelled alike: `momentum` is the
    weight of the old value, `padding` what is added around each axis, and that of transposed convolutions is PyTorch's.
    """

    kind: str
    path: str
    values: Mapping[str, Constant]


def recurrent_facts(names: Iterable[str]) -> dict[str, int | bool | str]:
    """Tell the facts of one of PyTorch's recurrent layers by the names of its tensors: weight_ih_l0, weight_ih_l0_reverse."""
    weights = [name for name in names if name.startswith("weight_ih_l")]
    reverse = [name for name in weights if name.endswith("_reverse")]
    return {"num_layers": len(weights) - len(reverse), "bidirectional": bool(reverse)}


# Not frozen, as a TensorEntry is not: a model may have tens of thousands.
@dataclass(slots=True, kw_only=True)
class Slot:
    """A place in a model that wants a tensor, described without initialising it.

    `path` is the model's own name for it. `shape` is what a file in the model's own convention holds, which is not the shape in memory
    where a layer keeps its weight another way round. `containers` names what owns each segment of the path, as Burn does
    ("Struct:Net", "Vec", "Enum:Layer"): its last `Struct:` or `Enum:` is the type that owns the tensor.
    `tied_to` is the path of the slot that is the same tensor, met earlier; `loosely` where the two are one only now, and may be given two
    tensors. `problem`, where set, says why nothing can be put there.
    """

    path: str
    dtype: DType
    shape: tuple[int, ...]
    layer: Layer | None = None
    containers: tuple[str, ...] = ()
    param_id: ParamId | None = None
    trainable: bool = False
    tied_to: str | None = None
    loosely: bool = False
    problem: str | None = None

    @property
    def role(self) -> str:
        """The slot's name within its layer: "weight", "in_proj_weight"; the whole path where the layer's kind is not known."""
        if self.layer is None or not self.layer.path:
            return self.path
        return self.path[len(self.layer.path) + 1 :]

    @property
    def owner(self) -> str:
        """The name of the type that owns the tensor ("Linear"), or "" where no container says so."""
        for label in reversed(self.containers):
            kind, _, name = label.partition(":")
            if kind in ("Struct", "Enum") and name:
                return name
        return ""


@dataclass(frozen=True, slots=True)
class Outline(Sequence[Slot]):
    """All slots of a model, in the order it declares them.

    `convention` says how the model's layers lie: None where nothing is known of its layers (a tree of arrays). `layers` are those of
    known kinds. `modules` are the paths of all parts of the model, those without tensors too (an activation in a list takes an index).
    `bare` is a state dict: its convention is known by the framework of its tensors, and its layers are not.
    """

    slots: tuple[Slot, ...]
    convention: Convention | None = None
    layers: tuple[Layer, ...] = ()
    modules: frozenset[str] = field(default_factory=frozenset)
    bare: bool = False
    others: Mapping[str, str] = field(default_factory=dict)
    """Values that are no tensors, by name, with what they are ("int", "function"), where the model is a tree that holds such. What a
    framework declares to be none of the data, and what modules hold beside their arrays, is not among them."""
    numbers: tuple[str, ...] = ()
    """Those that are numbers, in dicts, lists and tuples alone: perhaps meant to be kept as tensors are."""
    valueless: tuple[str, ...] = ()
    """Tensors of the model that no file holds and that have no values: buffers on the meta device that are not persistent."""
    keyed: frozenset[str] = frozenset()
    """Paths of parts whose children go by keys (a `ModuleDict`, a dict): a number among these is a name, and no place in a list."""
    stateful: tuple[str, ...] = ()
    """Parts of the model that keep a state besides tensors, which tensors do not bring along."""
    rewriting: tuple[str, ...] = ()
    """Parts of the model that change tensors by code of their own when their framework saves or loads them."""

    @overload
    def __getitem__(self, index: int) -> Slot: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Slot, ...]: ...
    def __getitem__(self, index: int | slice) -> Slot | tuple[Slot, ...]:
        return self.slots[index]

    def __len__(self) -> int:
        return len(self.slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    def paths(self) -> list[str]:
        """List the names of all slots."""
        return [slot.path for slot in self.slots]
