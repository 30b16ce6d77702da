"""Twenty steps straight are ten steps, a killed process, and ten more in another one: every loss and every bit of the weights."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from training.exact_runs import CONFIGURATIONS, HALF, STEPS

PROGRAM = Path(__file__).with_name("exact_runs.py")


def start(half, directory):
    with (directory / f"{half}.log").open("wb") as log:  # no pipe: workers of a killed process would hold it open
        return subprocess.Popen([sys.executable, PROGRAM, half, directory], stdout=log, stderr=log)


def results(half, directory):
    return json.loads((directory / f"{half}.json").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    straight, first = start("straight", directory), start("first", directory)
    assert straight.wait() == 0, (directory / "straight.log").read_text()
    assert first.wait() == -signal.SIGKILL, (directory / "first.log").read_text()
    assert start("second", directory).wait() == 0, (directory / "second.log").read_text()
    return {half: results(half, directory) for half in ("straight", "first", "second")}


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_a_resumed_run_is_the_straight_one(configuration, runs):
    straight, second = runs["straight"][configuration], runs["second"][configuration]
    assert second["exact"], second["report"]
    assert len(straight["losses"]) == STEPS
    assert second["losses"] == straight["losses"][HALF:]
    assert second["digest"] == straight["digest"]
    assert second["seen"] == straight["seen"] == STEPS * 8


def test_the_first_halves_are_the_straight_ones(runs):
    told = runs["first"]
    assert len(told) == len(CONFIGURATIONS) - 1, "the last one was killed within its loop"
    assert {name: one["losses"] for name, one in told.items()} == {
        name: runs["straight"][name]["losses"][:HALF] for name in told
    }


def test_runs_of_different_configurations_differ(runs):
    """Or the comparisons above would compare nothing."""
    digests = [one["digest"] for one in runs["straight"].values()]
    assert len(set(digests)) == len(digests)
