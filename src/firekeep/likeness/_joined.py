"""Tensors that PyTorch keeps as one and Burn as several: neither names nor shapes of two files tell how they are cut."""

from __future__ import annotations

import re
from collections.abc import Iterable

WHOLE = "a PyTorch file of a whole model (torch.save(model, path))"
"""What tells layers where two files do not."""
CUT = "gates, or query, key and value"

_JOINED = re.compile(r"(?:\A|\.)(?:(?:weight|bias)_(?:ih|hh|hr)_l\d+(?:_reverse)?|in_proj_(?:weight|bias))\Z")
_PARTS = re.compile(r"(?:\A|\.)(?:[a-z]+_gate\.(?:input|hidden)_transform|query|key|value)\.(?:weight|bias)\Z")


def joined(names: Iterable[str]) -> list[str]:
    """Give the names of PyTorch's tensors that are several in Burn: of recurrent layers, and of attention."""
    return [name for name in names if _JOINED.search(name)]


def parts(names: Iterable[str]) -> list[str]:
    """Give the names of Burn's tensors that are parts of one in PyTorch."""
    return [name for name in names if _PARTS.search(name)]


def is_cut(names: Iterable[str]) -> bool:
    """Say whether any of these is one tensor in one of the two layouts, and several in the other."""
    return any(_JOINED.search(name) or _PARTS.search(name) for name in names)
