"""What firekeep saves and converts, read by the libraries that other people read it with."""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from torch import nn

import firekeep
from firekeep import UnsupportedError

CASES = Path(__file__).parents[1] / "data" / "cases" / "files"

KINDS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and a[name].shape == b[name].shape and bits(a[name]) == bits(b[name])
        for name in b
    )


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_tensors_of_pytorch_are_saved_as_they_are(dtype: torch.dtype, tmp_path: Path):
    tensor = torch.arange(24).reshape(4, 6).to(dtype)
    tensors = {"w": tensor, "t": tensor.t(), "slice": tensor[1:, ::2], "rank0": tensor[0, 1], "empty": tensor[:0]}
    path = firekeep.save_file(tensors, tmp_path / "m.safetensors", digest=True)
    assert same(safetensors.torch.load_file(path), tensors)
    assert firekeep.verify(path).ok


@pytest.mark.parametrize(
    "dtype", [kind for kind in KINDS if not kind.is_complex and "float8" not in str(kind)], ids=str
)
def test_tensors_of_pytorch_go_into_burnpack(dtype: torch.dtype, tmp_path: Path):
    tensor = torch.arange(24).reshape(4, 6).to(dtype)
    path = firekeep.save_file({"w": tensor.t()}, tmp_path / "m.bpk")
    loaded = firekeep.load_file(path)["w"]
    assert loaded.shape == (6, 4)
    assert loaded.tobytes() == bits(tensor.t())


def test_parameters_lazy_forms_and_views_are_saved_by_value(tmp_path: Path):
    base = torch.arange(6).to(torch.complex64)
    tensors: dict[str, Any] = {
        "parameter": nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16)),
        "conjugate": (base * 1j).conj(),
        "imaginary": (base * 1j).conj().imag,
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "grad": torch.ones(3, requires_grad=True) * 2,
        "buffer": nn.Buffer(torch.ones(2)),
    }
    path = firekeep.save_file(tensors, tmp_path / "m.safetensors")
    loaded = safetensors.torch.load_file(path)
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor.detach().resolve_conj().resolve_neg()), name


def test_shared_parameters_are_stored_once(tmp_path: Path):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100, 32)
            self.head = nn.Linear(32, 100, bias=False)
            self.head.weight = self.embed.weight

    model = Model()
    path = firekeep.save_file(model.state_dict(), tmp_path / "m.safetensors")
    assert path.stat().st_size < 14_000
    other = Model()
    safetensors.torch.load_model(other, path)
    assert torch.equal(other.head.weight, model.head.weight)
    again = firekeep.load_file(path)
    assert again["head.weight"] is again["embed.weight"]


def test_views_of_one_storage_that_differ_are_not_tied(tmp_path: Path):
    base = torch.arange(12.0)
    tensors = {"a": base[:6], "b": base[6:], "c": base.reshape(3, 4), "d": base}
    path = firekeep.save_file(tensors, tmp_path / "m.safetensors")
    assert same(safetensors.torch.load_file(path), tensors)


class Wrapped(torch.Tensor):
    """A tensor that keeps its values elsewhere, as quantized and distributed ones do."""

    @staticmethod
    def __new__(cls, shape: tuple[int, ...]) -> Self:
        return torch.Tensor._make_wrapper_subclass(cls, shape)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.ones(2, device="meta"), "a meta tensor"),
        (lambda: torch.eye(3).to_sparse(), r"torch.sparse_coo.*to_dense"),
        (lambda: Wrapped((2, 2)), r"Wrapped is a tensor that keeps its values in a form of its own"),
        (lambda: nn.Linear(1, 1), "Linear is not a tensor"),
        (lambda: torch.float32, "dtype is not a tensor"),
        (lambda: torch.zeros(2, dtype=torch.complex32), "C32"),
    ],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_tensors_without_plain_values_are_refused_by_name(make: Any, message: str, tmp_path: Path):
    with pytest.raises(UnsupportedError, match=message) as caught:
        firekeep.save_file({"fine": torch.ones(1), "odd": make()}, tmp_path / "m.safetensors")
    assert caught.value.tensor == "odd"
    assert not list(tmp_path.iterdir())


