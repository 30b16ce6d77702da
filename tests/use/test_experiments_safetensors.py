"""Models that go through safetensors files and come back: what was once tried with Burn's store, and what it gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from torch import nn

import firekeep
from firekeep.module import BatchNorm, Conv2d, Gelu, LayerNorm, Linear, Module, Param, Relu, walk
from use.experiments import BURN, close, refusal, run, state_of, stream, untouched


class Encoder(Module):
    weight: Param
    bias: Param
    norm: Param


class Decoder(Module):
    projection: Linear
    scale: Param


class Whole(Module):
    encoder: Encoder
    decoder: Decoder
    layers: list[Linear]


NAMES = (
    *("decoder.projection.bias", "decoder.projection.weight", "decoder.scale"),
    *("encoder.bias", "encoder.norm", "encoder.weight"),
    *("layers.0.weight", "layers.1.bias", "layers.1.weight"),
)


def make_whole(fill: float | None = None) -> Whole:
    weight = (
        np.arange(1, 9, dtype=np.float32).reshape(2, 2, 2) if fill is None else np.full((2, 2, 2), fill, np.float32)
    )
    return Whole(
        encoder=Encoder(
            weight=Param(weight), bias=Param([0.1, 0.2, 0.3]), norm=Param(np.ones(3, np.float32) * (fill or 1))
        ),
        decoder=Decoder(
            projection=Linear(4, 2), scale=Param(np.full((2, 2), 0.5 if fill is None else fill, np.float32))
        ),
        layers=[Linear(3, 4, bias=False), Linear(4, 3)],
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


class TestThereAndBack:
    @pytest.mark.parametrize("layout", ["torch", "burn"])
    def test_bit_for_bit(self, path: Path, layout: str):
        model, back = make_whole(), make_whole(9.0)
        assert firekeep.save(model, path, layout=layout).layout == layout
        report = firekeep.load_into(back, path)
        assert report.exact
        assert report.applied == NAMES
        assert back.encoder.weight.value.shape == (2, 2, 2)
        assert state_of(back) == state_of(model)

    @pytest.mark.parametrize("layout", ["torch", "burn"])
    def test_only_what_belongs_to_a_layer_is_turned_round(self, path: Path, layout: str):
        firekeep.save(make_whole(), path, layout=layout)
        with firekeep.open(path) as file:
            assert file.entry("decoder.projection.weight").shape == ((2, 4) if layout == "torch" else (4, 2))
            assert file.array("encoder.weight").tolist() == make_whole().encoder.weight.value.tolist()

    def test_a_parameter_that_is_only_called_gamma_keeps_its_name(self, path: Path):
        class Own(Module):
            norm_gamma: Param
            norm_beta: Param
            gamma: Param

        model = Own(norm_gamma=Param([1.5, 2.5]), norm_beta=Param([0.5, 1.0]), gamma=Param([3.0]))
        firekeep.save(model, path)
        with firekeep.open(path) as file:
            assert sorted(file) == ["gamma", "norm_beta", "norm_gamma"]
        back = Own(norm_gamma=Param([0.0, 0.0]), norm_beta=Param([0.0, 0.0]), gamma=Param([0.0]))
        assert firekeep.load_into(back, path).exact
        assert state_of(back) == state_of(model)

    def test_another_suffix_is_no_obstacle(self, tmp_path: Path):
        saved, back = Linear(4, 2), Linear(4, 2)
        firekeep.SafetensorsStore(tmp_path / "model.st").save(saved)
        report = firekeep.SafetensorsStore(tmp_path / "model.st").load_into(back)
        assert report.applied == ("bias", "weight")
        assert state_of(back) == state_of(saved)

    def test_the_output_is_that_of_the_model_that_was_saved(self, path: Path):
        class Net(Module):
            first: Linear
            second: Linear

            def __call__(self, x: Any) -> Any:
                return self.second(Gelu()(self.first(x)))

        saved, back = (Net(first=Linear(4, 8), second=Linear(8, 2)) for _ in range(2))
        x = stream(1, 0, 3, 4)
        assert not np.allclose(run(saved, x), run(back, x))
        firekeep.save(saved, path)
        assert len(firekeep.load_into(back, path).applied) == 4
        assert run(back, x).tobytes() == run(saved, x).tobytes()

    def test_tuples_and_parts_in_parts(self, path: Path):
        class Outer(Module):
            pair: tuple[Linear, Whole]

        saved, back = (Outer(pair=(Linear(2, 3), make_whole(fill))) for fill in (None, 7.0))
        firekeep.save(saved, path)
        report = firekeep.load_into(back, path)
        assert "pair.1.layers.0.weight" in report.applied
        assert state_of(back) == state_of(saved)


class TestFilters:
    def test_only_a_part_is_saved(self, path: Path):
        report = firekeep.save(make_whole(), path, include=r"^encoder\..*")
        assert report.tensors == 3
        back = make_whole(7.0)
        loaded = firekeep.SafetensorsStore(path, allow_partial=True).load_into(back)
        assert loaded.applied == ("encoder.bias", "encoder.norm", "encoder.weight")
        assert len(loaded.missing) == 6
        assert refusal(firekeep.SafetensorsStore(path).load_into, make_whole()).missing == loaded.missing

    def test_only_a_part_is_loaded(self, path: Path):
        firekeep.save(make_whole(), path)
        back = make_whole(7.0)
        report = firekeep.SafetensorsStore(path, include=r"^encoder\..*").load_into(back)
        assert report.applied == ("encoder.bias", "encoder.norm", "encoder.weight")
        assert not report.missing
        assert not report.unused
        assert back.decoder.scale.value.tolist() == [[7.0, 7.0], [7.0, 7.0]]
        assert back.encoder.weight.value.ravel().tolist() == list(range(1, 9))

    @pytest.mark.parametrize("strict", [True, False])
    def test_a_strict_load_of_a_part_loads_it(self, path: Path, strict: bool):
        firekeep.save(make_whole(), path)
        back = make_whole(7.0)
        report = firekeep.load_into(back, path, include="encoder.weight", strict=strict)
        assert report.applied == ("encoder.weight",)
        assert back.encoder.weight.value.ravel().tolist() == list(range(1, 9))


class TestDtypes:
    class Mixed(Module):
        small: Param
        count: Param
        mask: Param
        extreme: Param

    def make(self, zero: bool = False) -> Mixed:
        values = [
            np.float32([[1.5, -2.5, 3.25]]),
            np.int32([np.iinfo(np.int32).min, 0, np.iinfo(np.int32).max]),
            np.array([[True, False, True], [False, True, False]]),
            np.float32([np.finfo(np.float32).max, np.finfo(np.float32).tiny, -np.inf]),
        ]
        return self.Mixed(
            **{
                name: Param(value * 0 if zero and value.dtype != bool else value ^ zero if zero else value)
                for name, value in zip(("small", "count", "mask"), values, strict=False)
            },
            extreme=Param(np.zeros(3, np.float32) if zero else values[3]),
        )

    def test_every_kind_comes_back_as_it_was(self, path: Path):
        model, back = self.make(), self.make(zero=True)
        firekeep.save(model, path)
        report = firekeep.load_into(back, path)
        assert report.exact
        assert not report.casts
        assert state_of(back) == state_of(model)

    def test_a_module_keeps_float32_unless_the_files_dtype_is_asked_for(self, path: Path):
        values = np.array([1 / 3, 2.0])
        save_arrays({"small": values}, path)

        class One(Module):
            small: Param

        model = One(small=Param([0.0, 0.0]))
        report = firekeep.load_into(model, path)
        assert report.casts == {"small": ("F64", "F32")}
        assert model.small.value.tolist() == values.astype(np.float32).tolist()
        firekeep.load_into(model, path, dtype="file")
        assert model.small.value.dtype == np.float64
        assert model.small.value.tolist() == values.tolist()

    def test_half_precision_of_some_layers(self):
        class Net(Module):
            linear: Linear
            norm: LayerNorm
            own: Param

        net = Net(linear=Linear(3, 2), norm=LayerNorm(2), own=Param([1.0]))
        entries = firekeep.entries_of(net)
        outline = firekeep.slots_of(net)
        cast = {entry.name: str(entry.dtype) for entry in firekeep.HalfPrecisionAdapter().adapt(entries, outline)}
        assert cast == {
            "linear.weight": "F16",
            "linear.bias": "F16",
            "norm.gamma": "F16",
            "norm.beta": "F16",
            "own": "F32",
        }
        less = firekeep.HalfPrecisionAdapter(without_module=["LayerNorm"]).adapt(entries, outline)
        assert {entry.name for entry in less if str(entry.dtype) == "F16"} == {"linear.weight", "linear.bias"}

    def test_saved_in_half_precision_and_loaded_into_single(self, path: Path):
        model, back = make_whole(), make_whole(7.0)
        firekeep.save(model, path, dtype="f16")
        report = firekeep.load_into(back, path)
        assert set(report.casts.values()) == {("F16", "F32")}
        for visited, other in zip(walk(back), walk(model), strict=True):
            close(visited.param.value, other.param.value, 1e-2)


def test_a_linear_of_another_size_is_refused_or_left(path: Path):
    firekeep.save(Linear(2, 2), path)
    model = Linear(3, 3)
    report = refusal(firekeep.SafetensorsStore(path).load_into, model)
    assert [error.kind for error in report.errors] == ["shape", "shape"]
    assert untouched(model)


def test_a_store_reads_its_tensors_by_name(path: Path):
    store = firekeep.SafetensorsStore(path, rename=r"^encoder\.=>coder.")
    firekeep.save(make_whole(), path)
    assert len(store.keys()) == 9
    assert store.entry("coder.weight").shape == (2, 2, 2)
    with pytest.raises(firekeep.TensorNotFoundError, match="coder"):
        store.entry("encoder.weight")
    firekeep.save(Linear(2, 2), path)
    assert sorted(store.keys()) == ["bias", "weight"]


class MultiLayer(Module):
    conv1: Conv2d
    norm1: BatchNorm
    fc1: Linear

    def __call__(self, x: Any) -> Any:
        return self.fc1(Relu()(self.norm1(self.conv1(x))).reshape(len(x), -1))


class TorchMultiLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(4)
        self.fc1 = nn.Linear(256, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc1(torch.relu(self.norm1(self.conv1(x))).flatten(1))


class TestAnExportOfSeveralLayers:
    X = np.ones((1, 3, 8, 8), np.float32)
    EXPECTED = (
        *(0.04971555, -0.16849735, 0.05182848, -0.18032673, 0.23138367, 0.05041867, 0.13005908, -0.32202929),
        *(-0.0791569, -0.03232457, -0.19790289, -0.17476529, -0.19627589, -0.21757686, -0.31376451, 0.08377837),
    )

    @pytest.fixture
    def export(self, path: Path) -> Path:
        """Make it again: from its seed, after one step of statistics."""
        torch.manual_seed(1)
        model = TorchMultiLayer()
        model(torch.ones(1, 3, 8, 8))
        save_file(model.state_dict(), path)
        return path

    def make(self) -> MultiLayer:
        return MultiLayer(conv1=Conv2d(3, 4, 3, padding=1), norm1=BatchNorm(4), fc1=Linear(256, 16))

    def test_gives_the_same_numbers(self, export: Path):
        model = self.make()
        report = firekeep.SafetensorsStore(export).load_into(model)
        assert report.exact
        assert len(report.applied) == 8
        close(run(model, self.X), [self.EXPECTED])

    def test_by_pytorch(self, export: Path):
        model = TorchMultiLayer().eval()
        assert firekeep.load_into(model, export).exact
        close(run(model, self.X), [self.EXPECTED])

    @pytest.mark.parametrize("suffix", ["bpk", "safetensors"])
    def test_saved_and_loaded_once_more_the_output_is_identical(self, export: Path, suffix: str, tmp_path: Path):
        model, again = self.make(), self.make()
        firekeep.load_into(model, export)
        firekeep.save(model, tmp_path / f"again.{suffix}")
        assert firekeep.load_into(again, tmp_path / f"again.{suffix}").exact
        assert run(again, self.X).tobytes() == run(model, self.X).tobytes()

    def test_a_model_of_one_of_the_layers_takes_that(self, export: Path):
        class One(Module):
            fc1: Linear

        report = firekeep.SafetensorsStore(export).load_into(One(fc1=Linear(256, 16)))
        assert report.applied == ("fc1.bias", "fc1.weight")
        assert len(report.unused) == 7


class Mnist(Module):
    """The net of Burn's example that imports weights."""

    conv1: Conv2d
    conv2: Conv2d
    conv3: Conv2d
    norm1: BatchNorm
    fc1: Linear
    fc2: Linear
    norm2: BatchNorm

    def __call__(self, x: Any) -> Any:
        for conv in (self.conv1, self.conv2, self.conv3):
            x = Relu()(conv(x))
        x = self.norm1(x).reshape(len(x), -1)
        return self.norm2(self.fc2(Relu()(self.fc1(x))))


