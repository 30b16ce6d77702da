"""A load on its way: what is known and decided so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from firekeep.applying._attempt import Attempt
from firekeep.applying._job import LoadJob
from firekeep.applying._ties import Shared
from firekeep.bridges import Filling
from firekeep.matching import Remedy
from firekeep.report import ConstantDifference, Problem
from firekeep.rules import Losses
from firekeep.slots import Outline
from firekeep.supply import Supply


@dataclass(slots=True, kw_only=True)
class Load:
    """A load on its way."""

    supply: Supply
    job: LoadJob
    target: str
    outline: Outline
    skipped: tuple[str, ...]
    tried: Attempt
    fillings: list[Filling] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    casts: dict[str, tuple[str, str]] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    notes: list[str] = field(default_factory=list)
    remedies: list[Remedy] = field(default_factory=list)
    constants: list[ConstantDifference] = field(default_factory=list)
    shared: Shared = field(default_factory=Shared)
    counted: tuple[str, ...] = ()
    """Counters of batches that the file keeps as scalars, and what is made up since the file cannot have it: places of the model, and no
    tensors of the file."""
    unheld: tuple[str, ...] = ()
    """Such counters of which the model has no place."""
