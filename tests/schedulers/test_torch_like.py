from __future__ import annotations

import json

import pytest
import torch

from firekeep.scalars import Scalar
from firekeep.schedulers import Constant, Cosine, Exponential, Groups, Linear, SchedulerError, Step, as_torch


def optimizer(*rates, **options):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates or (0.1,)]
    return torch.optim.SGD(groups, **options)


def run(schedule, count):
    seen = []
    for _ in range(count):
        seen.append([group["lr"] for group in schedule.optimizer.param_groups])
        schedule.optimizer.step()
        schedule.step()
    return seen


class All:
    def matches(self, *, param_id=None, path=None):
        return True


def test_each_step_of_the_optimizer_uses_the_rate_that_burn_would_give():
    twin = Exponential(initial=0.5, gamma=0.5)
    schedule = as_torch(Exponential(initial=0.5, gamma=0.5), optimizer())
    assert run(schedule, 5) == [[twin.step()] for _ in range(5)]
    assert schedule.last_epoch == 5
    assert schedule.get_last_lr() == [twin.step()]


def test_it_behaves_as_lambda_lr_does():
    factor = Step(initial=1.0, size=2, gamma=0.5)
    expected = [factor.step() for _ in range(8)]
    theirs = torch.optim.lr_scheduler.LambdaLR(optimizer(1.0), lambda epoch: expected[epoch])
    ours = as_torch(Step(initial=1.0, size=2, gamma=0.5), optimizer(1.0))
    assert run(ours, 7) == run(theirs, 7)
    assert ours.get_last_lr() == theirs.get_last_lr()
    assert ours.base_lrs == theirs.base_lrs


def test_the_record_is_that_of_the_steps_made_and_not_of_the_look_ahead():
    schedule = as_torch(Cosine(initial=0.5, iterations=4), optimizer())
    assert schedule.to_record_scalars() == {"current_iter": Scalar("uint", 2**64 - 1)}
    run(schedule, 1)
    assert schedule.to_record_scalars() == {"current_iter": Scalar("uint", 0)}


@pytest.mark.parametrize("optimizer_first", [True, False])
def test_a_run_goes_on_from_its_state(optimizer_first):
    def build():
        return as_torch(Cosine(initial=0.5, iterations=20), optimizer(momentum=0.9))

    whole = run(build(), 20)
    first, second = build(), build()
    parts = run(first, 10)
    state = json.loads(json.dumps(first.state_dict()))
    if optimizer_first:
        second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(state)
    if not optimizer_first:
        second.optimizer.load_state_dict(first.optimizer.state_dict())
    assert parts + run(second, 10) == whole
    assert second.last_epoch == 20


def test_counters_of_burn_are_taken():
    schedule = as_torch(Linear(initial=0.5, final=0.25, iterations=2), optimizer())
    assert schedule.load_scalars({"remaining_iters": Scalar("uint", 2)}).ok
    assert schedule.get_last_lr() == [0.375]
    assert schedule.optimizer.param_groups[0]["lr"] == 0.375


def test_the_state_of_another_schedule_changes_nothing():
    schedule = as_torch(Linear(initial=0.5, final=0.25, iterations=2), optimizer())
    run(schedule, 1)
    before = schedule.state_dict()
    for state in (
        as_torch(Cosine(initial=0.5, iterations=4), optimizer()).state_dict(),
        {},
        {"last_epoch": 1, "scalars": 3},
    ):
        with pytest.raises(SchedulerError, match="the state"):
            schedule.load_state_dict(state)
    assert schedule.state_dict() == before
    assert schedule.optimizer.param_groups[0]["lr"] == before["_last_lr"][0]


def test_groups_drive_groups():
    pair = Groups(Constant(rate=0.5), [(All(), Exponential(initial=0.25, gamma=0.5))])
    schedule = as_torch(pair, optimizer(0.1, 0.2))
    assert run(schedule, 3) == [[0.5, 0.25], [0.5, 0.125], [0.5, 0.0625]]


def test_groups_that_would_lose_their_rates_are_refused():
    with pytest.raises(SchedulerError, match="Groups"):
        as_torch(Constant(rate=0.5), optimizer(0.1, 0.2))
    with pytest.raises(SchedulerError, match="2 groups"):
        as_torch(Groups(Constant(rate=0.5), [(All(), Constant(rate=1))]), optimizer(0.1))


def test_a_rate_that_is_a_tensor_stays_the_tensor():
    opt = optimizer()
    held = opt.param_groups[0]["lr"] = torch.tensor(0.1)
    schedule = as_torch(Step(initial=0.5, size=1, gamma=0.5), opt)
    schedule.step()
    assert opt.param_groups[0]["lr"] is held
    assert held.item() == 0.25
