from __future__ import annotations

import json
import warnings

import pytest
import torch
from torch.optim import lr_scheduler as lrs
from torch.optim.swa_utils import SWALR, AveragedModel

from firekeep.bridges.torch import restore_scheduler, scheduler_state, schedules
from firekeep.errors import FormatError
from firekeep.records._scheduler_record import LrSchedulerRecord
from firekeep.scalars import Scalar
from firekeep.schedulers import Cosine, Exponential, Linear, SchedulerError, Sequential, Step
from firekeep.tagged import decode, encode

KEY = "firekeep.scheduler"


def optimizer(*rates, kind=torch.optim.SGD, **options):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates or (0.4, 0.1)]
    return kind(groups, **options)


class Decay:
    """A function with a state: it counts its calls."""

    def __init__(self, rate):
        self.rate, self.calls = rate, 0

    def __call__(self, epoch):
        self.calls += 1
        return self.rate ** min(epoch, self.calls)


def sequential(opt):
    return lrs.SequentialLR(
        opt,
        [lrs.LinearLR(opt, 0.25, 1.0, 4), lrs.ExponentialLR(opt, 0.8), lrs.CosineAnnealingLR(opt, 5, 0.01)],
        milestones=[5, 9],
    )


def chained(opt):
    return lrs.ChainedScheduler([lrs.ConstantLR(opt, 0.5, 4), lrs.ExponentialLR(opt, 0.9)], opt)


MAKERS = {
    "lambda": lambda opt: lrs.LambdaLR(opt, [lambda epoch: 0.9**epoch, Decay(0.8)]),
    "multiplicative": lambda opt: lrs.MultiplicativeLR(opt, [Decay(0.95), lambda epoch: 0.9]),
    "step": lambda opt: lrs.StepLR(opt, 3, 0.5),
    "multistep": lambda opt: lrs.MultiStepLR(opt, [3, 8, 8, 15], 0.5),
    "constant": lambda opt: lrs.ConstantLR(opt, 0.5, 12),
    "linear": lambda opt: lrs.LinearLR(opt, 0.25, 1.0, 13),
    "exponential": lambda opt: lrs.ExponentialLR(opt, 0.9),
    "sequential": sequential,
    "polynomial": lambda opt: lrs.PolynomialLR(opt, 15, 2.0),
    "cosine": lambda opt: lrs.CosineAnnealingLR(opt, 7, 0.01),
    "chained": chained,
    "cyclic": lambda opt: lrs.CyclicLR(opt, 0.01, 0.1, step_size_up=3, mode="exp_range", gamma=0.9),
    "cyclic object": lambda opt: lrs.CyclicLR(opt, 0.01, 0.1, step_size_up=3, scale_fn=Decay(0.9)),
    "onecycle": lambda opt: lrs.OneCycleLR(opt, [0.5, 0.2], total_steps=30, three_phase=True),
    "restarts": lambda opt: lrs.CosineAnnealingWarmRestarts(opt, 3, 2, 0.01),
    "swa": lambda opt: SWALR(opt, 0.05, anneal_epochs=12),
}
OPTIMIZERS = {
    "sgd": lambda: optimizer(momentum=0.9),
    "adam": lambda: optimizer(kind=torch.optim.Adam),
}


def advance(scheduler, count):
    seen = []
    for _ in range(count):
        opt = scheduler.optimizer
        seen.append([(group["lr"], group.get("momentum"), group.get("betas")) for group in opt.param_groups])
        opt.step()
        scheduler.step()
    seen.append(scheduler.get_last_lr())
    return seen


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", MAKERS)
def test_a_run_goes_on_exactly_through_a_file(name, kind, tmp_path):
    whole = MAKERS[name](OPTIMIZERS[kind]())
    advance(whole, 10)
    expected = advance(whole, 10)
    first = MAKERS[name](OPTIMIZERS[kind]())
    advance(first, 10)
    LrSchedulerRecord.of(first).save(tmp_path / "scheduler")
    second = MAKERS[name](OPTIMIZERS[kind]())
    report = LrSchedulerRecord.load(tmp_path / "scheduler").restore(second).require()
    assert report.source == "firekeep"
    assert report.changed == ()
    assert report.unknown == ()
    assert advance(second, 10) == expected
    assert encode(whole.state_dict()) == encode(second.state_dict())


