"""Weights as `flax.serialization` writes them: nested maps in MessagePack, whose arrays are extensions."""

from __future__ import annotations

from firekeep.formats.flax._read import open_container

__all__ = ["open_container"]
