"""Attention and the layers of transformers, for inference: dropout is left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from firekeep.arrays import Array
from firekeep.module._activations import Gelu
from firekeep.module._errors import ModuleError
from firekeep.module._initializers import Initializer, Seed, generator
from firekeep.module._linear import Linear
from firekeep.module._norm import LayerNorm
from firekeep.module._numeric import softmax
from firekeep.module._tree import Facts, Module
from firekeep.module._walk import walk

Activation = Callable[[Array], Array]

_HIDDEN = -1.0e4  # Burn's score for what a mask hides


class MultiHeadAttention(Module):
    """Attention of several heads over [batch, time, d_model]; the number of heads is in no file."""

    kind: ClassVar[str] = "multi_head_attention"

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    n_heads: int
    quiet_softmax: bool

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        bias: bool = True,
        quiet_softmax: bool = False,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        if n_heads < 1 or d_model % n_heads:
            raise ModuleError(f"{d_model} features do not divide into {n_heads} heads")
        rng = generator(rng)
        self.query, self.key, self.value, self.output = (
            Linear(d_model, d_model, bias=bias, initializer=initializer, rng=rng) for _ in range(4)
        )
        self.n_heads = n_heads
        self.quiet_softmax = quiet_softmax

    @property
    def facts(self) -> Facts:
        """How many heads it has."""
        return {"num_heads": self.n_heads}

    def __call__(
        self,
        query: Array,
        key: Array | None = None,
        value: Array | None = None,
        *,
        mask: Array | None = None,
        mask_pad: Array | None = None,
    ) -> Array:
        """Attend to `key` and `value`, which are the query itself unless given.

        True hides, in `mask` a pair [batch or 1, time, time of the key] and in `mask_pad` a time [batch, time of the key].
        """
        key = query if key is None else key
        value = key if value is None else value
        heads = self._split(self.query(query)), self._split(self.key(key)), self._split(self.value(value))
        scores = heads[0] @ heads[1].swapaxes(-1, -2) / np.asarray(math.sqrt(heads[0].shape[-1]), query.dtype)
        if mask_pad is not None:
            scores = np.where(mask_pad[:, None, None, :], np.asarray(_HIDDEN, scores.dtype), scores)
        if mask is not None:
            scores = np.where(mask[:, None], np.asarray(_HIDDEN, scores.dtype), scores)
        context = softmax(scores, quiet=self.quiet_softmax) @ heads[2]
        return self.output(context.swapaxes(1, 2).reshape(query.shape))

    def _split(self, x: Array) -> Array:
        return x.reshape(*x.shape[:2], self.n_heads, -1).swapaxes(1, 2)


class PositionWiseFeedForward(Module):
    """Two Linear with an activation between them.

    Burn keeps nothing of the activation in files, so one with tensors of its own is refused.
    """

    kind: ClassVar[str] = "feed_forward"

    linear_inner: Linear
    linear_outer: Linear
    activation: Activation

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Activation | None = None,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        rng = generator(rng)
        given: object = activation
        if isinstance(given, Module) and any(True for _ in walk(given)):
            raise ModuleError(
                f"a {type(given).__name__} has tensors, and Burn's files have no place for those of an activation here",
                remedy="Write a Module of your own with two Linear and the activation as fields",
            )
        self.linear_inner = Linear(d_model, d_ff, initializer=initializer, rng=rng)
        self.linear_outer = Linear(d_ff, d_model, initializer=initializer, rng=rng)
        self.activation = activation if activation is not None else Gelu()

    def __call__(self, x: Array) -> Array:
        return self.linear_outer(self.activation(self.linear_inner(x)))


class TransformerEncoderLayer(Module):
    """Attention to itself, then a feed-forward, each with a residual.

    With `norm_first` it is norm_2 that stands before the attention and norm_1 before the feed-forward: Burn's names say which part
    they follow when they come last.
    """

    kind: ClassVar[str] = "transformer_encoder_layer"

    mha: MultiHeadAttention
    pwff: PositionWiseFeedForward
    norm_1: LayerNorm
    norm_2: LayerNorm
    norm_first: bool

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        n_heads: int,
        *,
        norm_first: bool = False,
        activation: Activation | None = None,
        quiet_softmax: bool = False,
        epsilon: float = 1e-5,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        rng = generator(rng)
        self.mha = MultiHeadAttention(d_model, n_heads, quiet_softmax=quiet_softmax, initializer=initializer, rng=rng)
        self.pwff = PositionWiseFeedForward(d_model, d_ff, activation=activation, initializer=initializer, rng=rng)
        self.norm_1 = LayerNorm(d_model, epsilon=epsilon)
        self.norm_2 = LayerNorm(d_model, epsilon=epsilon)
        self.norm_first = norm_first

    @property
    def facts(self) -> Facts:
        """Where the norms stand."""
        return {"norm_first": self.norm_first}

    def __call__(self, x: Array, *, mask: Array | None = None, mask_pad: Array | None = None) -> Array:
        """Run over [batch, time, d_model]; the masks are those of `MultiHeadAttention`."""
        if self.norm_first:
            x = x + self.mha(self.norm_2(x), mask=mask, mask_pad=mask_pad)
            return x + self.pwff(self.norm_1(x))
        x = self.norm_1(x + self.mha(x, mask=mask, mask_pad=mask_pad))
        return self.norm_2(x + self.pwff(x))


class TransformerEncoder(Module):
    """Encoder layers, one after the other."""

    layers: list[TransformerEncoderLayer]

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        n_heads: int,
        n_layers: int,
        *,
        norm_first: bool = False,
        activation: Activation | None = None,
        quiet_softmax: bool = False,
        epsilon: float = 1e-5,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        rng = generator(rng)
        self.layers = [
            TransformerEncoderLayer(
                d_model,
                d_ff,
                n_heads,
                norm_first=norm_first,
                activation=activation,
                quiet_softmax=quiet_softmax,
                epsilon=epsilon,
                initializer=initializer,
                rng=rng,
            )
            for _ in range(n_layers)
        ]

    def __call__(self, x: Array, *, mask: Array | None = None, mask_pad: Array | None = None) -> Array:
        """Run over [batch, time, d_model]."""
        for layer in self.layers:
            x = layer(x, mask=mask, mask_pad=mask_pad)
        return x


class TransformerDecoderLayer(Module):
    """Attention to itself, attention to the memory, then a feed-forward, each with a residual.

    With `norm_first` the norms before them are norm_3, norm_1 and norm_2, as in Burn.
    """

    kind: ClassVar[str] = "transformer_decoder_layer"

    cross_attn: MultiHeadAttention
    self_attn: MultiHeadAttention
    pwff: PositionWiseFeedForward
    norm_1: LayerNorm
    norm_2: LayerNorm
    norm_3: LayerNorm
    norm_first: bool

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        n_heads: int,
        *,
        norm_first: bool = False,
        activation: Activation | None = None,
        quiet_softmax: bool = False,
        epsilon: float = 1e-5,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        rng = generator(rng)
        self.cross_attn, self.self_attn = (
            MultiHeadAttention(d_model, n_heads, quiet_softmax=quiet_softmax, initializer=initializer, rng=rng)
            for _ in range(2)
        )
        self.pwff = PositionWiseFeedForward(d_model, d_ff, activation=activation, initializer=initializer, rng=rng)
        self.norm_1, self.norm_2, self.norm_3 = (LayerNorm(d_model, epsilon=epsilon) for _ in range(3))
        self.norm_first = norm_first

    @property
    def facts(self) -> Facts:
        """Where the norms stand."""
        return {"norm_first": self.norm_first}

    def __call__(
        self,
        x: Array,
        memory: Array,
        *,
        mask: Array | None = None,
        mask_pad: Array | None = None,
        memory_mask: Array | None = None,
        memory_mask_pad: Array | None = None,
    ) -> Array:
        """Run over [batch, time, d_model] with the encoder's output; the masks are those of `MultiHeadAttention`."""
        if self.norm_first:
            x = x + self.self_attn(self.norm_3(x), mask=mask, mask_pad=mask_pad)
            x = x + self.cross_attn(self.norm_1(x), memory, mask=memory_mask, mask_pad=memory_mask_pad)
            return x + self.pwff(self.norm_2(x))
        x = self.norm_1(x + self.self_attn(x, mask=mask, mask_pad=mask_pad))
        x = self.norm_2(x + self.cross_attn(x, memory, mask=memory_mask, mask_pad=memory_mask_pad))
        return self.norm_3(x + self.pwff(x))


class TransformerDecoder(Module):
    """Decoder layers, one after the other."""

    layers: list[TransformerDecoderLayer]

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        n_heads: int,
        n_layers: int,
        *,
        norm_first: bool = False,
        activation: Activation | None = None,
        quiet_softmax: bool = False,
        epsilon: float = 1e-5,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        rng = generator(rng)
        self.layers = [
            TransformerDecoderLayer(
                d_model,
                d_ff,
                n_heads,
                norm_first=norm_first,
                activation=activation,
                quiet_softmax=quiet_softmax,
                epsilon=epsilon,
                initializer=initializer,
                rng=rng,
            )
            for _ in range(n_layers)
        ]

    def __call__(
        self,
        x: Array,
        memory: Array,
        *,
        mask: Array | None = None,
        mask_pad: Array | None = None,
        memory_mask: Array | None = None,
        memory_mask_pad: Array | None = None,
    ) -> Array:
        """Run over [batch, time, d_model] with the encoder's output."""
        for layer in self.layers:
            x = layer(
                x,
                memory,
                mask=mask,
                mask_pad=mask_pad,
                memory_mask=memory_mask,
                memory_mask_pad=memory_mask_pad,
            )
        return x
