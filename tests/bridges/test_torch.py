"""PyTorch models described and filled: names, ties, layers, ids, and every way a tensor gets into a parameter."""

from __future__ import annotations

import copy
import gc
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from contracts.bridge_contract import BridgeContract, fillings_from, in_memory, values_of
from firekeep.blobs import MemoryBlob, WindowBlob
from firekeep.bridges import Filling, entries_of, slots_of
from firekeep.bridges.torch import fill, ids_of
from firekeep.dtypes import BY_NAME, BY_TORCH, DType
from firekeep.entry import TensorEntry, find_ties
from firekeep.errors import EntryError, TruncatedError, UnsupportedError
from firekeep.ids import ParamId
from firekeep.sources import FileSource

F32, F64, BF16, I64, I8 = (BY_NAME[name] for name in ("F32", "F64", "BF16", "I64", "I8"))


class Tied(nn.Module):
    """A model as they are: a tied head, a list, running statistics, a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(2)])
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.rand(3) > 0.5)
        self.register_buffer("scratch", torch.zeros(9), persistent=False)
        self.scale = nn.Parameter(torch.tensor(1.0))


def make(seed: int) -> Tied:
    torch.manual_seed(seed)
    model = Tied()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        for buffer in model.buffers():
            buffer.copy_(
                torch.randint(0, 2, buffer.shape) if buffer.dtype != torch.float32 else torch.rand(buffer.shape)
            )
        model.norm.num_batches_tracked.fill_(seed)
    return model


class TestContract(BridgeContract):
    name = "torch"

    def make(self, seed: int) -> nn.Module:
        return make(seed)


def fill_all(model: nn.Module, entries: list[TensorEntry], dtype: DType | None = None) -> list[str]:
    slots = {slot.path: slot for slot in slots_of(model)}
    done: list[str] = []
    fill(model, [Filling(slots[e.name], e, dtype or slots[e.name].dtype) for e in entries], done)
    return done


def tensor_entry(name: str, value: torch.Tensor) -> TensorEntry:
    dtype = BY_TORCH[str(value.dtype).removeprefix("torch.")]
    raw = bytes(value.contiguous().reshape(-1).view(torch.uint8).numpy())
    return TensorEntry(name, dtype, tuple(value.shape), MemoryBlob(raw))


def in_file(entries: list[TensorEntry], path: Any, *, gap: int = 0) -> tuple[FileSource, list[TensorEntry]]:
    """Write the bytes of entries one after the other, and give entries that lie there."""
    places, raw = [], b""
    for entry in entries:
        raw += b"\xff" * gap
        places.append(len(raw))
        raw += bytes(entry.read())
    path.write_bytes(raw)
    source = FileSource(path)
    return source, [
        replace(entry, blob=WindowBlob(source, place, entry.nbytes))
        for entry, place in zip(entries, places, strict=True)
    ]


# Names and layers


def test_names_and_order_are_those_of_the_state_dict():
    model = make(1)
    outline = slots_of(model)
    assert outline.paths() == list(model.state_dict())
    assert outline.convention == "torch"
    assert {"blocks", "blocks.0", "blocks.1.1", "norm"} <= outline.modules
    assert "" not in outline.modules


def test_ties_point_to_the_first_name_and_share_an_id():
    model = make(1)
    assert {slot.path: slot.tied_to for slot in slots_of(model) if slot.tied_to} == {"head.weight": "embed.weight"}
    entries = entries_of(model)
    assert find_ties(entries) == {"head.weight": "embed.weight"}
    ids = {entry.name: entry.param_id for entry in entries}
    assert ids["head.weight"] == ids["embed.weight"]
    assert len(set(ids.values())) == len(ids) - 1


def test_two_parameters_over_one_memory_are_tied():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model[1].weight.data = model[0].weight.data
    assert [slot.tied_to for slot in slots_of(model)] == [None, None, "0.weight", None]


def test_a_module_in_two_places_has_both_names():
    part = nn.Linear(2, 2)
    slots = slots_of(nn.ModuleDict({"a": part, "b": part}))
    assert [(slot.path, slot.tied_to) for slot in slots] == [
        ("a.weight", None),
        ("a.bias", None),
        ("b.weight", "a.weight"),
        ("b.bias", "a.bias"),
    ]


def test_containers_name_what_owns_each_segment():
    model = make(1)
    model.extra = nn.ParameterList([nn.Parameter(torch.ones(1))])
    found = {slot.path: slot for slot in slots_of(model)}
    assert found["blocks.0.2.weight"].containers == ("Struct:Tied", "Vec", "Vec", "Struct:Linear")
    assert found["blocks.0.2.weight"].owner == "Linear"
    assert found["scale"].containers == ("Struct:Tied",)
    assert found["extra.0"].containers == ("Struct:Tied", "Vec")
    assert found["scale"].trainable
    assert not found["norm.running_mean"].trainable


class Sub(nn.Linear):
    pass


LAYERS = [
    (lambda: Sub(2, 3), "linear"),
    (lambda: nn.Embedding(2, 3), "embedding"),
    (lambda: nn.Conv1d(2, 3, 1), "conv1d"),
    (lambda: nn.Conv2d(2, 3, 1), "conv2d"),
    (lambda: nn.Conv3d(2, 3, 1), "conv3d"),
    (lambda: nn.ConvTranspose1d(2, 3, 1), "conv_transpose1d"),
    (lambda: nn.ConvTranspose2d(2, 3, 1), "conv_transpose2d"),
    (lambda: nn.ConvTranspose3d(2, 3, 1), "conv_transpose3d"),
    (lambda: nn.BatchNorm1d(2), "batch_norm"),
    (lambda: nn.BatchNorm2d(2), "batch_norm"),
    (lambda: nn.BatchNorm3d(2), "batch_norm"),
    (lambda: nn.SyncBatchNorm(2), "batch_norm"),
    (lambda: nn.LayerNorm((2, 3)), "layer_norm"),
    (lambda: nn.GroupNorm(1, 2), "group_norm"),
    (lambda: nn.InstanceNorm2d(2, affine=True), "instance_norm"),
    (lambda: nn.RMSNorm(2), "rms_norm"),
    (lambda: nn.PReLU(), "prelu"),
    (lambda: nn.Bilinear(2, 2, 2), None),
    (lambda: nn.LSTMCell(2, 2), None),
]


@pytest.mark.parametrize(("build", "kind"), LAYERS)
def test_layers_are_told_by_their_classes(build, kind):
    outline = slots_of(nn.ModuleDict({"part": build()}))
    assert [layer.kind for layer in outline.layers] == ([kind] if kind else [])
    assert {slot.layer.kind if slot.layer else None for slot in outline} == {kind}
    if kind:
        assert outline[0].role == "weight"


def test_a_linear_that_keeps_its_weight_the_other_way_round_is_known_by_name():
    cls = type("Conv1D", (nn.Module,), {"__module__": "transformers.pytorch_utils"})
    part = type("Mine", (cls,), {})()
    part.weight = nn.Parameter(torch.ones(2, 3))
    assert slots_of(part).layers[0].kind == "linear_in_out"
    stranger = type("Conv1D", (nn.Module,), {})()
    stranger.weight = nn.Parameter(torch.ones(2, 3))
    assert slots_of(stranger).layers == ()


def test_recurrent_layers_tell_what_no_tensor_tells():
    outline = slots_of(nn.ModuleList([nn.LSTM(2, 3, 2, proj_size=1), nn.GRU(2, 3, bidirectional=True), nn.RNN(2, 3)]))
    assert [(layer.kind, dict(layer.facts)) for layer in outline.layers] == [
        ("lstm", {"num_layers": 2, "bidirectional": False, "proj_size": 1}),
        ("gru", {"num_layers": 1, "bidirectional": True, "proj_size": 0}),
        ("rnn", {"num_layers": 1, "bidirectional": False, "proj_size": 0}),
    ]
    assert "0.weight_hr_l1" in outline.paths()


@pytest.mark.parametrize("norm_first", [True, False])
def test_layers_inside_a_transformer_layer_know_it(norm_first):
    model = nn.ModuleList(
        [
            nn.TransformerEncoderLayer(4, 2, 8, norm_first=norm_first),
            nn.TransformerDecoderLayer(4, 2, 8, norm_first=norm_first),
        ]
    )
    found = {slot.path: slot for slot in slots_of(model)}
    projection = found["0.self_attn.out_proj.weight"].layer
    assert projection.kind == "linear"
    assert projection.parent.kind == "multi_head_attention"
    assert projection.parent.parent.kind == "transformer_encoder_layer"
    assert projection.parent.parent.facts == {"norm_first": norm_first}
    assert projection.parent.parent.parent is None
    assert found["0.self_attn.in_proj_weight"].role == "in_proj_weight"
    cross = found["1.multihead_attn.in_proj_weight"].layer
    assert (cross.kind, cross.parent.kind, cross.parent.path) == (
        "multi_head_attention",
        "transformer_decoder_layer",
        "1",
    )
    assert found["1.norm3.bias"].layer.parent is cross.parent


# Wrappers and unusual tensors


def test_wrappers_are_seen_through_wherever_they_stand():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.compile(nn.Linear(2, 2), backend="eager")
            self.b = nn.DataParallel(nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager")))

    plain = ["a.weight", "a.bias", "b.0.weight", "b.0.bias"]
    model = torch.compile(Net(), backend="eager")
    outline = slots_of(model)
    assert outline.paths() == plain
    assert outline.modules == {"a", "b", "b.0"}
    assert outline[0].containers == ("Struct:Net", "Struct:Linear")
    assert [layer.path for layer in outline.layers] == ["a", "b.0"]
    other = torch.compile(Net(), backend="eager")
    fill(model, fillings_from(model, other), [])
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_a_scripted_model_is_the_model_it_was_written_as():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([nn.Linear(2, 2), nn.BatchNorm1d(2)])
            self.cell = nn.LSTM(2, 2)

        def forward(self, given):
            for part in self.parts:
                given = part(given)
            return self.cell(given)[0]

    written = Net()
    script = torch.jit.script(Net())
    slots, wanted = slots_of(script), slots_of(written)
    assert slots.paths() == wanted.paths()
    assert [slot.containers for slot in slots] == [slot.containers for slot in wanted]
    assert [(layer.kind, layer.path, layer.facts) for layer in slots.layers] == [
        (layer.kind, layer.path, layer.facts) for layer in wanted.layers
    ]
    fill(script, fillings_from(script, written), [])
    assert values_of(script) == values_of(written)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_layers_whose_weights_are_packed_are_refused_by_name():
    from torch.ao.nn.quantized import dynamic

    model = nn.Sequential(nn.Linear(2, 2), dynamic.Linear(2, 2), dynamic.LSTM(2, 2))
    slots = slots_of(model)
    assert slots.paths() == ["0.weight", "0.bias", "1.weight", "2.weight"]
    assert [slot.problem is not None for slot in slots] == [False, False, True, True]
    with pytest.raises(UnsupportedError, match="keeps its weights packed"):
        entries_of(model)[2].read()
    fillings = fillings_from(model, nn.Sequential(nn.Linear(2, 2)))
    packed = Filling(slots[2], replace(fillings[0].entry, name="1.weight"), F32)
    with pytest.raises(UnsupportedError, match="keeps its weights packed"):
        fill(model, [packed], [])


def test_a_parametrized_layer_keeps_the_names_that_torch_gives():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    model = nn.Sequential(layer)
    outline = slots_of(model)
    assert outline.paths() == list(model.state_dict())
    parts = outline[1]
    assert (parts.path, parts.role) == (
        "0.parametrizations.weight.original0",
        "parametrizations.weight.original0",
    )
    assert parts.layer.kind == "linear"
    assert outline[0].owner == "Linear"


def test_a_model_on_no_device_has_slots_and_comes_to_life_when_filled():
    with torch.device("meta"):
        model = Tied()
    model.scale.requires_grad_(requires_grad=False)
    model.embed.weight.note = "mine"
    assert [entry.problem is not None for entry in entries_of(model)] == [True] * len(slots_of(model))
    other = make(2)
    done = fill_all(model, [in_memory(entry) for entry in entries_of(other)])
    assert done
    assert values_of(model) == values_of(other)
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.note == "mine"
    assert isinstance(model.embed.weight, nn.Parameter)
    assert model.embed.weight.requires_grad
    assert not model.scale.requires_grad
    assert all(value.device.type == "cpu" for value in model.state_dict().values())


def test_an_lstm_on_no_device_computes_once_it_is_filled():
    other = nn.LSTM(2, 3)
    with torch.device("meta"):
        model = nn.LSTM(2, 3)
    fill(model, fillings_from(model, other), [])
    given = torch.rand(4, 1, 2)
    assert torch.equal(model(given)[0], other(given)[0])


def test_a_lazy_module_asks_for_a_run_first():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    slots = slots_of(model)
    assert slots[0].layer.kind == "linear"
    assert "run one batch through the model first" in slots[0].problem
    assert [entry.name for entry in entries_of(model)] == slots.paths()
    with pytest.raises(UnsupportedError, match="run one batch"):
        entries_of(model)[0].read()
    model(torch.rand(2, 4))
    assert slots_of(model)[0].shape == (3, 4)
    assert slots_of(model)[0].problem is None


class Elsewhere(torch.Tensor):
    """A tensor that answers for itself."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.Tensor._make_subclass(Elsewhere, torch.ones(2)), "Elsewhere"),
    ],
)
def test_tensors_without_plain_values_are_named_and_the_others_are_not_in_the_way(value, reason):
    model = nn.Linear(2, 2)
    model.register_buffer("odd", value())
    slots = {slot.path: slot for slot in slots_of(model)}
    assert reason in slots["odd"].problem
    entry = entries_of(model)[2]
    with pytest.raises(UnsupportedError, match=reason) as caught:
        entry.read()
    assert caught.value.tensor == "odd"
    other = nn.Linear(2, 2)
    fill(model, fillings_from(model, other), [])
    assert torch.equal(model.weight, other.weight)


