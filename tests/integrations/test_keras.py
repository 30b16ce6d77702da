"""Keras on PyTorch: each run is a process of its own, since the backend is chosen as keras is imported."""

from __future__ import annotations

import pytest

from integrations.processes import start


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras")
    return [told for mode in ("first", "second") for told in start("keras_run.py", mode, folder)[1]]


def test_a_run_goes_on_in_another_process_as_if_it_had_not_stopped(runs):
    first, second, _ = runs
    assert second["losses"] == first["losses"][6:]
    assert second["weights"] == first["weights"]
    assert second["rng"]
    assert second["report"] == "9 variables of the model, 13 variables of the optimizer restored"


def test_what_does_not_fit_is_refused_by_path_and_nothing_is_changed(runs):
    told = runs[2]
    assert "net/first/kernel is float32 of shape [8, 17], and float32 of shape [8, 16] in the file" in told["wider"]
    assert told["untouched"]
    assert "net/other/kernel is not in the file" in told["other"]
    assert told["unbuilt"].startswith("RuleError: the model 'sequential' has no variables yet")
    assert told["twins"].startswith("RuleError: several variables have the path 'sequential_1/both/same'")
    assert told["kerasfile"].startswith("WrongFormatError")
    assert "this is a burnpack file, and not a model" in told["kerasfile"]
    assert told["alone"] == [9, 0, False, 0]
    assert told["files"] == ["other.bpk", "run.bpk"]


def test_another_backend_is_refused(tmp_path):
    _, (told,) = start("keras_run.py", "backend", tmp_path, "numpy")
    assert told.startswith("UnsupportedError: the backend of Keras is numpy")
