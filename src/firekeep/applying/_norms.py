"""Norms of classes of one's own, whose scale a source of another framework has under the name that its norms have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from firekeep.entry import TensorEntry
from firekeep.folding import is_number
from firekeep.rules.layout import are_of_a_norm, is_norm, norm_names
from firekeep.slots import Convention, Layer, Slot


@dataclass(frozen=True, slots=True)
class Norms:
    """What is known of a source's norms: the ends of the names of their vectors, the part and the tensor ("norm", "scale").

    A part whose name another one has, which is no norm, is not among them.
    """

    convention: Convention
    ends: frozenset[tuple[str, str]]

    def spellings(self, name: str, slot: Slot, own: Convention) -> Iterator[str]:
        """Give the names that a norm of the source's would have for a vector of a class that nobody knows."""
        if slot.layer is not None or len(slot.shape) != 1 or own == self.convention:
            return
        path, _, role = name.rpartition(".")
        for other in norm_names(role, source=own, target=self.convention):
            if (_last(path), other) in self.ends:
                yield f"{path}.{other}" if path else other


def norms_of(
    entries: Sequence[TensorEntry], layers: Iterable[Layer], convention: Convention, *, complete: bool
) -> Norms:
    """Find the norms of a source: those that it says are such and, unless it tells `complete`ly of its layers, those named so."""
    kinds = {layer.path: layer.kind for layer in layers}
    parts: dict[str, dict[str, tuple[int, ...]]] = {}
    for entry in entries:
        path, _, role = entry.name.rpartition(".")
        parts.setdefault(path, {})[role] = entry.shape
    good: set[tuple[str, str]] = set()
    others: set[tuple[str, str]] = set()
    for path, held in parts.items():
        kind = kinds.get(path)
        told = is_norm(kind) if kind is not None else not complete and are_of_a_norm(held, convention)
        for role, shape in held.items():
            (good if told and len(shape) == 1 else others).add((_last(path), role))
    return Norms(convention, frozenset(good - others))


def _last(path: str) -> str:
    last = path.rpartition(".")[2]
    return "#" if is_number(last) else last
