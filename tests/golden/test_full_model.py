"""A whole model saved with `torch.save(model)` is read as its state dict, without its class and without PyTorch."""

from __future__ import annotations

from pathlib import Path

import firekeep

MADE = Path(__file__).parents[1] / "data" / "made"


def test_a_whole_model_has_the_names_of_its_state_dict_and_no_other():
    with firekeep.open(MADE / "full_model.pt") as model:
        assert model.keys() == [
            "running_mean",
            "fc.weight",
            "fc.bias",
            "head.weight",
            "blocks.0.weight",
            "blocks.0.bias",
            "blocks.1.weight",
            "blocks.1.bias",
            "blocks.1.running_mean",
            "blocks.1.running_var",
            "blocks.1.num_batches_tracked",
            "tied.weight",
            "tied.bias",
        ]


def test_a_whole_model_has_the_values_of_its_state_dict():
    with firekeep.open(MADE / "full_model.pt") as model, firekeep.open(MADE / "full_model_state_dict.pt") as state:
        assert model.keys() == state.keys()
        for name in state:
            assert model.entry(name).dtype == state.entry(name).dtype
            assert model.array(name).tolist() == state.array(name).tolist()


def test_a_child_under_two_names_is_tied_and_other_tensors_are_told():
    with firekeep.open(MADE / "full_model.pt") as model:
        assert model.ties == {"tied.weight": "fc.weight", "tied.bias": "fc.bias"}
        assert any("1 tensor is a plain attribute of a module" in note for note in model.notes)
        assert "__main__.FullModel" in model.details["globals"]


def test_the_state_dict_keeps_the_versions_of_its_modules():
    with firekeep.open(MADE / "full_model_state_dict.pt") as state:
        versions = state.details["state_dict_metadata"]
        assert versions["blocks.1"] == {"version": 2}
        assert versions.keys() == {"", "fc", "head", "blocks", "blocks.0", "blocks.1", "tied"}
