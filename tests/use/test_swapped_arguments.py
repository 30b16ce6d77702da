"""Doors that are given their arguments the wrong way round say so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import firekeep

TREE = {"w": np.ones(2, np.float32)}


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("name", ["save", "load_into", "load_as", "apply"])
def test_a_path_before_the_object(name, kind, tmp_path):
    path = tmp_path / "it.safetensors"
    firekeep.save(TREE, path)
    before = path.read_bytes()
    with pytest.raises(firekeep.RuleError, match="given first") as caught:
        getattr(firekeep, name)(kind(path), TREE)
    assert "firekeep." + ("load_into" if name == "apply" else name) in caught.value.remedy
    assert path.read_bytes() == before


def test_apply_takes_no_file():
    with pytest.raises(firekeep.RuleError) as caught:
        firekeep.apply(TREE, "it.safetensors")
    assert "load_into" in caught.value.remedy
