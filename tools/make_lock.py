"""Write requirements/dev.txt: exact versions of what firekeep and its tests need, taken from pyproject.toml.

Usage: make_lock.py [--upgrade]. Needs pip-tools (`pip install pip-tools`), which nothing else here does.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "dev.txt"
HEADER = """\
# The locked development environment: the dependencies and the dev group of pyproject.toml, with exact versions.
# Made by tools/make_lock.py (pip-compile); edit pyproject.toml and run `make lock` instead of editing this file.
"""


def wanted() -> list[str]:
    """Read the requirements from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines: list[str] = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    return lines


def compile_lock(extra: list[str]) -> str:
    """Run pip-compile on the requirements, with the present lock as the starting point."""
    command = [
        *(sys.executable, "-m", "piptools", "compile", "-", "--quiet", "--output-file", str(LOCK), "--strip-extras"),
        *("--no-header", "--no-annotate", "--no-emit-options", "--no-emit-find-links", "--no-emit-index-url"),
        *("--no-emit-trusted-host", "--allow-unsafe", *extra),
    ]
    subprocess.run(command, input="\n".join(wanted()), text=True, check=True)
    return LOCK.read_text()


def main() -> None:
    """Compile, drop what belongs to one machine (a local build tag such as +cpu), and write the file."""
    LOCK.parent.mkdir(exist_ok=True)
    pins = [line for line in compile_lock(sys.argv[1:]).splitlines() if re.match(r"[A-Za-z0-9]", line)]
    LOCK.write_text(HEADER + "".join(re.sub(r"\+[\w.]+$", "", pin) + "\n" for pin in sorted(pins)))


if __name__ == "__main__":
    main()