def test_a_plateau_goes_on_exactly():
    losses = [1.0, 0.9, 0.95, 0.96, 0.97, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]

    def make():
        return lrs.ReduceLROnPlateau(optimizer(), factor=0.5, patience=1, cooldown=1, min_lr=[0.01, 0.02])

    def run(plateau, values):
        seen = []
        for value in values:
            plateau.step(value)
            seen.append(plateau.get_last_lr())
        return seen

    whole = run(make(), losses)
    first, second = make(), make()
    parts = run(first, losses[:10])
    LrSchedulerRecord.from_bytes(LrSchedulerRecord.of(first).to_bytes()).restore(second).require()
    assert parts + run(second, losses[10:]) == whole
    fresh = make()
    assert LrSchedulerRecord.of(make()).restore(fresh).ok
    assert fresh.best == float("inf")


def test_rates_that_are_tensors_stay_tensors():
    def make():
        return lrs.ExponentialLR(optimizer(torch.tensor(0.4), torch.tensor(0.1, dtype=torch.float64)), 0.9)

    whole, first, second = make(), make(), make()
    advance(whole, 20)
    advance(first, 10)
    held = second.optimizer.param_groups[0]["lr"]
    restore_scheduler(second, {}, scheduler_state(first).metadata).require()
    advance(second, 10)
    assert second.optimizer.param_groups[0]["lr"] is held
    assert [one.dtype for one in second.get_last_lr()] == [torch.float32, torch.float64]
    assert second.get_last_lr() == whole.get_last_lr()


def test_plain_rates_become_tensors_and_back():
    plain, tensors = lrs.StepLR(optimizer(0.5), 2, 0.5), lrs.StepLR(optimizer(torch.tensor(0.5)), 2, 0.5)
    advance(plain, 3)
    restore_scheduler(tensors, {}, scheduler_state(plain).metadata).require()
    assert all(isinstance(one, torch.Tensor) for one in (*tensors.base_lrs, *tensors.get_last_lr()))
    again = lrs.StepLR(optimizer(0.5), 2, 0.5)
    restore_scheduler(again, {}, scheduler_state(tensors).metadata).require()
    assert again.state_dict() == plain.state_dict()
    assert type(again.optimizer.param_groups[0]["lr"]) is float


@pytest.mark.parametrize("optimizer_first", [True, False])
def test_it_does_not_matter_when_the_optimizer_is_loaded(optimizer_first):
    first, second = (lrs.OneCycleLR(optimizer(momentum=0.9), 0.5, total_steps=30) for _ in range(2))
    advance(first, 10)
    saved = first.optimizer.state_dict()
    if optimizer_first:
        second.optimizer.load_state_dict(saved)
    restore_scheduler(second, {}, scheduler_state(first).metadata)
    if not optimizer_first:
        second.optimizer.load_state_dict(saved)
    assert advance(second, 10) == advance(first, 10)


# Burn's counters


def twins():
    opt = optimizer(0.5)
    return {
        "cosine": (lrs.CosineAnnealingLR(optimizer(0.5), 7, 0.1), Cosine(initial=0.5, lowest=0.1, iterations=7)),
        "exponential": (lrs.ExponentialLR(optimizer(0.5), 0.9), Exponential(initial=0.5, gamma=0.9)),
        "step": (lrs.StepLR(optimizer(0.5), 3, 0.5), Step(initial=0.5, size=3, gamma=0.5)),
        "linear": (lrs.LinearLR(optimizer(0.5), 1.0, 0.2, 9), Linear(initial=0.5, final=0.1, iterations=9)),
        "sequential": (
            lrs.SequentialLR(
                opt,
                [lrs.LinearLR(opt, 0.2, 1.0, 3), lrs.CosineAnnealingLR(opt, 5), lrs.ExponentialLR(opt, 0.9)],
                milestones=[4, 9],
            ),
            Sequential(
                [
                    Linear(initial=0.1, final=0.5, iterations=3),
                    Cosine(initial=0.5, iterations=5),
                    Exponential(initial=0.5, gamma=0.9),
                ],
                milestones=[4, 9],
            ),
        ),
    }


@pytest.mark.parametrize("name", twins())
def test_the_counters_are_those_that_burn_would_have_at_every_step(name):
    theirs, ours = twins()[name]
    for _ in range(14):
        assert dict(scheduler_state(theirs).scalars) == ours.to_record_scalars()
        assert theirs.get_last_lr()[0] == pytest.approx(rate := ours.step(), abs=1e-15)
        if name in ("exponential", "step"):
            assert theirs.get_last_lr()[0] == rate
        theirs.optimizer.step()
        theirs.step()


