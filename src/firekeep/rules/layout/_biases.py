"""The two biases of recurrent layers, kept beside a file that has their sum, and taken again where the sum is what it was."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from firekeep.blobs import DeferredBlob, WindowBlob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError
from firekeep.rules.layout._translate import Translation
from firekeep.sources import MemorySource
from firekeep.views import is_ghost, summed

BIASES = "firekeep.merged_biases"
"""The key of the metadata that keeps them."""

MOST_BYTES = 1 << 20
"""More than this is not kept: metadata are read whole by everyone who opens the file."""

_MOST_AXES = 8
_FIRST, _SECOND = "bias_ih_", "bias_hh_"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two biases that a layout has the sum of, under PyTorch's names in the model."""

    first: TensorEntry
    second: TensorEntry


def merged_biases(entries: Iterable[TensorEntry], made: Translation) -> tuple[Pair, ...]:
    """List the pairs of PyTorch's biases that a translation added up."""
    old = {entry.name: entry for entry in entries}
    origins = dict.fromkeys(
        name for new, step in made.steps.items() if step.startswith("summed") for name in made.origins[new]
    )
    return tuple(
        Pair(old[name], old[other])
        for name in origins
        if (other := _second(name)) is not None and other in origins and _is_plain(old[name], old[other])
    )


def _second(name: str) -> str | None:
    layer, dot, last = name.rpartition(".")
    return f"{layer}{dot}{_SECOND}{last[len(_FIRST) :]}" if last.startswith(_FIRST) else None


def _is_plain(first: TensorEntry, second: TensorEntry) -> bool:
    return (
        first.dtype is not None and first.dtype == second.dtype and first.shape == second.shape and not is_ghost(first)
    )


def write_biases(pairs: Sequence[Pair]) -> str | None:
    """Spell pairs as text for the metadata; None where there are none, or more than are kept."""
    if not pairs or sum(pair.first.nbytes + pair.second.nbytes for pair in pairs) > MOST_BYTES:
        return None
    kept = [
        {
            "names": [pair.first.name, pair.second.name],
            "dtype": pair.first.require().name,
            "shape": list(pair.first.shape),
            "data": [base64.b64encode(entry.read()).decode("ascii") for entry in (pair.first, pair.second)],
        }
        for pair in pairs
    ]
    return json.dumps(kept, separators=(",", ":"))


def read_biases(metadata: Mapping[str, str]) -> tuple[Pair, ...]:
    """Read pairs out of metadata; what is not as it was written is passed over, since a file says the sums in any case."""
    text = metadata.get(BIASES)
    if text is None or len(text) > 4 * MOST_BYTES:
        return ()
    try:
        kept = json.loads(text)
        return tuple(_pairs(kept)) if isinstance(kept, list) else ()
    except (ValueError, TypeError, LookupError, RecursionError, FirekeepError):
        return ()


def _pairs(kept: list[Any]) -> Iterator[Pair]:
    seen: set[str] = set()
    for one in kept:
        dtype, shape = BY_NAME[one["dtype"]], one["shape"]
        if dtype.kind != "float" or dtype.bits % 8 or not _is_shape(shape):
            raise ValueError("no tensor of floats")
        entries = []
        for name, text in zip(one["names"], one["data"], strict=True):
            data = base64.b64decode(text, validate=True)
            if not isinstance(name, str) or name in seen or dtype.nbytes(shape) != len(data):
                raise ValueError(f"{name!r} is of {len(data)} bytes, or there twice")
            seen.add(name)
            blob = WindowBlob(MemorySource(data), 0, len(data))
            entries.append(TensorEntry(name, dtype, tuple(shape), blob))
        first, second = entries
        yield Pair(first, second)


def _is_shape(value: object) -> bool:
    """Say whether a value is a shape that the metadata have room for; with larger numbers, the arithmetic takes for ever."""
    return (
        isinstance(value, list)
        and len(value) <= _MOST_AXES
        and all(type(extent) is int and 0 <= extent <= MOST_BYTES for extent in value)
    )


def restore_biases(entries: Sequence[TensorEntry], pairs: Iterable[Pair]) -> tuple[list[TensorEntry], int]:
    """Put kept biases in the place of a sum and zeros, and count the pairs; each tells when it is drawn whether the sum is what it was."""
    made = {entry.name: entry for entry in entries}
    count = 0
    for pair in pairs:
        first, second = made.get(pair.first.name), made.get(pair.second.name)
        if first is None or second is None or not (_is_alike(first, pair.first) and _is_alike(second, pair.second)):
            continue
        count += 1
        made[first.name] = _choosing(first, Pair(first, second), pair)
        made[second.name] = _choosing(second, Pair(first, second), pair)
    return list(made.values()), count


def _is_alike(entry: TensorEntry, kept: TensorEntry) -> bool:
    return entry.dtype == kept.dtype and entry.shape == kept.shape and entry.problem is None and not is_ghost(entry)


def _choosing(entry: TensorEntry, found: Pair, kept: Pair) -> TensorEntry:
    def draw() -> memoryview:
        chosen = kept if _is_of(found, kept) else found
        return (chosen.first if entry is found.first else chosen.second).read()

    return replace(entry, blob=DeferredBlob(entry.nbytes, draw))


def _is_of(found: Pair, kept: Pair) -> bool:
    """Say whether every number is the sum beside a zero, or, where the two were not added, what it was."""
    import numpy as np

    wide = np.dtype(f"u{kept.first.require().itemsize}")
    whole = summed(kept.first, kept.second, name="sum")
    first, second, old, other, total = (
        np.frombuffer(entry.read(), wide) for entry in (found.first, found.second, kept.first, kept.second, whole)
    )
    return bool(np.all(((second == 0) & (first == total)) | ((first == old) & (second == other))))
