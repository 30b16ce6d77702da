"""A torch model that is described and filled in one go: looked at once, and again as soon as it may be another one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

import firekeep
from bridges.test_torch import F64, make
from contracts.bridge_contract import BridgeContract, fillings_from, values_of
from firekeep.bridges import Filling, entries_of
from firekeep.bridges.torch import _at_once, _fill
from firekeep.bridges.torch._at_once import AtOnce
from firekeep.bridges.torch._walk import Walk, walk


class TestContract(BridgeContract):
    name = "torch"

    @property
    def bridge(self) -> Any:
        return AtOnce()

    def make(self, seed: int) -> nn.Module:
        return make(seed)


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that were walked."""
    seen: list[nn.Module] = []

    def watch(root: nn.Module) -> Walk:
        seen.append(root)
        return walk(root)

    monkeypatch.setattr(_at_once, "walk", watch)
    monkeypatch.setattr(_fill, "walk", watch)
    return seen


def test_what_was_described_is_filled_without_another_look(walked: list[nn.Module]):
    model, other = make(1), make(2)
    fillings, wanted = fillings_from(model, other), values_of(other)
    bridge = AtOnce()
    bridge.outline(model)
    bridge.fill(model, fillings, [])
    assert values_of(model) == wanted
    assert walked == [model]


def test_a_save_and_a_load_walk_their_models_once(tmp_path, walked: list[nn.Module]):
    model, other = make(1), make(2)
    firekeep.save(other, tmp_path / "m.safetensors")
    wanted = values_of(other)
    report = firekeep.load_into(model, tmp_path / "m.safetensors")
    assert report.exact
    assert values_of(model) == wanted
    assert walked == [other, model]


def test_a_second_filling_looks_again(walked: list[nn.Module]):
    """After the first, parameters may be other objects: those on the meta device are replaced."""
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    bridge = AtOnce()
    bridge.outline(model)
    for source in (first, second):
        bridge.fill(model, fillings_from(model, source), [])
    assert torch.equal(model.weight, second.weight)
    assert walked == [model, model]


def test_another_model_than_the_one_described_is_looked_at(walked: list[nn.Module]):
    described, filled, source = make(1), make(2), make(3)
    kept, wanted = values_of(described), values_of(source)
    bridge = AtOnce()
    bridge.outline(described)
    bridge.fill(filled, fillings_from(filled, source), [])
    assert values_of(filled) == wanted
    assert values_of(described) == kept
    assert walked == [described, filled]


def test_tied_places_take_new_memory_together():
    model, other = make(1), make(2)
    bridge = AtOnce()
    slots = {slot.path: slot for slot in bridge.outline(model)}
    entry = next(entry for entry in entries_of(other) if entry.name == "embed.weight")
    done: list[str] = []
    bridge.fill(model, [Filling(slots["embed.weight"], entry, F64)], done)
    assert done == ["embed.weight"]
    assert model.head.weight is model.embed.weight
    assert model.head.weight.dtype is torch.float64
    assert torch.equal(model.head.weight, other.embed.weight.double())


def _other_weight(model: Any) -> None:
    model.last.weight = nn.Parameter(torch.zeros(3, 3))


def _other_layer(model: Any) -> None:
    model.last = nn.Linear(3, 3)


@pytest.mark.parametrize("change", [_other_weight, _other_layer])
def test_a_model_that_is_changed_while_names_are_chosen_is_looked_at_again(tmp_path, change: Any):
    def make_net() -> Any:
        return nn.Sequential(OrderedDict(first=nn.Linear(3, 3), last=nn.Linear(3, 3)))

    source, model = make_net(), make_net()
    firekeep.save(source, tmp_path / "m.safetensors")

    def choose(place: Any) -> bool:
        if place.path == "first.weight":
            change(model)
        return True

    assert firekeep.load_into(model, tmp_path / "m.safetensors", include=choose).exact
    assert values_of(model) == values_of(source)
