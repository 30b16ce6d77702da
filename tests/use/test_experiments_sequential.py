"""A `nn.Sequential` and its lists in Burn: indices with gaps, variants of enums, both formats, both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import firekeep
from firekeep.module import Conv1d, Linear, Module, Relu, Variant, walk
from use.experiments import BURN, close, run, state_of, stream


class TorchMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class ListMlp(Module):
    """A list of the Linear only; the activation stands elsewhere."""

    net: list[Linear]

    def __call__(self, x: Any) -> Any:
        return self.net[1](Relu()(self.net[0](x)))


class MirrorMlp(Module):
    """Every layer in its place, as variants of an enum."""

    net: list[Variant]

    def __call__(self, x: Any) -> Any:
        for layer in self.net:
            x = layer(x)
        return x


class PlainMirrorMlp(Module):
    """Every layer in its place, the activation too, without an enum."""

    net: list[Module]

    __call__ = MirrorMlp.__call__


def make_list() -> ListMlp:
    return ListMlp(net=[Linear(2, 5), Linear(5, 3)])


def make_mirror() -> MirrorMlp:
    layers = [("Linear", Linear(2, 5)), ("Relu", Relu()), ("Linear", Linear(5, 3))]
    return MirrorMlp(net=[Variant(name, layer, enum="Layer") for name, layer in layers])


def make_plain_mirror() -> PlainMirrorMlp:
    return PlainMirrorMlp(net=[Linear(2, 5), Relu(), Linear(5, 3)])


MAKERS = {"list": make_list, "mirror": make_mirror, "mirror without enum": make_plain_mirror}
X = stream(1, 30, 4, 2)


@pytest.fixture(scope="module")
def theirs() -> TorchMlp:
    torch.manual_seed(4)
    return TorchMlp()


@pytest.fixture(scope="module")
def files(theirs: TorchMlp, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sequential")
    torch.save(theirs.state_dict(), folder / "seq.pt")
    safetensors.torch.save_file(theirs.state_dict(), folder / "seq.safetensors")
    torch.save(theirs.state_dict(), folder / "legacy.pt", _use_new_zipfile_serialization=False)
    firekeep.save(theirs, folder / "seq.bpk")
    return {"pt": folder / "seq.pt", "legacy": folder / "legacy.pt", "safetensors": folder / "seq.safetensors"} | {
        "bpk": folder / "seq.bpk"
    }


STORES = {
    "pt": firekeep.PytorchStore,
    "legacy": firekeep.PytorchStore,
    "safetensors": firekeep.SafetensorsStore,
    "bpk": firekeep.BurnpackStore,
}


@pytest.mark.parametrize("file", STORES)
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("door", ["load_into", "store"])
def test_each_loads_from_each_with_nothing_said(
    theirs: TorchMlp, files: dict[str, Path], kind: str, file: str, door: str
):
    model = MAKERS[kind]()
    report = (
        firekeep.load_into(model, files[file]) if door == "load_into" else STORES[file](files[file]).load_into(model)
    )
    assert report.exact
    assert report.applied == tuple(sorted(visited.path for visited in walk(model)))
    close(run(model, X), run(theirs, X))


@pytest.mark.parametrize("file", STORES)
def test_what_was_renumbered_is_told(files: dict[str, Path], file: str):
    report = firekeep.load_into(make_list(), files[file])
    assert [(one.file_name, one.name) for one in report.renamed] == [
        ("net.2.weight", "net.1.weight"),
        ("net.2.bias", "net.1.bias"),
    ]
    assert report.steps
    assert any("net" in step for step in report.steps)


@pytest.mark.parametrize("file", ["pt", "safetensors"])
def test_the_mirror_keeps_the_gap(files: dict[str, Path], file: str):
    report = firekeep.load_into(make_mirror(), files[file])
    assert {one.file_name: one.name for one in report.renamed} == {
        f"net.{index}.{last}": f"net.{index}.Linear.{last}" for index in (0, 2) for last in ("weight", "bias")
    }


@pytest.mark.parametrize("kind", ["list", "mirror"])
def test_equal_names_only_are_not_enough(files: dict[str, Path], kind: str):
    with pytest.raises(firekeep.LoadError):
        firekeep.load_into(MAKERS[kind](), files["safetensors"], match="exact")


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("like", ["model", "file", "names"])
def test_saved_like_the_sequential_pytorch_loads_it(
    theirs: TorchMlp, files: dict[str, Path], kind: str, like: str, tmp_path: Path
):
    model = MAKERS[kind]()
    told = {"model": theirs, "file": files["pt"], "names": list(theirs.state_dict())}[like]
    firekeep.save(model, tmp_path / "back.safetensors", like=told)
    torch.manual_seed(99)
    fresh = TorchMlp()
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "back.safetensors"), strict=True)
    close(run(fresh, X), run(model, X))


def test_saved_without_the_word_the_gap_is_closed(theirs: TorchMlp, tmp_path: Path):
    firekeep.save(make_list(), tmp_path / "plain.safetensors")
    with pytest.raises(RuntimeError, match=r"net\.2\.weight"):
        TorchMlp().load_state_dict(safetensors.torch.load_file(tmp_path / "plain.safetensors"))


def test_or_with_a_rule_the_saving_store_undoes(tmp_path: Path):
    model = make_list()
    store = firekeep.SafetensorsStore(tmp_path / "ruled.safetensors", rename=r"^net\.2\.=>net.1.")
    store.save(model)
    fresh = TorchMlp()
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "ruled.safetensors"), strict=True)
    close(run(fresh, X), run(model, X))


@pytest.mark.parametrize("kind", ["list", "mirror"])
def test_there_and_back_the_file_has_the_same_tensors(
    theirs: TorchMlp, files: dict[str, Path], kind: str, tmp_path: Path
):
    model = MAKERS[kind]()
    firekeep.load_into(model, files["safetensors"])
    firekeep.save(model, tmp_path / "back.safetensors", like=files["safetensors"])
    back = safetensors.torch.load_file(tmp_path / "back.safetensors")
    assert {name: tensor.numpy().tobytes() for name, tensor in back.items()} == state_of(theirs)


class TestADenseModelAndItsTwin:
    """A burnpack file that Burn wrote from a list, and the PyTorch file of the `nn.Sequential` that it came from."""

    def make(self) -> Module:
        class Mlp(Module):
            model: list[Linear]

            def __call__(self, x: Any) -> Any:
                first, second, last = self.model
                return last(Relu()(second(Relu()(first(x)))))

        return Mlp(model=[Linear(20, 64), Linear(64, 32), Linear(32, 1)])

    def test_both_give_the_same_net(self):
        twins = [self.make(), self.make(), self.make()]
        for twin, name in zip(twins, ["mlp_weights.bpk", "mlp_weights.pt", "mlp_weights_older.bpk"], strict=True):
            assert firekeep.load_into(twin, BURN / f"asterinas_{name}").exact
        assert state_of(twins[0]) == state_of(twins[1]) == state_of(twins[2])

        theirs = nn.Module()
        theirs.model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
        assert firekeep.load_into(theirs, BURN / "asterinas_mlp_weights.bpk").exact
        assert state_of(theirs) == state_of(firekeep.load_file(BURN / "asterinas_mlp_weights.pt"))
        x = stream(1, 0, 3, 20)
        close(run(twins[0], x), run(theirs.model, x), 1e-5)


class Flip(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.flip(x, [1])


class Flows(nn.Module):
    """A list of which every other element has no tensors, and a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.flows = nn.ModuleList([layer for _ in range(3) for layer in (nn.Conv1d(2, 2, 1), Flip())])
        self.fc = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for flow in self.flows:
            x = flow(x)
        return self.fc(x.transpose(1, 2)).transpose(1, 2)


