"""Models that are too deep, or contain themselves: refused with the place, by each bridge, before Python's own stack ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import firekeep
import firekeep.module as native
from firekeep.errors import FirekeepError, LimitError, UnsupportedError
from firekeep.module import ModuleError


class Holder(native.Module):
    inner: object


def torch_model(depth):
    model = nn.Linear(1, 1)
    for _ in range(depth):
        outer = nn.Module()
        outer.inner = model
        model = outer
    return model


def native_tree(depth):
    tree = native.Linear(1, 1)
    for _ in range(depth):
        tree = Holder(inner=tree)
    return tree


def native_lists(depth):
    tree = native.Linear(1, 1)
    for _ in range(depth):
        tree = [tree]
    return tree


def plain_tree(depth):
    tree = {"w": np.zeros(1, np.float32)}
    for _ in range(depth):
        tree = {"inner": tree}
    return tree


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file.safetensors"
    firekeep.save({"w": np.zeros(1, np.float32)}, path)
    return path


@pytest.mark.parametrize(
    ("make", "limit"), [(torch_model, 500), (native_tree, 256), (native_lists, 256), (plain_tree, 256)]
)
def test_a_model_that_is_too_deep_is_refused_by_name(make, limit, file, tmp_path):
    obj = make(1500)
    for use in (lambda: firekeep.save(obj, tmp_path / "new.bpk"), lambda: firekeep.load_into(obj, file)):
        with pytest.raises(LimitError, match=f"deeper than {limit} levels") as caught:
            use()
        assert caught.value.limit == limit
        assert "inner.inner.inner" in str(caught.value) or "0.0.0" in str(caught.value)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("make", [torch_model, native_tree, native_lists, plain_tree])
def test_one_that_is_just_deep_is_saved_and_loaded(make, tmp_path):
    firekeep.save(make(200), tmp_path / "deep.bpk")
    assert firekeep.load_into(make(200), tmp_path / "deep.bpk").exact


def test_a_torch_model_that_contains_itself_is_refused_by_name(file):
    model = nn.Module()
    model.child = nn.Linear(1, 1)
    model.child.back = model
    with pytest.raises(UnsupportedError, match=r"the Module at 'child\.back' contains itself"):
        firekeep.load_into(model, file)
    del model.child.back
    model.child.back = [model]  # as the remedy says
    model.child.kept = torch.nn.Parameter(torch.zeros(1))
    assert "child.kept" in firekeep.collect(model).keys()  # noqa: SIM118 - not a mapping


def test_a_module_that_stands_twice_does_not_contain_itself():
    shared = nn.Linear(1, 1)
    model = nn.Sequential(shared, nn.Sequential(shared), shared)
    assert len(firekeep.collect(model).keys()) == 6


def test_a_native_tree_that_contains_itself_is_refused_by_name(file):
    tree = Holder(inner=native.Linear(1, 1))
    outer = Holder(inner=[tree])
    tree.inner = outer
    with pytest.raises(ModuleError, match=r"a Holder contains itself, at 'inner\.0\.inner'"):
        firekeep.load_into(outer, file)
    loop = [native.Linear(1, 1)]
    loop.append(loop)
    with pytest.raises(FirekeepError, match="contains itself"):
        firekeep.load_into(loop, file)
    with pytest.raises(ModuleError, match=r"'Holder\.inner\.1\..*' lies in more than 256 lists"):
        Holder(inner=loop)


def test_lists_of_arrays_that_are_too_deep_are_refused_as_trees(file):
    tree = [np.zeros(1, np.float32)]
    for _ in range(1500):
        tree = [tree]
    with pytest.raises(LimitError, match="deeper than 256 levels"):
        firekeep.load_into(tree, file)
