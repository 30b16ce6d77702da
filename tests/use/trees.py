"""Random models of the three kinds, built of one drawing, and rules to draw for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn

import firekeep
from firekeep import module as burn

WORDS = ("a", "b", "fc", "net", "model", "module", "layers", "norm", "weight0", "x_1", "Linear")
LAYERS = ("linear", "square", "norm", "batch_norm", "embedding", "conv", "relu", "tensor")

Drawing = str | list[Any] | dict[str, Any]
"""A layer by its kind, or several in a list or by their names."""


def drawings(*, layers: tuple[str, ...] = LAYERS) -> st.SearchStrategy[Drawing]:
    """Draw what is in a model."""
    inner = st.recursive(
        st.sampled_from(layers),
        lambda parts: st.one_of(
            st.lists(parts, min_size=1, max_size=4),
            st.dictionaries(st.sampled_from(WORDS), parts, min_size=1, max_size=3),
        ),
        max_leaves=7,
    )
    return st.dictionaries(st.sampled_from(WORDS), inner, min_size=1, max_size=4)


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(2, 3))


class HeldNative(burn.Module):
    value: burn.Param


_TORCH = {
    "linear": lambda: nn.Linear(4, 3),
    "square": lambda: nn.Linear(3, 3, bias=False),
    "norm": lambda: nn.LayerNorm(3),
    "batch_norm": lambda: nn.BatchNorm1d(3),
    "embedding": lambda: nn.Embedding(5, 2),
    "conv": lambda: nn.Conv1d(2, 3, 2),
    "relu": nn.ReLU,
    "tensor": Held,
}
_NATIVE = {
    "linear": lambda: burn.Linear(4, 3),
    "square": lambda: burn.Linear(3, 3, bias=False),
    "norm": lambda: burn.LayerNorm(3),
    "batch_norm": lambda: burn.BatchNorm(3),
    "embedding": lambda: burn.Embedding(5, 2),
    "conv": lambda: burn.Conv1d(2, 3, 2),
    "relu": burn.Relu,
    "tensor": lambda: HeldNative(value=burn.Param(np.zeros((2, 3), np.float32))),
}
KINDS = ("torch", "native", "plain")


def build(drawing: Drawing, kind: str, seed: int) -> Any:
    """Build a model of a drawing, with numbers of its own."""
    if kind == "plain":
        return _plain(build(drawing, "torch", seed))
    model = _torch(drawing) if kind == "torch" else _native(drawing)
    _fill(model, seed)
    return model


def _torch(drawing: Drawing) -> nn.Module:
    if isinstance(drawing, str):
        return _TORCH[drawing]()
    if isinstance(drawing, list):
        return nn.ModuleList(map(_torch, drawing))
    return nn.ModuleDict({name: _torch(part) for name, part in drawing.items()})


def _native(drawing: Drawing) -> Any:
    if isinstance(drawing, str):
        return _NATIVE[drawing]()
    if isinstance(drawing, list):
        return [_native(part) for part in drawing]
    cls = type("Drawn", (burn.Module,), {"__annotations__": dict.fromkeys(drawing, Any)})
    return cls(**{name: _native(part) for name, part in drawing.items()})


def _plain(model: nn.Module) -> Any:
    if isinstance(model, nn.ModuleList):
        return [_plain(part) for part in model]
    if isinstance(model, nn.ModuleDict):
        return {name: _plain(part) for name, part in model.items()}
    return {name: tensor.detach().numpy().copy() for name, tensor in model.state_dict().items()}


def _fill(model: Any, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    if isinstance(model, nn.Module):
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.copy_(torch.from_numpy(np.asarray(numbers.integers(1, 1 << 20, tuple(tensor.shape)))))
        return
    for visited in burn.walk(model):
        visited.param.value = numbers.random(visited.param.shape, np.float32)


def state_of(model: Any) -> dict[str, bytes]:
    """Give the bits of everything a model holds."""
    return {entry.name: bytes(entry.read()) for entry in firekeep.entries_of(model)}


Rule = tuple[str, str]


def rules() -> st.SearchStrategy[list[Rule]]:
    """Draw rename rules, as a load has them: of whole words mostly, some that nothing turns round."""
    word = st.sampled_from(WORDS)
    one = st.one_of(
        st.builds(lambda a, b: (rf"^{a}\.", f"{b}."), word, word),
        st.builds(lambda a: (rf"^{a}\.", ""), word),
        st.builds(lambda a: ("^", f"{a}."), word),
        st.builds(lambda a, b: (rf"\.{a}\.", f".{b}."), word, word),
        st.builds(lambda a, b: (rf"\.{a}$", f".{b}"), word, st.sampled_from(("weight", "bias", "kernel"))),
        st.builds(lambda a, b: (a, b), word, word),
        st.builds(lambda a, b: (rf"^{a}\.(\d+)\.", rf"{b}.\1."), word, word),
        st.builds(lambda a, b: (rf"{a}_(\d+)", rf"{b}.\g<1>"), word, word),
        st.builds(lambda a: (rf"^(?:{a}|old)\.", "new."), word),
        st.builds(lambda a: (rf"{a}\d*", a), word),
    )
    return st.lists(one, max_size=4)


def forward(rules: list[Rule], name: str) -> str:
    """Do what a load does to a name, by the standard library alone."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def one_way(rule: Rule) -> bool:
    """Say whether no rule of plain words turns it round: it forgets something of what it finds, or leaves nothing to find."""
    pattern, replacement = rule
    return "(?:" in pattern or r"\d*" in pattern or pattern == "^" or (not replacement)


def told(rule: Rule) -> str:
    """Write a rule as messages do."""
    return f"{rule[0]}=>{rule[1]}"


def leaves(tree: Any, prefix: str = "") -> Iterator[str]:
    """Give the names of the arrays of a plain tree, one for each time that it is met."""
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list) else None
    if items is None:
        yield prefix[:-1]
        return
    for key, part in items:
        yield from leaves(part, f"{prefix}{key}.")
