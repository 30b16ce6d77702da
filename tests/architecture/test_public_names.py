"""The names a user may import: there, documented, and no others."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import firekeep
from firekeep import errors


def test_every_public_name_is_there():
    assert [name for name in firekeep.__all__ if not hasattr(firekeep, name)] == []


def test_the_list_of_public_names_is_sorted_and_without_doubles():
    assert firekeep.__all__ == sorted(set(firekeep.__all__))


def test_dir_lists_the_public_names():
    assert set(dir(firekeep)) == {*firekeep.__all__, *firekeep._PARTS}


def test_packages_that_documents_name_need_no_import_of_their_own():
    code = (
        "import sys, firekeep\n"
        "for part in firekeep._PARTS:\n"
        "    assert sys.modules.get(f'firekeep.{part}') in (None, getattr(firekeep, part)), part\n"
        "assert firekeep.checkpoint.CheckpointManager is firekeep.CheckpointManager"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_error_of_the_tree_is_public():
    tree = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert tree <= set(firekeep.__all__)


def test_every_error_is_a_firekeep_error():
    wrong = [
        name
        for name in firekeep.__all__
        if inspect.isclass(kind := getattr(firekeep, name))
        and issubclass(kind, Exception)
        and not issubclass(kind, (firekeep.FirekeepError, Warning))
    ]
    assert wrong == []


@pytest.mark.parametrize("name", [name for name in firekeep.__all__ if not name.startswith("_")])
def test_every_public_name_has_a_docstring(name: str):
    doc = inspect.getdoc(getattr(firekeep, name))
    assert doc, f"firekeep.{name} says nothing of itself"
    assert doc.split("\n\n")[0].endswith("."), f"firekeep.{name}: the first line is no sentence"


@pytest.mark.parametrize("name", [name for name in firekeep.__all__ if name[0].islower()])
def test_options_of_the_doors_are_given_by_keyword(name: str):
    parameters = list(inspect.signature(getattr(firekeep, name)).parameters.values())
    positional = [each.name for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert 1 <= len(positional) <= 2
    assert all(each.default is inspect.Parameter.empty for each in parameters if each.name in positional)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        firekeep.nothing  # noqa: B018


def test_star_import_gives_the_public_names():
    code = "from firekeep import *; import firekeep; assert set(firekeep.__all__) <= set(globals()), 'missing'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_is_the_one_that_is_installed():
    from importlib.metadata import version

    assert version("firekeep") == firekeep.__version__
