"""Twenty steps of JAX straight are ten steps, a killed process, and ten more in another one: every loss and every bit of the state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from training.jax_runs import CONFIGURATIONS, FURTHER, HALF, STEPS

PROGRAM = Path(__file__).with_name("jax_runs.py")


def run(half, directory):
    log = directory / f"{half}.log"
    with log.open("wb") as file:
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        code = subprocess.run([sys.executable, PROGRAM, half, directory], stdout=file, stderr=file, env=environment)
    return code.returncode, log.read_text()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    code, log = run("first", directory)
    assert code == -signal.SIGKILL, log
    code, log = run("second", directory)
    assert code == 0, log
    return {name: json.loads((directory / f"{name}.json").read_text()) for name in ("straight", "first", "second")}


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_a_resumed_run_is_the_straight_one(configuration, runs):
    straight, second = runs["straight"][configuration], runs["second"][configuration]
    assert second["exact"], second["report"]
    assert len(straight["losses"]) == STEPS
    assert second["losses"] == straight["losses"][HALF:]
    assert second["bits"] == straight["bits"]


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_the_first_half_was_saved_within_its_loop_and_went_on_alike(configuration, runs):
    assert runs["first"][configuration] == runs["straight"][configuration]["losses"][: HALF + FURTHER]


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_what_the_second_process_began_with_was_another_state(configuration, runs):
    """Or the comparisons above would compare nothing."""
    begun, ended = (runs["second"][configuration][key] for key in ("begun", "bits"))
    assert sorted(begun) == sorted(ended)
    assert sum(begun[name] != ended[name] for name in begun) >= 20
    losses = [one["losses"][HALF:] for one in runs["straight"].values()]
    assert all(losses.count(one) == 1 for one in losses)
