"""Square matrices of a file in Burn's layout: whether they were turned round on their way there is told, and conversions heed it as loads do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")
pytest.importorskip("flax")
pytest.importorskip("equinox")

import equinox as eqx
import jax
import jax.numpy as jnp
import torch
from flax import nnx
from torch import nn

import firekeep
from firekeep import ModuleRecord


class Own(nn.Module):
    def __init__(self, inputs: int = 4, outputs: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.randn(outputs))


class Beside(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.lora = nn.Parameter(torch.randn(4, 4))


SOURCES: dict[str, Any] = {"own": Own, "linear": lambda: nn.Linear(4, 4), "embedding": lambda: nn.Embedding(4, 4)}


class FlaxOwn(nnx.Module):
    def __init__(self) -> None:
        self.weight, self.bias = nnx.Param(jnp.zeros((4, 4))), nnx.Param(jnp.zeros(4))


class FlaxBeside(nnx.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4, rngs=nnx.Rngs(0))
        self.lora = nnx.Param(jnp.zeros((4, 4)))


FLAX: dict[str, Any] = {
    "own": FlaxOwn,
    "linear": lambda: nnx.Linear(4, 4, rngs=nnx.Rngs(0)),
    "embedding": lambda: nnx.Embed(4, 4, rngs=nnx.Rngs(0)),
}


class FlaxNet(nnx.Module):
    def __init__(self, fc: Any) -> None:
        self.fc, self.other = fc, nnx.Linear(2, 3, rngs=nnx.Rngs(0))


class EquinoxOwn(eqx.Module):
    weight: jax.Array
    bias: jax.Array

    def __init__(self) -> None:
        self.weight, self.bias = jnp.zeros((4, 4)), jnp.zeros(4)


KEY = jax.random.key(0)
EQUINOX: dict[str, Any] = {
    "own": EquinoxOwn,
    "linear": lambda: eqx.nn.Linear(4, 4, key=KEY),
    "embedding": lambda: eqx.nn.Embedding(4, 4, key=KEY),
}


class EquinoxNet(eqx.Module):
    fc: Any
    other: eqx.nn.Linear

    def __init__(self, fc: Any) -> None:
        self.fc, self.other = fc, eqx.nn.Linear(2, 3, key=KEY)


def torch_net(fc: nn.Module) -> nn.Module:
    return nn.ModuleDict({"fc": fc, "other": nn.Linear(2, 3)})


LIKES: dict[str, Any] = {
    "torch": lambda kind: torch_net(SOURCES[kind]()),
    "flax": lambda kind: FlaxNet(FLAX[kind]()),
    "equinox": lambda kind: EquinoxNet(EQUINOX[kind]()),
}


def held(path: Any) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in firekeep.load_file(path).items()}


def weight(model: Any) -> np.ndarray:
    fc = model["fc"] if isinstance(model, nn.ModuleDict) else model.fc
    found = next(getattr(fc, name) for name in ("weight", "kernel", "embedding") if getattr(fc, name, None) is not None)
    return found.detach().numpy() if isinstance(found, torch.Tensor) else np.asarray(found[...])


def filled(model: Any, path: Any) -> Any:
    if isinstance(model, eqx.Module):
        return firekeep.load_as(model, path, strict=False)[0]
    firekeep.load_into(model, path, strict=False)
    return model


@pytest.mark.parametrize("layout", LIKES)
@pytest.mark.parametrize("like", SOURCES)
@pytest.mark.parametrize("saved", SOURCES)
def test_a_conversion_gives_the_numbers_that_a_load_gives(tmp_path, saved: str, like: str, layout: str):
    source = torch_net(SOURCES[saved]())
    firekeep.save(source, tmp_path / "a.bpk")
    firekeep.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", layout=layout, like=LIKES[layout](like))
    straight = weight(filled(LIKES[layout](like), tmp_path / "a.bpk"))
    np.testing.assert_array_equal(weight(filled(LIKES[layout](like), tmp_path / "b.safetensors")), straight)
    own = weight(source)
    np.testing.assert_array_equal(straight, own.T if (layout, like) == ("flax", "linear") else own)


@pytest.mark.parametrize("layout", ["torch", "flax", "linen", "equinox"])
@pytest.mark.parametrize("saved", SOURCES)
def test_the_model_that_was_saved_tells_it_for_every_layout(tmp_path, saved: str, layout: str):
    source = torch_net(SOURCES[saved]())
    firekeep.save(source, tmp_path / "a.bpk")
    firekeep.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", layout=layout, like=source)
    (found,) = (
        value for name, value in held(tmp_path / "b.safetensors").items() if name.startswith("fc.") and value.ndim == 2
    )
    turned = saved == "linear" and layout in ("flax", "linen")
    np.testing.assert_array_equal(found, weight(source).T if turned else weight(source))


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_matrices_that_are_no_squares_are_laid_right_too(tmp_path, shape: tuple[int, int]):
    """Their shapes alone would tell that they lie across, which was refused."""
    source = torch_net(Own(*shape))
    firekeep.save(source, tmp_path / "a.bpk")
    like = torch_net(nn.Linear(*shape))
    report = firekeep.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", layout="flax", like=like)
    np.testing.assert_array_equal(held(tmp_path / "b.safetensors")["fc.kernel"], weight(source).T)
    assert "1 tensor turned round first, since the metadata tell how the file's matrices lie" in report.notes


@pytest.mark.parametrize("layout", ["torch", "flax", "equinox"])
def test_matrices_beside_a_layers_own_stay_as_they_are(tmp_path, layout: str):
    source = torch_net(Beside())
    firekeep.save(source, tmp_path / "a.bpk")
    firekeep.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", layout=layout, like=source)
    np.testing.assert_array_equal(held(tmp_path / "b.safetensors")["fc.lora"], source["fc"].lora.detach().numpy())


def test_a_kernel_of_a_class_of_ones_own_is_never_turned(tmp_path):
    """It is no matrix of PyTorch's, and not among those of which the file tells that they lie as there."""

    class Kernel(nnx.Module):
        def __init__(self) -> None:
            self.kernel = nnx.Param(jax.random.normal(KEY, (4, 4)))

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = nn.Parameter(torch.zeros(4, 4))

    source = FlaxNet(Kernel())
    firekeep.save(source, tmp_path / "a.bpk")
    firekeep.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", layout="torch", like=torch_net(Reader()))
    np.testing.assert_array_equal(held(tmp_path / "b.safetensors")["fc.kernel"], np.asarray(source.fc.kernel[...]))


