"""The process is killed in the middle of an epoch: a new one goes on with the same losses and weights, to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from firekeep.learner import read_history
from learner import runs

TESTS = str(Path(runs.__file__).parents[1])


def runs_in(folder, setting, kill_at):
    words = [sys.executable, runs.__file__, str(folder), setting, str(kill_at)]
    env = {**os.environ, "PYTHONPATH": TESTS, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return map(json.loads, done.stdout.splitlines())


@pytest.mark.parametrize(("setting", "kill_at", "resumed"), [("plain", 11, 10), ("workers", 11, 2)])
def test_a_killed_run_goes_on_to_the_last_bit(tmp_path, setting, kill_at, resumed):
    straight, after = runs_in(tmp_path, setting, kill_at)
    assert straight["resumed"] is None
    assert (after["resumed"], after["exact"]) == (resumed, True)
    assert after["bits"] == straight["bits"]
    assert after["rng"] == straight["rng"]
    history = read_history(tmp_path / "straight" / "history.jsonl")
    assert read_history(tmp_path / "killed" / "history.jsonl") == history
    assert [record["step"] for record in history if record["kind"] == "step"] == [*range(1, after["step"] + 1)]