@pytest.mark.parametrize("level", ["", "0."])
@pytest.mark.parametrize("steps", [0, 1, 3, 4, 6, 9, 12])
@pytest.mark.parametrize("name", twins())
def test_a_run_of_burn_goes_on_in_torch(name, steps, level):
    whole, ours = twins()[name]
    advance(whole, steps)
    for _ in range(steps):
        ours.step()
    scalars = {f"{level}{key}": value for key, value in ours.to_record_scalars().items()}
    theirs = twins()[name][0]
    report = restore_scheduler(theirs, scalars).require()
    assert report.source == "burn"
    assert any("settings" in note for note in report.notes)
    expected = [ours.step() for _ in range(9)]
    got = [moment[0][0] for moment in advance(theirs, 8)[:-1]] + theirs.get_last_lr()
    assert got == pytest.approx(expected, abs=1e-15)
    assert got[0] == expected[0]
    advance(whole, 8)
    if name != "linear" or steps <= 10:  # Burn's line does not count the steps after its end
        assert list(_plain(whole)) == list(_plain(theirs))


def _plain(scheduler):
    children = getattr(scheduler, "_schedulers", [])
    yield scheduler.last_epoch
    yield getattr(scheduler, "_step_count", None)
    for child in children:
        yield from _plain(child)


def test_groups_of_other_rates_get_rates_of_their_own():
    whole, theirs = (lrs.ExponentialLR(optimizer(0.5, 0.25), 0.5) for _ in range(2))
    advance(whole, 3)
    assert restore_scheduler(theirs, scheduler_state(whole).scalars).ok
    assert theirs.get_last_lr() == whole.get_last_lr() == [0.0625, 0.03125]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lrs.ConstantLR(optimizer(), 0.5, 3), "Burn has no schedule like ConstantLR"),
        (lambda: lrs.CosineAnnealingLR(optimizer(2.0), 7), "initial is 2.0"),
        (lambda: sequential_of_lambda(), "Burn has no schedule like LambdaLR"),
    ],
)
def test_what_burn_has_not_is_told_both_ways(make, words):
    state = scheduler_state(make())
    assert dict(state.scalars) == {}
    assert [note for note in state.notes if words in note]
    report = restore_scheduler(make(), {"step": Scalar("uint", 3)})
    assert not report.ok
    assert words in report.refused[0][1]
    with pytest.raises(SchedulerError, match="cannot be restored"):
        report.require()


def sequential_of_lambda():
    opt = optimizer()
    return lrs.SequentialLR(opt, [lrs.LambdaLR(opt, lambda _: 1.0), lrs.ExponentialLR(opt, 0.9)], milestones=[2])


def test_counters_of_another_schedule_change_nothing():
    theirs = lrs.CosineAnnealingLR(optimizer(), 7)
    before = encode(theirs.state_dict())
    report = restore_scheduler(theirs, {"previous_lr": Scalar("float", 0.5)})
    assert (report.ok, report.missing, report.unknown) == (False, ("current_iter",), ("previous_lr",))
    assert not restore_scheduler(theirs, {}).ok
    assert encode(theirs.state_dict()) == before


# What does not fit


def refusal(theirs, state, keys):
    before = encode(_state(theirs)), [dict(group) for group in getattr(theirs, "optimizer", optimizer()).param_groups]
    report = restore_scheduler(theirs, {}, state if isinstance(state, dict) else state.metadata)
    assert [key for key, _ in report.refused] == keys
    assert report.restored == ()
    assert encode(_state(theirs)) == before[0]
    if hasattr(theirs, "optimizer"):
        for group, old in zip(theirs.optimizer.param_groups, before[1], strict=True):
            assert {key: group[key] for key in group if key != "params"} == {
                key: old[key] for key in old if key != "params"
            }
    return report.refused[0][1]


def _state(theirs):
    state = theirs.state_dict()
    return {key: value for key, value in state.items() if key != "lr_lambdas"}


def test_another_kind_or_number_of_groups_is_refused():
    cosine, step = scheduler_state(lrs.CosineAnnealingLR(optimizer(), 7)), lrs.StepLR(optimizer(), 3)
    assert "the record is of CosineAnnealingLR, and this is StepLR" in refusal(step, cosine, ["kind"])
    other = lrs.CosineAnnealingLR(optimizer(0.1), 7)
    assert "2 groups of parameters, and the optimizer 1" in refusal(other, cosine, ["groups"])
    short = lrs.ChainedScheduler([lrs.ExponentialLR(opt := optimizer(), 0.9)], opt)
    assert "ExponentialLR)" in refusal(short, scheduler_state(chained(optimizer())), ["kind"])


