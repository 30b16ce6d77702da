"""Stores over real exports: what is chosen, named, refused and read, as it was once tried with Burn's stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firekeep
from firekeep.module import BatchNorm, Conv2d, Linear, Module, walk
from use.experiments import BURN, refusal, run, state_of, stream, untouched

LINEAR = BURN / "burn_linear.pt"


class Linears(Module):
    fc1: Linear
    fc2: Linear


class Named(Module):
    linear1: Linear
    linear2: Linear


def make_linears(*, bias: bool = True) -> Linears:
    """Give a net whose second bias the file has not, or one that it has whole."""
    return Linears(fc1=Linear(2, 3), fc2=Linear(3, 4, bias=bias))


class TestPytorchStore:
    def test_a_bias_more_than_the_file_has(self):
        model = make_linears()
        report = refusal(firekeep.PytorchStore(LINEAR).load_into, model)
        assert report.missing == ("fc2.bias",)
        assert untouched(model)
        report = firekeep.PytorchStore(LINEAR, allow_partial=True).load_into(model)
        assert report.applied == ("fc1.bias", "fc1.weight", "fc2.weight")
        assert report.missing == ("fc2.bias",)
        assert model.fc2(model.fc1(np.ones((1, 2), np.float32))).shape == (1, 4)

    def test_one_layer_by_a_pattern(self):
        model = make_linears()
        report = firekeep.PytorchStore(LINEAR, include=r"^fc1\.").load_into(model)
        assert report.applied == ("fc1.bias", "fc1.weight")
        assert report.skipped == ("fc2.bias", "fc2.weight")
        assert not report.unused
        assert not model.fc2.weight.is_initialized

    def test_everything_but_biases(self):
        report = firekeep.PytorchStore(LINEAR, exclude="bias").load_into(make_linears())
        assert report.applied == ("fc1.weight", "fc2.weight")
        assert report.complete

    def test_weights_by_a_function(self):
        report = firekeep.PytorchStore(LINEAR, include=lambda place: place.path.endswith("weight")).load_into(
            make_linears()
        )
        assert report.applied == ("fc1.weight", "fc2.weight")

    def test_a_pattern_that_chooses_nothing_is_refused(self):
        model = make_linears()
        with pytest.raises(firekeep.RuleError, match="none of the 4 places of Linears"):
            firekeep.PytorchStore(LINEAR, include="^nothing$", allow_partial=True).load_into(model)
        assert untouched(model)

    def test_two_layers_under_other_names(self):
        model = Named(linear1=Linear(2, 3), linear2=Linear(3, 4, bias=False))
        store = firekeep.PytorchStore(LINEAR, rename=[r"^fc1\.=>linear1.", r"^fc2\.=>linear2."])
        assert store.load_into(model).exact
        twin = make_linears(bias=False)
        assert firekeep.PytorchStore(LINEAR).load_into(twin).exact
        assert list(state_of(model).values()) == list(state_of(twin).values())

    def test_names_are_the_new_ones_and_only_these(self):
        store = firekeep.PytorchStore(LINEAR, rename=r"^fc1\.=>first.", include="^fc2")
        assert set(store.keys()) == {"first.weight", "first.bias", "fc2.weight"}
        assert store.keys() == store.keys()
        entry = store.entry("first.weight")
        assert entry.shape == (3, 2)
        assert (
            np.frombuffer(entry.read(), np.float32)[:2].round(6).tolist() == np.float32([0.364346, -0.312102]).tolist()
        )
        with pytest.raises(firekeep.TensorNotFoundError, match=r"fc1\.weight"):
            store.entry("fc1.weight")

    def test_a_file_that_is_not_there(self, tmp_path: Path):
        store = firekeep.PytorchStore(tmp_path / "none.pt")
        with pytest.raises(FileNotFoundError, match=r"none\.pt"):
            store.load_into(make_linears())

    def test_a_key_that_is_not_there(self):
        with pytest.raises(firekeep.FirekeepError, match="no_such_key"):
            firekeep.PytorchStore(LINEAR, top_level_key="no_such_key").load_into(make_linears())

    def test_it_does_not_save(self, tmp_path: Path):
        with pytest.raises(firekeep.UnsupportedError, match="safetensors"):
            firekeep.PytorchStore(tmp_path / "out.pt").save(make_linears())
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("key", ["model_state_dict", None])
    def test_the_model_in_a_checkpoint(self, key: str | None):
        model = Linears(fc1=Linear(5, 10), fc2=Linear(10, 3))
        report = firekeep.PytorchStore(BURN / "burn_checkpoint.pt", top_level_key=key).load_into(model)
        assert report.exact
        assert len(report.applied) == 4
        assert any("model_state_dict" in note for note in report.notes)

    def test_a_legacy_file(self):
        model = {"weight": np.zeros((2, 3), np.float32), "bias": np.zeros(2, np.float32)}
        report = firekeep.PytorchStore(BURN / "burn_simple_legacy.pt").load_into(model)
        assert report.applied == ("bias", "weight")
        assert report.unused == ("running_mean",)
        assert model["bias"].tolist() == [1, 1]


class Block(Module):
    conv: Conv2d
    norm: BatchNorm


class WebMnist(Module):
    """The net of Burn's example in the browser."""

    conv1: Block
    conv2: Block
    fc1: Linear
    fc2: Linear
    fc3: Linear