def test_an_expanded_buffer_cannot_be_filled_and_can_be_saved():
    model = nn.Linear(1, 1)
    model.register_buffer("rows", torch.arange(3.0).expand(2, 3))
    assert "share memory" in slots_of(model)[2].problem
    assert bytes(entries_of(model)[2].read()) == bytes(torch.arange(3.0).repeat(2).numpy())


# Ids


def test_ids_survive_what_users_do_to_a_model():
    model = make(1)
    ids = ids_of(model)
    model.to(torch.float64)
    model.load_state_dict(make(2).double().state_dict(), assign=True)
    assert ids_of(model) == ids
    model.to_empty(device="cpu")
    assert ids_of(model) == ids
    assert ids_of(torch.compile(model, backend="eager")) == ids


def test_a_deep_copy_has_ids_of_its_own_and_a_dead_model_leaves_none():
    from firekeep.bridges.torch import _ids

    model = make(1)
    ids = ids_of(model)
    twin = copy.deepcopy(model)
    assert not set(ids_of(twin).values()) & set(ids.values())
    known = len(_ids._KNOWN)
    del twin
    gc.collect()
    assert len(_ids._KNOWN) < known
    assert ids_of(model) == ids


def test_an_outline_makes_no_ids():
    model = make(1)
    assert {slot.param_id for slot in slots_of(model)} == {None}


