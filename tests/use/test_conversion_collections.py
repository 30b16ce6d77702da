"""Rename rules for files of Linen: with the collections `params` and `batch_stats` in them or without, they do what they say or it is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import firekeep
from firekeep.layouts import met_by_collections, seen_by
from firekeep.rules import KeyRemapper

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

RNG = np.random.default_rng(3)
KERNEL, MEAN = RNG.normal(size=(5, 5)).astype("f4"), RNG.normal(size=5).astype("f4")
LINEN = {
    "params.Dense_0.kernel": KERNEL,
    "params.Dense_0.bias": np.ones(5, "f4"),
    "params.BatchNorm_0.scale": np.full(5, 2, "f4"),
    "params.BatchNorm_0.bias": np.zeros(5, "f4"),
    "batch_stats.BatchNorm_0.mean": MEAN,
    "batch_stats.BatchNorm_0.var": np.ones(5, "f4"),
}
RULES: dict[str, Any] = {
    "without": [r"^Dense_0\.=>fc.", r"^BatchNorm_0\.=>bn."],
    "unanchored": ["Dense_0=>fc", "BatchNorm_0=>bn"],
    "with": [r"^params\.Dense_0\.=>fc.", r"^(?:params|batch_stats)\.BatchNorm_0\.=>bn."],
    "one by one": [r"^params\.Dense_0=>fc", r"^params\.BatchNorm_0=>bn", r"^batch_stats\.BatchNorm_0=>bn"],
    "kept": [r"^(params|batch_stats)\.Dense_0=>\1.fc", r"^(params|batch_stats)\.BatchNorm_0=>\1.bn"],
    "taken off": [r"^(?:params|batch_stats)\.=>", r"^Dense_0\.=>fc.", r"^BatchNorm_0\.=>bn."],
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn = nn.Linear(5, 5), nn.BatchNorm1d(5)


@pytest.fixture
def path(tmp_path):
    firekeep.save_file(LINEN, tmp_path / "linen.safetensors", metadata={"firekeep.layout": "linen"})
    return tmp_path / "linen.safetensors"


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("like", ["model", "pickle"])
def test_a_new_layout_takes_rules_with_and_without_the_collections(path, rules: str, like: str):
    given: Any = Net()
    if like == "pickle":
        torch.save(given, path.with_name("net.pt"))
        given = path.with_name("net.pt")
    out = path.with_name("out.safetensors")
    report = firekeep.convert(path, out, layout="torch", like=given, rename=RULES[rules])
    assert all(hits for _, hits in report.renames)
    assert not [note for note in report.notes if "found in no name" in note]
    made = firekeep.load_file(out)
    assert made.keys() == Net().state_dict().keys() - {"bn.num_batches_tracked"}
    np.testing.assert_array_equal(made["fc.weight"], KERNEL.T)
    np.testing.assert_array_equal(made["bn.running_mean"], MEAN)


@pytest.mark.parametrize("rules", RULES)
def test_a_save_of_variables_takes_them_too(tmp_path, rules: str):
    pytest.importorskip("jax")
    import jax.numpy as jnp

    tree: dict[str, Any] = {}
    for name, value in LINEN.items():
        *parts, last = name.split(".")
        place = tree
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = jnp.asarray(value)
    report = firekeep.save(tree, tmp_path / "out.safetensors", layout="torch", like=Net(), rename=RULES[rules])
    assert not [step for step in report.steps if "changed nothing" in step]
    made = firekeep.load_file(tmp_path / "out.safetensors")
    np.testing.assert_array_equal(made["fc.weight"], KERNEL.T)
    np.testing.assert_array_equal(made["bn.running_mean"], MEAN)


@pytest.mark.parametrize("layout", [None, "linen"])
def test_where_the_layout_stays_names_keep_their_collections_and_rules_without_them_are_told(path, layout: str | None):
    out = path.with_name("out.safetensors")
    report = firekeep.convert(path, out, layout=layout, rename=RULES["without"])
    assert firekeep.load_file(out).keys() == LINEN.keys()
    told = " ".join(report.notes)
    assert r"the rename '^Dense_0\.=>fc.' was found in no name" in told
    assert "without the collections 'params' and 'batch_stats'" in told
    assert r"as in '^params\.'" in told
    report = firekeep.convert(path, out, layout=layout, rename=RULES["kept"])
    assert "params.fc.kernel" in firekeep.load_file(out)
    assert not any("collections" in note for note in report.notes)


def test_rules_that_would_be_found_in_no_name_at_all_are_told_without_a_hint(path):
    report = firekeep.convert(path, path.with_name("out.safetensors"), rename="^Conv_0=>conv")
    assert [note for note in report.notes if "rename" in note] == ["the rename '^Conv_0=>conv' was found in no name"]


def test_names_of_a_table_that_are_not_there_are_told(path):
    table = KeyRemapper.table({"Dense_0.kernel": "fc.kernel", "params.Dense_0.bias": "params.fc.bias"})
    report = firekeep.convert(path, path.with_name("out.safetensors"), rename=table)
    told = [note for note in report.notes if "table" in note or "collections" in note]
    assert told[0] == "1 name of the table of renames met no tensor: 'Dense_0.kernel'"
    assert "without the collections" in told[1]
    saved = firekeep.save(Net(), path.with_name("net.safetensors"), rename=KeyRemapper.table({"fc.kernel": "a"}))
    assert "1 name of the table of renames met no tensor: 'fc.kernel'" in saved.steps


def test_a_table_with_collections_is_met_in_a_new_layout(path):
    table = KeyRemapper.table(
        {f"params.Dense_0.{one}": f"fc.{one}" for one in ("weight", "bias")}
        | {f"params.BatchNorm_0.{one}": f"bn.{one}" for one in ("weight", "bias")}
        | {f"batch_stats.BatchNorm_0.{one}": f"bn.{one}" for one in ("running_mean", "running_var")}
    )
    # The names of the source are those of before the layout: of these the table has the biases.
    out = path.with_name("out.safetensors")
    firekeep.convert(path, out, layout="torch", like=Net(), rename=table)
    assert firekeep.load_file(out).keys() == Net().state_dict().keys() - {"bn.num_batches_tracked"}


def test_two_names_that_become_one_without_their_collections_are_refused():
    names = ["params.a.scale", "batch_stats.b.mean", "params.c.mean"]
    rules = seen_by(KeyRemapper.of([r"^batch_stats\.b=>batch_stats.c"]), names)
    with pytest.raises(firekeep.RuleError, match=r"'batch_stats\.b\.mean' and 'params\.c\.mean' one name, 'c\.mean'"):
        rules.rename(["a.scale", "b.mean", "c.mean"])


def test_rules_that_are_found_without_collections_are_left_as_they_are():
    rules = KeyRemapper.of(r"(?:params\.)?Dense_0=>fc")
    assert not met_by_collections(LINEN, rules)
    assert seen_by(rules, LINEN) is rules
    assert not met_by_collections(["Dense_0.kernel"], KeyRemapper.of(r"^params\.=>"))