class OptionalFlows(Module):
    """The list keeps its empty places, and the Sequential loses its activation."""

    flows: list[Conv1d | None]
    fc: list[Linear]

    def __call__(self, x: Any) -> Any:
        for flow in self.flows:
            x = x[:, ::-1] if flow is None else flow(x)
        return self.fc[1](Relu()(self.fc[0](x.swapaxes(1, 2)))).swapaxes(1, 2)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_gaps_are_kept_in_one_list_and_closed_in_another(suffix: str, tmp_path: Path):
    torch.manual_seed(2)
    theirs = Flows()
    torch.save(theirs.state_dict(), tmp_path / "flows.pt")
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "flows.safetensors")
    model = OptionalFlows(
        flows=[Conv1d(2, 2, 1), None, Conv1d(2, 2, 1), None, Conv1d(2, 2, 1), None], fc=[Linear(2, 2), Linear(2, 2)]
    )
    report = firekeep.load_into(model, tmp_path / f"flows.{suffix}")
    assert report.exact
    assert report.applied == tuple(
        f"{path}.{last}" for path in ("fc.0", "fc.1", "flows.0", "flows.2", "flows.4") for last in ("bias", "weight")
    )
    x = stream(2, 30, 1, 2, 3)
    close(run(model, x), run(theirs, x))
    expected = [[-0.27289051, -0.27018493, -0.26568484], [-0.66148949, -0.66561544, -0.67231065]]
    close(run(model, x), [expected], 1e-6)
