"""What rename rules see of a conversion with like=: the names of the new layout, whatever tells the layers."""

from __future__ import annotations

import numpy as np
import pytest

import firekeep

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

RNG = np.random.default_rng(7)
FIRST, SECOND = RNG.normal(size=(3, 5)).astype("f4"), RNG.normal(size=(5, 2)).astype("f4")
SCALE = RNG.normal(size=5).astype("f4")
LINEN = {
    "params.Dense_0.kernel": FIRST,
    "params.Dense_0.bias": np.ones(5, "f4"),
    "params.Dense_1.kernel": SECOND,
    "params.LayerNorm_0.scale": SCALE,
    "params.LayerNorm_0.bias": np.zeros(5, "f4"),
}
LIKES = ["model", "whole.pt", "state.pt", "torch.safetensors"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.norm = nn.Linear(3, 5), nn.Linear(5, 2, bias=False), nn.LayerNorm(5)


def renamed(before=""):
    pairs = {"Dense_0": "fc1", "Dense_1": "fc2", "LayerNorm_0": "norm"}
    return [f"^{before}{old}=>{new}" for old, new in pairs.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("like")
    net = Net()
    torch.save(net, made / "whole.pt")
    torch.save(net.state_dict(), made / "state.pt")
    firekeep.save(net, made / "torch.safetensors")
    firekeep.save(net, made / "model.bpk")
    bare = {name.removeprefix("params."): array for name, array in LINEN.items()}
    firekeep.save_file(LINEN, made / "linen.safetensors", metadata={"firekeep.layout": "linen"})
    firekeep.save_file(bare, made / "flax.safetensors", metadata={"firekeep.layout": "flax"})
    names = {"kernel": "weight", "scale": "weight"}
    theirs = {
        f"{name.rpartition('.')[0]}.{names.get(name.rpartition('.')[2], 'bias')}": np.ascontiguousarray(array.T)
        for name, array in bare.items()
    }
    firekeep.save_file(theirs, made / "theirs.safetensors", metadata={"format": "pt"})
    odd = {name.replace(".weight", ".w"): array for name, array in theirs.items()}
    firekeep.save_file(odd, made / "odd.safetensors", metadata={"format": "pt"})
    names = {"kernel": "weight", "scale": "gamma"}
    burn = {
        f"{name.rpartition('.')[0]}.{names.get(name.rpartition('.')[2], 'beta' if 'Norm' in name else 'bias')}": array
        for name, array in bare.items()
    }
    firekeep.save_file(burn, made / "burn.safetensors", metadata={"firekeep.layout": "burn"})
    return made


def convert(folder, tmp_path, source, like, **options):
    like = Net() if like == "model" else folder / like
    report = firekeep.convert(folder / source, tmp_path / "out.safetensors", like=like, **options)
    return firekeep.load_file(tmp_path / "out.safetensors"), [hits for _, hits in report.renames]


@pytest.mark.parametrize("like", LIKES)
@pytest.mark.parametrize(
    ("source", "rename"),
    [
        ("linen.safetensors", renamed("params\\.")),
        ("linen.safetensors", renamed()),
        ("linen.safetensors", renamed(r"(?:params\.)?")),
        ("flax.safetensors", renamed()),
        ("burn.safetensors", renamed()),
    ],
    ids=["with the collection", "without it", "with or without", "flax", "burn"],
)
def test_a_model_and_a_file_tell_the_same_through_renames(folder, tmp_path, source, rename, like):
    made, hits = convert(folder, tmp_path, source, like, layout="torch", rename=rename)
    assert hits == [2, 1, 2]
    assert made.keys() == Net().state_dict().keys()
    np.testing.assert_array_equal(made["fc1.weight"], FIRST.T)
    np.testing.assert_array_equal(made["fc2.weight"], SECOND.T)
    np.testing.assert_array_equal(made["norm.weight"], SCALE)


@pytest.mark.parametrize("like", LIKES)
def test_rules_see_the_last_parts_that_the_new_layout_gives(folder, tmp_path, like):
    rules = [*renamed(), r"\.kernel$=>.never", r"\.weight$=>.w"]
    made, hits = convert(folder, tmp_path, "flax.safetensors", like, layout="torch", rename=rules)
    assert hits == [2, 1, 2, 0, 3]
    assert made.keys() == {"fc1.w", "fc1.bias", "fc2.w", "norm.w", "norm.bias"}
    np.testing.assert_array_equal(made["fc2.w"], SECOND.T)


@pytest.mark.parametrize("like", ["model", "whole.pt", "model.bpk"])
def test_weights_are_turned_although_a_rule_changes_the_last_part_of_their_name(folder, tmp_path, like):
    rules = [*renamed(), r"\.weight$=>.w"]
    made, hits = convert(folder, tmp_path, "theirs.safetensors", like, layout="burn", rename=rules)
    assert hits == [2, 1, 2, 2]
    np.testing.assert_array_equal(made["fc1.w"], FIRST)
    np.testing.assert_array_equal(made["fc2.w"], SECOND)
    np.testing.assert_array_equal(made["norm.gamma"], SCALE)


@pytest.mark.parametrize("like", ["model", "whole.pt", "model.bpk"])
def test_names_that_no_layer_has_before_the_renames_are_refused_and_not_left_unturned(folder, tmp_path, like):
    with pytest.raises(firekeep.RuleError, match=r"has nothing like 'Dense_0\.w'"):
        convert(folder, tmp_path, "odd.safetensors", like, layout="burn", rename=[*renamed(), r"\.w$=>.weight"])


@pytest.mark.parametrize("like", ["model", "torch.safetensors"])
def test_a_layer_whose_tensors_renames_take_apart_is_refused(folder, tmp_path, like):
    rules = [r"^Dense_0\.weight=>fc1.weight", r"^Dense_0\.bias=>norm.bias", r"^LayerNorm_0\.bias=>fc1.bias"]
    rules += [r"^Dense_1=>fc2", r"^LayerNorm_0=>norm"]
    with pytest.raises(firekeep.RuleError, match="nothing like"):
        convert(folder, tmp_path, "flax.safetensors", like, layout="torch", rename=rules)


def test_two_layers_that_change_places_are_each_turned_as_what_they_become(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Embedding(4, 4)

    arrays = {name: RNG.normal(size=(4, 4)).astype("f4") for name in ("a.weight", "b.weight")}
    firekeep.save_file(arrays, tmp_path / "in.safetensors", metadata={"format": "pt"})
    swap = [r"^a\.=>c.", r"^b\.=>a.", r"^c\.=>b."]
    firekeep.convert(tmp_path / "in.safetensors", tmp_path / "o.bpk", layout="burn", like=Two(), rename=swap)
    made = firekeep.load_file(tmp_path / "o.bpk")
    np.testing.assert_array_equal(made["a.weight"], arrays["b.weight"].T)
    np.testing.assert_array_equal(made["b.weight"], arrays["a.weight"])