def test_bytes_are_those_of_the_safetensors_library(tmp_path: Path):
    arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.ones(4, np.int64),
        "c": np.zeros(1, np.float16),
    }
    path = firekeep.save_file(arrays, tmp_path / "m.safetensors", metadata={"format": "np"})
    assert path.read_bytes() == safetensors.numpy.save(arrays, metadata={"format": "np"})


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "f8_e4m3", "f8_e5m2"])
def test_casts_are_those_of_pytorch(dtype: str, tmp_path: Path):
    generator = torch.Generator().manual_seed(5)
    numbers = torch.randn(1 << 14, generator=generator) * torch.exp(torch.randn(1 << 14, generator=generator))
    torch.save({"w": numbers, "n": torch.arange(3)}, tmp_path / "in.pt")
    firekeep.convert(tmp_path / "in.pt", tmp_path / "out.safetensors", dtype=dtype)
    target = {
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "f64": torch.float64,
        "f8_e4m3": torch.float8_e4m3fn,
        "f8_e5m2": torch.float8_e5m2,
    }[dtype]
    loaded = safetensors.torch.load_file(tmp_path / "out.safetensors")
    assert same(loaded, {"w": numbers.to(target), "n": torch.arange(3)})


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_a_state_dict_of_pytorch_is_converted(new: bool, tmp_path: Path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2).to(torch.bfloat16))
    torch.save(model.state_dict(), tmp_path / "in.pt", _use_new_zipfile_serialization=new)
    report = firekeep.convert(tmp_path / "in.pt", tmp_path / "out.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "out.safetensors")
    assert same(loaded, dict(model.state_dict()))
    assert report.tensors == len(model.state_dict())
    with safetensors.safe_open(tmp_path / "out.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2).to(torch.bfloat16)).load_state_dict(loaded)


def test_a_training_checkpoint_gives_its_model(tmp_path: Path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "config": {"lr": 1e-3}},
        tmp_path / "run.ckpt",
    )
    report = firekeep.convert(tmp_path / "run.ckpt", tmp_path / "out.safetensors")
    assert same(safetensors.torch.load_file(tmp_path / "out.safetensors"), dict(model.state_dict()))
    assert report.part == "model"
    assert len(report.left_out) == 6
    assert report.dropped.values == ("optimizer", "epoch", "config")


def test_a_whole_model_is_converted_like_its_state_dict(tmp_path: Path):
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    torch.save(model, tmp_path / "model.pt")
    report = firekeep.convert(tmp_path / "model.pt", tmp_path / "out.safetensors")
    assert same(safetensors.torch.load_file(tmp_path / "out.safetensors"), dict(model.state_dict()))
    assert any("torch.nn.modules.container.Sequential" in note for note in report.notes)


def test_a_set_of_shards_is_read_by_its_index(tmp_path: Path):
    tensors = {f"t{index}": torch.full((100,), float(index)) for index in range(10)}
    torch.save(OrderedDict(tensors), tmp_path / "in.pt")
    report = firekeep.convert(tmp_path / "in.pt", tmp_path / "set", max_shard_size="1kB")
    joined: dict[str, torch.Tensor] = {}
    for path in report.destinations[:-1]:
        held = safetensors.torch.load_file(path)
        assert sum(tensor.nbytes for tensor in held.values()) <= 1000
        joined |= held
    assert same(dict(sorted(joined.items())), dict(sorted(tensors.items())))


def test_tied_names_are_read_by_the_safetensors_library(tmp_path: Path):
    shared = torch.ones(3, 3)
    torch.save({"head.weight": shared, "embed.weight": shared}, tmp_path / "in.pt")
    firekeep.convert(tmp_path / "in.pt", tmp_path / "out.safetensors")
    with safetensors.safe_open(tmp_path / "out.safetensors", "pt") as file:
        assert list(file.keys()) == ["embed.weight"]
        assert file.metadata()["head.weight"] == "embed.weight"
    firekeep.convert(tmp_path / "in.pt", tmp_path / "full.safetensors", ties="expand")
    assert sorted(safetensors.torch.load_file(tmp_path / "full.safetensors")) == ["embed.weight", "head.weight"]


def test_loaded_arrays_become_tensors_without_a_warning(tmp_path: Path):
    path = firekeep.save_file({"w": torch.ones(2, 3)}, tmp_path / "m.safetensors")
    tensor = torch.from_numpy(firekeep.load_file(path)["w"])
    tensor += 1
    assert torch.equal(tensor, torch.full((2, 3), 2.0))
    assert torch.equal(safetensors.torch.load_file(path)["w"], torch.ones(2, 3))


def test_a_buffer_of_torch_save_is_converted_from_memory(tmp_path: Path):
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer)
    buffer.seek(0)
    firekeep.convert(buffer, tmp_path / "out.safetensors")
    assert torch.equal(safetensors.torch.load_file(tmp_path / "out.safetensors")["w"], torch.ones(2))
