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


PARTS = [
    {"model.": 1, "ema.": 2},
    {"state_dict/model.": 1, "state_dict/ema_model.": 2},
    {"state_dict/model.": 1, "ema/shadow/": 2},
    {"model/module.": 1, "ema/": 2},
    {"G/": 1, "D/": 2},
    {"student/backbone.": 1, "teacher/backbone.": 2},
    {"a.b/model.": 1, "a.b/ema.": 2},
    {"G/": 1, "D/": 2, "E/": 3},
]
"""Keys of dicts within dicts, up to each slash, and what names of tensors begin with there; by each, a seed."""


def nested(parts: Mapping[str, int]) -> bytes:
    root: dict[str, Any] = {}
    for place, seed in parts.items():
        node, *keys = root, *place.split("/")
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node.update({keys[-1] + name: tensor for name, tensor in make_torch(seed).state_dict().items()})
    buffer = io.BytesIO()
    torch.save(root, buffer)
    return buffer.getvalue()


def ways_of(error: firekeep.FirekeepError) -> list[dict[str, Any]]:
    """The keyword arguments that an error proposes, as someone would copy them."""
    if isinstance(error, firekeep.LoadError):
        told = [remedy.python for remedy in error.report.remedies]
    else:
        told = [(error.remedy or "").removeprefix("Choose one, ").removesuffix(".")]
    return [eval(f"dict({one})") for one in told]


@pytest.mark.parametrize("parts", PARTS, ids=" ".join)
@pytest.mark.parametrize("strict", [True, False])
def test_each_way_that_is_proposed_takes_exactly_one_part(parts: Mapping[str, int], strict: bool):
    data, model = nested(parts), make_torch(seed=9)
    with pytest.raises(firekeep.FirekeepError) as caught:
        firekeep.load_into(model, data, strict=strict)
    ways, seeds = ways_of(caught.value), []
    assert ways
    for way in ways:
        model = make_torch(seed=9)
        assert firekeep.load_into(model, data, strict=strict, **way).complete
        seeds += [seed for seed in parts.values() if state_of(model) == state_of(make_torch(seed))]
    assert seeds == sorted(set(seeds))
    assert len(seeds) == len(ways) == (len(parts) if isinstance(caught.value, firekeep.LoadError) else 1)


def test_more_in_the_part_is_told_along_with_the_choice():
    with pytest.raises(firekeep.RuleError, match=r"top_level_key='model', allow_unused=True\."):
        firekeep.load_into(make_torch(seed=9), nested({"model/": 1, "ema/": 2, "model/old.": 3}), layout="torch")


def test_renames_that_were_given_stay_behind_the_one_that_chooses():
    arrays = {f"{part}.x.{n}": a for part in ("model", "ema") for n, a in arrays_of(make_torch(1)).items()}
    data = firekeep.save_bytes(arrays, format="safetensors")
    with pytest.raises(firekeep.RuleError, match=r'rename=\[r"\^model\\\.x\\\.=>", \.\.\.\], allow_unused=True'):
        firekeep.load_into(make_torch(seed=9), data, rename=[r"\bx\.=>"])
