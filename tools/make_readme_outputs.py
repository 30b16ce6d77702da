"""Write what the commands shown in README.md print, below each of them.

Usage: make_readme_outputs.py [--check]. With --check nothing is written; the exit code is 1 when the page is not current.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CASES = ROOT / "tests" / "data" / "cases" / "files"
SAMPLES = {
    "model.pt": "burn/burn_mnist.pt",
    "model.safetensors": "burn/burn_mnist.safetensors",
    "model.bpk": "burn/mnist_web_model.bpk",
    "run.ckpt": "pytorch/lightning_mlp-coral_epoch=114-step=2529.ckpt",
    "downloaded.pt": "hostile/modelscan_unsafe_zip_pytorch.pt",
}
"""The files that the README speaks of, and what stands for them."""


def fill(folder: Path) -> None:
    """Lay the files into a folder."""
    for name, case in SAMPLES.items():
        shutil.copy(CASES / case, folder / name)


def refreshed(text: str, folder: Path) -> str:
    """Run each `$ firekeep` line and put what it prints below it; whatever it says on standard error is an error here."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run(found: re.Match[str]) -> str:
        done = subprocess.run(
            ["bash", "-c", found[1]],
            cwd=folder,
            env={**os.environ, "PATH": path, "PYTHONUTF8": "1"},
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        if done.stderr or not done.stdout:
            raise RuntimeError(f"{found[1]}: {done.stderr or 'it prints nothing'}")
        return f"$ {found[1]}\n{done.stdout.rstrip()}\n"

    return re.sub(r"^\$ (firekeep .*)\n(?:(?!\$ |```).+\n|\n(?!\$ |```))*", run, text, flags=re.MULTILINE)


def main() -> int:
    """Write or check the page."""
    text = README.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder))
        new = refreshed(text, Path(folder))
    if "--check" in sys.argv[1:]:
        if new != text:
            print("README.md does not show what the commands print: run `make docs`", file=sys.stderr)
        return int(new != text)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