def test_functions_and_objects_are_not_mixed_up():
    with_object = scheduler_state(lrs.LambdaLR(optimizer(0.5), Decay(0.5)))
    without = scheduler_state(lrs.LambdaLR(optimizer(0.5), lambda _: 1.0))
    assert "object with a state" in refusal(lrs.LambdaLR(optimizer(0.5), lambda _: 1.0), with_object, ["lr_lambdas"])
    assert "object with a state" in refusal(lrs.LambdaLR(optimizer(0.5), Decay(0.5)), without, ["lr_lambdas"])
    cyclic = scheduler_state(MAKERS["cyclic object"](optimizer(momentum=0.9)))
    assert refusal(MAKERS["cyclic"](optimizer(momentum=0.9)), cyclic, ["_scale_fn_custom"])


def test_a_momentum_that_the_optimizer_has_not_is_refused():
    def make(kind):
        return lrs.OneCycleLR(optimizer(kind=kind), 0.5, total_steps=9, cycle_momentum=kind is not torch.optim.Adagrad)

    state = scheduler_state(make(torch.optim.Adam))
    report = restore_scheduler(make(torch.optim.Adagrad), {}, state.metadata)
    assert {key for key, _ in report.refused} == {"groups.0.beta1", "groups.1.beta1"}


def changed(theirs, change):
    payload = decode(scheduler_state(theirs).metadata[KEY])
    change(payload)
    return {KEY: encode(payload)}


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (lambda payload: payload["state"].update(last_epoch="7"), ["last_epoch"]),
        (lambda payload: payload["state"].update(base_lrs=[0.1]), ["base_lrs"]),
        (lambda payload: payload["state"].update(base_lrs=["a", "b"]), ["base_lrs"]),
        (lambda payload: payload["state"].update(T_max=True), ["T_max"]),
        (lambda payload: payload["state"].update(last_epoch=None), ["last_epoch"]),
        (lambda payload: payload["groups"][0].update(params=3), ["groups.0.params"]),
        (lambda payload: payload["groups"][1].update(lr="x"), ["groups.1.lr"]),
        (lambda payload: payload["groups"].__setitem__(0, 3), ["groups.0"]),
    ],
)
def test_values_of_another_kind_never_reach_the_step(change, keys):
    theirs = lrs.CosineAnnealingLR(optimizer(), 7)
    refusal(theirs, changed(theirs, change), keys)


def test_phases_of_another_kind_never_reach_the_step():
    theirs = lrs.OneCycleLR(optimizer(momentum=0.9), 0.5, total_steps=9)
    refusal(
        theirs,
        changed(theirs, lambda payload: payload["state"]["_schedule_phases"][0].update(end_step="x")),
        ["_schedule_phases"],
    )


def test_a_lowest_rate_for_each_group_and_one_for_all_are_both_taken():
    one, each = (lrs.ReduceLROnPlateau(optimizer(), min_lr=lowest) for lowest in (0.01, [0.01, 0.02]))
    report = restore_scheduler(one, {}, scheduler_state(each).metadata).require()
    assert one.min_lrs == [0.01, 0.02]
    assert [text.split(" is ")[0] for text in report.changed] == ["default_min_lr", "min_lrs"]


@pytest.mark.parametrize(
    "change",
    [
        lambda payload: payload["state"].update(_schedulers=[{}]),
        lambda payload: payload["state"].update(_schedulers="x"),
        lambda payload: payload["state"]["_schedulers"].__setitem__(1, None),
        lambda payload: payload["state"].update(_milestones=[1]),
    ],
)
def test_sequences_that_are_damaged_are_refused(change):
    theirs = sequential(optimizer())
    report = restore_scheduler(theirs, {}, changed(theirs, change))
    assert report.refused


def test_keys_that_the_scheduler_has_not_are_left_out():
    theirs = lrs.CosineAnnealingLR(optimizer(), 7)
    report = restore_scheduler(
        theirs, {}, changed(theirs, lambda payload: payload["state"].update(optimizer="x", step=3, get_lr=None))
    )
    assert report.unknown == ("optimizer", "step", "get_lr")
    assert isinstance(theirs.optimizer, torch.optim.SGD)
    assert callable(theirs.step)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        json.dumps({"kind": "x", "state": {}, "groups": [], "tensors": {"a": ["object", 1]}}),
        json.dumps({"kind": "x", "state": {"a": {"$tensor": "a"}}, "groups": [], "tensors": {}}),
    ],
)
def test_damaged_text_is_an_error(text):
    with pytest.raises(FormatError):
        restore_scheduler(lrs.StepLR(optimizer(), 3), {}, {KEY: text})


