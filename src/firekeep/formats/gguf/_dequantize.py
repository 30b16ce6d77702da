"""Blocks as numbers, by the package gguf."""

from __future__ import annotations

from firekeep.dtypes import DType
from firekeep.errors import MissingExtraError, UnsupportedError
from firekeep.formats.gguf._types import CODES


def dequantize(dtype: DType, data: memoryview, *, name: str) -> memoryview:
    """Compute the F32 values of a tensor that is quantized in blocks.

    Raises `MissingExtraError` where the package gguf is not installed, `UnsupportedError` for a kind that it cannot compute.
    """
    try:
        from gguf import GGMLQuantizationType, quants
    except ModuleNotFoundError as error:
        if error.name != "gguf":
            raise
        raise MissingExtraError(
            "tensors that are quantized in blocks are computed by the package gguf, which is not installed",
            tensor=name,
            remedy="pip install 'firekeep[gguf]'",
        ) from None
    import numpy as np

    blocks = np.frombuffer(data, np.uint8).reshape(-1, dtype.nbytes((dtype.block or (1, 1))[:1]))
    try:
        with np.errstate(all="ignore"):  # a scale that is infinite or NaN makes values that are, and nothing else
            values = quants.dequantize(blocks, GGMLQuantizationType(CODES[dtype.name]))
    except (NotImplementedError, ValueError):
        raise UnsupportedError(f"the package gguf does not compute {dtype.name}", tensor=name) from None
    return np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8).data
