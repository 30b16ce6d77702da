"""What a restore says that is exact and yet may surprise, and what of the live state a checkpoint does not have."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset

from firekeep import CheckpointManager, ResumableLoader, ResumableSampler, TrainingState


def make(**values: object) -> TrainingState:
    data = TensorDataset(torch.arange(6.0))
    loader = ResumableLoader(DataLoader(data, batch_size=2, sampler=ResumableSampler(len(data), seed=1)))
    return TrainingState(model=torch.nn.Linear(2, 2), data=loader, values=values)


def run(folder, batches: int) -> TrainingState:
    state = make()
    with CheckpointManager(folder, every=batches) as manager:
        for _ in state.data:
            state.step += 1
            manager.tick(state, step=state.step)
    again = make()
    with CheckpointManager(folder) as manager:
        again.report = manager.restore(again).report
    return again


def test_a_save_after_the_last_batch_of_an_epoch_is_told(tmp_path):
    state = run(tmp_path, 3)
    assert state.report.exact
    assert [note for note in state.report.notes if "all 3 batches of epoch 0" in note]
    assert "all 3 batches of epoch 0" in " ".join(str(state.report).split())
    assert list(state.data) == []
    assert len(list(state.data)) == 3


def test_a_save_within_an_epoch_is_not(tmp_path):
    state = run(tmp_path, 2)
    assert state.report.notes == ()
    assert len(list(state.data)) == 1


def test_live_values_that_the_checkpoint_has_not_stay_and_are_told(tmp_path):
    state, live = make(kept=1, gone=2), make(kept=7, new=3)
    with CheckpointManager(tmp_path) as manager:
        manager.save(state, step=1)
        report = manager.restore(live).report
    assert live.values == {"kept": 1, "gone": 2, "new": 3}
    assert report.fresh == {"values['new']": "the checkpoint has no value of this name"}
    assert not report.exact


def test_a_prompt_shows_what_print_does(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        saved = manager.save(make(), step=1)
        restored = manager.restore(make())
    for report in (saved, restored, restored.report):
        assert repr(report) == str(report)
