"""PyTorch and firekeep give the same tensors for whatever `torch.save` writes, and for files PyTorch would not write itself."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import firekeep
from firekeep.dtypes import BY_NAME
from firekeep.errors import UnsupportedError
from firekeep.formats.pytorch import Opaque, TensorRef
from firekeep.opened import OpenedFile
from pickles import FALSE, NONE, floats, legacy_file, mapping, tensor, zip_file
from pickles import pickled as closed

DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
LAYOUTS = pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])


def saved(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(value, out, **options)
    return out.getvalue()


def raw(tensor_: torch.Tensor) -> bytes:
    """The bytes of a tensor as they would lie in a row."""
    dense = torch.empty(tensor_.numel(), dtype=tensor_.dtype)
    dense.copy_(tensor_.detach().reshape(-1))
    return dense.view(torch.uint8).numpy().tobytes()


def flat(value: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """Name the tensors of nested dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return {prefix: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    found: dict[str, torch.Tensor] = {}
    for key, item in items:
        found |= flat(item, f"{prefix}.{key}" if prefix else str(key))
    return found


def assert_same(file: OpenedFile, tensors: dict[str, torch.Tensor]) -> None:
    assert file.keys() == list(tensors)
    for name, expected in tensors.items():
        entry = file.entry(name)
        assert entry.dtype is BY_NAME[entry.require().name]
        assert entry.require().torch == str(expected.dtype).removeprefix("torch.")
        assert entry.shape == tuple(expected.shape)
        assert bytes(entry.read()) == raw(expected)


def sample(dtype: str, *shape: int) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.randn(shape) > 0
    if kind.is_complex or kind in (torch.float64, torch.float32):
        return torch.randn(shape, dtype=kind)
    if kind.is_floating_point:
        return torch.randn(shape).abs().to(kind)
    return torch.randint(0, 100, shape).to(kind)


@LAYOUTS
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_read(dtype: str, new: bool):
    value = sample(dtype, 3, 4)
    state = {"w": value, "turned": value.t(), "part": value[1], "one": value[0, 0], "none": value[:0]}
    file = firekeep.open(saved(state, _use_new_zipfile_serialization=new))
    assert_same(file, state)
    assert file.variant == ("zip" if new else "legacy")


@LAYOUTS
@pytest.mark.parametrize("protocol", range(1, 6))
def test_every_protocol_is_read(protocol: int, new: bool):
    state = {"w": torch.randn(3), "many": [torch.full((1,), float(index)) for index in range(300)]}
    data = saved(state, pickle_protocol=protocol, _use_new_zipfile_serialization=new)
    assert_same(firekeep.open(data), flat(state))


def test_a_file_of_protocol_0_is_read():
    state = {"w": torch.randn(3)}
    data = saved(state, pickle_protocol=0, _use_new_zipfile_serialization=False)
    assert_same(firekeep.open(data), state)


@LAYOUTS
def test_views_and_ties_are_read(new: bool):
    base = torch.arange(60.0).reshape(3, 4, 5)
    state = {
        "base": base,
        "permuted": base.permute(2, 0, 1),
        "step": base[:, ::2, 1:],
        "expanded": base[0, :, :1].expand(4, 7),
        "diagonal": base[:, :3, 0].diagonal(),
        "windows": base.reshape(-1).unfold(0, 4, 1),
        "channels": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "tied": base,
        "real": torch.view_as_real(torch.randn(2, dtype=torch.complex64)),
        "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
        "negated": torch.randn(3, dtype=torch.complex128).conj().imag,
    }
    file = firekeep.open(saved(state, _use_new_zipfile_serialization=new))
    assert_same(file, state)
    assert file.ties == {"tied": "base"}


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_strided_view_is_read(data: st.DataObject):
    base = torch.arange(200, dtype=torch.int32)
    shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
    strides = [data.draw(st.integers(0, 12)) for _ in shape]
    view = torch.as_strided(base, shape, strides, data.draw(st.integers(0, 20)))
    new = data.draw(st.booleans())
    assert_same(firekeep.open(saved({"w": view}, _use_new_zipfile_serialization=new)), {"w": view})


@LAYOUTS
def test_nested_checkpoints_are_read(new: bool):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "rng": [torch.get_rng_state()],
        "nested": {"a": ({"b": torch.ones(1)}, None)},
    }
    file = firekeep.open(saved(state, _use_new_zipfile_serialization=new))
    assert_same(file, flat(state))
    assert file.subtrees[0] == "model"
    chosen = firekeep.open(saved(state, _use_new_zipfile_serialization=new), top_level_key="model")
    assert_same(chosen, dict(model.state_dict()))
    values = file.values()
    assert values["epoch"] == 3
    assert values["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
    assert values["model"]["0.weight"] == TensorRef("model.0.weight")


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16)
        self.conv = nn.Conv1d(2, 3, 3)
        self.rnn = nn.LSTM(3, 4, 2, bidirectional=True)
        self.list = nn.ModuleList([nn.Linear(2, 2), nn.Identity(), nn.Linear(2, 2)])
        self.dict = nn.ModuleDict({"a.b".replace(".", "_"): nn.Embedding(4, 2)})
        self.params = nn.ParameterList([torch.randn(2), torch.randn(1)])
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.register_buffer("halves", torch.ones(2, dtype=torch.float16))
        self.register_buffer("hidden", torch.ones(2), persistent=False)
        self.register_parameter("nothing", None)
        self.head = nn.Linear(2, 4, bias=False)
        self.head.weight = self.dict["a_b"].weight
        self.plain = torch.ones(3)