def make_web(layout: Any = "row") -> WebMnist:
    def block(inputs: int) -> Block:
        return Block(conv=Conv2d(inputs, 64, 3), norm=BatchNorm(64))

    return WebMnist(
        conv1=block(1),
        conv2=block(64),
        fc1=Linear(1600, 128, layout=layout),
        fc2=Linear(128, 128, layout=layout),
        fc3=Linear(128, 10, layout=layout),
    )


class TestBurnpackStore:
    FILE = BURN / "mnist_web_model.bpk"

    def test_a_file_that_burn_wrote(self):
        model = make_web()
        report = firekeep.BurnpackStore(self.FILE).load_into(model)
        assert report.exact
        assert len(report.applied) == 18
        assert not report.renamed
        arrays = firekeep.load_file(self.FILE)
        assert state_of(model) == {path: arrays[path].tobytes() for path in state_of(model)}

    def test_its_ids_become_those_of_parameters_and_not_of_statistics(self):
        model = make_web()
        before = {visited.path: visited.param.id for visited in walk(model)}
        firekeep.BurnpackStore(self.FILE).load_into(model)
        with firekeep.open(self.FILE) as file:
            for visited in walk(model):
                expected = before[visited.path] if visited.param.is_state else file.entry(visited.path).param_id
                assert visited.param.id == expected

    def test_saved_it_has_the_same_tensors_and_ids(self, tmp_path: Path):
        model = make_web()
        firekeep.load_into(model, self.FILE)
        report = firekeep.BurnpackStore(tmp_path / "model").save(model)
        assert report.path == tmp_path / "model.bpk"
        with firekeep.open(self.FILE) as before, firekeep.open(report.path) as after:
            assert list(after) == list(before)
            for name, entry in before.entries.items():
                assert bytes(after.entry(name).read()) == bytes(entry.read())
                if not name.endswith(("mean", "var")):
                    assert after.entry(name).param_id == entry.param_id

    def test_through_safetensors_and_pytorchs_layout_nothing_is_lost(self, tmp_path: Path):
        model, back = make_web(), make_web()
        firekeep.load_into(model, self.FILE)
        firekeep.save(model, tmp_path / "web.safetensors")
        assert firekeep.load_into(back, tmp_path / "web.safetensors").exact
        assert state_of(back) == state_of(model)
        x = stream(1, 0, 2, 1600)
        assert run(back.fc1, x).tobytes() == run(model.fc1, x).tobytes()

    def test_in_memory(self):
        saved, back = make_linears(), make_linears()
        store = firekeep.BurnpackStore()
        store.save(saved)
        assert firekeep.BurnpackStore(store.data).load_into(back).exact
        assert state_of(back) == state_of(saved)

    def test_a_tensor_without_an_id_leaves_the_parameters_own(self, tmp_path: Path):
        arrays = {"fc1.weight": np.ones((2, 3), np.float32)}
        firekeep.save_file(arrays, tmp_path / "plain.bpk")
        model = make_linears()
        own = model.fc1.weight.id
        report = firekeep.load_into(model, tmp_path / "plain.bpk", include="fc1.weight", layout="burn")
        assert report.applied == ("fc1.weight",)
        assert report.ids_restored == 0
        assert model.fc1.weight.id == own
        assert model.fc1.weight.value.tolist() == [[1.0] * 3] * 2
