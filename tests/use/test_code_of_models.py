"""Models whose own code takes part when PyTorch saves and loads them: said, since none of it is run here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import firekeep


class Hooked(nn.Module):
    """Keeps its weight turned round in files, as PyTorch's hooks allow."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.register_state_dict_post_hook(self._turn)
        self.register_load_state_dict_pre_hook(self._turn)

    @staticmethod
    def _turn(_module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
        state[f"{prefix}fc.weight"] = state[f"{prefix}fc.weight"].t()


class Overriding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        state = {name: value * 2 if name == f"{prefix}scale" else value for name, value in state.items()}
        super()._load_from_state_dict(state, prefix, *rest)


class Keeping(nn.Module):
    def __init__(self, steps: int = 0) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.steps = steps

    def get_extra_state(self) -> dict[str, int]:
        return {"steps": self.steps}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Hooked(), "the model itself changes tensors by code of its own"),
        (nn.Sequential(nn.Linear(2, 2), Overriding()), "'1' changes tensors by code of its own"),
        (nn.ModuleDict({"a": Hooked(), "b": Overriding()}), "'a', 'b' change tensors by code of their own"),
    ],
)
def test_code_that_would_change_tensors_is_told(tmp_path, model: nn.Module, told: str):
    saved = firekeep.save(model, tmp_path / "m.safetensors")
    loaded = firekeep.load_into(model, tmp_path / "m.safetensors")
    for report, how in ((saved, "as they lie in the model"), (loaded, "as they are in the file")):
        text = " ".join(str(report).split())
        assert told in text
        assert how in text


def test_what_such_a_model_saves_here_comes_back_as_it_was(tmp_path):
    source, model = Hooked(), Hooked()
    firekeep.save(source, tmp_path / "m.safetensors")
    firekeep.load_into(model, tmp_path / "m.safetensors")
    assert torch.equal(model.fc.weight, source.fc.weight)


def test_a_state_besides_tensors_is_told_and_stays(tmp_path):
    torch.save(Keeping(7).state_dict(), tmp_path / "m.pt")
    model = nn.Sequential(Keeping(1))
    report = firekeep.load_into(model, tmp_path / "m.pt", rename=r"^=>0.")
    assert model[0].steps == 1
    assert "'0' keeps a state besides tensors" in " ".join(str(report).split())


@pytest.mark.parametrize(
    "model",
    [
        nn.BatchNorm1d(2),
        nn.LSTM(2, 2),
        nn.MultiheadAttention(4, 2),
        nn.utils.spectral_norm(nn.Linear(2, 2)),
        nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
    ],
)
def test_of_pytorchs_own_code_nothing_is_told(tmp_path, model: nn.Module):
    firekeep.save(model, tmp_path / "m.safetensors")
    assert firekeep.load_into(model, tmp_path / "m.safetensors").notes == ()


def test_floats_that_are_all_exponent_take_floats(tmp_path):
    """float8_e8m0fnu holds powers of two alone: PyTorch rounds to it."""
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones(4).to(torch.float8_e8m0fnu), requires_grad=False)
    torch.save({"scale": torch.tensor([1.0, 2.0, 4.0, 0.5])}, tmp_path / "m.pt")
    report = firekeep.load_into(model, tmp_path / "m.pt")
    assert report.casts == {"scale": ("F32", "F8_E8M0")}
    assert model.scale.float().tolist() == [1.0, 2.0, 4.0, 0.5]
