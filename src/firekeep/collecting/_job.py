"""What is to become of a model's tensors, and what did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from firekeep.collecting._others import Other
from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.likeness import Likeness
from firekeep.rules import KeyRemapper, Losses, PathFilter
from firekeep.rules.surgery import Surgery
from firekeep.scalars import Scalar
from firekeep.slots import Constants, Convention, Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """Tensors of a model, by the names and in the layout asked for.

    `layout` is None where the layers are not known. `scalars` are numbers that the layout has no tensors for. `steps` says what was done.
    """

    entries: tuple[TensorEntry, ...]
    layout: Convention | None
    layers: tuple[Layer, ...] = ()
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    told: tuple[Layer, ...] = ()
    """Layers of which a reader in the layout has to know what no tensor tells, with that."""
    unturned: frozenset[str] | None = None
    """Of tensors in Burn's layout that come from PyTorch, the matrices that lie as they did there."""
    columns: frozenset[str] = frozenset()
    """Linear layers that lie as [out, in] in Burn's layout, since the reader wants them so; those of `layers` are not among them."""
    biases: str | None = None
    """Biases that the layout has the sum of, as the metadata of a file keep them."""
    constants: tuple[Constants, ...] = ()
    """What the model computes with beside its tensors; of parts without any, where nothing is renamed."""
    left_out: tuple[str, ...] = ()
    others: tuple[Other, ...] = ()
    """What the model holds that is no tensor, and no filter leaves out."""
    steps: tuple[str, ...] = ()
    losses: Losses = field(default_factory=Losses)

    def keys(self) -> list[str]:
        """List the names."""
        return [entry.name for entry in self.entries]

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectJob:
    """What is to become of a model's tensors: in this order chosen, laid out, cast, split and joined, renamed."""

    chosen: PathFilter = PathFilter()  # noqa: RUF009 - frozen
    layout: Convention | None = None
    holds_scalars: bool = True
    """The format has a place for what becomes numbers by themselves."""
    promised: str | None = None
    """The layout that is expected of the file, where none was asked for: kept for models whose layers are known."""
    dtype: DType | None = None
    surgery: Surgery = Surgery()  # noqa: RUF009 - frozen
    remapper: KeyRemapper = KeyRemapper()  # noqa: RUF009 - frozen
    like: Likeness | None = None
    load_surgery: Surgery = Surgery()  # noqa: RUF009 - frozen
    """The surgery of a load, which is undone after its renames are."""
    load_renames: KeyRemapper = KeyRemapper()  # noqa: RUF009 - frozen
    """The rename rules of a load: the names are those of which they make the model's."""
    ties: str = "keep"
    constants: bool = False
    """Keep what the model computes with beside its tensors."""
