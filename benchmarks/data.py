"""What is saved and loaded: random arrays in the shapes of real models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    layers: int
    hidden: int
    vocabulary: int
    large_blocks: int
    large_side: int
    small: int


FULL = Sizes(layers=30, hidden=576, vocabulary=49152, large_blocks=128, large_side=2048, small=20_000)
"""269 MB of bf16 in 272 tensors, as SmolLM2-135M; 2.1 GB of f32 in 128 square matrices; 20,000 tensors of 16 floats."""

QUICK = Sizes(layers=2, hidden=64, vocabulary=512, large_blocks=4, large_side=256, small=300)


def language_model(sizes: Sizes) -> dict[str, np.ndarray[Any, Any]]:
    """Give bf16 arrays with the names and the proportions of SmolLM2-135M: 30 layers of 576 with three key/value heads of nine."""
    hidden, wide, keys = sizes.hidden, sizes.hidden * 8 // 3, sizes.hidden // 3
    block = {
        "input_layernorm": (hidden,),
        "mlp.down_proj": (hidden, wide),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "post_attention_layernorm": (hidden,),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.v_proj": (keys, hidden),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (sizes.vocabulary, hidden)}
    for layer in range(sizes.layers):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    shapes["model.norm.weight"] = (hidden,)
    random = np.random.default_rng(1)
    return {name: _bytes_of(random, shape, 2).view(ml_dtypes.bfloat16).reshape(shape) for name, shape in shapes.items()}


def large_model(sizes: Sizes) -> dict[str, np.ndarray[Any, Any]]:
    """Give f32 square matrices."""
    random = np.random.default_rng(2)
    side = (sizes.large_side, sizes.large_side)
    return {f"blocks.{number}.weight": random.random(side, np.float32) for number in range(sizes.large_blocks)}


def small_tensors(sizes: Sizes) -> dict[str, np.ndarray[Any, Any]]:
    """Give many f32 arrays of 4 x 4."""
    values = np.random.default_rng(3).random((sizes.small, 4, 4), np.float32)
    return {f"blocks.{number // 10}.layer.{number % 10}.weight": values[number].copy() for number in range(sizes.small)}


def nbytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())


def _bytes_of(random: np.random.Generator, shape: tuple[int, ...], width: int) -> np.ndarray[Any, Any]:
    """Draw random bytes with small exponents, so that no value is NaN."""
    values = random.integers(0, 1 << 8, size=(int(np.prod(shape)), width), dtype=np.uint8)
    values[:, -1] = 0x3C | (values[:, -1] & 0x81)
    return values.reshape(-1)