@LAYOUTS
def test_whole_models_are_read_as_their_state_dict(new: bool):
    model = Deep()
    file = firekeep.open(saved(model, _use_new_zipfile_serialization=new))
    assert_same(file, dict(model.state_dict()))
    assert file.ties == {"head.weight": "dict.a_b.weight"}


def test_the_versions_of_modules_are_those_of_the_state_dict():
    state = Deep().state_dict()
    assert firekeep.open(saved(state)).details["state_dict_metadata"] == dict(state._metadata)


def test_parameters_and_buffers_by_themselves_are_read():
    parameter = nn.Parameter(torch.randn(2))
    marked = nn.Parameter(torch.randn(2))
    marked.note = "kept"  # type: ignore[attr-defined]
    state = {"p": parameter, "marked": marked, "buffer": nn.Buffer(torch.ones(1))}
    assert_same(firekeep.open(saved(state)), {name: value.detach() for name, value in state.items()})


class Tagged(torch.Tensor):
    pass


def test_subclasses_that_are_plain_tensors_are_read():
    value = torch.randn(3).as_subclass(Tagged)
    assert_same(firekeep.open(saved({"w": value})), {"w": torch.Tensor(value)})


@LAYOUTS
def test_bare_tensors_and_storages_are_read(new: bool):
    value = torch.arange(3.0)
    assert_same(firekeep.open(saved(value, _use_new_zipfile_serialization=new)), {"": value})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = value.storage()
    assert_same(firekeep.open(saved([storage], _use_new_zipfile_serialization=new)), {"0": value})
    untyped = firekeep.open(saved([value.untyped_storage()], _use_new_zipfile_serialization=new))
    assert bytes(untyped.entry("0").read()) == raw(value)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 5, torch.qint8)


def per_channel() -> torch.Tensor:
    return torch.quantize_per_channel(
        torch.randn(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([1, 2]), 0, torch.quint8
    )


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


ODD: dict[str, tuple[Callable[[], torch.Tensor], str, tuple[int, ...]]] = {
    "quantized": (quantized, "QINT8", (2, 3)),
    "quantized by channel": (per_channel, "QUINT8", (2, 3)),
    "sparse": (lambda: torch.eye(3).to_sparse(), "F32", (3, 3)),
    "sparse rows": (lambda: torch.eye(3).to_sparse_csr(), "F32", (3, 3)),
    "nested": (nested, "F32", ()),
    "meta": (lambda: torch.empty(2, 3, device="meta", dtype=torch.bfloat16), "BF16", (2, 3)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ODD)
def test_tensors_without_plain_bytes_are_named_and_cost_no_other(kind: str):
    make, dtype, shape = ODD[kind]
    file = firekeep.open(saved({"odd": make(), "w": torch.ones(2)}))
    assert file.keys() == ["odd", "w"]
    assert file.array("w").tolist() == [1, 1]
    assert str(file.entry("odd").dtype) == dtype
    assert file.entry("odd").shape == shape
    with pytest.raises(UnsupportedError) as caught:
        file.array("odd")
    assert caught.value.tensor == "odd"
    assert kind.split(maxsplit=1)[0] in caught.value.message


def test_quantized_modules_show_their_integers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(3, 2)), {nn.Linear}, torch.qint8)
        data = saved(model.state_dict())
        weight = model[0].weight()
    file = firekeep.open(data)
    held = {name: entry for name, entry in file.entries.items() if entry.problem is None}
    assert not any(str(entry.dtype).startswith("Q") for entry in held.values())
    assert weight.dtype == torch.qint8
    assert any("quantized" in (entry.problem or "") for entry in file.entries.values())