@pytest.mark.parametrize("layout", ["torch", "flax"])
def test_squares_of_a_file_of_burns_own_are_refused_where_the_class_does_not_tell(tmp_path, layout: str):
    """As a load refuses them; the remedy is followed."""
    module = firekeep.module.Linear(4, 4)
    ModuleRecord.of(module).save(tmp_path / "a.bpk")
    like = Own() if layout == "torch" else FlaxOwn()
    with pytest.raises(firekeep.RuleError, match=r"square ones are such: 'weight'.*exclude=") as refused:
        firekeep.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", layout=layout, like=like)
    assert refused.value.path == str(tmp_path / "a.bpk")
    assert not (tmp_path / "b.safetensors").exists()
    report = firekeep.convert(
        tmp_path / "a.bpk", tmp_path / "b.safetensors", layout=layout, like=like, exclude="^weight$"
    )
    assert report.tensors == 1
    known = firekeep.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", layout=layout, like=nn.Linear(4, 4))
    assert known.tensors == 2


class Native(firekeep.module.Module):
    fc: firekeep.module.Linear

    def __init__(self, layout: Any, sizes: tuple[int, int] = (4, 4)) -> None:
        self.fc = firekeep.module.Linear(*sizes, layout=layout)


def alike(size: tuple[int, int] = (4, 4)) -> nn.Module:
    return nn.ModuleDict({"fc": nn.Linear(*size)})


