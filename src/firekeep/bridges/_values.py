"""Values that are no tensors of a tree: told one by one, or as the object that holds nothing else."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, is_dataclass
from typing import Any

from firekeep.wording import kind


@dataclass(frozen=True, slots=True)
class Hanging:
    """What hangs on an object under a name and is in no state of it, and what it is.

    A `mark` is another one once numbers of it have changed; without one it is taken to change.
    """

    name: str
    what: str
    mark: Hashable | None


def is_object(value: Any) -> bool:
    """Tell dataclasses and named tuples from containers that say nothing but what is in them."""
    return is_dataclass(value) or (isinstance(value, tuple) and hasattr(value, "_fields"))


def join_others(others: dict[str, str], path: str, value: object, *, first: int, is_meant: bool) -> None:
    """Name an object without tensors itself, in place of all that was found in it, which are the others from the `first` on.

    One in which nothing was found is named if it `is_meant` to be there, as a module of Linen is.
    """
    inside = list(others)[first:]
    for name in inside:
        del others[name]
    if inside or is_meant:
        others[path] = kind(value)
