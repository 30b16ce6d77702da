"""A part that a checkpoint has not: what the refusal says to do is what helps."""

from __future__ import annotations

import pytest
import torch

from firekeep.checkpoint import CheckpointManager
from firekeep.training import RestoreError, TrainingState


def test_a_scheduler_that_was_not_saved_starts_as_it_is_when_told_to(tmp_path):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    manager = CheckpointManager(tmp_path, durable=False)
    manager.save(TrainingState(model=model, optimizer=optimizer), step=1)

    with pytest.raises(RestoreError) as caught:
        manager.restore(TrainingState(model=model, optimizer=optimizer, scheduler=schedule))
    (why,) = caught.value.report.refusals
    assert why.startswith("scheduler: the checkpoint has no such section")
    assert why.endswith("make the state with strict=False to let it start as it is")

    lenient = TrainingState(model=model, optimizer=optimizer, scheduler=schedule, strict=False)
    report = manager.restore(lenient).report
    assert list(report.fresh) == ["scheduler"]
    assert "strict" not in report.fresh["scheduler"]
