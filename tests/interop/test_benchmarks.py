"""The benchmark script runs from end to end; how fast anything is, it does not ask."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_every_row_of_the_benchmarks_runs(tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--quick",
        "--folder",
        str(tmp_path),
        "--json",
        str(tmp_path / "out.json"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    rows = {result["row"] for result in results}
    assert len(rows) == 32
    for result in results:
        assert all(math.isfinite(ratio) and ratio > 0 for ratio in result["ratios"])
        assert result["row"] in done.stdout
        assert result["met"] is None
    for words in (
        "save",
        "durable",
        "load",
        "convert",
        "inspect",
        "import",
        "one tensor",
        "list",
        "zero copy",
        "put",
        "plan",
    ):
        assert any(words in row for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
