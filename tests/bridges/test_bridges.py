"""The family's table: who owns an object, and what is said when nobody does."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from firekeep.bridges import BRIDGES, bridge_of
from firekeep.errors import UnsupportedError


def test_an_object_nobody_owns_is_refused_with_its_type_and_what_is_taken():
    with pytest.raises(UnsupportedError, match=r"an object of type builtins\.object .* torch\.nn\.Module"):
        bridge_of(object())


def test_a_class_is_not_an_object_of_it():
    with pytest.raises(UnsupportedError, match=r"Linear is a class.*Give an object of it, such as Linear\(\.\.\.\)"):
        bridge_of(torch.nn.Linear)


def test_every_row_has_a_door_of_its_own_name():
    assert [row.door().name for row in BRIDGES.values()] == list(BRIDGES)


def test_looking_for_an_owner_imports_no_framework():
    code = """
import sys
from firekeep.bridges import bridge_of
try:
    bridge_of(object())
except ValueError:
    pass
print([name for name in ("torch", "jax", "numpy", "ml_dtypes") if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]", ran.stdout