def test_tied_names_take_over_one_id():
    model = make(1)
    slots = {slot.path: slot for slot in slots_of(model)}
    wanted = next(in_memory(e) for e in entries_of(make(2)) if e.name == "embed.weight")
    fill(model, [Filling(slots["embed.weight"], replace(wanted, param_id=ParamId(7)), F32)], [])
    ids = ids_of(model)
    assert ids["embed.weight"] == ids["head.weight"] == ParamId(7)


def test_a_model_whose_class_has_no_hash_keeps_ids():
    class Equal(nn.Linear):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None

    model = nn.ModuleList([Equal(1, 1), Equal(1, 1)])
    ids = ids_of(model)
    assert ids == ids_of(model)
    assert len(set(ids.values())) == 4


def test_ids_leave_parameters_as_they_are():
    model = make(1)
    fill(model, fillings_from(model, make(2)), [])
    ids = ids_of(model)
    assert all(not vars(parameter) for parameter in model.parameters())
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.to(torch.float64)
        model.load_state_dict(make(3).state_dict())
        fill_all(model, [replace(in_memory(entry), param_id=None) for entry in entries_of(make(4))])
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert ids_of(model) == ids


# Filling


@pytest.mark.parametrize("gap", [0, 1, 5000])
def test_tensors_of_a_file_go_straight_into_parameters(tmp_path, gap):
    model, other = make(1), make(2)
    objects = dict(model.named_parameters())
    addresses = {name: value.data_ptr() for name, value in model.state_dict().items()}
    source, entries = in_file(entries_of(other), tmp_path / "weights", gap=gap)
    done = fill_all(model, entries)
    source.close()
    assert sorted(done) == sorted(entry.name for entry in entries)
    assert values_of(model) == values_of(other)
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == addresses
    assert all(one is objects[name] for name, one in model.named_parameters())


