"""What a conversion is to do, and how far it has come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firekeep.conversion._check import Attester
from firekeep.conversion._metadata import Merged
from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.formats import Contents, Format
from firekeep.limits import Limits
from firekeep.parts import Part
from firekeep.rules import KeyRemapper, Losses, PathFilter, Renaming
from firekeep.saving import Progress
from firekeep.scalars import Scalar
from firekeep.slots import Convention, Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be done to the tensors and how they are to be written, once it is known to make sense."""

    chosen: PathFilter
    remapper: KeyRemapper
    layout: Convention | None
    like: Any
    dtype: DType | None
    metadata: Mapping[str, str]
    digest: bool
    max_shard_size: int | str | None
    ties: str
    format: str | None
    overwrite: bool
    durable: bool
    dry_run: bool
    progress: Progress | None
    limits: Limits


@dataclass(slots=True, kw_only=True)
class Plan:
    """The tensors on their way, and what is known about them so far."""

    part: Part
    row: Format
    entries: list[TensorEntry]
    merged: Merged
    excluded: tuple[str, ...]
    remapper: KeyRemapper
    """The job's rules, for the names as they are when these are used."""
    renaming: Renaming = Renaming({}, ())  # noqa: RUF009 - frozen
    scalars: dict[str, Scalar] = field(default_factory=dict)
    told: tuple[Layer, ...] = ()
    """Layers of which the metadata tell what no tensor does, under the names of `entries`."""
    unturned: frozenset[str] | None = None
    """Matrices in Burn's layout that lie as PyTorch had them, likewise."""
    columns: frozenset[str] | None = None
    """Linear layers that lie as [out, in] in Burn's layout; None where nothing is to be said of it."""
    restored: frozenset[str] = frozenset()
    """Scalars that became tensors."""
    checked: int = 0
    attester: Attester | None = None
    losses: Losses = field(default_factory=Losses)
    casts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def contents(self) -> Contents:
        """Give what is to be written."""
        scalars = self.scalars if self.row.holds_scalars else {}
        return Contents(entries=self.entries, metadata=self.merged.metadata, scalars=scalars)
