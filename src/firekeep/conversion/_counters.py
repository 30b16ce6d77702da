"""PyTorch's counters of batches, which files in Burn's layout keep as scalars, as tensors again."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

from firekeep.blobs import MemoryBlob
from firekeep.collecting import COUNTER_PREFIX
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.errors import ScalarError
from firekeep.rules import PathFilter
from firekeep.scalars import Scalar


def counters_of(
    scalars: Mapping[str, Scalar], entries: Sequence[TensorEntry], chosen: PathFilter
) -> Iterator[tuple[str, TensorEntry]]:
    """Give the counters of the norms that are there, with the scalars they were kept as."""
    names = {entry.name for entry in entries}
    last = COUNTER_PREFIX.split(".")[1]
    for key, scalar in scalars.items():
        layer = key.removeprefix(COUNTER_PREFIX)
        prefix = f"{layer}." if layer else ""
        name = f"{prefix}{last}"
        if layer == key or name in names or f"{prefix}running_mean" not in names or not chosen.accepts(name):
            continue
        try:
            number = scalar.to("i64")
        except ScalarError:  # it is no counter, and stays what it is
            continue
        yield key, TensorEntry(name, BY_NAME["I64"], (), MemoryBlob(struct.pack("<q", number)))
