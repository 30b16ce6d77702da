"""The documents tell the truth: their code runs, their links lead somewhere, the command page is current."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import click
import pytest

from firekeep.cli import COMMANDS, commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TOOL = runpy.run_path(str(ROOT / "tools" / "make_readme_outputs.py"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the documents speak of."""
    TOOL["fill"](tmp_path)
    return tmp_path


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("number", range(len(blocks(ROOT / "README.md", "python"))))
def test_python_of_the_readme_runs(number: int, folder: Path):
    done = run(sys.executable, "-W", "error", "-c", blocks(ROOT / "README.md", "python")[number], cwd=folder)
    assert done.returncode == 0, done.stderr


def test_the_readme_shows_every_example():
    shown = blocks(ROOT / "README.md", "python")
    code = [re.sub(r'\A""".*?"""\n+', "", example.read_text(), flags=re.DOTALL) for example in EXAMPLES]
    assert sorted(shown) == sorted(code)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example: Path, folder: Path):
    done = run(sys.executable, "-W", "error", str(example), cwd=folder)
    assert done.returncode == 0, done.stderr


def test_the_readme_shows_what_its_commands_print():
    assert len(re.findall(r"^\$ firekeep ", (ROOT / "README.md").read_text(), flags=re.MULTILINE)) >= 4
    done = run(sys.executable, "tools/make_readme_outputs.py", "--check", cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_command_page_is_current():
    done = run(sys.executable, "tools/make_cli_docs.py", "--check", cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_of_itself(name: str):
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    text = command.get_help(click.Context(command, info_name=f"firekeep {name}"))
    assert f"  firekeep {name} " in text
    assert all(option.help for option in command.params if isinstance(option, click.Option))
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files(page: Path):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_files_and_commands_that_a_page_names_are_there(page: Path):
    text = page.read_text()
    named = re.findall(r"`((?:src|tests|docs|tools|examples|requirements|benchmarks)/[\w./-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    targets = set(re.findall(r"`make ([a-z]+)", text))
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert targets <= made
