"""Run what README.md and the guides in docs/ show, and write what it prints below it.

Usage: make_outputs.py [--check] [PAGE...]. With --check nothing is written; the exit code is 1 when a page is not current.

In each page `$ firekeep` lines of console blocks are run, in a folder of its own with the files that the pages speak of. In guides, from
top to bottom, Python blocks are run too, all in one namespace, and what they print stands in a text block below; a TOML block that
begins with `# NAME` is that file.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "data" / "cases" / "files"
SAMPLES = {
    "model.pt": "burn/burn_mnist.pt",
    "model.safetensors": "burn/burn_mnist.safetensors",
    "model.bpk": "burn/mnist_web_model.bpk",
    "whole-model.pt": "burn/burn_import_mnist_whole_model.pt",
    "run.ckpt": "pytorch/lightning_mlp-coral_epoch=114-step=2529.ckpt",
    "downloaded.pt": "hostile/modelscan_unsafe_zip_pytorch.pt",
    "model.keras": "other/art_model.keras",
}
"""The files that the pages speak of, and what stands for them."""

README = ROOT / "README.md"
GUIDES = tuple(
    ROOT / "docs" / f"{name}.md"
    for name in (
        *("load-into-my-model", "convert-for-burn", "why-was-my-load-refused"),
        *("resume-exactly", "move-from-torch-save", "continue-in-burn"),
        *("from-torch-to-jax", "checkpoints-in-jax", "native-modules", "in-your-trainer"),
    )
)

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n", flags=re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (firekeep .*)\n(?:(?!\$ |```).+\n|\n(?!\$ |```))*", flags=re.MULTILINE)


def fill(folder: Path) -> None:
    """Lay the files into a folder."""
    for name, case in SAMPLES.items():
        shutil.copy(CASES / case, folder / name)


def refreshed(page: Path) -> str:
    """Run what a page shows, and give the page as it should be."""
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder)
        if page not in GUIDES:
            return COMMAND.sub(lambda found: ran(found[1], folder), text)
        with contextlib.chdir(folder), warnings.catch_warnings():
            warnings.simplefilter("error")
            return "".join(guided(text, folder))


def ran(command: str, folder: Path, *, errors: bool = False) -> str:
    """Run a command line, and give it with what it prints; whatever it says on standard error is an error here, unless told."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    said = done.stdout + done.stderr
    if not said or (done.stderr and not errors):
        raise RuntimeError(f"{command}: {done.stderr or 'it prints nothing'}")
    return f"$ {command}\n{said.rstrip()}\n"


def guided(text: str, folder: Path) -> Iterator[str]:
    """Go through a guide from top to bottom; a text block below Python is what the Python printed, and is made anew."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cursor, printed = 0, False
    for block in BLOCK.finditer(text):
        between = text[cursor : block.start()]
        if not (printed and block[1] == "text" and not between.strip()):
            yield between
            printed = block[1] == "python"
            yield from told(block, names, folder)
        else:
            printed = False
        cursor = block.end()
    yield text[cursor:]


def told(block: re.Match[str], names: dict[str, Any], folder: Path) -> Iterator[str]:
    """Run one block, and give it with what it prints."""
    language, body = block[1], block[2]
    if language == "console":
        body = COMMAND.sub(lambda found: ran(found[1], folder, errors=True), body)
    if language == "toml":
        (folder / body.split()[1]).write_text(body, encoding="utf-8")
    yield f"```{language}\n{body}```\n"
    if language == "python":
        caught = io.StringIO()
        with contextlib.redirect_stdout(caught):
            exec(compile(body, "guide", "exec"), names)
        if caught.getvalue():
            yield f"\n```text\n{caught.getvalue().rstrip()}\n```\n"


def main(arguments: list[str]) -> int:
    """Write or check the pages."""
    check = "--check" in arguments
    pages = [Path(name).resolve() for name in arguments if name != "--check"] or [README, *GUIDES]
    if len(pages) > 1:  # each in a process of its own, or one would show what another has imported
        flags = ["--check"] if check else []
        codes = [
            subprocess.run([sys.executable, __file__, *flags, str(page)], check=False).returncode for page in pages
        ]
        return max(codes)
    stale = 0
    for page in pages:
        new = refreshed(page)
        if new == page.read_text(encoding="utf-8"):
            continue
        if check:
            print(f"{page.name} does not show what is printed: run `make docs`", file=sys.stderr)
            stale = 1
        else:
            page.write_text(new, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
