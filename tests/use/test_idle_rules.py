"""Patterns and renames of a load that meet nothing are told."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import firekeep
from firekeep.rules import KeyRemapper, PathFilter

EXCLUDED = "exclude '^clasifier' met no tensor of the model"
RENAMED = r"rename '^nett\.=>net.' met no name of the file"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.classifier = nn.Linear(4, 2)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.pt"
    torch.save(Net().state_dict(), path)
    return path


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_slip_of_the_pen_is_told(file, strict, dry_run):
    report = firekeep.load_into(
        Net(), file, exclude="^clasifier", rename=r"^nett\.=>net.", strict=strict, dry_run=dry_run
    )
    assert report.ok
    assert report.notes == (EXCLUDED, RENAMED)
    assert f"note: {EXCLUDED}" in str(report)
    assert report.to_dict()["notes"] == [EXCLUDED, RENAMED]


def test_a_refused_load_tells_it_too(file):
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(nn.Sequential(nn.Linear(3, 4)), file, rename=r"^encodr\.=>0.")
    assert r"rename '^encodr\.=>0.' met no name of the file" in caught.value.report.notes


def test_so_does_a_preview(file):
    assert firekeep.preview(file, file, include=["^encoder", "^decoder"]).notes == (
        "include '^decoder' met no tensor of the model",
    )


def test_what_meets_something_is_not_told(file):
    report = firekeep.load_into(Net(), file, include="^encoder", exclude="bias$", rename="^classifier=>classifier")
    assert report.notes == ()
    assert report.applied == ("encoder.weight",)


def test_filters_within_filters_are_looked_into(file):
    chosen = PathFilter.glob("encoder.*", "head.*") | PathFilter.exact("classifier.bias", "classifier.biass")
    notes = firekeep.load_into(Net(), file, include=chosen).notes
    assert notes == (
        r"include '\Ahead\.[^.]*\Z' met no tensor of the model",
        "include 'classifier.biass' met no tensor of the model",
    )


def test_between_two_models_there_is_no_file():
    assert firekeep.apply(Net(), Net(), rename="^x=>y").notes == ("rename '^x=>y' met no name of the source",)


def test_many_rules_are_told_at_once_and_names_of_a_table_too(file):
    remapper = KeyRemapper.of([f"^block{n}=>b{n}" for n in range(9)], names={"old.weight": "new.weight"})
    first, second = firekeep.load_into(Net(), file, rename=remapper).notes
    assert first.startswith("9 renames met no name of the file: '^block0=>b0', ")
    assert second == "1 name of the table of renames met no name of the file: 'old.weight'"


def test_a_preset_is_told_only_where_none_of_it_was_found(tmp_path):
    path = tmp_path / "llama.pt"
    torch.save({"model.encoder.weight": torch.zeros(4, 3)}, path)
    preset = KeyRemapper.preset("hf-llama-to-burn")
    model = nn.ModuleDict({"encoder": nn.Linear(3, 4, bias=False)})
    assert firekeep.load_into(model, path, rename=preset).notes == ()
    torch.save({"encoder.weight": torch.zeros(4, 3)}, path)
    assert len(firekeep.load_into(model, path, rename=preset).notes) == 3
