"""Models into which exports of PyTorch were once loaded by Burn: the same names are applied, and the same numbers come out.

Inputs are pieces of PyTorch's uniform stream, as the exports drew them. Files that are not among the test data are made again from
the seeds they were made from.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import firekeep
from firekeep.module import (
    BatchNorm,
    Conv2d,
    ConvTranspose1d,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    Module,
    Param,
    Relu,
)
from firekeep.module import Conv1d as NativeConv1d
from firekeep.module import ConvTranspose2d as NativeConvTranspose2d
from use.experiments import BURN, close, run, stream


class Pair(Module):
    """Two layers, one after the other."""

    conv1: Module
    conv2: Module

    def __call__(self, x: Any) -> Any:
        return self.conv2(self.conv1(x))


class TorchPair(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2(self.conv1(x))


class Norm(Module):
    norm1: Module

    def __call__(self, x: Any) -> Any:
        return self.norm1(x)


class TorchNorm(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm1 = norm
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm1(x)


class Embed(Module):
    embed: Embedding

    def __call__(self, x: Any) -> Any:
        return self.embed(x)


class TorchEmbed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embed(x)


class Linears(Module):
    """Without a bias in the second: its file has none."""

    fc1: Linear
    fc2: Linear | None = None

    def __call__(self, x: Any) -> Any:
        x = self.fc1(x)
        return x if self.fc2 is None else self.fc2(Relu()(x))


class TorchLinears(nn.Module):
    def __init__(self, *, second: bool) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2, 3)
        self.fc2 = nn.Linear(3, 4, bias=False) if second else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc1(x)
        return x if self.fc2 is None else self.fc2(torch.relu(x))


CONV1D = [
    [0.02987457, 0.03134188, 0.04234261, -0.02437721],
    [-0.03788019, -0.02972012, -0.0080609, -0.01981254],
]
CONV2D = [
    [[-0.02502128, 0.00250649, 0.04841233], [0.04589614, -0.00296854, 0.01991477], [0.02920526, 0.0594973, 0.04326791]],
    [[-0.04825336, 0.0801909, -0.02375088], [0.02885434, 0.09638263, -0.07460806], [0.02004079, 0.06244051, 0.0358871]],
]
TRANSPOSED1D = [
    [0.02935525, 0.01119324, -0.01356167, -0.00682688],
    [0.01644749, -0.01429807, 0.00083987, 0.00279229],
]
TRANSPOSED2D_ROW = [0.04547675, 0.01879685, -0.01636661, 0.00310803]
LINEAR = [
    [0.09778349, -0.13756673, 0.04962806, 0.08856435],
    [0.03163241, -0.02848549, 0.01437942, 0.11905234],
    [0.07628226, -0.10757702, 0.03656857, 0.03824598],
    [0.05443089, -0.06904714, 0.02744314, 0.09997337],
]
WITH_BIAS = [
    [-0.00432095, -1.1071012, 0.8706914],
    [0.0245955, -0.9544629, 0.48518157],
    [0.34315687, -0.7573842, 0.548288],
    [-0.06608963, -1.0720727, 0.6458005],
]
ROWS = {
    1: [-1.6094849, -0.10016718, -0.6091889],
    2: [-0.97977227, -1.6090963, -0.7121446],
    3: [0.303722, -0.7773143, -0.25145486],
    4: [-0.22227049, 1.6871134, -0.32062083],
    5: [-0.29934573, 1.8793457, -0.07213178],
    9: [-0.02878714, 2.357111, -1.0373387],
}
INDICES = np.array([[1, 2, 4, 5], [4, 3, 2, 9]])


def conv1d(folder: Path) -> Path:
    torch.manual_seed(1)
    torch.save(TorchPair(nn.Conv1d(2, 2, 2), nn.Conv1d(2, 2, 2, bias=False)).state_dict(), folder / "conv1d.pt")
    return folder / "conv1d.pt"


def conv2d(folder: Path) -> Path:
    torch.manual_seed(1)
    torch.save(TorchPair(nn.Conv2d(2, 2, 2), nn.Conv2d(2, 2, 2, bias=False)).state_dict(), folder / "conv2d.pt")
    return folder / "conv2d.pt"


def conv_transpose2d(folder: Path) -> Path:
    torch.manual_seed(1)
    pair = TorchPair(nn.ConvTranspose2d(2, 2, 2), nn.ConvTranspose2d(2, 2, 2, bias=False))
    torch.save(pair.state_dict(), folder / "conv_transpose2d.pt")
    return folder / "conv_transpose2d.pt"


def layer_norm(folder: Path) -> Path:
    torch.save({"norm1.weight": torch.ones(2), "norm1.bias": torch.zeros(2)}, folder / "layer_norm.pt")
    return folder / "layer_norm.pt"


class Case:
    """A file, models of both kinds, what goes in and what comes out; `part` chooses from the output what is known of it."""

    def __init__(
        self,
        file: str | Callable[[Path], Path],
        native: Callable[[], Any],
        theirs: Callable[[], nn.Module],
        x: np.ndarray,
        expected: Any,
        *,
        part: Any = (),
        tolerance: float = 1e-6,
        rename: Any = (),
    ) -> None:
        self.file, self.native, self.theirs, self.x = file, native, theirs, x
        self.expected, self.part, self.tolerance, self.rename = expected, part, tolerance, rename

    def path(self, folder: Path) -> Path:
        return BURN / self.file if isinstance(self.file, str) else self.file(folder)


def convolutions(native: Any, **options: Any) -> Callable[[], Any]:
    return lambda: Pair(conv1=native(2, 2, 2), conv2=native(2, 2, 2, bias=False))


def torch_convolutions(layer: Any) -> Callable[[], nn.Module]:
    return lambda: TorchPair(layer(2, 2, 2), layer(2, 2, 2, bias=False))


CASES = {
    "batch_norm2d": Case(
        "burn_batch_norm2d.pt",
        lambda: Norm(norm1=BatchNorm(5)),
        lambda: TorchNorm(nn.BatchNorm2d(5)),
        np.full((1, 5, 2, 2), 0.7, np.float32),
        np.full((1, 5, 2, 2), 0.68515635),
    ),
    "batch_norm2d safetensors": Case(
        "burn_batch_norm2d.safetensors",
        lambda: Norm(norm1=BatchNorm(5)),
        lambda: TorchNorm(nn.BatchNorm2d(5)),
        np.full((1, 5, 2, 2), 0.7, np.float32),
        np.full((1, 5, 2, 2), 0.68515635),
    ),
    "conv1d": Case(conv1d, convolutions(NativeConv1d), torch_convolutions(nn.Conv1d), stream(1, 18, 1, 2, 6), [CONV1D]),
    "conv2d": Case(conv2d, convolutions(Conv2d), torch_convolutions(nn.Conv2d), stream(1, 34, 1, 2, 5, 5), [CONV2D]),
    "key_remap": Case(
        "burn_key_remap.pt",
        convolutions(Conv2d),
        torch_convolutions(nn.Conv2d),
        stream(1, 34, 1, 2, 5, 5),
        [CONV2D],
        rename=r"conv\.(.*)=>$1",
    ),
    "conv_transpose1d": Case(
        "burn_conv_transpose1d.pt",
        convolutions(ConvTranspose1d),
        torch_convolutions(nn.ConvTranspose1d),
        stream(1, 18, 1, 2, 2),
        [TRANSPOSED1D],
    ),
    "conv_transpose2d": Case(
        conv_transpose2d,
        convolutions(NativeConvTranspose2d),
        torch_convolutions(nn.ConvTranspose2d),
        stream(1, 34, 1, 2, 2, 2),
        TRANSPOSED2D_ROW,
        part=(0, 0, 0),
    ),
    "embedding": Case(
        "burn_embedding.pt",
        lambda: Embed(embed=Embedding(10, 3)),
        TorchEmbed,
        INDICES,
        [[ROWS[index] for index in row] for row in INDICES],
    ),
    "group_norm": Case(
        "burn_group_norm.pt",
        lambda: Norm(norm1=GroupNorm(2, 6)),
        lambda: TorchNorm(nn.GroupNorm(2, 6)),
        stream(1, 0, 1, 6, 2, 2),
        [[1.0425785, -1.1220167], [-0.56195974, 0.9387336]],
        part=(0, 0),
    ),
    "layer_norm": Case(
        layer_norm,
        lambda: Norm(norm1=LayerNorm(2)),
        lambda: TorchNorm(nn.LayerNorm(2)),
        np.array([[[0.7, 0.2], [-0.4, 1.9]]], np.float32),
        [[[0.9999, -0.9999], [-0.9999, 0.9999]]],
        tolerance=1e-4,
    ),
    "linear": Case(
        "burn_linear.pt",
        lambda: Linears(fc1=Linear(2, 3), fc2=Linear(3, 4, bias=False)),
        lambda: TorchLinears(second=True),
        stream(1, 30, 4, 2),
        LINEAR,
    ),
    "linear_with_bias": Case(
        "burn_linear_with_bias.pt",
        lambda: Linears(fc1=Linear(2, 3)),
        lambda: TorchLinears(second=False),
        stream(1, 30, 4, 2),
        WITH_BIAS,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("door", ["load_into", "store"])
def test_the_same_numbers_come_out(name: str, kind: str, door: str, tmp_path: Path):
    case = CASES[name]
    model = case.native() if kind == "native" else case.theirs()
    path = case.path(tmp_path)
    if door == "store":
        store = firekeep.SafetensorsStore if path.suffix == ".safetensors" else firekeep.PytorchStore
        report = store(path, rename=case.rename).load_into(model)
    else:
        report = firekeep.load_into(model, path, rename=case.rename)
    assert report.exact
    with firekeep.open(path) as file:
        counters = sum("num_batches_tracked" in tensor for tensor in file) if kind == "native" else 0
        assert len(report.applied) == len(file) - counters
        assert len(report.no_counterpart) == counters
    close(run(model, case.x)[case.part], case.expected, case.tolerance)


def test_a_norm_of_batches_takes_burns_names():
    report = firekeep.load_into(Norm(norm1=BatchNorm(5)), BURN / "burn_batch_norm2d.pt")
    assert report.applied == ("norm1.beta", "norm1.gamma", "norm1.running_mean", "norm1.running_var")
    assert report.no_counterpart == ("norm1.num_batches_tracked",)


def test_and_its_counter_comes_to_pytorch():
    model = TorchNorm(nn.BatchNorm2d(5))
    assert firekeep.load_into(model, BURN / "burn_batch_norm2d.pt").exact
    assert int(model.norm1.num_batches_tracked) == 1


@pytest.mark.parametrize("include", ["^lin", "^norm"])
def test_a_counter_is_not_unused_where_a_filter_leaves_its_layer_out(include: str, tmp_path: Path):
    class Both(Module):
        norm: BatchNorm
        lin: Linear

    theirs = nn.ModuleDict({"norm": nn.BatchNorm1d(2), "lin": nn.Linear(2, 2)})
    torch.save(theirs.state_dict(), tmp_path / "both.pt")
    report = firekeep.load_into(Both(norm=BatchNorm(2), lin=Linear(2, 2)), tmp_path / "both.pt", include=include)
    assert report.exact
    assert len(report.applied) == (2 if include == "^lin" else 4)
    assert report.no_counterpart == ("norm.num_batches_tracked",)


class Buffer(Module):
    buffer: Param


BUFFERS = {
    "bool": ("burn_boolean.pt", np.zeros(3, bool), [True, False, True]),
    "bool safetensors": ("burn_boolean.safetensors", np.zeros(3, bool), [True, False, True]),
    "float": ("burn_buffer.pt", np.zeros((3, 3), np.float32), [[1.0] * 3] * 3),
    "float safetensors": ("burn_buffer.safetensors", np.zeros((3, 3), np.float32), [[1.0] * 3] * 3),
}


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("kind", ["native", "torch", "plain"])
def test_buffers_keep_their_kind(name: str, kind: str):
    file, zeros, values = BUFFERS[name]
    if kind == "native":
        model: Any = Buffer(buffer=Param(zeros))
        firekeep.load_into(model, BURN / file)
        found = model.buffer.value
    elif kind == "torch":
        model = nn.Module()
        model.register_buffer("buffer", torch.from_numpy(zeros.copy()))
        firekeep.load_into(model, BURN / file)
        found = model.buffer.numpy()
    else:
        model = {"buffer": zeros.copy()}
        firekeep.load_into(model, BURN / file)
        found = model["buffer"]
    assert found.dtype == zeros.dtype
    assert found.tolist() == values


def test_a_buffer_of_numbers_is_added_to_an_input():
    model = Buffer(buffer=Param(np.zeros((3, 3), np.float32)))
    firekeep.load_into(model, BURN / "burn_buffer.pt")
    assert (np.ones((3, 3), np.float32) + model.buffer.value).tolist() == [[2.0] * 3] * 3


def test_whole_numbers_stay_whole(tmp_path: Path):
    torch.save({"buffer": torch.tensor([1, 2, 3])}, tmp_path / "integer.pt")
    model = Buffer(buffer=Param(np.zeros(3, np.int64)))
    report = firekeep.load_into(model, tmp_path / "integer.pt")
    assert not report.casts
    assert str(model.buffer.dtype) == "I64"
    assert model.buffer.value.tolist() == [1, 2, 3]
    floats = Buffer(buffer=Param(np.zeros(3, np.float32)))
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(floats, BURN / "burn_boolean.pt")
    assert [error.kind for error in caught.value.report.errors] == ["kind"]
