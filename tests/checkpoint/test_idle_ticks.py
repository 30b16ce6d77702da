"""Ticks that save nothing are told: a run of days must not end with an empty directory."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from firekeep import CheckpointManager, TrainingState
from firekeep.checkpoint import CheckpointWarning


@pytest.fixture
def state() -> TrainingState:
    return TrainingState(model=torch.nn.Linear(2, 2))


def run(manager: CheckpointManager, state: TrainingState) -> None:
    for step in range(1, 4):
        assert not manager.tick(state, step=step)


def run_on_signals(folder: Path, state: TrainingState) -> None:
    with CheckpointManager(folder) as manager:
        manager.handle_signals()
        run(manager, state)


def test_ticks_without_every_are_told_once(tmp_path, state: TrainingState):
    manager = CheckpointManager(tmp_path)
    with pytest.warns(CheckpointWarning, match="tick saves nothing here") as told:
        run(manager, state)
    manager.close()
    assert len(told) == 1
    assert told[0].filename == __file__  # the line of the loop
    assert manager.steps() == []


def test_ticks_that_wait_for_signals_are_told_at_the_end(tmp_path, state: TrainingState):
    with pytest.warns(CheckpointWarning, match="3 ticks and no save"):
        run_on_signals(tmp_path, state)


@pytest.mark.parametrize("every", [2, 100])
def test_ticks_that_save_now_and_then_are_not_told(tmp_path, state: TrainingState, every: int):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with CheckpointManager(tmp_path, every=every) as manager:
            for step in range(1, 4):
                manager.tick(state, step=step)


def test_ticks_beside_saves_are_not_told(tmp_path, state: TrainingState):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with CheckpointManager(tmp_path) as manager:
            manager.handle_signals()
            for step in range(1, 4):
                manager.tick(state, step=step)
            manager.save(state, step=3)
