"""Burn's burnpack files (`.bpk`): tensors, typed scalars and string metadata, byte for byte as Burn 0.22.1 writes them.

The layout is described in `docs/burnpack-format.md`.
"""

from firekeep.formats.burnpack._read import open_container
from firekeep.formats.burnpack._write import plan

__all__ = ["open_container", "plan"]
