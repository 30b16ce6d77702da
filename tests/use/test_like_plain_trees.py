"""Trees of NumPy arrays, which do not say how they lie, and `like=`, which may: by its names and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import firekeep
from firekeep.errors import RuleError

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


class Net(nn.Module):
    """The names of its norm tell PyTorch's layout from Burn's."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.emb = nn.Linear(4, 4), nn.LayerNorm(4), nn.Embedding(4, 4)


class Oblong(nn.Module):
    """Its shapes do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 6)


class Square(nn.Module):
    """Nothing does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)


TELLING = [Net, Oblong]


def arrays(model: nn.Module) -> dict[str, Any]:
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def weight(path: Any) -> np.ndarray:
    return np.array(firekeep.load_file(path)["fc.weight"])


@pytest.fixture(params=["model", "pickle"])
def likened(request, tmp_path):
    def give(model: nn.Module) -> Any:
        if request.param == "model":
            return model
        torch.save(model, tmp_path / "like.pt")
        return tmp_path / "like.pt"

    return give


@pytest.mark.parametrize("kind", [*TELLING, Square])
@pytest.mark.parametrize("layout", [None, "burn"])
def test_a_tree_that_is_like_a_model_is_saved_as_a_state_dict_is(tmp_path, likened, kind: Any, layout: str | None):
    model = kind()
    report = firekeep.save(arrays(model), tmp_path / "a.bpk", like=likened(model), layout=layout)
    assert report.layout == "burn"
    assert any("from the layout 'torch' to 'burn'" in step for step in report.steps)
    np.testing.assert_array_equal(weight(tmp_path / "a.bpk"), model.fc.weight.detach().numpy().T)
    other = kind()
    assert firekeep.load_into(other, tmp_path / "a.bpk").exact
    assert torch.equal(other.fc.weight, model.fc.weight)


@pytest.mark.parametrize("kind", TELLING)
@pytest.mark.parametrize("layout", [None, "torch"])
def test_what_lies_as_pytorch_has_it_is_not_turned_to_lie_so(tmp_path, likened, kind: Any, layout: str | None):
    model = kind()
    firekeep.save(arrays(model), tmp_path / "a.safetensors", like=likened(model), layout=layout)
    np.testing.assert_array_equal(weight(tmp_path / "a.safetensors"), model.fc.weight.detach().numpy())


@pytest.mark.parametrize("kind", TELLING)
@pytest.mark.parametrize("layout", [None, "torch"])
def test_what_lies_as_burn_has_it_is(tmp_path, likened, kind: Any, layout: str | None):
    model = kind()
    tree = firekeep.load_file(save_burn(model, tmp_path))
    firekeep.save(tree, tmp_path / "a.safetensors", like=likened(model), layout=layout)
    np.testing.assert_array_equal(weight(tmp_path / "a.safetensors"), model.fc.weight.detach().numpy())


def save_burn(model: nn.Module, folder: Any) -> Any:
    firekeep.save(model, folder / "burn.bpk")
    return folder / "burn.bpk"


@pytest.mark.parametrize("kind", TELLING)
def test_other_layouts_are_made_of_it_where_it_tells(tmp_path, likened, kind: Any):
    model = kind()
    firekeep.save(arrays(model), tmp_path / "a.safetensors", like=likened(model), layout="flax")
    made = firekeep.load_file(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(made["fc.kernel"], model.fc.weight.detach().numpy().T)


def test_squares_that_nothing_tells_of_are_not_turned_on_a_guess(tmp_path, likened):
    """They may be PyTorch's already, or Burn's. The remedy is followed."""
    model = Square()
    with pytest.raises(RuleError, match=r"names and shapes do not tell .*'torch' or as 'burn'.*leave out layout="):
        firekeep.save(arrays(model), tmp_path / "a.safetensors", like=likened(model), layout="torch")
    firekeep.save(arrays(model), tmp_path / "a.safetensors", like=likened(model))
    np.testing.assert_array_equal(weight(tmp_path / "a.safetensors"), model.fc.weight.detach().numpy())
    firekeep.convert(save_burn(model, tmp_path), tmp_path / "b.safetensors", layout="torch", like=model)
    np.testing.assert_array_equal(weight(tmp_path / "b.safetensors"), model.fc.weight.detach().numpy())


@pytest.mark.parametrize("kind", [*TELLING, Square])
@pytest.mark.parametrize("file", ["burn.bpk", "torch.safetensors"])
@pytest.mark.parametrize("door", ["load_into", "load_as"])
def test_a_tree_that_is_like_a_model_takes_files_of_every_layout(tmp_path, likened, kind: Any, file: str, door: str):
    """A square of Burn's went in as it lay, and like= was not looked at."""
    model = kind()
    save_burn(model, tmp_path)
    firekeep.save(model, tmp_path / "torch.safetensors")
    tree = {name: np.zeros_like(value) for name, value in arrays(model).items()}
    if door == "load_as":
        tree, report = firekeep.load_as(tree, tmp_path / file, like=likened(model))
    else:
        report = firekeep.load_into(tree, tmp_path / file, like=likened(model))
    assert report.exact
    for name, value in arrays(model).items():
        np.testing.assert_array_equal(tree[name], value, err_msg=name)


@pytest.mark.parametrize("kind", TELLING)
def test_a_tree_in_burns_layout_takes_them_too(tmp_path, likened, kind: Any):
    model = kind()
    wanted = firekeep.load_file(save_burn(model, tmp_path))
    firekeep.save(model, tmp_path / "torch.safetensors")
    tree = {name: np.zeros_like(value) for name, value in wanted.items()}
    assert firekeep.load_into(tree, tmp_path / "torch.safetensors", like=likened(model)).exact
    for name, value in wanted.items():
        np.testing.assert_array_equal(tree[name], value, err_msg=name)


def test_names_that_renames_make_are_those_that_it_is_like(tmp_path):
    model = Net()
    tree = {f"net.{name}": value for name, value in arrays(model).items()}
    firekeep.save(tree, tmp_path / "a.bpk", like=model, rename=r"^net\.=>")
    np.testing.assert_array_equal(weight(tmp_path / "a.bpk"), model.fc.weight.detach().numpy().T)


def test_a_tree_that_is_not_like_it_is_told(tmp_path):
    """The remedy is followed: without like= the tensors go in as they lie."""
    model = Net()
    firekeep.save(model, tmp_path / "a.safetensors")
    tree = {name: np.zeros_like(value) for name, value in arrays(model).items()}
    with pytest.raises(RuleError, match=r"not like the Square.*'norm\.weight'.*Leave out like="):
        firekeep.load_into(tree, tmp_path / "a.safetensors", like=Square())
    assert not tree["fc.weight"].any()
    assert firekeep.load_into(tree, tmp_path / "a.safetensors").exact


def test_a_tree_of_other_names_is_saved_as_it_was(tmp_path):
    tree = {"x.weight": np.eye(4, dtype="f4"), "x.bias": np.zeros(4, "f4")}
    with pytest.raises(RuleError, match="wants tensors that there are not"):
        firekeep.save(tree, tmp_path / "a.bpk", like=Square())
    assert firekeep.save(tree, tmp_path / "a.bpk").layout is None