def test_settings_of_the_record_win_and_are_told():
    saved, theirs = lrs.StepLR(optimizer(), 3, 0.5), lrs.StepLR(optimizer(), 4, 0.5)
    report = restore_scheduler(theirs, {}, scheduler_state(saved).metadata)
    assert theirs.step_size == 3
    assert report.changed == ("step_size is 3 from the record; the scheduler was built with 4",)


def test_a_record_one_level_down_is_found():
    saved, theirs = lrs.ConstantLR(optimizer(), 0.5, 3), lrs.ConstantLR(optimizer(), 0.5, 3)
    advance(saved, 2)
    record = LrSchedulerRecord().with_record("0", LrSchedulerRecord.of(saved))
    assert record.restore(theirs).ok
    assert theirs.last_epoch == 2


class Slotted:
    __slots__ = ("rate",)

    def __call__(self, _):
        return 1.0


class Odd:
    def __init__(self, thing):
        self.thing = thing

    def __call__(self, _):
        return 1.0

    def method(self, _):
        return 1.0


def test_what_cannot_be_kept_is_named():
    with pytest.raises(SchedulerError, match="__dict__"):
        scheduler_state(lrs.LambdaLR(optimizer(0.5), Slotted()))
    with pytest.raises(SchedulerError, match=r"state\.lr_lambdas\.0\.thing"):
        scheduler_state(lrs.LambdaLR(optimizer(0.5), Odd(object())))
    with pytest.raises(SchedulerError, match=r"lr_lambdas\.0\.thing.*numbers only"):
        scheduler_state(lrs.LambdaLR(optimizer(0.5), Odd(torch.zeros(3))))
    notes = scheduler_state(lrs.LambdaLR(optimizer(0.5), Odd(1).method)).notes
    assert any("calls a method" in note for note in notes)


class Own(lrs.LRScheduler):
    """A scheduler of a user, with a state of its own kind that comes late."""

    def get_lr(self):
        self.seen = {*getattr(self, "seen", ()), self.last_epoch}
        if self.last_epoch > 1:
            self.late = (self.last_epoch,)
        return [base / (1 + self.last_epoch) for base in self.base_lrs]


def test_schedulers_of_users_go_on_too():
    first, second = Own(optimizer()), Own(optimizer())
    advance(first, 5)
    restore_scheduler(second, {}, scheduler_state(first).metadata).require()
    assert (second.seen, second.late) == ({0, 1, 2, 3, 4, 5}, (5,))
    assert advance(second, 3) == advance(first, 3)


# What stands beside schedulers


def test_the_scale_of_gradients_goes_on():
    def make():
        return torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)

    def run(scaler, losses):
        weight = torch.nn.Parameter(torch.ones(1))
        opt = torch.optim.SGD([weight], lr=0.1)
        seen = []
        for loss in losses:
            opt.zero_grad()
            scaler.scale(weight.sum() * loss).backward()
            scaler.step(opt)
            scaler.update()
            seen.append(scaler.get_scale())
        return seen

    losses = [1.0, 1.0, 1.0, float("inf"), 1.0, 1.0, 1.0, 1.0]
    whole = run(make(), losses)
    first, second = make(), make()
    parts = run(first, losses[:3])
    state = scheduler_state(first)
    assert state.kind == "GradScaler"
    restore_scheduler(second, {}, state.metadata).require()
    assert parts + run(second, losses[3:]) == whole
    off = torch.amp.GradScaler("cpu", enabled=False)
    assert [key for key, _ in restore_scheduler(off, {}, state.metadata).refused] == ["enabled"]
    assert [key for key, _ in restore_scheduler(second, {}, scheduler_state(off).metadata).refused] == ["enabled"]
    assert restore_scheduler(off, {}, scheduler_state(off).metadata).ok


def test_the_count_of_an_average_goes_on():
    model = torch.nn.Linear(2, 2)
    first, second = AveragedModel(model), AveragedModel(model)
    for _ in range(3):
        first.update_parameters(model)
    restore_scheduler(second, {}, scheduler_state(first).metadata).require()
    assert int(second.n_averaged) == 3


def test_what_counts_as_a_scheduler():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaler = torch.amp.GradScaler("cpu")
    assert all(map(schedules, (lrs.StepLR(optimizer(), 3), scaler, AveragedModel(torch.nn.Linear(1, 1)))))
    assert not any(map(schedules, (optimizer(), torch.nn.Linear(1, 1), 3)))
