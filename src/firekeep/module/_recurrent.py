"""Recurrent layers: one linear pair a gate, both biases kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from firekeep.arrays import Array
from firekeep.module._initializers import Initializer, Seed, XavierNormal, generator
from firekeep.module._linear import Linear
from firekeep.module._numeric import sigmoid
from firekeep.module._tree import Facts, Module

_ONE_WAY: Facts = {"num_layers": 1, "bidirectional": False}
_BOTH_WAYS: Facts = {"num_layers": 1, "bidirectional": True}


class GateController(Module):
    """One gate: a Linear of the input and one of the hidden state, added."""

    input_transform: Linear
    hidden_transform: Linear

    def __init__(
        self,
        d_input: int,
        d_output: int,
        *,
        bias: bool = True,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        rng = generator(rng)
        initializer = initializer if initializer is not None else XavierNormal()
        self.input_transform = Linear(d_input, d_output, bias=bias, initializer=initializer, rng=rng)
        self.hidden_transform = Linear(d_output, d_output, bias=bias, initializer=initializer, rng=rng)

    def __call__(self, x: Array, hidden: Array) -> Array:
        return self.input_transform(x) + self.hidden_transform(hidden)


class Lstm(Module):
    """A long short-term memory of one layer and one direction.

    Takes [batch, time, d_input], or [time, batch, d_input] with `batch_first=False`; gives the hidden states of all times and the last
    (hidden, cell), each [batch, d_hidden].
    """

    kind: ClassVar[str] = "lstm"

    input_gate: GateController
    forget_gate: GateController
    output_gate: GateController
    cell_gate: GateController
    d_hidden: int
    batch_first: bool

    def __init__(
        self,
        d_input: int,
        d_hidden: int,
        *,
        bias: bool = True,
        batch_first: bool = True,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        gates = _gates(4, d_input, d_hidden, bias, initializer, rng)
        self.input_gate, self.forget_gate, self.output_gate, self.cell_gate = gates
        self.d_hidden = d_hidden
        self.batch_first = batch_first

    @property
    def facts(self) -> Facts:
        """One layer, one direction."""
        return _ONE_WAY

    def __call__(
        self, x: Array, state: tuple[Array, Array] | None = None, *, backward: bool = False
    ) -> tuple[Array, tuple[Array, Array]]:
        """Run over the times, the last one first with `backward`."""
        x = x if self.batch_first else x.swapaxes(0, 1)
        hidden, cell = state if state is not None else (_zeros(x, self.d_hidden), _zeros(x, self.d_hidden))
        out = np.empty((*x.shape[:2], self.d_hidden), x.dtype)
        for time in _times(x, backward=backward):
            now = x[:, time]
            cell = sigmoid(self.forget_gate(now, hidden)) * cell
            cell = cell + sigmoid(self.input_gate(now, hidden)) * np.tanh(self.cell_gate(now, hidden))
            hidden = sigmoid(self.output_gate(now, hidden)) * np.tanh(cell)
            out[:, time] = hidden
        return (out if self.batch_first else out.swapaxes(0, 1)), (hidden, cell)


class Gru(Module):
    """A gated recurrent unit of one layer and one direction.

    `reset_after=True`, the default, is PyTorch's formula; the other one multiplies by the reset gate before the weights. Takes and gives
    what `Lstm` does, with a last state of only the hidden one.
    """

    kind: ClassVar[str] = "gru"

    update_gate: GateController
    reset_gate: GateController
    new_gate: GateController
    d_hidden: int
    reset_after: bool
    batch_first: bool

    def __init__(
        self,
        d_input: int,
        d_hidden: int,
        *,
        bias: bool = True,
        reset_after: bool = True,
        batch_first: bool = True,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        self.update_gate, self.reset_gate, self.new_gate = _gates(3, d_input, d_hidden, bias, initializer, rng)
        self.d_hidden = d_hidden
        self.reset_after = reset_after
        self.batch_first = batch_first

    @property
    def facts(self) -> Facts:
        """One layer, one direction."""
        return _ONE_WAY

    def __call__(self, x: Array, state: Array | None = None, *, backward: bool = False) -> tuple[Array, Array]:
        """Run over the times, the last one first with `backward`."""
        x = x if self.batch_first else x.swapaxes(0, 1)
        hidden = state if state is not None else _zeros(x, self.d_hidden)
        out = np.empty((*x.shape[:2], self.d_hidden), x.dtype)
        for time in _times(x, backward=backward):
            hidden = self._step(x[:, time], hidden)
            out[:, time] = hidden
        return (out if self.batch_first else out.swapaxes(0, 1)), hidden

    def _step(self, now: Array, hidden: Array) -> Array:
        update = sigmoid(self.update_gate(now, hidden))
        reset = sigmoid(self.reset_gate(now, hidden))
        if self.reset_after:
            fresh = self.new_gate.input_transform(now) + reset * self.new_gate.hidden_transform(hidden)
        else:
            fresh = self.new_gate(now, reset * hidden)
        after = np.tanh(fresh)
        mixed: Array = after + update * (hidden - after)
        return mixed


class Rnn(Module):
    """A plain recurrent layer with tanh, of one direction; takes and gives what `Gru` does."""

    kind: ClassVar[str] = "rnn"

    gate: GateController
    d_hidden: int
    batch_first: bool

    def __init__(
        self,
        d_input: int,
        d_hidden: int,
        *,
        bias: bool = True,
        batch_first: bool = True,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        (self.gate,) = _gates(1, d_input, d_hidden, bias, initializer, rng)
        self.d_hidden = d_hidden
        self.batch_first = batch_first

    @property
    def facts(self) -> Facts:
        """One layer, one direction."""
        return _ONE_WAY

    def __call__(self, x: Array, state: Array | None = None, *, backward: bool = False) -> tuple[Array, Array]:
        """Run over the times, the last one first with `backward`."""
        x = x if self.batch_first else x.swapaxes(0, 1)
        hidden = state if state is not None else _zeros(x, self.d_hidden)
        out = np.empty((*x.shape[:2], self.d_hidden), x.dtype)
        for time in _times(x, backward=backward):
            hidden = np.tanh(self.gate(x[:, time], hidden))
            out[:, time] = hidden
        return (out if self.batch_first else out.swapaxes(0, 1)), hidden


class BiLstm(Module):
    """Two `Lstm`, one from each end; their hidden states side by side, their last states stacked as [2, batch, d_hidden]."""

    kind: ClassVar[str] = "lstm"

    forward: Lstm
    reverse: Lstm

    def __init__(
        self,
        d_input: int,
        d_hidden: int,
        *,
        bias: bool = True,
        batch_first: bool = True,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        rng = generator(rng)
        self.forward, self.reverse = (
            Lstm(d_input, d_hidden, bias=bias, batch_first=batch_first, initializer=initializer, rng=rng)
            for _ in range(2)
        )

    @property
    def facts(self) -> Facts:
        """One layer, both directions."""
        return _BOTH_WAYS

    def __call__(self, x: Array, state: tuple[Array, Array] | None = None) -> tuple[Array, tuple[Array, Array]]:
        """Run over the times from both ends; `state` is stacked as the one given back is."""
        first, second = ((state[0][end], state[1][end]) if state is not None else None for end in range(2))
        there, (hidden, cell) = self.forward(x, first)
        back, (hidden_back, cell_back) = self.reverse(x, second, backward=True)
        both = np.concatenate([there, back], axis=-1)
        return both, (np.stack([hidden, hidden_back]), np.stack([cell, cell_back]))


class BiGru(Module):
    """Two `Gru`, one from each end; their hidden states side by side, their last states stacked as [2, batch, d_hidden]."""

    kind: ClassVar[str] = "gru"

    forward: Gru
    reverse: Gru

    def __init__(
        self,
        d_input: int,
        d_hidden: int,
        *,
        bias: bool = True,
        reset_after: bool = True,
        batch_first: bool = True,
        initializer: Initializer | None = None,
        rng: Seed = None,
    ) -> None:
        rng = generator(rng)
        self.forward, self.reverse = (
            Gru(
                d_input,
                d_hidden,
                bias=bias,
                reset_after=reset_after,
                batch_first=batch_first,
                initializer=initializer,
                rng=rng,
            )
            for _ in range(2)
        )

    @property
    def facts(self) -> Facts:
        """One layer, both directions."""
        return _BOTH_WAYS

    def __call__(self, x: Array, state: Array | None = None) -> tuple[Array, Array]:
        """Run over the times from both ends; `state` is stacked as the one given back is."""
        first, second = (state[0], state[1]) if state is not None else (None, None)
        there, hidden = self.forward(x, first)
        back, hidden_back = self.reverse(x, second, backward=True)
        return np.concatenate([there, back], axis=-1), np.stack([hidden, hidden_back])


def _gates(
    count: int,
    d_input: int,
    d_hidden: int,
    bias: bool,  # noqa: FBT001 - all are said in this file
    initializer: Initializer | None,
    rng: Seed,
) -> list[GateController]:
    rng = generator(rng)
    return [GateController(d_input, d_hidden, bias=bias, initializer=initializer, rng=rng) for _ in range(count)]


def _zeros(x: Array, d_hidden: int) -> Array:
    return np.zeros((x.shape[0], d_hidden), x.dtype)


def _times(x: Array, *, backward: bool) -> Iterable[int]:
    return reversed(range(x.shape[1])) if backward else range(x.shape[1])
