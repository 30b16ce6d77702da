"""Means over an epoch, to the last bit the same whether or not the epoch was interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_PENDING = 64
"""So many values stay on the device before they are fetched: fetching each would have the loop wait for the device."""

Value = torch.Tensor | float


class Means:
    """Running means of named values, each weighted by the samples it stands for."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}
        self._pending: list[tuple[str, Value, int]] = []

    def add(self, name: str, value: Value, weight: int) -> None:
        """Take the value of a batch."""
        self._pending.append((name, value.detach() if isinstance(value, torch.Tensor) else value, weight))
        if len(self._pending) >= _PENDING:
            self._fold()

    def _fold(self) -> None:
        for name, value, weight in self._pending:
            total, samples = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + float(value) * weight, samples + weight)
        self._pending.clear()

    def means(self, prefix: str = "") -> dict[str, float]:
        """Give the means so far."""
        self._fold()
        return {f"{prefix}{name}": total / samples for name, (total, samples) in self._sums.items() if samples}

    def clear(self) -> None:
        """Begin anew."""
        self._sums.clear()
        self._pending.clear()

    def state(self) -> dict[str, list[float]]:
        """Give the sums and their weights."""
        self._fold()
        return {name: [total, samples] for name, (total, samples) in self._sums.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take sums and weights."""
        self.clear()
        self._sums.update({str(name): (float(total), int(samples)) for name, (total, samples) in state.items()})
