"""GGUF, as llama.cpp uses it: plain tensors as arrays, tensors that are quantized in blocks as their bytes, or as F32 on request."""

from __future__ import annotations

from firekeep.formats.gguf._read import open_container

__all__ = ["open_container"]