def test_a_file_cut_short_is_told_and_done_is_true(tmp_path, monkeypatch):
    from firekeep import reading

    monkeypatch.setattr(reading, "JOB", 64)
    model, other = make(1), make(2)
    source, entries = in_file(
        [entry for entry in entries_of(other) if entry.dtype is F32 and entry.name != "head.weight"],
        tmp_path / "weights",
    )
    with (tmp_path / "weights").open("r+b") as file:
        file.truncate(source.size - 40)
    before = values_of(model)
    slots = {slot.path: slot for slot in slots_of(model)}
    done: list[str] = []
    with pytest.raises(TruncatedError):
        fill(model, [Filling(slots[e.name], e, F32) for e in entries], done)
    source.close()
    wanted, after = values_of(other), values_of(model)
    assert 0 < len(done) < len(entries)
    assert all(after[path] == wanted[path] for path in done)
    assert after["norm.num_batches_tracked"] == before["norm.num_batches_tracked"]


@pytest.mark.parametrize("file_type", [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn])
@pytest.mark.parametrize("model_type", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("lies_in_file", [True, False])
def test_values_are_cast_on_their_way(tmp_path, file_type, model_type, lies_in_file):
    model = nn.Linear(50, 30, dtype=model_type)
    weight = torch.randn(30, 50).to(file_type)
    entries = [tensor_entry("weight", weight)]
    if lies_in_file:
        _, entries = in_file(entries, tmp_path / "weights", gap=3)
    fill_all(model, entries)
    assert torch.equal(model.weight, weight.to(model_type))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("lies_in_file", [True, False])
def test_a_new_dtype_replaces_memory_and_keeps_ties_and_gradients(tmp_path, device, lies_in_file):
    with torch.device(device):
        model = Tied()
    if device == "cpu":
        model.embed.weight.grad = torch.ones(5, 4)
    was = model.embed.weight
    entries = [in_memory(e) for e in entries_of(make(2).to(torch.bfloat16)) if e.dtype is BF16]
    if lies_in_file:
        _, entries = in_file(entries, tmp_path / "weights")
    fill_all(model, entries, BF16)
    assert model.embed.weight.dtype is model.norm.running_mean.dtype is torch.bfloat16
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.requires_grad
    if device == "cpu":
        assert model.embed.weight is was  # as an optimizer knows it
        assert was.grad.dtype is torch.bfloat16


def test_two_names_of_one_tensor_take_equal_values_only():
    model, other = make(1), make(2)
    entries = {entry.name: in_memory(entry) for entry in entries_of(other)}
    apart = replace(entries["head.weight"], blob=MemoryBlob(bytes(entries["head.weight"].read())))
    assert fill_all(model, [entries["embed.weight"], apart]) == ["embed.weight", "head.weight"]
    before = values_of(model)
    wrong = replace(apart, blob=MemoryBlob(bytes(apart.nbytes)))
    with pytest.raises(EntryError, match=r"the same tensor as 'embed\.weight'"):
        fill_all(model, [entries["scale"], entries["embed.weight"], wrong])
    assert values_of(model) == before


def test_layouts_in_memory_are_kept():
    model = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    other = nn.Conv2d(3, 4, 2)
    stride = model.weight.stride()
    fill(model, fillings_from(model, other), [])
    assert torch.equal(model.weight, other.weight)
    assert model.weight.stride() == stride != other.weight.stride()


def test_any_byte_of_a_bool_is_true(tmp_path):
    model = make(1)
    entry = TensorEntry("mask", BY_NAME["BOOL"], (3,), MemoryBlob(b"\x02\x00\x01"))
    _, lying = in_file([entry], tmp_path / "weights")
    fill_all(model, lying)
    assert model.mask.tolist() == [True, False, True]
    assert bytes(entries_of(model)[1].read()) == b"\x01\x00\x01"


@pytest.mark.parametrize(("dtype", "raw"), [("BOOL_U8", b"\x01\0\x01"), ("BOOL_U32", b"\x01\0\0\0\0\0\0\0\0\1\0\0")])
def test_bools_of_other_widths_are_taken(dtype, raw):
    model = make(1)
    fill_all(model, [TensorEntry("mask", BY_NAME[dtype], (3,), MemoryBlob(raw))])
    assert model.mask.tolist() == [True, False, True]


def test_whole_numbers_that_do_not_fit_are_refused():
    model = nn.Linear(1, 1)
    model.register_buffer("steps", torch.zeros(2, dtype=torch.int8))
    fill_all(model, [tensor_entry("steps", torch.tensor([-128, 127]))])
    assert model.steps.tolist() == [-128, 127]
    with pytest.raises(EntryError, match=r"from 1 to 128, and torch\.int8 holds -128 to 127") as caught:
        fill_all(model, [tensor_entry("steps", torch.tensor([1, 128]))])
    assert caught.value.tensor == "steps"
    assert model.steps.tolist() == [-128, 127]


def test_every_dtype_of_tensors_goes_in_as_it_came_out(tmp_path):
    model, other, again = nn.Module(), nn.Module(), nn.Module()
    for torch_name, row in BY_TORCH.items():
        if row.kind == "quantized" or not hasattr(torch, torch_name):
            continue
        dtype = getattr(torch, torch_name)
        raw = torch.randint(0, 2, (3 * dtype.itemsize,), dtype=torch.uint8)
        for one, held in ((other, raw), (model, torch.zeros_like(raw)), (again, torch.zeros_like(raw))):
            one.register_buffer(row.name.lower(), held.view(dtype))
    wanted = values_of(other)
    assert len(wanted) > 15
    fill(model, fillings_from(model, other), [])
    assert values_of(model) == wanted
    _, lying = in_file(entries_of(other), tmp_path / "weights")
    fill_all(again, lying)
    assert values_of(again) == wanted


def test_autograd_sees_that_a_parameter_has_changed(tmp_path):
    for lies_in_file in (True, False):
        model = nn.Linear(2, 2, bias=False)
        given = torch.rand(1, 2, requires_grad=True)
        loss = model(given).pow(2).sum()
        entries = [tensor_entry("weight", torch.ones(2, 2))]
        if lies_in_file:
            _, entries = in_file(entries, tmp_path / "weights")
        fill_all(model, entries)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        model(given).sum().backward()
        assert model.weight.is_leaf
        assert model.weight.grad is not None


@pytest.mark.parametrize("lies_in_file", [True, False])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_inference_tensors_are_filled(tmp_path, lies_in_file, dtype):
    with torch.inference_mode():
        model = nn.Linear(2, 2)
    entries = [tensor_entry("weight", torch.ones(2, 2)), tensor_entry("bias", torch.ones(2).double())]
    if lies_in_file:
        _, entries = in_file(entries, tmp_path / "weights")
    fill_all(model, entries, dtype)
    assert model.weight.tolist() == [[1, 1], [1, 1]]
    assert model.bias.tolist() == [1, 1]
    assert entries_of(model)[0].dtype is dtype


@pytest.mark.parametrize("misplaced", [0, 1])
def test_read_only_memory_is_only_read(misplaced):
    model = nn.Linear(3, 1)
    raw = bytes(misplaced) + bytes(torch.arange(3.0).numpy())
    entry = TensorEntry("weight", F32, (1, 3), MemoryBlob(memoryview(raw)[misplaced:]))
    with torch.device("meta"):  # whatever device is the default
        fill_all(model, [entry])
    assert model.weight.tolist() == [[0, 1, 2]]
    with torch.no_grad():
        model.weight.add_(1)
    assert raw == bytes(misplaced) + bytes(torch.arange(3.0).numpy())


def test_a_name_the_model_no_longer_has_is_refused():
    model = make(1)
    fillings = fillings_from(model, make(2))
    del model.scale
    before = values_of(model)
    with pytest.raises(EntryError, match="no place of that name") as caught:
        fill(model, fillings, [])
    assert caught.value.tensor == "scale"
    assert values_of(model) == before


def test_no_torch_member_is_asked_before_torch_is_there(monkeypatch):
    from firekeep.bridges.torch import owns

    model = make(1)
    assert owns(model)
    monkeypatch.delitem(sys.modules, "torch.nn")
    assert not owns(model)