def test_other_values_are_plain_data():
    state = {
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 1),
        "size": torch.Size([2, 3]),
        "numpy": np.arange(3),
        "scalar": np.float32(1.5),
        "layer": nn.Linear,
        "generator": {1, 2},
    }
    values = firekeep.open(saved(state)).values()
    assert values["dtype"] == "torch.bfloat16"
    assert values["device"] == "cuda:1"
    assert values["size"] == (2, 3)
    assert values["numpy"].tolist() == [0, 1, 2]
    assert values["scalar"] == np.float32(1.5)
    assert values["layer"] == Opaque("torch.nn.modules.linear.Linear")
    assert values["generator"] == {1, 2}


def test_a_file_on_disk_is_read_and_mapped(tmp_path: Path):
    path = tmp_path / "model.pt"
    state = {f"layer.{index}": torch.randn(7, 5) for index in range(20)}
    torch.save(state, path)
    mapped = torch.load(path, mmap=True, weights_only=True)
    with firekeep.open(path) as file:
        assert_same(file, mapped)
        assert all(entry.blob.window() is not None for entry in file.entries.values())


class Script(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.steps = nn.ModuleList([nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)])
        self.register_buffer("table", torch.arange(3))
        self.attribute = torch.ones(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.fc(x))
        for step in self.steps:
            x = step(x)
        return x + self.attribute * self.table.sum()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["script", "trace"])
def test_script_archives_are_read_as_their_state_dict(kind: str, tmp_path: Path):
    model = Script().eval()
    scripted = torch.jit.script(model) if kind == "script" else torch.jit.trace(model, torch.randn(2, 3))
    path = tmp_path / "model.pt"
    torch.jit.save(scripted, path)
    state = torch.jit.load(path).state_dict()
    with firekeep.open(path) as file:
        assert file.variant == "torchscript"
        assert_same(file, dict(state))
        assert list(file.container.check()) == []


@pytest.mark.filterwarnings("ignore")
def test_frozen_script_archives_have_no_tensors(tmp_path: Path):
    path = tmp_path / "frozen.pt"
    torch.jit.save(torch.jit.freeze(torch.jit.script(Script().eval())), path)
    state = torch.jit.load(path).state_dict()
    with firekeep.open(path) as file:
        assert_same(file, dict(state))


def test_plain_pickles_of_tensors_are_read():
    state = {"w": torch.arange(6.0).reshape(2, 3).t(), "h": torch.ones(2, dtype=torch.float16)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = pickle.dumps(state)
    assert_same(firekeep.open(data), state)


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "complex64", "complex128", "bool"])
def test_both_byte_orders_are_read_as_pytorch_reads_them(order: str, dtype: str):
    value = sample(dtype, 4)
    kind = next(row.storage for row in BY_NAME.values() if row.torch == dtype)
    data = zip_file(closed(mapping({"w": tensor(str(kind), "0", 4)})), {"0": raw(value)}, byteorder=order.encode())
    assert_same(firekeep.open(data), torch.load(io.BytesIO(data), weights_only=True))


def test_storages_of_big_endian_machines_are_read_as_pytorch_reads_them():
    data = legacy_file(
        mapping({"w": tensor("FloatStorage", "0", 3, view=NONE)}), {"0": (3, floats(1, 2, 3))}, little=FALSE
    )
    theirs = torch.load(io.BytesIO(data), weights_only=True)
    assert theirs["w"].tolist() == [1, 2, 3]
    assert_same(firekeep.open(data), theirs)
