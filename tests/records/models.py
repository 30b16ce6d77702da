"""Small models, data and steps for tests of optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Optim = torch.optim


class Net(nn.Module):
    """Layers of several kinds, named so that they can be renamed, taken out and added."""

    def __init__(self, **extra: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.outer = nn.Linear(8, 3)
        for name, layer in extra.items():
            setattr(self, name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.norm(self.inner(x))))


def net(seed: int = 0, **extra: nn.Module) -> Net:
    torch.manual_seed(seed)
    return Net(**extra)


def step(model: nn.Module, optimizer: Any, number: int) -> None:
    source = torch.Generator().manual_seed(number)
    x, y = torch.randn(16, 4, generator=source), torch.randn(16, 3, generator=source)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def run(model: nn.Module, optimizer: Any, first: int, last: int) -> None:
    for number in range(first, last):
        step(model, optimizer, number)


def values(model: nn.Module) -> dict[str, bytes]:
    return {name: value.detach().numpy().tobytes() for name, value in model.named_parameters()}


def matrices(params: list[Any]) -> list[Any]:
    return [one for one in params if one.dim() == 2]


MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    "Adadelta": lambda p: Optim.Adadelta(p, lr=0.5),
    "Adafactor": lambda p: Optim.Adafactor(p, lr=0.01),
    "Adagrad": lambda p: Optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1, lr_decay=0.01),
    "Adam": lambda p: Optim.Adam(p, lr=0.01),
    "Adam, amsgrad": lambda p: Optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.01),
    "Adam, maximize": lambda p: Optim.Adam(p, lr=0.01, maximize=True),
    "Adam, fused": lambda p: Optim.Adam(p, lr=0.01, fused=True),
    "Adam, foreach": lambda p: Optim.Adam(p, lr=0.01, foreach=True),
    "Adam, differentiable": lambda p: Optim.Adam(p, lr=0.01, differentiable=False, foreach=False),
    "Adam, lr as a tensor": lambda p: Optim.Adam(p, lr=torch.tensor(0.01)),
    "Adamax": lambda p: Optim.Adamax(p, lr=0.01),
    "AdamW": lambda p: Optim.AdamW(p, lr=0.01),
    "ASGD": lambda p: Optim.ASGD(p, lr=0.1, t0=3),
    "LBFGS": lambda p: Optim.LBFGS(p, max_iter=4, history_size=5),
    "LBFGS, strong_wolfe": lambda p: Optim.LBFGS(p, max_iter=4, history_size=3, line_search_fn="strong_wolfe"),
    "Muon": lambda p: Optim.Muon(matrices(p), lr=0.02),
    "NAdam": lambda p: Optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: Optim.RAdam(p, lr=0.01),
    "RMSprop": lambda p: Optim.RMSprop(p, lr=0.01),
    "RMSprop, all": lambda p: Optim.RMSprop(p, lr=0.01, centered=True, momentum=0.9),
    "Rprop": lambda p: Optim.Rprop(p, lr=0.01),
    "SGD": lambda p: Optim.SGD(p, lr=0.1),
    "SGD, nesterov": lambda p: Optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD, dampening": lambda p: Optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, fused=True),
}
