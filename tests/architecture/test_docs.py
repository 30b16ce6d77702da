"""The documents tell the truth: their code runs, their links lead somewhere, the command page is current."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

import firekeep.module as native
from firekeep.cli import COMMANDS, commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = [path for path in sorted((ROOT / "examples").glob("*.py")) if "import argparse" in path.read_text()]
"""Those that take arguments: `make demo` runs them."""
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path not in PROGRAMS]
TOOL = runpy.run_path(str(ROOT / "tools" / "make_outputs.py"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the documents speak of."""
    TOOL["fill"](tmp_path)
    return tmp_path


def needs(page: Path) -> None:
    """Skip what runs PyTorch where there is none, and what runs JAX likewise."""
    text = page.read_text()
    if re.search(r"^import torch", text, flags=re.MULTILINE):
        pytest.importorskip("torch")
    if re.search(r"^import jax", text, flags=re.MULTILINE):
        for name in ("jax", "flax", "equinox", "optax"):
            pytest.importorskip(name)
    for name in ("lightning", "transformers", "keras"):
        # Not imported: Keras takes its backend as it is, and the page's process says which.
        if re.search(rf"^(?:import|from) {name}\b", text, flags=re.MULTILINE) and find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    if re.search(r"^(?:import gguf|writer = gguf)", text, flags=re.MULTILINE):
        pytest.importorskip("gguf")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )


def test_readme_and_guides_show_every_example():
    shown = [block for page in (TOOL["README"], *TOOL["GUIDES"]) for block in blocks(page, "python")]
    code = [re.sub(r'\A""".*?"""\n+', "", example.read_text(), flags=re.DOTALL) for example in EXAMPLES]
    assert [example.name for example, text in zip(EXAMPLES, code, strict=True) if text not in shown] == []
    assert [block for block in blocks(TOOL["README"], "python") if block not in code] == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_programs_are_named_on_a_page_and_shown_by_the_demo(program: Path):
    assert any(f"examples/{program.name}" in page.read_text() for page in PAGES)
    assert f"examples/{program.name}" in (ROOT / "examples" / "demo.sh").read_text()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example: Path, folder: Path):
    needs(example)
    done = run(sys.executable, "-W", "error", str(example), cwd=folder)
    assert done.returncode == 0, done.stderr


def test_the_model_of_burn_is_run_without_torch(folder: Path):
    code = f"import runpy, sys; runpy.run_path({str(ROOT / 'examples' / 'burn_model.py')!r}); assert 'torch' not in sys.modules"
    done = run(sys.executable, "-W", "error", "-c", code, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("is a 2\n")


@pytest.mark.parametrize("page", [TOOL["README"], *TOOL["GUIDES"]], ids=lambda path: path.name)
def test_pages_show_what_is_printed(page: Path):
    needs(page)
    assert len(re.findall(r"^\$ firekeep |^```python", page.read_text(), flags=re.MULTILINE)) >= 4
    done = run(sys.executable, "tools/make_outputs.py", "--check", str(page), cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_a_page_that_shows_something_else_is_not_current(tmp_path: Path):
    page = tmp_path / "guide.md"
    page.write_text('# A guide\n\n```python\nprint("one")\n```\n\n```text\ntwo\n```\n\nThe end.\n')
    assert "".join(TOOL["guided"](page.read_text(), tmp_path)) == page.read_text().replace("two", "one")


def test_the_command_page_is_current():
    done = run(sys.executable, "tools/make_cli_docs.py", "--check", cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_tables_of_layers_are_current_and_have_all_of_them():
    done = run(sys.executable, "tools/make_layer_docs.py", "--check", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    tables = runpy.run_path(str(ROOT / "tools" / "make_layer_docs.py"))["TABLES"]
    public = [(name, getattr(native, name)) for name in native.__all__]
    layers = {name for name, kind in public if inspect.isclass(kind) and issubclass(kind, native.Module)}
    assert {name for table in tables.values() for name in table} == layers - {"Module"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_of_itself(name: str):
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    text = command.get_help(click.Context(command, info_name=f"firekeep {name}"))
    assert f"  firekeep {name} " in text
    assert all(option.help for option in command.params if isinstance(option, click.Option))
    assert max(map(len, text.splitlines())) <= 80


def headings(page: Path) -> list[str]:
    """The anchors that a page has where it is shown: its headings, in small letters, with hyphens for spaces."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files(page: Path):
    targets = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text())
    inner = [(page.parent / target if target else page, part) for target, part in targets if "://" not in target]
    assert [str(target) for target, _ in inner if not target.exists()] == []
    assert [part for target, part in inner if part and part not in headings(target)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_files_and_commands_that_a_page_names_are_there(page: Path):
    text = page.read_text()
    named = re.findall(r"`((?:src|tests|docs|tools|examples|requirements|benchmarks)/[\w./-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    targets = set(re.findall(r"`make ([a-z]+)", text))
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert targets <= made
