"""Models of odd kinds on their way into a file: empty ones, odd names, odd memory, odd dtypes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import firekeep
from contracts.nets import arrays_of, file_arrays, make_torch
from firekeep.module import Linear, Module, Param, Relu, Variant

both = pytest.mark.parametrize("suffix", [".bpk", ".safetensors"])


class Nothing(Module):
    pass


class Holder(nn.Module):
    """Holds tensors under the names they are given by."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)


def bits(tensor: torch.Tensor) -> bytes:
    """Give the elements in order, whatever the memory they lie in."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def saved_and_loaded(model: nn.Module, twin: nn.Module, path: Path, **options: Any) -> dict[str, bytes]:
    """Save a model, load its twin, and give what the twin holds then."""
    firekeep.save(model, path, **options)
    assert firekeep.load_into(twin, path).exact
    return {name: bits(tensor) for name, tensor in twin.state_dict().items()}


@both
@pytest.mark.parametrize("make", [nn.Module, Nothing, nn.ReLU, dict, list], ids=lambda make: make.__name__)
def test_a_model_without_tensors_is_a_file_without_tensors(make: Any, suffix: str, tmp_path: Path):
    report = firekeep.save(make(), tmp_path / f"m{suffix}", metadata={"k": "v"})
    assert report.tensors == 0
    assert firekeep.load_file(tmp_path / f"m{suffix}") == {}
    assert firekeep.saved_metadata(tmp_path / f"m{suffix}")["k"] == "v"
    assert firekeep.load_into(make(), tmp_path / f"m{suffix}").exact
    with pytest.raises(firekeep.NothingMatchedError):
        firekeep.load_into(nn.Linear(1, 1), tmp_path / f"m{suffix}", strict=False, layout="burn")


@both
def test_a_parameter_that_is_the_whole_model_has_no_name(suffix: str, tmp_path: Path):
    root = Param(np.arange(6, dtype=np.float32).reshape(2, 3))
    firekeep.save(root, tmp_path / f"m{suffix}")
    assert list(firekeep.load_file(tmp_path / f"m{suffix}")) == [""]
    twin = Param(np.zeros((2, 3), np.float32))
    assert firekeep.load_into(twin, tmp_path / f"m{suffix}").applied == ("",)
    assert np.array_equal(twin.value, root.value)
    array = np.zeros((2, 3), np.float32)
    assert firekeep.load_into(array, tmp_path / f"m{suffix}", layout="burn").exact
    assert np.array_equal(array, root.value)


@both
@pytest.mark.parametrize("make", [lambda: nn.Linear(3, 2), lambda: Linear(3, 2)], ids=["torch", "native"])
def test_a_layer_that_is_the_whole_model_has_the_short_names(make: Any, suffix: str, tmp_path: Path):
    model = make()
    firekeep.save(model, tmp_path / f"m{suffix}")
    found = firekeep.load_file(tmp_path / f"m{suffix}")
    assert {name: array.shape for name, array in found.items()} == {
        "weight": (3, 2) if suffix == ".bpk" else (2, 3),
        "bias": (2,),
    }
    for twin in (nn.Linear(3, 2), Linear(3, 2)):
        assert firekeep.load_into(twin, tmp_path / f"m{suffix}").exact


ODD_NAMES = (
    "a.b",
    "é/../x",
    "",
    "x y",
    "数",
    ".lead",
    "trail.",
    "..",
    "\n",
    "a" * 300,
    "weight",
    "0",
    "-1",
    "\U0001f525",
)


@both
def test_odd_names_are_kept_as_they_are(suffix: str, tmp_path: Path):
    model = {name: np.full(2, number, np.float32) for number, name in enumerate(ODD_NAMES)}
    firekeep.save(model, tmp_path / f"m{suffix}")
    assert set(firekeep.load_file(tmp_path / f"m{suffix}")) == set(ODD_NAMES)
    twin = {name: np.zeros(2, np.float32) for name in ODD_NAMES}
    assert firekeep.load_into(twin, tmp_path / f"m{suffix}").exact
    assert all(np.array_equal(twin[name], model[name]) for name in ODD_NAMES)


def test_two_tensors_of_one_name_are_refused_and_both_shown(tmp_path: Path):
    with pytest.raises(firekeep.UnsupportedError, match=r"tree\['a'\]\['b'\] and tree\['a\.b'\]"):
        firekeep.save({"a": {"b": np.ones(1)}, "a.b": np.ones(2)}, tmp_path / "m.bpk")
    with pytest.raises(firekeep.RuleError, match=r"'a' and 'b' become 'b'"):
        firekeep.save({"a": np.ones(1), "b": np.ones(2)}, tmp_path / "m.bpk", rename="^a$=>b")
    assert list(tmp_path.iterdir()) == []


BASE = torch.arange(24.0)
MEMORY = {
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 3),
    "empty_inside": torch.zeros(2, 0, 3),
    "transposed": BASE.reshape(4, 6).t(),
    "permuted": BASE.reshape(2, 3, 4).permute(2, 0, 1),
    "every_third": BASE[::3],
    "offset": BASE[5:11],
    "expanded": torch.arange(3.0)[:, None].expand(3, 4),
    "one_for_all": torch.tensor(7.0).expand(2, 3),
    "channels_last": BASE.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "diagonal": BASE[:16].reshape(4, 4).diagonal(),
    "overlapping": BASE.unfold(0, 4, 2),
    "row_of_one": BASE[:4].reshape(1, 4),
}


@both
@pytest.mark.parametrize("name", MEMORY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool])
def test_any_memory_is_written_element_by_element(name: str, dtype: torch.dtype, suffix: str, tmp_path: Path):
    view = MEMORY[name]
    if dtype is torch.bool and view.dim():
        view = (view % 2).bool() if name not in ("expanded", "one_for_all") else view.bool()
    elif dtype is not torch.float32:
        held = torch.empty_strided(view.shape, view.stride(), dtype=dtype) if name != "overlapping" else view.to(dtype)
        view = held.copy_(view) if name not in ("expanded", "one_for_all", "overlapping") else view.to(dtype)
    model = Holder(t=view.to(dtype) if view.dtype is not dtype else view, other=torch.ones(2))
    twin = Holder(t=torch.zeros(view.shape, dtype=dtype), other=torch.zeros(2))
    assert saved_and_loaded(model, twin, tmp_path / f"m{suffix}") == {"t": bits(model.t), "other": bits(torch.ones(2))}


@both
def test_parameters_of_whole_numbers_and_truths(suffix: str, tmp_path: Path):
    tensors = {
        "steps": torch.tensor([1, -2, 3]),
        "mask": torch.tensor([True, False]),
        "small": torch.tensor([-128, 127], dtype=torch.int8),
        "bytes": torch.tensor(255, dtype=torch.uint8),
    }
    model = Holder(**{name: nn.Parameter(tensor, requires_grad=False) for name, tensor in tensors.items()})
    twin = Holder(
        **{name: nn.Parameter(torch.zeros_like(tensor), requires_grad=False) for name, tensor in tensors.items()}
    )
    found = saved_and_loaded(model, twin, tmp_path / f"m{suffix}", dtype="f16")
    assert found == {name: bits(tensor) for name, tensor in tensors.items()}
    assert all(not parameter.requires_grad for parameter in twin.parameters())

    class Native(Module):
        steps: Param
        mask: Param

    native = Native(steps=Param(np.array([1, 2])), mask=Param(np.array([True, False])))
    again = Native(steps=Param(np.array([0, 0])), mask=Param(np.array([False, False])))
    firekeep.save(native, tmp_path / f"n{suffix}")
    assert firekeep.load_into(again, tmp_path / f"n{suffix}").exact
    assert again.steps.value.tolist() == [1, 2]
    assert again.mask.value.tolist() == [True, False]


@both
def test_views_of_one_memory_are_ties_only_where_they_are_one_tensor(suffix: str, tmp_path: Path):
    base = torch.arange(12.0)
    model = Holder(
        low=base[:6], high=base[3:9], table=base.view(3, 4), turned=base.view(3, 4).t(), again=base[:6], flat=base
    )
    firekeep.save(model, tmp_path / f"m{suffix}")
    found = file_arrays(tmp_path / f"m{suffix}")
    assert found == {name: bits(tensor) for name, tensor in model.state_dict().items()}
    with firekeep.open(tmp_path / f"m{suffix}") as opened:
        places = {name: opened.entry(name).blob.identity() for name in opened}
    assert len(set(places.values())) == 5
    twin = Holder(**{name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()})
    assert firekeep.load_into(twin, tmp_path / f"m{suffix}").complete
    assert {name: bits(tensor) for name, tensor in twin.state_dict().items()} == found


@both
@pytest.mark.parametrize("ties", ["keep", "expand"])
def test_ties_are_stored_once_or_each_in_full(ties: str, suffix: str, tmp_path: Path):
    model = nn.ModuleDict({"a": nn.Conv1d(20, 30, 3), "b": nn.Conv1d(20, 30, 3), "c": nn.Conv1d(20, 30, 3)})
    model["b"].weight = model["a"].weight
    model["c"] = model["a"]
    report = firekeep.save(model, tmp_path / f"m{suffix}", ties=ties)
    weights = {"keep": 1, "expand": 3}[ties]
    assert 4 * 20 * 30 * 3 * weights < report.nbytes < 4 * 20 * 30 * 3 * (weights + 0.6)
    found = file_arrays(tmp_path / f"m{suffix}")
    assert found["a.weight"] == found["b.weight"] == found["c.weight"] == bits(model["a"].weight)
    assert found["c.bias"] == found["a.bias"] != found["b.bias"]
    free = nn.ModuleDict({name: nn.Conv1d(20, 30, 3) for name in "abc"})
    assert firekeep.load_into(free, tmp_path / f"m{suffix}").complete
    assert {name: bits(tensor) for name, tensor in free.state_dict().items()} == found


FLOATS = {
    "bf16": ml_dtypes.bfloat16,
    "f8_e4m3": ml_dtypes.float8_e4m3fn,
    "f8_e5m2": ml_dtypes.float8_e5m2,
    "f8_e8m0": ml_dtypes.float8_e8m0fnu,
    "f8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f16": np.float16,
    "f64": np.float64,
    "c64": np.complex64,
}
BURN_HAS = ("bf16", "f16", "f64")


@both
@pytest.mark.parametrize("name", FLOATS)
def test_a_dtype_is_kept_or_refused_by_name_before_anything_is_written(name: str, suffix: str, tmp_path: Path):
    model = {"fine": np.ones(2, np.float32), "odd": np.array([1, 2, 4]).astype(FLOATS[name])}
    path = tmp_path / f"m{suffix}"
    if suffix == ".bpk" and name not in BURN_HAS:
        with pytest.raises(
            firekeep.UnsupportedError, match=rf"'odd'.*{name}(?i:)".replace(name, name.upper())
        ) as caught:
            firekeep.save(model, path)
        assert "safetensors" in str(caught.value)
        assert list(tmp_path.iterdir()) == []
        firekeep.save(model, tmp_path / "m.safetensors")  # what the error advises
        firekeep.save(model, path, exclude="odd")
        return
    firekeep.save(model, path)
    twin = {"fine": np.zeros(2, np.float32), "odd": np.zeros(3, FLOATS[name])}
    assert firekeep.load_into(twin, path).exact
    assert twin["odd"].dtype == model["odd"].dtype
    assert twin["odd"].tobytes() == model["odd"].tobytes()


@both
def test_double_complex_numbers_are_refused_by_name(suffix: str, tmp_path: Path):
    with pytest.raises(firekeep.UnsupportedError, match=r"'z'.*C128"):
        firekeep.save({"z": np.ones(2, np.complex128)}, tmp_path / f"m{suffix}")
    assert list(tmp_path.iterdir()) == []


@both
@pytest.mark.parametrize(
    ("dtype", "overflowed"),
    [("bf16", {"wide": 2}), ("f16", {"wide": 2, "single": 1}), ("f32", {"wide": 2}), ("f64", {})],
)
def test_numbers_that_a_cast_makes_infinite_are_counted(dtype: str, overflowed: Any, suffix: str, tmp_path: Path):
    model = {
        "wide": np.array([1e39, 1, -1e39, np.inf, np.nan], np.float64),
        "single": np.array([70000, 1], np.float32),
        "whole": np.array([2**40]),
    }
    report = firekeep.save(model, tmp_path / f"m{suffix}", dtype=dtype)
    assert report.overflowed == overflowed
    assert all(name in str(report) for name in overflowed)
    found = firekeep.load_file(tmp_path / f"m{suffix}")
    kinds = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64}
    assert found["wide"].dtype == found["single"].dtype == np.dtype(kinds[dtype])
    assert found["whole"].tolist() == [2**40]
    assert np.isinf(found["wide"].astype(np.float64)).sum() == 1 + overflowed.get("wide", 0)
    assert np.isnan(found["wide"].astype(np.float64)).sum() == 1


@both
def test_include_and_exclude_choose_by_the_models_names(suffix: str, tmp_path: Path):
    model = make_torch(seed=1)
    report = firekeep.save(
        model, tmp_path / f"m{suffix}", include=["^fc", "norm"], exclude="bias$", rename=r"^=>prefix."
    )
    assert set(report.left_out) == {"fc.bias", "norm.bias", "head.weight"}
    expected = {"prefix.fc.weight", "prefix.norm.gamma" if suffix == ".bpk" else "prefix.norm.weight"}
    assert set(firekeep.load_file(tmp_path / f"m{suffix}")) == expected
    with pytest.raises(firekeep.RuleError, match="none of the 5 tensors is left"):
        firekeep.save(model, tmp_path / f"n{suffix}", include="^prefix")


class Trained(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.fc = nn.Linear(width, 3)
        self.emb = nn.Embedding(5, 2)
        self.norm = nn.LayerNorm(3)


class TestBareStateDicts:
    """Of which nobody said what layers they belong to."""

    @pytest.mark.parametrize("like", [None, "names"])
    def test_burns_layout_is_refused_where_nothing_tells_the_layers(self, like: str | None, tmp_path: Path):
        state = Trained().state_dict()
        with pytest.raises(firekeep.RuleError, match="what layers") as caught:
            firekeep.save(state, tmp_path / "m.bpk", layout="burn", like=list(state) if like else None)
        assert "like=" in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("like", ["model", "file"])
    def test_what_is_like_it_tells_them(self, like: str, tmp_path: Path):
        model = Trained()
        firekeep.save(Trained(), tmp_path / "like.bpk")
        given = Trained() if like == "model" else tmp_path / "like.bpk"
        firekeep.save(model.state_dict(), tmp_path / "m.bpk", layout="burn", like=given)
        firekeep.save(model, tmp_path / "own.bpk")
        assert file_arrays(tmp_path / "m.bpk") == file_arrays(tmp_path / "own.bpk")
        assert "firekeep.layout" not in firekeep.saved_metadata(tmp_path / "m.bpk")
        assert firekeep.load_into(Trained(), tmp_path / "m.bpk").exact

    def test_a_square_weight_is_told_by_a_model_and_by_no_file(self, tmp_path: Path):
        model = Trained(width=3)
        firekeep.save(model, tmp_path / "like.bpk")
        with pytest.raises(firekeep.RuleError, match=r"'fc\.weight'.*square"):
            firekeep.save(model.state_dict(), tmp_path / "m.bpk", layout="burn", like=tmp_path / "like.bpk")
        assert not (tmp_path / "m.bpk").exists()
        firekeep.save(model.state_dict(), tmp_path / "m.bpk", layout="burn", like=Trained(width=3))
        assert file_arrays(tmp_path / "m.bpk") == file_arrays(tmp_path / "like.bpk")
        turned = model.fc.weight.detach().numpy().T
        assert np.array_equal(firekeep.load_file(tmp_path / "m.bpk")["fc.weight"], turned)

    def test_arrays_in_a_bpk_say_that_nobody_said_how_they_lie(self, tmp_path: Path):
        model, twin = Trained(), Trained()
        firekeep.save(arrays_of(model), tmp_path / "m.bpk")
        with pytest.raises(firekeep.RuleError, match="layout='torch'"):
            firekeep.load_into(twin, tmp_path / "m.bpk")
        assert firekeep.load_into(twin, tmp_path / "m.bpk", layout="torch").exact
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@both
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Linear(3, 2, device="meta"), "meta tensor"),
        (lambda: nn.LazyLinear(2), "not|lazy"),
        (lambda: {"weight": torch.eye(3).to_sparse()}, "sparse"),
    ],
    ids=["meta", "lazy", "sparse"],
)
def test_what_has_no_numbers_is_refused_for_that_reason(make: Any, reason: str, suffix: str, tmp_path: Path):
    with pytest.raises(firekeep.UnsupportedError, match=rf"'weight': .*({reason})") as caught:
        firekeep.save(make(), tmp_path / f"m{suffix}")
    assert "axes" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Kinds(Module):
    """Parts that are one of several kinds."""

    layers: list[Variant]
    head: Variant

    @classmethod
    def make(cls) -> Kinds:
        linear = [Variant("Linear", Linear(3, 3), enum="Layer"), Variant("Relu", Relu(), enum="Layer")]
        return cls(
            layers=[*linear, Variant("Linear", Linear(3, 2), enum="Layer")],
            head=Variant("Full", Linear(2, 2), enum="Head"),
        )


class PlainKinds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
        self.head = nn.Linear(2, 2)


class TestLikeAModelOfEnums:
    """Their paths name the variant, which a model of another framework knows nothing of."""

    @pytest.mark.parametrize("layout", ["burn", "torch"])
    @both
    def test_a_save_puts_the_variants_into_the_names(self, suffix: str, layout: str, tmp_path: Path):
        torch.manual_seed(1)
        model, wanted = PlainKinds(), Kinds.make()
        firekeep.save(model, tmp_path / f"m{suffix}", like=wanted, layout=layout)
        names = sorted(
            f"{place}.{role}"
            for place in ("layers.0.Linear", "layers.2.Linear", "head.Full")
            for role in ("weight", "bias")
        )
        assert sorted(firekeep.open(tmp_path / f"m{suffix}")) == names
        report = firekeep.load_into(wanted, tmp_path / f"m{suffix}", match="exact")
        assert report.exact
        x = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
        ours, theirs = x, model.head(model.layers(torch.from_numpy(x))).detach().numpy()
        for part in (*wanted.layers, wanted.head):
            ours = part(ours)
        assert np.allclose(ours, theirs, atol=1e-6)

    def test_a_store_like_it_is_read_by_both(self, tmp_path: Path):
        store = firekeep.SafetensorsStore(tmp_path / "m.safetensors", like=Kinds.make(), allow_unused=False)
        model, twin = PlainKinds(), PlainKinds()
        store.save(model)
        assert "head.Full.weight" in store.keys()  # noqa: SIM118 - a store is no mapping
        assert store.load_into(Kinds.make()).exact
        assert store.load_into(twin).exact
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))

    def test_a_model_of_other_layers_is_refused_by_the_names_it_lacks(self, tmp_path: Path):
        with pytest.raises(firekeep.RuleError, match=r"'layers\.0\.Linear\.weight'"):
            firekeep.save(nn.ModuleDict({"head": nn.Linear(2, 2)}), tmp_path / "m.bpk", like=Kinds.make())
        assert list(tmp_path.iterdir()) == []
