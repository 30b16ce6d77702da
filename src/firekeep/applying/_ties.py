"""One tensor under several names of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from firekeep.entry import TensorEntry, tie_key
from firekeep.report import Problem
from firekeep.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The tensors to be put into a model, one for each that the model has once; `followers` are the further names of each."""

    entries: tuple[TensorEntry, ...] = ()
    followers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    conflicts: tuple[Problem, ...] = ()

    def names(self, done: Iterable[str]) -> list[str]:
        """Give all names of the model that are filled once these are."""
        return [name for path in done for name in (path, *self.followers.get(path, ()))]


def share(entries: Sequence[TensorEntry], slots: Mapping[str, Slot]) -> Shared:
    """Keep one tensor for each group of tied slots; where the file has others under its further names they must be the same numbers.

    Slots that are tied loosely part where they are others.
    """
    first: dict[str, TensorEntry] = {}
    followers: dict[str, tuple[str, ...]] = {}
    parted: list[TensorEntry] = []
    conflicts: list[Problem] = []
    for entry in entries:
        root = slots[entry.name].tied_to or entry.name
        kept = first.setdefault(root, entry)
        if kept is entry:
            continue
        same = _same(kept, entry)
        if not same and (slots[entry.name].loosely or slots[kept.name].loosely):
            parted.append(entry)
            continue
        if not same:
            conflicts.append(
                Problem(
                    kind="tie",
                    name=entry.name,
                    message=f"the model has one tensor as {entry.name!r} and {kept.name!r}, and the file two {_unlike(entry, kept)}",
                )
            )
            continue
        followers[kept.name] = (*followers.get(kept.name, ()), entry.name)
    return Shared(entries=(*first.values(), *parted), followers=followers, conflicts=tuple(conflicts))


def _unlike(first: TensorEntry, second: TensorEntry) -> str:
    return "with other numbers" if first.dtype == second.dtype else f"of types {first.dtype} and {second.dtype}"


def _same(first: TensorEntry, second: TensorEntry) -> bool:
    if (key := tie_key(first)) is not None and key == tie_key(second):
        return True
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first.read() == second.read()
