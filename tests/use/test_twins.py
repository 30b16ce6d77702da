"""Files that hold one model twice: which of the two is meant, nobody guesses."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import firekeep
from contracts.nets import arrays_of, make_torch, state_of


def twice(*names: str, **others: Any) -> bytes:
    """A file of the same model with other values under each name."""
    buffer = io.BytesIO()
    parts = {name: make_torch(seed).state_dict() for seed, name in enumerate(names, 1)}
    torch.save({**parts, **others}, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("names", [("model", "ema"), ("state_dict", "ema_state_dict"), ("ema", "module")])
def test_two_models_of_the_same_names_are_refused_and_each_is_had_by_its_key(names: tuple[str, str]):
    data = twice(*names)
    model = make_torch(seed=9)
    before = state_of(model)
    for load in (firekeep.load_into, lambda obj, source: firekeep.PytorchStore(source).load_into(obj)):
        with pytest.raises(firekeep.RuleError) as caught:
            load(model, data)
        assert all(f"{name!r}" in str(caught.value) for name in names)
        assert "top_level_key=" in str(caught.value)
    assert state_of(model) == before
    for seed, name in enumerate(names, 1):
        report = firekeep.load_into(model, data, top_level_key=name)
        assert report.exact
        assert f"the part '{name}' was taken" in str(report)
        assert state_of(model) == state_of(make_torch(seed))


def test_the_remedy_of_parts_further_in_names_the_whole_path():
    buffer = io.BytesIO()
    torch.save({"weights": {"model": make_torch(1).state_dict(), "ema": make_torch(2).state_dict()}}, buffer)
    with pytest.raises(firekeep.RuleError, match=r"top_level_key='weights\.model'"):
        firekeep.load_into(make_torch(seed=9), buffer.getvalue(), top_level_key="weights")
    model = make_torch(seed=9)
    assert firekeep.load_into(model, buffer.getvalue(), top_level_key="weights.ema").exact
    assert state_of(model) == state_of(make_torch(2))


def test_a_dry_run_and_all_of_the_file_are_refused_alike():
    for options in ({"dry_run": True}, {"top_level_key": ""}):
        with pytest.raises(firekeep.RuleError, match="top_level_key='model'"):
            firekeep.load_into(make_torch(seed=9), twice("model", "ema"), **options)


def test_of_two_models_the_only_one_that_fits_is_taken_and_named():
    buffer = io.BytesIO()
    torch.save({"model": make_torch(1).state_dict(), "ema": nn.Linear(7, 5).state_dict()}, buffer)
    model = make_torch(seed=9)
    report = firekeep.PytorchStore(buffer.getvalue()).load_into(model)
    assert state_of(model) == state_of(make_torch(1))
    assert "prefix 'model.' was taken off" in str(report)
    assert report.unused == ("ema.bias", "ema.weight")


def test_a_model_with_both_parts_in_it_takes_both():
    both = nn.ModuleDict({"model": make_torch(7), "ema": make_torch(8)})
    assert firekeep.load_into(both, twice("model", "ema")).exact
    assert state_of(both["ema"]) == state_of(make_torch(2))


def test_a_layer_of_the_same_shape_beside_the_model_is_no_second_model():
    arrays = {"model.fc.weight": np.ones((2, 2), "f4"), "model.head.weight": np.zeros((2, 2), "f4")}
    target: Mapping[str, Any] = {"fc": {"weight": np.full((2, 2), 5, "f4")}}
    report = firekeep.load_into(target, firekeep.save_bytes(arrays, format="safetensors"), allow_unused=True)
    assert report.complete
    assert (target["fc"]["weight"] == 1).all()


def test_in_a_file_without_keys_the_remedy_is_a_rename():
    arrays = {
        f"{part}.{n}": a + i for i, part in enumerate(("model", "ema")) for n, a in arrays_of(make_torch(1)).items()
    }
    data = firekeep.save_bytes(arrays, format="safetensors")
    with pytest.raises(firekeep.RuleError, match=r'rename=\[r"\^model\\\.=>"\]'):
        firekeep.load_into(make_torch(seed=9), data, allow_unused=True)
    model = make_torch(seed=9)
    assert firekeep.load_into(model, data, rename=[r"^model\.=>"], allow_unused=True).complete
    assert state_of(model) == state_of(make_torch(1))
