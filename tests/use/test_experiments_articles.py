"""The small net of two layers through files: renamed fields, layouts, laziness, epochs, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

import firekeep
from firekeep.module import Linear, Module, Param, walk
from use.experiments import (
    FULL_MODEL,
    Net,
    close,
    make_net,
    make_renamed,
    make_torch,
    refusal,
    run,
    state_of,
    stream,
    untouched,
)

TORCH_LIKE = {
    "fc.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "fc.bias": np.array([0.5, -1.0, 2.0], np.float32),
    "head.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
}
ALL = ("fc.bias", "fc.weight", "head.weight")
X = stream(1, 0, 5, 4)


def reference(arrays: dict[str, np.ndarray], x: np.ndarray = X) -> np.ndarray:
    model = make_torch()
    model.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    return run(model, x)


@pytest.fixture
def torch_like(tmp_path: Path) -> Path:
    path = tmp_path / "torch_like.safetensors"
    save_file(TORCH_LIKE, path, {"format": "pt", "framework": "pytorch"})
    assert path.stat().st_size == 340
    return path


class TestARenamedField:
    @pytest.fixture
    def saved(self, tmp_path: Path) -> tuple[Path, Net]:
        net = make_net()
        firekeep.save(net, tmp_path / "net.safetensors")
        return tmp_path / "net.safetensors", net

    def test_both_sides_are_named_with_a_suggestion_each(self, saved: tuple[Path, Net]):
        path, _ = saved
        model = make_renamed()
        report = refusal(firekeep.SafetensorsStore(path).load_into, model)
        assert report.missing == ("fc1.bias", "fc1.weight")
        assert report.unused == ("fc.bias", "fc.weight")
        assert {want: near.name for want, near in report.suggestions.items()} == {
            "fc1.bias": "fc.bias",
            "fc1.weight": "fc.weight",
        }
        assert report.wanted - len(report.missing) == 1
        assert report.applied == ()
        assert untouched(model)

    def test_the_rest_is_loaded_where_a_part_is_enough(self, saved: tuple[Path, Net]):
        path, net = saved
        model = make_renamed()
        report = firekeep.SafetensorsStore(path, allow_partial=True).load_into(model)
        assert report.applied == ("head.weight",)
        assert not model.fc1.weight.is_initialized
        assert model.head.weight.value.tobytes() == net.head.weight.value.tobytes()

    def test_the_remedy_is_the_rule_that_loads_it(self, saved: tuple[Path, Net]):
        path, net = saved
        (remedy,) = refusal(firekeep.SafetensorsStore(path).load_into, make_renamed()).remedies
        assert remedy.gain == 2
        assert remedy.python == 'rename=[r"^fc\\.=>fc1."]'
        model = make_renamed()
        report = firekeep.SafetensorsStore(path, rename=r"^fc\.=>fc1.").load_into(model)
        assert report.applied == ("fc1.bias", "fc1.weight", "head.weight")
        assert report.exact
        assert model.fc1.weight.value.tobytes() == net.fc.weight.value.tobytes()
        assert run(model, X).tobytes() == run(net, X).tobytes()

    def test_a_store_that_loaded_with_a_rule_saves_under_the_names_of_the_file(
        self, saved: tuple[Path, Net], tmp_path: Path
    ):
        path, net = saved
        model = make_renamed()
        store = firekeep.SafetensorsStore(path, rename=r"^fc\.=>fc1.")
        store.load_into(model)
        store.save(model)
        with firekeep.open(path) as file:
            assert sorted(file) == sorted(ALL)
        back = make_net()
        assert firekeep.load_into(back, path).exact
        assert state_of(back) == state_of(net)


class TestAFileAsPyTorchLaysItOut:
    def test_taken_as_burns_both_weights_have_another_shape(self, torch_like: Path):
        model = make_net()
        report = refusal(firekeep.SafetensorsStore(torch_like, layout="burn").load_into, model)
        assert [(error.kind, error.name, error.expected, error.found) for error in report.errors] == [
            ("shape", "fc.weight", "[4, 3]", "[3, 4]"),
            ("shape", "head.weight", "[3, 2]", "[2, 3]"),
        ]
        assert [remedy.python for remedy in report.remedies] == ["layout='torch'"]
        assert untouched(model)

    def test_by_default_the_weights_are_turned_round(self, torch_like: Path):
        model = make_net()
        report = firekeep.SafetensorsStore(torch_like).load_into(model)
        assert report.exact
        assert report.applied == ALL
        assert model.fc.weight.value.shape == (4, 3)
        assert model.fc.weight.value.ravel().tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
        x = np.arange(20, dtype=np.float32).reshape(5, 4)
        assert run(model, x).tolist() == reference(TORCH_LIKE, x).tolist()  # halves and whole numbers: exact

    def test_a_torch_model_takes_it_as_it_is(self, torch_like: Path):
        model = make_torch()
        assert firekeep.load_into(model, torch_like).exact
        assert state_of(model) == state_of(TORCH_LIKE)


class TestAWholeModelOfThirteenNames:
    UNUSED = (
        "blocks.0.bias",
        "blocks.0.weight",
        "blocks.1.bias",
        "blocks.1.num_batches_tracked",
        "blocks.1.running_mean",
        "blocks.1.running_var",
        "blocks.1.weight",
        "running_mean",
        "tied.bias",
        "tied.weight",
    )

    def test_a_store_applies_three_and_reports_ten(self):
        model = make_net()
        report = firekeep.PytorchStore(FULL_MODEL).load_into(model)
        assert report.ok
        assert not report
        assert report.applied == ALL
        assert report.unused == self.UNUSED
        with firekeep.open(FULL_MODEL) as file:
            raw = {name: file.array(name) for name in ALL}
        assert model.fc.weight.value.tobytes() == np.ascontiguousarray(raw["fc.weight"].T).tobytes()
        close(run(model, X), reference(raw))

    def test_a_strict_load_names_the_ten(self):
        model = make_net()
        report = refusal(firekeep.load_into, model, FULL_MODEL)
        assert report.unused == self.UNUSED
        assert report.refusals == ("10 unused",)
        assert untouched(model)
        assert firekeep.load_into(model, FULL_MODEL, allow_unused=True).applied == ALL

    def test_a_torch_net_runs_as_the_native_one(self):
        native, model = make_net(), make_torch()
        firekeep.load_into(native, FULL_MODEL, allow_unused=True)
        firekeep.load_into(model, FULL_MODEL, allow_unused=True)
        close(run(native, X), run(model, X))


class TestALinearKeptTheOtherWayRound:
    """Of `Linear(layout="col")` the file form is [out, in] and the form in memory [in, out], used before or not."""

    @pytest.fixture(params=["untouched", "used"])
    def target(self, request: pytest.FixtureRequest) -> Any:
        def make(d_input: int = 4, d_output: int = 3) -> Linear:
            layer = Linear(d_input, d_output, layout="col")
            if request.param == "used":
                layer(np.ones((1, d_input), np.float32))
            return layer

        return make

    @pytest.mark.parametrize("suffix", [".bpk", ".safetensors"])
    @pytest.mark.parametrize("size", [(4, 3), (3, 3)], ids=["oblong", "square"])
    def test_its_own_file(self, target: Any, size: tuple[int, int], suffix: str, tmp_path: Path):
        saved = Linear(*size, layout="col")
        firekeep.save(saved, tmp_path / f"col{suffix}")
        model = target(*size)
        assert firekeep.load_into(model, tmp_path / f"col{suffix}").exact
        assert model.weight.shape == size
        assert model.weight.value.tolist() == saved.weight.value.tolist()
        assert run(model, X[:, : size[0]]).tobytes() == run(saved, X[:, : size[0]]).tobytes()
        with firekeep.open(tmp_path / f"col{suffix}") as file:
            assert file.array("weight").tolist() == saved.weight.value.T.tolist()

    @pytest.mark.parametrize("size", [(4, 3), (3, 3)], ids=["oblong", "square"])
    @pytest.mark.parametrize("door", ["load_into", "store"])
    def test_a_pytorch_file(self, target: Any, size: tuple[int, int], door: str, tmp_path: Path):
        torch.manual_seed(3)
        source = nn.Linear(*size)
        torch.save(source.state_dict(), tmp_path / "linear.pt")
        model = target(*size)
        if door == "store":
            report = firekeep.PytorchStore(tmp_path / "linear.pt").load_into(model)
        else:
            report = firekeep.load_into(model, tmp_path / "linear.pt")
        assert report.exact
        assert model.weight.shape == size
        close(run(model, X[:, : size[0]]), run(source, X[:, : size[0]]))

    def test_in_a_net_from_a_file_with_more(self, target: Any):
        model = Net(fc=target(), head=Linear(3, 2, bias=False))
        plain = make_net()
        for net in (model, plain):
            assert firekeep.PytorchStore(FULL_MODEL).load_into(net).applied == ALL
        assert model.fc.weight.value.tolist() == plain.fc.weight.value.tolist()
        close(run(model, X), run(plain, X))


class Counting:
    """An initialiser that says how often it ran."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, shape: Any, rng: Any, fans: Any) -> np.ndarray:
        self.runs += 1
        return np.zeros(shape, np.float32)


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("source", ["torch_like", "full_model"])
def test_what_a_load_fills_is_never_made(layout: Any, source: str, torch_like: Path):
    counting = Counting()
    model = make_net(initializer=counting, layout=layout)
    firekeep.load_into(model, torch_like if source == "torch_like" else FULL_MODEL, allow_unused=True)
    run(model, X)
    assert counting.runs == 0
    assert model.fc.weight.is_initialized