@pytest.mark.parametrize("size", [(4, 4), (4, 6)])
@pytest.mark.parametrize("reader", ["torch", "row", "col"])
@pytest.mark.parametrize("written", ["row", "col"])
@pytest.mark.parametrize("layout", ["torch", "flax"])
def test_linear_layers_in_columns_are_laid_as_the_file_says(
    tmp_path, layout: str, written: str, reader: str, size: tuple[int, int]
):
    source, module = alike(size), Native(written, size)
    firekeep.apply(module, source)
    firekeep.save(module, tmp_path / "a.bpk")
    like = alike(size) if reader == "torch" else Native(reader, size)
    firekeep.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", layout=layout, like=like)
    found = held(tmp_path / "b.safetensors")
    own = source["fc"].weight.detach().numpy()
    np.testing.assert_array_equal(found["fc.weight"] if layout == "torch" else found["fc.kernel"].T, own)
    assert "firekeep.linear_col" not in firekeep.saved_metadata(tmp_path / "b.safetensors")


def test_what_the_file_says_of_columns_follows_the_renames(tmp_path):
    source, module = alike(), Native("col")
    firekeep.apply(module, source)
    firekeep.save(module, tmp_path / "a.bpk")
    firekeep.convert(tmp_path / "a.bpk", tmp_path / "b.bpk", rename="^fc=>head.fc")
    assert firekeep.saved_metadata(tmp_path / "b.bpk")["firekeep.linear_col"] == '["head.fc"]'
    model = nn.ModuleDict({"head": alike()})
    assert firekeep.load_into(model, tmp_path / "b.bpk").exact
    assert torch.equal(model["head"]["fc"].weight, source["fc"].weight)
    report = firekeep.convert(tmp_path / "a.bpk", tmp_path / "c.bpk", rename=r"\.weight$=>.w")
    assert any("'fc.w'" in note and "LinearLayout::Col" in note for note in report.notes)


@pytest.mark.parametrize("how", ["convert", "save", "apply"])
def test_a_reader_of_burns_own_in_columns_gets_a_file_that_says_so(tmp_path, how: str):
    source, reader = alike(), Native("col")
    state = source.state_dict()
    if how == "convert":
        firekeep.save(source, tmp_path / "a.safetensors")
        firekeep.convert(tmp_path / "a.safetensors", tmp_path / "b.bpk", layout="burn", like=reader)
    elif how == "save":
        firekeep.save(state, tmp_path / "b.bpk", like=reader)
    model = alike()
    if how == "apply":
        firekeep.apply(model, firekeep.collect(state, layout="burn", like=reader))
        firekeep.apply(reader, firekeep.collect(state, layout="burn", like=reader))
    else:
        np.testing.assert_array_equal(held(tmp_path / "b.bpk")["fc.weight"], state["fc.weight"].numpy())
        firekeep.load_into(model, tmp_path / "b.bpk")
        firekeep.load_into(reader, tmp_path / "b.bpk")
    assert torch.equal(model["fc"].weight, source["fc"].weight)
    back = alike()
    firekeep.apply(back, reader)
    assert torch.equal(back["fc"].weight, source["fc"].weight)


def test_a_model_of_equinox_tells_its_layers(tmp_path):
    """Its modules never change, which plays no part for what it is to be like."""
    source = torch_net(nn.Linear(4, 4))
    firekeep.save(source, tmp_path / "a.bpk")
    like = LIKES["equinox"]("linear")
    firekeep.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", layout="equinox", like=like)
    firekeep.save(source.state_dict(), tmp_path / "c.bpk", like=like)
    np.testing.assert_array_equal(held(tmp_path / "b.safetensors")["fc.weight"], weight(source))
    np.testing.assert_array_equal(held(tmp_path / "c.bpk")["fc.weight"], weight(source).T)
