"""PyTorch's counters of batches, which a file in Burn's layout keeps as scalars."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from firekeep.applying._attempt import COUNTER, Attempt
from firekeep.blobs import MemoryBlob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.errors import ScalarError
from firekeep.slots import Outline
from firekeep.supply import Supply

PREFIX = f"firekeep.{COUNTER}."
"""Burn ignores scalars of a model file, so that such a file is its own as well."""


def counters(supply: Supply, outline: Outline, tried: Attempt, chosen: set[str]) -> Iterator[TensorEntry]:
    """Give the counters that the file has for slots of the model; without one the model's counter stays as it is."""
    kept = {key: scalar for key, scalar in supply.scalars.items() if key.startswith(PREFIX)}
    places = _places(tried) if kept else {}
    for slot in outline:
        layer, _, name = slot.path.rpartition(".")
        if name != COUNTER or slot.path not in chosen or slot.shape != () or layer not in places:
            continue
        scalar = kept.get(f"{PREFIX}{places[layer]}")
        if scalar is None:
            continue
        try:
            number = scalar.to("i64")
        except ScalarError as error:
            raise error.at(path=supply.where, tensor=slot.path)  # noqa: B904 - the same error, with its place
        yield TensorEntry(slot.path, BY_NAME["I64"], (), MemoryBlob(struct.pack("<q", number)))


def uncounted(supply: Supply, outline: Outline, tried: Attempt) -> Iterator[str]:
    """Name the counters that the file has of layers which count nothing in the model."""
    kept = [key.removeprefix(PREFIX) for key in supply.scalars if key.startswith(PREFIX)]
    if not kept or outline.convention == "torch":
        return
    known = frozenset(_places(tried).values())
    yield from (f"{layer}.{COUNTER}" for layer in kept if layer in known)


def _places(tried: Attempt) -> dict[str, str]:
    """Map paths of layers in the model to those in the file."""
    return {
        path.rpartition(".")[0]: tried.sources.get(pair.offer.name, pair.offer.name).rpartition(".")[0]
        for pair in tried.plan.pairs
        for path in pair.want.slots
    }
