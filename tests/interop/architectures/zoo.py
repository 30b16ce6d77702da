"""All architectures: how one is made, what it eats, and how two are compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from interop.architectures import language, vision

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Architecture:
    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    ties: tuple[tuple[str, str], ...] = ()


def images(channels: int) -> Inputs:
    return (torch.randn(2, channels, 16, 16),)


def text() -> Inputs:
    return (torch.randint(1, 23, (2, 7)),)


def categories() -> Inputs:
    return torch.randn(3, 5), torch.randint(0, 11, (3,)), torch.randint(0, 17, (3, 4))


ZOO: Mapping[str, Architecture] = {
    "resnet": Architecture(vision.ResNet, lambda: images(3)),
    "vit": Architecture(vision.ViT, lambda: images(3)),
    "gpt": Architecture(language.GPT, text, ties=(("transformer.wte.weight", "lm_head.weight"),)),
    "llama": Architecture(language.Llama, text),
    "tagger": Architecture(language.Tagger, text),
    "unet": Architecture(vision.UNet, lambda: images(1)),
    "mixer": Architecture(vision.Mixer, lambda: images(3)),
    "efficientnet": Architecture(vision.EfficientNet, lambda: images(3)),
    "bert": Architecture(language.Bert, text),
    "clip": Architecture(language.CLIP, lambda: (*images(3), *text())),
    "vae": Architecture(vision.VAE, lambda: images(1)),
    "dlrm": Architecture(language.DLRM, categories),
}

every_architecture = pytest.mark.parametrize("name", ZOO)

_TRAINED: dict[str, nn.Module] = {}


def trained(name: str) -> nn.Module:
    """Give a model whose every tensor differs from a fresh one's: its norms have counted three batches."""
    if name not in _TRAINED:
        torch.manual_seed(sum(name.encode()))
        made = ZOO[name].make()
        with torch.no_grad():
            for value in made.parameters():
                value.add_(torch.randn_like(value) * 0.1)
            for value in made.buffers():
                if value.is_floating_point() and value.shape == (1,):
                    value.mul_(2)
            for _ in range(3):
                made.train()(*ZOO[name].inputs())
        _TRAINED[name] = made.eval()
    return copy.deepcopy(_TRAINED[name])


def fresh(name: str) -> nn.Module:
    """Give a model as it is made: one that shares no number with a trained one but for constants."""
    torch.manual_seed(999)
    return ZOO[name].make().eval()


def inputs(name: str) -> Inputs:
    torch.manual_seed(5)
    return ZOO[name].inputs()


def forward(name: str, model: nn.Module) -> tuple[Tensor, ...]:
    with torch.no_grad():
        given: Any = model(*inputs(name))
    return given if isinstance(given, tuple) else (given,)


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_equal_states(found: nn.Module, expected: nn.Module) -> None:
    """Every tensor of the state dicts is the same: dtype, shape and bits."""
    mine, theirs = found.state_dict(), expected.state_dict()
    assert list(mine) == list(theirs)
    for key, value in theirs.items():
        assert (mine[key].dtype, mine[key].shape) == (value.dtype, value.shape), key
        assert bits(mine[key]) == bits(value), key


def assert_same_model(name: str, found: nn.Module, expected: nn.Module) -> None:
    """The states, the ties and what comes out of a forward are the same."""
    assert_equal_states(found, expected)
    for first, second in ZOO[name].ties:
        assert found.get_parameter(first) is found.get_parameter(second)
    for one, other in zip(forward(name, found), forward(name, expected), strict=True):
        assert torch.equal(one, other)


def differing(one: nn.Module, other: nn.Module) -> set[str]:
    theirs = other.state_dict()
    return {key for key, value in one.state_dict().items() if bits(value) != bits(theirs[key])}
