"""One small net three times: as a torch model, as a native tree, as a tree of arrays. Its shapes tell each tensor, its layers both layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

import firekeep
from firekeep.module import LayerNorm, Linear, Module, walk

NAMES = ("fc.weight", "fc.bias", "norm.weight", "norm.bias", "head.weight")
"""In PyTorch's layout; Burn calls those of the norm gamma and beta, and turns the weights round."""


class TorchNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 2, bias=False)


class NativeNet(Module):
    fc: Linear
    norm: LayerNorm
    head: Linear


def make_torch(seed: int) -> TorchNet:
    """Make a net of which every tensor has numbers of its own."""
    generator = torch.Generator().manual_seed(seed)
    net = TorchNet()
    with torch.no_grad():
        for tensor in net.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return net


def make_native(seed: int) -> NativeNet:
    """Make the net as Burn has it."""
    net = NativeNet(fc=Linear(4, 3, rng=seed), norm=LayerNorm(3), head=Linear(3, 2, bias=False, rng=seed))
    numbers = np.random.default_rng(seed)
    net.norm.gamma.value = numbers.random(3, np.float32)
    net.norm.beta.value = numbers.random(3, np.float32)
    return net


def make_plain(seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Make the net as a tree of arrays, in PyTorch's layout."""
    tree: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays_of(make_torch(seed)).items():
        layer, _, role = name.partition(".")
        tree.setdefault(layer, {})[role] = array
    return tree


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """Give copies of all tensors of a model, in its own layout."""
    if isinstance(model, nn.Module):
        return {name: tensor.detach().numpy().copy() for name, tensor in model.state_dict().items()}
    if isinstance(model, Module):
        return {visited.path: np.array(visited.param.file_form()) for visited in walk(model)}
    return {f"{layer}.{role}": array.copy() for layer, part in model.items() for role, array in part.items()}


def state_of(model: Any) -> dict[str, bytes]:
    """Give the bits of every tensor of a model, under PyTorch's names and in its layout."""
    if not isinstance(model, Module):
        return {name: array.tobytes() for name, array in arrays_of(model).items()}
    spelled = {"norm.gamma": "norm.weight", "norm.beta": "norm.bias"}
    return {
        spelled.get(name, name): (array.T if array.ndim == 2 else array).tobytes()
        for name, array in arrays_of(model).items()
    }


def file_arrays(source: Any) -> dict[str, bytes]:
    """Give the bits of every tensor of a file."""
    return {name: array.tobytes() for name, array in firekeep.load_file(source).items()}


def only(state: Mapping[str, bytes], *names: str) -> dict[str, bytes]:
    """Keep some of a state."""
    return {name: state[name] for name in names}