class TorchMnist(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3), nn.Conv2d(16, 24, 3)
        self.norm1, self.norm2 = nn.BatchNorm2d(24), nn.BatchNorm1d(10)
        self.fc1, self.fc2 = nn.Linear(11616, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in (self.conv1, self.conv2, self.conv3):
            x = torch.relu(conv(x))
        return self.norm2(self.fc2(torch.relu(self.fc1(self.norm1(x).flatten(1)))))


@pytest.mark.parametrize("name", ["burn_mnist.pt", "burn_mnist.safetensors", "burn_import_mnist_whole_model.pt"])
def test_the_exports_of_mnist_run_as_in_pytorch(name: str):
    model = Mnist(
        **{f"conv{n}": Conv2d(i, o, 3) for n, (i, o) in enumerate([(1, 8), (8, 16), (16, 24)], 1)},
        fc1=Linear(11616, 32),
        fc2=Linear(32, 10),
        norm1=BatchNorm(24),
        norm2=BatchNorm(10),
    )
    report = firekeep.load_into(model, BURN / name)
    assert report.exact
    assert len(report.applied) == 18
    assert len(report.no_counterpart) == 2
    theirs = TorchMnist().eval()
    assert firekeep.load_into(theirs, BURN / name).exact
    assert state_of(theirs) == state_of(firekeep.load_file(BURN / name))
    x = stream(1, 0, 2, 1, 28, 28)
    out = run(theirs, x)
    close(run(model, x), out, 1e-5 * float(np.abs(out).max()))
