"""Names of a checkpoint's parameters, and those that they have now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firekeep.training._parts import Restoring


def prefix_of(section: str) -> str:
    """Give what stands before the names of a model's parameters where there are several models."""
    return "" if section == "model" else f"{section.removeprefix('model-')}."


def live_names(section: str, saved: Sequence[str], restoring: Restoring) -> dict[str, str]:
    """Map names that parameters of a model had to those they have, once the model's weights are planned for."""
    prefix, renames = prefix_of(section), restoring.known_names()
    ruled = restoring.rename.rename(list(saved)).names
    return {old: renames.get(f"{prefix}{old}", f"{prefix}{ruled[old]}").removeprefix(prefix) for old in saved}