def test_what_a_load_leaves_is_made_when_it_is_used(torch_like: Path):
    counting = Counting()
    model = make_net(initializer=counting)
    assert firekeep.load_into(model, torch_like, include="fc.weight").applied == ("fc.weight",)
    assert counting.runs == 0
    run(model, X)
    assert counting.runs == 1  # the bias


def test_planning_makes_nothing(torch_like: Path):
    counting = Counting()
    model = make_net(initializer=counting)
    firekeep.load_into(model, torch_like, dry_run=True)
    refusal(firekeep.load_into, model, torch_like, layout="burn")
    assert firekeep.slots_of(model)[0].shape == (4, 3)
    assert counting.runs == 0
    assert untouched(model)


class Mlp(Module):
    fc1: Linear
    fc2: Linear


class TestTheSameNameEveryEpoch:
    @pytest.fixture
    def model(self) -> Mlp:
        return Mlp(fc1=Linear(2, 4), fc2=Linear(4, 3))

    def at_epoch(self, model: Mlp, epoch: int) -> Mlp:
        assert model.fc2.bias is not None
        model.fc2.bias.value = np.full(3, epoch, np.float32)
        return model

    def bias(self, path: Path) -> list[float]:
        back = Mlp(fc1=Linear(2, 4), fc2=Linear(4, 3))
        firekeep.load_into(back, path)
        assert back.fc2.bias is not None
        values: list[float] = back.fc2.bias.value.tolist()
        return values

    @pytest.mark.parametrize("suffix", [".bpk", ".safetensors"])
    def test_the_file_holds_the_last(self, model: Mlp, suffix: str, tmp_path: Path):
        path = tmp_path / f"last{suffix}"
        for epoch in range(3):
            firekeep.save(self.at_epoch(model, epoch), path, metadata={"epoch": str(epoch)})
            assert firekeep.saved_metadata(path)["epoch"] == str(epoch)
        assert self.bias(path) == [2, 2, 2]
        assert [file.name for file in tmp_path.iterdir()] == [path.name]

    @pytest.mark.parametrize("store", [firekeep.BurnpackStore, firekeep.SafetensorsStore])
    def test_a_store_replaces_too(self, model: Mlp, store: Any, tmp_path: Path):
        suffix = ".bpk" if store is firekeep.BurnpackStore else ".safetensors"
        path = tmp_path / f"last{suffix}"
        for epoch in range(3):
            store(path, metadata={"epoch": str(epoch)}).save(self.at_epoch(model, epoch))
        assert self.bias(path) == [2, 2, 2]
        assert store(path).metadata()["epoch"] == "2"

    @pytest.mark.parametrize("suffix", [".bpk", ".safetensors"])
    def test_the_first_is_kept_only_where_that_was_asked_for(self, model: Mlp, suffix: str, tmp_path: Path):
        path = tmp_path / f"last{suffix}"
        firekeep.save(self.at_epoch(model, 0), path, overwrite=False)
        before = path.read_bytes()
        with pytest.raises(FileExistsError, match="overwrite") as caught:
            firekeep.save(self.at_epoch(model, 1), path, overwrite=False)
        assert path.name in str(caught.value)
        assert path.read_bytes() == before
        assert self.bias(path) == [0, 0, 0]


def test_parameters_keep_the_ids_of_a_burnpack_file(tmp_path: Path):
    saved, fresh = make_net(), make_net()
    firekeep.save(saved, tmp_path / "net.bpk")
    ids = [visited.param.id for visited in walk(saved)]
    assert [visited.param.id for visited in walk(fresh)] != ids
    report = firekeep.load_into(fresh, tmp_path / "net.bpk")
    assert report.ids_restored == 3
    assert [visited.param.id for visited in walk(fresh)] == ids


def test_a_safetensors_file_has_no_ids_and_changes_none(tmp_path: Path):
    saved, fresh = make_net(), make_net()
    firekeep.save(saved, tmp_path / "net.safetensors")
    ids = [visited.param.id for visited in walk(fresh)]
    assert firekeep.load_into(fresh, tmp_path / "net.safetensors").ids_restored == 0
    assert [visited.param.id for visited in walk(fresh)] == ids
    assert isinstance(fresh.fc.weight, Param)
