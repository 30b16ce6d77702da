"""Optimizers that have other parameters, groups or options than when they were saved."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from firekeep import schedulers
from firekeep.records import OptimizerRecord
from firekeep.training import RestoreError, TrainingState
from training.states import bits, restore, write

LAYERS = 4


def made(*groups, seed=0, kind=torch.optim.AdamW, steps=1, still=(), **more):
    """Give a state whose optimizer has groups of such layers of a model of four, and has made so many steps; `still` ones are frozen."""
    torch.manual_seed(seed)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(LAYERS)))
    for layer in still:
        model[layer].requires_grad_(False)
    optimizer = kind([{"params": params(model, group)} for group in groups], lr=0.1)
    for _ in range(steps):
        move(model, optimizer)
    return TrainingState(model=model, optimizer=optimizer, rng=False, **more)


def params(model, layers):
    return [one for layer in layers for one in model[layer].parameters()]


def move(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(3, 2)).square().mean().backward()
    optimizer.step()


def refused(state, folder):
    """Give the words of a restore that was refused, and has changed nothing."""
    before = bits(state)
    with pytest.raises(RestoreError) as caught:
        restore(state, folder)
    assert bits(state) == before
    return " ".join(str(caught.value).split())


# Parameters that only one side has


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_states_that_find_no_parameter_are_refused(kind, tmp_path):
    write(made([0, 1], [2, 3], kind=kind), tmp_path)
    state = made([0, 1], seed=1, kind=kind, steps=0)
    told = refused(state, tmp_path)
    assert "optimizer: 4 parameters of the record that the optimizer lacks ('{2,3}.bias', '{2,3}.weight')" in told
    assert "give it them before the restore, as the saved run had done (add_param_group)" in told
    assert "with strict=False" in told

    state.optimizer.add_param_group({"params": params(state.model, [2, 3])})
    assert restore(state, tmp_path).exact


def test_parameters_that_the_record_does_not_know_are_refused(tmp_path):
    write(made([0, 1]), tmp_path)
    told = refused(made([0, 1], [2, 3], seed=1), tmp_path)
    assert "optimizer: 4 parameters of the optimizer that the record lacks ('{2,3}.bias', '{2,3}.weight')" in told
    assert "make it without them, and add them behind the restore (add_param_group)" in told

    state = made([0, 1], seed=1)
    assert restore(state, tmp_path).exact
    state.optimizer.add_param_group({"params": params(state.model, [2, 3])})
    move(state.model, state.optimizer)


def test_both_sides_are_named_at_once(tmp_path):
    write(made([0, 1, 2]), tmp_path)
    told = refused(made([0, 1, 3], seed=1), tmp_path)
    assert "2 parameters of the record that the optimizer lacks ('2.bias', '2.weight')" in told
    assert "2 parameters of the optimizer that the record lacks ('3.bias', '3.weight')" in told


def test_what_fits_is_taken_where_not_all_is_asked_for(tmp_path):
    write(made([0, 1, 2]), tmp_path)
    report = restore(made([0, 1, 3], seed=1, steps=0), tmp_path, strict=False)
    assert not report.exact
    assert len(report.optimizer.restored) == 4
    assert report.optimizer.orphaned == ("2.bias", "2.weight")
    assert report.optimizer.fresh == ("3.bias", "3.weight")


def test_a_layer_that_is_frozen_for_now_does_not_lose_its_moments_unnoticed(tmp_path):
    write(made([0, 1], [2, 3]), tmp_path)
    assert "that the optimizer lacks" in refused(made([0, 1], seed=1, still=[2, 3]), tmp_path)


def test_frozen_parameters_may_be_left_out_of_an_optimizer_and_come_in(tmp_path):
    write(made([0, 1, 2, 3], still=[0]), tmp_path / "all")
    write(made([1, 2, 3], still=[0]), tmp_path / "some")
    assert restore(made([1, 2, 3], seed=1, still=[0]), tmp_path / "all").optimizer.orphaned == ("0.bias", "0.weight")
    assert restore(made([0, 1, 2, 3], seed=1, still=[0]), tmp_path / "some").optimizer.fresh == (
        "0.bias",
        "0.weight",
    )


def test_parameters_that_no_step_has_moved_yet_are_known_all_the_same(tmp_path):
    model = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters())
    model[0](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    write(TrainingState(model=model, optimizer=optimizer, rng=False), tmp_path)
    report = restore(TrainingState(model=model, optimizer=torch.optim.AdamW(model.parameters()), rng=False), tmp_path)
    assert report.exact, str(report)
    assert report.optimizer.stateless == ("1.bias", "1.weight")


def test_a_record_by_itself_goes_by_its_own_options_as_before():
    saved, state = made([0, 1], [2, 3]), made([0, 1], seed=1)
    report = OptimizerRecord.of(saved.optimizer, saved.model).apply(state.optimizer, state.model)
    assert len(report.orphaned) == 4


# Other classes


@pytest.mark.parametrize(("steps", "dropped"), [(0, 0), (1, 8)])
def test_both_classes_are_named_where_they_differ(steps, dropped, tmp_path):
    write(made([0, 1, 2, 3], steps=steps), tmp_path)
    state = made([0, 1, 2, 3], kind=torch.optim.SGD, steps=0)
    told = refused(state, tmp_path)
    assert "optimizer: the record is of AdamW, and the optimizer is SGD" in told
    assert "not one parameter" not in told
    report = restore(state, tmp_path, strict=False)
    assert not report.exact
    assert len(report.optimizer.dropped) == dropped
    assert len(report.optimizer.stateless) == 8 - dropped


# Groups and options


def in_groups(order, schedule, *, steps=0):
    state = made([0, 1], [2, 3], steps=0)
    groups = [{"params": params(state.model, [0, 1]), "lr": 0.1}, {"params": params(state.model, [2, 3]), "lr": 0.01}]
    state.optimizer = torch.optim.SGD([groups[place] for place in order], momentum=0.9)
    state.scheduler = schedule(state.optimizer)
    for _ in range(steps):
        move(state.model, state.optimizer)
        state.scheduler.step()
    return state


SCHEDULES = [
    lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step),
    lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.5, 0.1], total_steps=9),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_is_not_given_the_rates_of_other_groups(schedule, tmp_path):
    saved = in_groups([0, 1], schedule, steps=2)
    write(saved, tmp_path)
    told = refused(in_groups([1, 0], schedule), tmp_path)
    assert "scheduler: it tells groups of parameters by their order" in told
    assert "(group 0 was 1, 1 was 0)" in told
    again = in_groups([0, 1], schedule)
    assert restore(again, tmp_path).ok
    rates = [[group["lr"] for group in one.optimizer.param_groups] for one in (saved, again)]
    assert rates[0] == rates[1]


def test_groups_in_another_order_have_their_own_options_back(tmp_path):
    saved, other = in_groups([0, 1], SCHEDULES[0], steps=1), in_groups([1, 0], SCHEDULES[0])
    saved.scheduler = other.scheduler = None
    write(saved, tmp_path)
    assert restore(other, tmp_path).exact
    rates = [[group["lr"] for group in one.optimizer.param_groups] for one in (saved, other)]
    assert rates[0] == rates[1][::-1]


def with_options(**options):
    state = made([0, 1, 2, 3])
    state.optimizer.param_groups[0].update(options)
    return state


def test_options_that_the_record_does_not_say_are_told(tmp_path):
    write(with_options(), tmp_path)
    report = restore(with_options(warmup=10), tmp_path)
    assert report.optimizer.changed == ("group 0: the record does not say 'warmup', which stays 10",)
    assert not report.exact


def test_options_that_the_optimizer_was_made_without_come_back_and_are_told(tmp_path):
    write(with_options(warmup=10), tmp_path)
    state = with_options()
    report = restore(state, tmp_path)
    assert report.exact, str(report)
    assert state.optimizer.param_groups[0]["warmup"] == 10
    assert report.optimizer.notes == ("group 0: 'warmup' is 10 again, which this optimizer was made without",)


def test_pairs_of_betas_are_the_same_as_lists(tmp_path):
    write(with_options(betas=(0.9, 0.99)), tmp_path)
    report = restore(with_options(betas=[0.9, 0.99]), tmp_path)
    assert report.exact
    assert not report.set_back()
    assert restore(with_options(betas=[0.9, 0.98]), tmp_path).set_back() == (
        "optimizer: betas: [0.9, 0.98] -> (0.9, 0.99), as it was saved",
    )


@pytest.mark.parametrize(
    ("option", "value"), [("amsgrad", True), ("maximize", True), ("weight_decay", 0.5), ("eps", 1e-3)]
)
def test_options_that_decide_the_step_come_back_and_are_told(option, value, tmp_path):
    write(made([0, 1, 2, 3]), tmp_path)
    state = with_options(**{option: value})
    report = restore(state, tmp_path)
    assert state.optimizer.param_groups[0][option] != value
    assert any(told.startswith(f"optimizer: {option}: {value}") for told in report.set_back())
    move(state.model, state.optimizer)


@pytest.mark.parametrize("option", ["foreach", "differentiable", "capturable", "fused"])
def test_options_that_decide_how_a_step_is_computed_stay_and_are_told(option, tmp_path):
    write(made([0, 1, 2, 3]), tmp_path)
    state = with_options(**{option: True})
    report = restore(state, tmp_path)
    assert state.optimizer.param_groups[0][option] is True
    assert any(f"{option} was" in told for told in report.optimizer.changed)
    assert not report.exact


def test_a_way_of_computing_that_the_record_does_not_say_is_told(tmp_path):
    saved = made([0, 1, 2, 3])
    del saved.optimizer.param_groups[0]["fused"]
    write(saved, tmp_path)
    assert restore(made([0, 1, 2, 3]), tmp_path).exact
    report = restore(with_options(fused=True), tmp_path)
    assert report.optimizer.changed == ("group 0: fused was None and stays True, and may round in another way",)


# Schedules


def scheduled(schedule, **more):
    return TrainingState(model=nn.Linear(2, 2), scheduler=schedule, rng=False, **more)


def linear():
    schedule = schedulers.Linear(initial=0.5, final=0.1, iterations=4)
    schedule.step()
    return schedule


@pytest.mark.parametrize(
    ("before", "after", "lacks", "has"),
    [
        (linear(), schedulers.Step(initial=0.5, size=2), "'iter_idx'", "'remaining_iters'"),
        (linear(), schedulers.Constant(rate=0.5), "none", "'remaining_iters'"),
        (schedulers.Constant(rate=0.5), linear(), "'remaining_iters'", "none"),
    ],
)
def test_counters_of_another_schedule_are_refused(before, after, lacks, has, tmp_path):
    write(scheduled(before), tmp_path)
    with pytest.raises(RestoreError) as caught:
        restore(scheduled(after), tmp_path)
    (told,) = caught.value.report.refusals
    assert f"of its counters it lacks {lacks}, and has others: {has}" in told
    report = restore(scheduled(after, strict=False), tmp_path)
    assert list(report.fresh) == ["scheduler"]
    assert not report.exact


def test_what_a_schedule_has_no_place_for_is_told(tmp_path):
    first, second = (in_groups([0, 1], SCHEDULES[0]) for _ in range(2))
    first.scheduler.cooled = 5
    write(first, tmp_path / "more")
    report = restore(second, tmp_path / "more")
    assert report.reasons() == ("scheduler: 7 values of LambdaLR; of no use to it: 'cooled'",)
    write(second, tmp_path / "less")
    report = restore(first, tmp_path / "less")
    assert report.reasons() == ("scheduler: 7 values of LambdaLR; not in the record: 'cooled'",)


# Layers that are frozen by the step


def freezing(seed, *, steps=0, freeze_first=False, **more):
    state = made([0, 1, 2, 3], seed=seed, steps=0, **more)
    if freeze_first:
        state.model[0].requires_grad_(False)
    return run(state, steps)


def run(state, last):
    while state.step < last:
        state.model[0].requires_grad_(state.step < 2)  # the first layer is frozen from the third step on
        move(state.model, state.optimizer)
        state.step += 1
    return state


@pytest.mark.parametrize("more", [{"frozen": True}, {"freeze_first": True}])
def test_a_run_that_freezes_layers_by_the_step_goes_on_exactly(more, tmp_path):
    straight = freezing(0, steps=5)
    write(freezing(0, steps=3), tmp_path)
    state = freezing(7, **more)
    report = restore(state, tmp_path)
    assert report.exact, str(report)
    assert [one.requires_grad for one in state.model[0].parameters()] == [False, False]
    run(state, 5)
    for one, other in zip(state.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_to_do_about_layers_that_are_not_frozen_yet_is_told(tmp_path):
    write(freezing(0, steps=3), tmp_path)
    state = freezing(7)
    (told,) = restore(state, tmp_path).changed
    assert told.startswith(
        "model: '0.bias', '0.weight' took no gradient, and take one now: call requires_grad_(False) of them"
    )
    assert "TrainingState(frozen=True)" in told
    assert all(one.requires_grad for one in state.model.parameters())


# Counts


def test_parameters_are_counted_and_not_the_lines_that_tell_of_them(tmp_path):
    write(made([0]), tmp_path / "one")
    write(made([0, 1, 2, 3]), tmp_path / "all")
    more = str(restore(made([0, 1, 2, 3], seed=1), tmp_path / "one", strict=False))
    less = str(restore(made([0], seed=1), tmp_path / "all", strict=False))
    assert "2 states of AdamW, 6 fresh" in more
    assert "not in the record, so they start anew: 6\n        '{1…3}.bias'\n        '{1…3}.weight'" in more
    assert "2 states of AdamW, 6 in the record only" in less
    assert "in the record only: 6\n        '{1…3}.bias'\n        '{1…3}.weight'" in less
