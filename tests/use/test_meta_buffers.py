"""Buffers that no file holds, in models that are made on no device."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import firekeep


class Rotary(nn.Module):
    """Has a buffer that no state dict holds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("frequencies", torch.arange(3.0), persistent=False)
        self.register_buffer("steps", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * self.frequencies


def test_buffers_that_no_file_holds_are_told_while_they_are_on_the_meta_device(tmp_path: Path):
    torch.manual_seed(3)
    model = nn.Sequential(Rotary(), Rotary())
    firekeep.save(model, tmp_path / "m.safetensors")
    with torch.device("meta"):
        empty = nn.Sequential(Rotary(), Rotary())
    for dry_run in (True, False):
        report = firekeep.load_into(empty, tmp_path / "m.safetensors", dry_run=dry_run)
        (note,) = (note for note in report.notes if "meta" in note)
        assert "'0.frequencies', '1.frequencies'" in note
    assert report.exact
    assert not any(tensor.is_meta for tensor in empty.state_dict().values())
    assert "model.get_submodule('0').frequencies = tensor" in note
    for path in ("0", "1"):  # as the note says
        empty.get_submodule(path).frequencies = torch.arange(3.0)
    x = torch.ones(2, 3)
    assert torch.equal(empty(x), model(x))
    assert "1.frequencies" not in empty.state_dict()
    assert not any("meta" in note for note in firekeep.load_into(empty, tmp_path / "m.safetensors").notes)


def test_a_model_in_memory_is_told_nothing_of_its_other_buffers(tmp_path: Path):
    firekeep.save(Rotary(), tmp_path / "m.safetensors")
    assert firekeep.load_into(Rotary(), tmp_path / "m.safetensors").notes == ()
