"""What the experiments with models share: the small net of both kinds, files of real exports, random streams of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import firekeep
from firekeep.module import Linear, Module, walk

ROOT = Path(__file__).parents[1]
BURN = ROOT / "data" / "cases" / "files" / "burn"
FULL_MODEL = ROOT / "data" / "made" / "full_model.pt"


class Net(Module):
    fc: Linear
    head: Linear

    def __call__(self, x: Any) -> Any:
        return self.head(self.fc(x))


class RenamedNet(Module):
    fc1: Linear
    head: Linear

    def __call__(self, x: Any) -> Any:
        return self.head(self.fc1(x))


class TorchNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.head = nn.Linear(3, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.fc(x))


def make_net(**options: Any) -> Net:
    return Net(fc=Linear(4, 3, **options), head=Linear(3, 2, bias=False))


def make_renamed() -> RenamedNet:
    return RenamedNet(fc1=Linear(4, 3), head=Linear(3, 2, bias=False))


def make_torch(seed: int = 0) -> TorchNet:
    torch.manual_seed(seed)
    return TorchNet()


def state_of(model: Any) -> dict[str, bytes]:
    """Give the bits of every tensor of a model of any kind, and make those that were not made yet."""
    if isinstance(model, nn.Module):
        return {name: tensor.detach().numpy().tobytes() for name, tensor in model.state_dict().items()}
    if isinstance(model, Module):
        return {visited.path: visited.param.file_form().tobytes() for visited in walk(model)}
    return {name: np.asarray(array).tobytes() for name, array in model.items()}


def untouched(model: Module) -> bool:
    """Say whether no parameter of a tree was made."""
    return not any(visited.param.is_initialized for visited in walk(model))


def stream(seed: int, start: int, *shape: int) -> np.ndarray:
    """Give numbers of PyTorch's uniform stream, which the exports' inputs are pieces of."""
    generator = torch.Generator().manual_seed(seed)
    count = int(np.prod(shape))
    numbers: np.ndarray = torch.rand(start + count, generator=generator)[start:].reshape(shape).numpy()
    return numbers


def run(model: Any, x: np.ndarray) -> np.ndarray:
    """Run a model of either kind."""
    if not isinstance(model, nn.Module):
        return np.asarray(model(x))
    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(x)))


def close(found: np.ndarray, expected: Any, tolerance: float = 1e-6) -> None:
    """Compare numbers by their difference."""
    np.testing.assert_allclose(found, np.asarray(expected, np.float32), rtol=0, atol=tolerance)


def refusal(call: Any, *args: Any, **options: Any) -> firekeep.LoadReport:
    """Call what shall be refused, and give its report."""
    with pytest.raises(firekeep.LoadError) as caught:
        call(*args, **options)
    return caught.value.report
