"""A bare state dict of PyTorch beside a file of Flax: names and shapes tell the layers, in both directions."""

from __future__ import annotations

import numpy as np
import pytest

import firekeep
from firekeep import cli
from firekeep.errors import RuleError, UnsupportedError

RNG = np.random.default_rng(7)


def numbers(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


TORCH = {
    "conv.weight": numbers(4, 3, 2, 2),
    "conv.bias": numbers(4),
    "bn.weight": numbers(4),
    "bn.bias": numbers(4),
    "bn.running_mean": numbers(4),
    "bn.running_var": numbers(4),
    "proj.weight": numbers(4, 4),
    "head.weight": numbers(5, 4),
}
FLAX = {
    "conv.kernel": TORCH["conv.weight"].transpose(2, 3, 1, 0),
    "conv.bias": TORCH["conv.bias"],
    "bn.scale": TORCH["bn.weight"],
    "bn.bias": TORCH["bn.bias"],
    "bn.mean": TORCH["bn.running_mean"],
    "bn.var": TORCH["bn.running_var"],
    "proj.kernel": TORCH["proj.weight"].T,
    "head.kernel": TORCH["head.weight"].T,
}
LINEN = {f"{'batch_stats' if name in ('bn.mean', 'bn.var') else 'params'}.{name}": one for name, one in FLAX.items()}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    firekeep.save_file(TORCH, "torch.safetensors")
    firekeep.save_file(FLAX, "flax.safetensors", metadata={"firekeep.layout": "flax"})
    firekeep.save_file(LINEN, "linen.safetensors", metadata={"firekeep.layout": "linen"})


def held(path):
    with firekeep.open(path) as file:
        return {name: np.array(file[name]) for name in file}


def assert_equal(path, expected):
    made = held(path)
    assert made.keys() == expected.keys()
    for name, one in expected.items():
        np.testing.assert_array_equal(made[name], one, err_msg=name)


@pytest.mark.parametrize(
    ("source", "like", "layout", "expected"),
    [
        ("torch", "flax", "flax", FLAX),
        ("torch", "linen", "linen", FLAX),
        ("flax", "torch", "torch", TORCH),
        ("linen", "torch", "torch", TORCH),
    ],
)
def test_a_bare_file_is_converted_like_one_of_the_other_side(files, source, like, layout, expected):
    firekeep.convert(f"{source}.safetensors", "made.safetensors", layout=layout, like=f"{like}.safetensors")
    assert_equal("made.safetensors", expected)


@pytest.mark.parametrize(
    ("file", "like"),
    [
        ("torch", "flax"),
        ("torch", "linen"),
        ("flax", "torch"),
        ("linen", "torch"),
        ("linen", "linen"),
        ("flax", "flax"),
    ],
)
def test_a_bare_file_is_matched_with_one_of_the_other_side(files, file, like):
    assert firekeep.preview(f"{file}.safetensors", f"{like}.safetensors").exact


def test_variables_are_saved_and_loaded_like_a_bare_file(files):
    tree: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for name, one in LINEN.items():
        collection, layer, role = name.split(".")
        tree.setdefault(collection, {}).setdefault(layer, {})[role] = one.copy()
    firekeep.save(tree, "made.safetensors", layout="torch", like="torch.safetensors")
    assert_equal("made.safetensors", TORCH)
    for layers in tree.values():
        for held_there in layers.values():
            for one in held_there.values():
                one[...] = 0
    assert firekeep.load_into(tree, "torch.safetensors", like="torch.safetensors").exact
    np.testing.assert_array_equal(tree["params"]["head"]["kernel"], FLAX["head.kernel"])


@pytest.mark.parametrize(
    "rename", [(), r"^(params|batch_stats)\.=>", [r"^(params|batch_stats)\.=>", r"^head\.=>classes."]]
)
def test_renames_may_take_the_collections_off_where_they_are_taken_off_anyway(files, rename):
    renamed = "classes" if isinstance(rename, list) else "head"
    like = {name.replace("head.", f"{renamed}."): one for name, one in TORCH.items()}
    firekeep.save_file(like, "like.safetensors")
    report = firekeep.convert(
        "linen.safetensors", "made.safetensors", layout="torch", like="like.safetensors", rename=rename
    )
    assert_equal("made.safetensors", like)
    assert "the collections 'params' and 'batch_stats' were taken off the names" in report.notes


def test_the_remedy_for_arrays_of_which_nobody_said_how_they_lie_is_one(files):
    np.savez("arrays.npz", **FLAX)
    with pytest.raises(UnsupportedError) as caught:
        firekeep.convert("arrays.npz", "made.safetensors", layout="torch", like="torch.safetensors")
    command = caught.value.remedy.split("`")[1].replace("LAYOUT", "flax").split()
    assert cli.run(command[1:]) == 0
    firekeep.convert(command[3], "made.safetensors", layout="torch", like="torch.safetensors")
    assert_equal("made.safetensors", TORCH)


def test_other_layouts_ask_for_what_does_tell_the_layers(files):
    for like in (None, "torch.safetensors"):
        with pytest.raises(RuleError, match="a PyTorch file of a whole model"):
            firekeep.convert("torch.safetensors", "made.safetensors", layout="equinox", like=like)


def test_what_lies_under_a_key_that_is_no_pytorch_files_is_loaded_by_the_remedy(files):
    with pytest.raises(RuleError, match="is for PyTorch files") as caught:
        firekeep.load_file("linen.safetensors", top_level_key="params")
    assert caught.value.remedy.endswith(r"pass rename=[r'^params\.=>'] and allow_unused=True.")
    tree = {name: np.zeros_like(one) for name, one in FLAX.items() if name not in ("bn.mean", "bn.var")}
    assert firekeep.load_into(tree, "linen.safetensors", rename=[r"^params\.=>"], allow_unused=True).complete
    np.testing.assert_array_equal(tree["head.kernel"], FLAX["head.kernel"])
    with pytest.raises(RuleError, match="is for PyTorch files") as caught:
        firekeep.load_file("linen.safetensors", top_level_key="nothing")
    assert "rename" not in caught.value.remedy
