"""A framework that is not installed: the error says what to type."""

from __future__ import annotations

import subprocess
import sys

import pytest

import firekeep
from firekeep.integrations._missing import missing

CODE = """
import sys
from importlib import import_module
for extra, package in (("lightning", "lightning"), ("hf", "accelerate"), ("hf", "transformers"), ("keras", "keras")):
    sys.modules[package] = None
    try:
        import_module(f"firekeep.integrations.{extra}")
    except ImportError as error:
        print(type(error).__name__, error)
    del sys.modules[package]
"""


def test_the_error_names_the_package_and_the_install_line():
    done = subprocess.run([sys.executable, "-W", "error", "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"MissingExtraError firekeep.integrations.{extra} needs the package '{package}', which is not installed. "
        f"pip install 'firekeep[{extra}]'"
        for extra, package in [
            ("lightning", "lightning"),
            ("hf", "accelerate"),
            ("hf", "transformers"),
            ("keras", "keras"),
        ]
    ]


def test_a_framework_that_is_there_and_broken_speaks_for_itself():
    broken = ModuleNotFoundError("No module named 'fsspec'", name="fsspec")
    with pytest.raises(ModuleNotFoundError, match="fsspec") as caught:
        raise missing("lightning", broken)
    assert not isinstance(caught.value, firekeep.MissingExtraError)
