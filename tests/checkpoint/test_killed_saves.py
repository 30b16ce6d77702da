"""The process is killed before each call that a manager's save makes: the next run finds a complete step every time, and tidies up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoint import crashes

TESTS = str(Path(crashes.__file__).parents[1])


def sweep(folder, layout, mode, step):
    words = [sys.executable, crashes.__file__, str(folder), layout, mode, str(step)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": TESTS})
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["status"] for each in found] == [-signal.SIGKILL] * (len(found) - 1) + [0], done.stderr
    return found


@pytest.mark.parametrize("mode", ["foreground", "background"])
@pytest.mark.parametrize("layout", ["firekeep", "burn"])
def test_a_killed_save_of_a_new_step_costs_no_other(tmp_path, layout, mode):
    found = sweep(tmp_path, layout, mode, 3)
    for call, each in enumerate(found):
        assert (each["step"], each["value"]) in ((2, 2.0), (3, crashes.NEW)), call
        assert {2} <= set(each["seen"]), call
        assert each["steps"][-1] == 4, call
        assert not any(".tmp" in name for name in each["names"]), call
    outcomes = [each["step"] for each in found]
    assert outcomes == sorted(outcomes), "once the new step is there it stays"
    assert set(outcomes) == {2, 3}
    assert found[-1]["steps"] == [1, 3, 4], "the best, and the last two"
    assert len(found) > 30


@pytest.mark.parametrize("mode", ["foreground", "background"])
@pytest.mark.parametrize("layout", ["firekeep", "burn"])
def test_a_killed_save_over_a_step_leaves_the_old_one_or_the_new(tmp_path, layout, mode):
    found = sweep(tmp_path, layout, mode, 2)
    for call, each in enumerate(found):
        assert each["step"] == 2, call
        assert each["value"] in (2.0, crashes.NEW), call
        assert each["incomplete"] == [], call
        assert each["steps"] == [1, 2, 4], call
        assert not any(".tmp" in name for name in each["names"]), call
        if layout == "firekeep":
            assert each["seen"] == [1, 2], f"call {call}: seen without tidying up"
    outcomes = [each["value"] for each in found]
    assert outcomes == sorted(outcomes), "once the new step is there it stays"
    assert set(outcomes) == {2.0, crashes.NEW}
