"""What a state's objects hold beside what a file keeps: it is told at the save, by name and once, and the restore is not called exact."""

from __future__ import annotations

import enum
import warnings
from collections import defaultdict
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

import firekeep
from firekeep.checkpoint import CheckpointManager
from firekeep.training import TrainingState

GENERATOR = torch.Generator().manual_seed(7)
BATCHES = [(torch.randn(5, 4, generator=GENERATOR), torch.randn(5, 2, generator=GENERATOR)) for _ in range(24)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


class Counting(torch.optim.SGD):
    """Counts its steps where no state dict sees it, and has a setting there too."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.step_count, self.power = 0, 0.5

    def step(self, closure=None):
        self.step_count += 1
        for group in self.param_groups:
            group["lr"] = 0.1 / self.step_count**self.power
        return super().step(closure)


class Given(Counting):
    def state_dict(self):
        return {**super().state_dict(), "count": self.step_count}

    def load_state_dict(self, state):
        self.step_count = state["count"]
        super().load_state_dict({key: value for key, value in state.items() if key != "count"})


class Buffers(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self._buffer = {}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                buffer = self._buffer.setdefault(one, torch.zeros_like(one))
                one.sub_(group["lr"] * buffer.mul_(0.9).add_(one.grad))


class LookAhead(torch.optim.Optimizer):
    """Wraps another, and gives all of it by a state dict of its own, in which counters of parameters are equal."""

    def __init__(self, params):
        self.base, self.count = torch.optim.Adam(params, lr=0.05), 0
        self.param_groups, self.defaults, self.state = self.base.param_groups, self.base.defaults, defaultdict(dict)
        self.slow = [one.detach().clone() for one in self.base.param_groups[0]["params"]]

    def zero_grad(self):
        self.base.zero_grad()

    @torch.no_grad()
    def step(self):
        self.base.step()
        self.count += 1
        if self.count % 3 == 0:
            for one, slow in zip(self.base.param_groups[0]["params"], self.slow, strict=True):
                one.copy_(slow.lerp_(one, 0.5))

    def state_dict(self):
        return {"base": self.base.state_dict(), "slow": self.slow, "k": self.count}

    def load_state_dict(self, state):
        self.base.load_state_dict(state["base"])
        self.slow, self.count = state["slow"], state["k"]


class Through(LookAhead):
    """Gives the state of the other alone, as its own."""

    def state_dict(self):
        return self.base.state_dict()

    def load_state_dict(self, state):
        self.base.load_state_dict(state)


class Sam(torch.optim.Optimizer):
    """Steps with another optimizer, whose momentum is in no state dict."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05, "rho": 0.1})
        self.base = torch.optim.SGD(self.param_groups, lr=0.05, momentum=0.9)
        self.param_groups = self.base.param_groups

    def step(self):
        self.base.step()


class ScheduleFree(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1, "k": 0, "weight_sum": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["k"] += 1
            group["weight_sum"] += group["k"] ** 0.5
            for one in group["params"]:
                self.state[one].setdefault("z", one.clone()).sub_(group["lr"] * one.grad)
                one.lerp_(self.state[one]["z"], group["k"] ** 0.5 / group["weight_sum"])


class TwoCounters(torch.optim.SGD):
    """Keeps two numbers of a parameter that are equal for a while, and counts each in its place."""

    def step(self):
        super().step()
        for group in self.param_groups:
            for one in group["params"]:
                state = self.state[one]
                state.setdefault("seen", torch.tensor(0.0)).add_(1)
                state.setdefault("shown", torch.tensor(0.0)).add_(1)
                group["lr"] = 0.1 / float(state["seen"] + state["shown"])


def run(net, optimizer, start, stop, *, scheduler=None, average=None, scaler=None):
    found = []
    for number, (x, y) in enumerate(BATCHES[start:stop], start):
        optimizer.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            optimizer.step()
        else:
            if number % 5 == 2:
                net.first.weight.grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        if scheduler is not None:
            plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
            scheduler.step(*([loss.item()] if plateau else []))
        found.append(loss.item())
        if average is not None:
            average.update_parameters(net)
            found += [float(one.detach().double().sum()) for one in (*average.parameters(), *average.buffers())]
    return found


def halves(folder, make):
    """Give what ten steps more come to, straight and after a restore into objects made anew, with the report and the warnings."""
    torch.manual_seed(1)
    net, parts, more = make()
    state = TrainingState(model=net, **parts)
    run(net, stop=8, start=0, **more)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in (7, 8):
            CheckpointManager(folder, durable=False).save(state, step=step)
    straight = run(net, start=8, stop=18, **more)
    torch.manual_seed(2)
    net, parts, more = make()
    report = CheckpointManager(folder).restore(TrainingState(model=net, **parts)).report
    return straight, run(net, start=8, stop=18, **more), report, [str(one.message) for one in told]


def with_optimizer(kind):
    net = Net()
    optimizer = kind(net.parameters())
    return net, {"optimizer": optimizer}, {"optimizer": optimizer}


def with_schedule(kind):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scheduler = kind(optimizer)
    parts = {"optimizer": optimizer, "scheduler": scheduler}
    return net, parts, parts


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Counting, r"'optimizer.step_count' (int)"),
        (Buffers, r"'optimizer._buffer' (tensors)"),
        (Sam, r"'optimizer.base.state' (the state of the SGD within)"),
        (Through, r"'optimizer.count' (int), 'optimizer.slow' (tensors)"),
    ],
)
def test_what_hangs_on_an_optimizer_is_told_once_and_the_restore_is_not_exact(tmp_path, kind, what):
    straight, resumed, report, told = halves(tmp_path, partial(with_optimizer, kind))
    assert straight != resumed, "or there would be nothing to tell"
    assert len(told) == 1
    assert what in told[0], "what never changed is a setting"
    assert "power" not in told[0]
    assert not report.exact
    assert what.partition("'")[2].partition("'")[0] in str(report.changed)


@pytest.mark.parametrize("kind", [Given, LookAhead, ScheduleFree, partial(TwoCounters, lr=0.1)])
def test_what_an_optimizer_gives_by_its_state_dict_goes_on_exactly(tmp_path, kind):
    straight, resumed, report, told = halves(tmp_path, partial(with_optimizer, kind))
    assert straight == resumed
    assert (report.exact, told) == (True, [])


def test_an_optimizer_within_another_is_kept_where_both_are_given(tmp_path):
    def make():
        net, parts, more = with_optimizer(Sam)
        return net, {"optimizer": {"outer": parts["optimizer"], "inner": parts["optimizer"].base}}, more

    straight, resumed, report, told = halves(tmp_path, make)
    assert straight == resumed
    assert (report.exact, told) == (True, [])


def test_what_is_among_the_values_by_its_name_is_not_told(tmp_path):
    net = Net()
    optimizer = Counting(net.parameters())
    state = TrainingState(model=net, optimizer=optimizer)
    run(net, optimizer, 0, 2)
    state.values["step_count"] = optimizer.step_count
    state.sections()
    CheckpointManager(tmp_path, durable=False).save(state, step=1)
    assert CheckpointManager(tmp_path).restore(state).report.exact


PLAIN = [getattr(torch.optim, name) for name in ("Adam", "NAdam", "RAdam", "ASGD", "Rprop", "Adagrad", "Adafactor")]


@pytest.mark.parametrize("kind", [*PLAIN, torch.optim.LBFGS])
def test_optimizers_of_pytorch_hang_nothing_on_themselves(kind):
    net = Net()
    optimizer = kind(net.parameters(), lr=0.01)
    scheduler = lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)], [3]
    )
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    state = TrainingState(model=net, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
    for x, y in BATCHES[:5]:

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = ((net(x) - y) ** 2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        scheduler.step()
        state.sections()  # warnings are errors


@pytest.fixture
def accelerator():
    accelerate = pytest.importorskip("accelerate")
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def test_wrappers_of_accelerate_are_looked_through_and_hang_nothing_there_themselves(accelerator):
    for kind in (partial(torch.optim.AdamW, lr=0.01), Counting):
        net, optimizer = Net(), None
        net, optimizer = accelerator.prepare(net, kind(net.parameters()))
        state = TrainingState(model=net, optimizer=optimizer)
        run(net, optimizer, 0, 3)
        if kind is Counting:
            with pytest.warns(firekeep.LeftOutWarning, match=r"'optimizer\.step_count' \(int\)\. ") as told:
                state.sections()
            assert told[0].filename == __file__
        else:
            state.sections()


class Rate:
    def __init__(self):
        self.calls = 0

    def __call__(self, _epoch):
        self.calls += 1
        return 1 / (1 + self.calls)


class Own(lr_scheduler.LRScheduler):
    def __init__(self, optimizer):
        self.temperature, self.history = 1.0, []
        super().__init__(optimizer)

    def get_lr(self):
        self.temperature *= 0.9
        self.history.append(self.temperature)
        return [base * self.temperature for base in self.base_lrs]


class Short(Own):
    def state_dict(self):
        return {"last_epoch": self.last_epoch}


def counting():
    seen = []

    def rate(_epoch):
        seen.append(1)
        return 1 / len(seen)

    return rate


SCHEDULES = {
    "objects": lambda one: lr_scheduler.LambdaLR(one, Rate()),
    "own": Own,
    "chain": lambda one: lr_scheduler.ChainedScheduler([Own(one), lr_scheduler.ExponentialLR(one, 0.9)], optimizer=one),
    "sequence": lambda one: lr_scheduler.SequentialLR(
        one, [lr_scheduler.LambdaLR(one, Rate()), lr_scheduler.CosineAnnealingLR(one, 6)], [5]
    ),
    "plateau": lambda one: lr_scheduler.ReduceLROnPlateau(one, factor=0.5, patience=1, cooldown=1),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_go_on_exactly(tmp_path, name):
    straight, resumed, report, told = halves(tmp_path, partial(with_schedule, SCHEDULES[name]))
    assert straight == resumed
    assert (report.exact, told) == (True, []), report.reasons()


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (lambda one: lr_scheduler.LambdaLR(one, Rate().__call__), "'scheduler.lr_lambdas.0' (what Rate.__call__ "),
        (lambda one: lr_scheduler.LambdaLR(one, counting()), "'scheduler.lr_lambdas.0' (what counting.<locals>.rate "),
        (Short, "'scheduler.temperature' (float), 'scheduler.history' (list)"),
    ],
)
def test_what_a_schedule_counts_in_and_does_not_give_is_told(tmp_path, kind, what):
    straight, resumed, report, told = halves(tmp_path, partial(with_schedule, kind))
    assert straight != resumed
    assert len(told) == 1
    assert what in told[0]
    assert not report.exact


@pytest.mark.parametrize("kind", ["average", "moving", "scaler"])
def test_averages_and_scalers_go_on_exactly(tmp_path, kind):
    def make():
        net, parts, more = with_optimizer(partial(torch.optim.SGD, lr=0.1, momentum=0.9))
        if kind == "scaler":
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
            return net, {**parts, "scaler": scaler}, {**more, "scaler": scaler}
        how = {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)} if kind == "moving" else {"use_buffers": True}
        average = swa_utils.AveragedModel(net, **how)
        return net, {**parts, "ema": average}, {**more, "average": average}

    straight, resumed, report, told = halves(tmp_path, make)
    assert straight == resumed
    assert (report.exact, told) == (True, [])


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.ones(2)), 0

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


@pytest.mark.parametrize("suffix", ["bpk", "safetensors"])
def test_a_save_of_a_model_tells_what_modules_keep_besides_tensors(tmp_path, suffix):
    model = nn.Sequential(nn.Linear(2, 2), Counter())
    with pytest.warns(firekeep.LeftOutWarning, match=r"'1' \(state besides tensors\)\. .*TrainingState"):
        report = firekeep.save(model, tmp_path / f"a.{suffix}")
    assert report.others == ("1",)
    firekeep.save(model, tmp_path / f"a.{suffix}", exclude="^1$")  # as the warning says, and the weight is there
    with firekeep.open(tmp_path / f"a.{suffix}") as opened:
        assert "1.weight" in opened.entries
    with pytest.warns(firekeep.LeftOutWarning, match=r"'model' \(state besides tensors\)"):
        firekeep.save(Counter(), tmp_path / f"a.{suffix}")
    with CheckpointManager(tmp_path / "run", durable=False) as manager:
        manager.save(TrainingState(model=model), step=1)


def test_what_modules_of_an_average_keep_besides_tensors_comes_back(tmp_path):
    average = swa_utils.AveragedModel(Counter())
    average.module.seen = 5
    CheckpointManager(tmp_path, durable=False).save(TrainingState(model=Counter(), ema=average), step=1)
    made = swa_utils.AveragedModel(Counter())
    assert CheckpointManager(tmp_path).restore(TrainingState(model=Counter(), ema=made)).report.exact
    assert made.module.seen == 5


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_two_parameters_in_one_memory_go_on_exactly(tmp_path, foreach, turned):
    def make():
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        net[2].weight = nn.Parameter(net[0].weight.data)
        params = list(net.parameters())[:: -1 if turned else 1]
        optimizer = torch.optim.Adam(params, lr=0.05, foreach=foreach)
        return net, {"optimizer": optimizer}, {"optimizer": optimizer}

    straight, resumed, report, told = halves(tmp_path, make)
    assert straight == resumed
    assert (report.exact, told) == (True, [])


class Color(enum.IntEnum):
    RED = 1
    BLUE = 2


@dataclass
class Plain:
    w: np.ndarray
    x: object


@pytest.mark.parametrize("value", [3, 0.5, True, "a", Color.BLUE, 1j, {1}, b"a", np.random.default_rng(3)])
def test_values_in_a_dataclass_of_arrays_are_told(value):
    state = TrainingState(model=Plain(np.ones(3), value), rng=False)
    with pytest.warns(firekeep.LeftOutWarning, match=r"1 value of the state is not kept.* 'model\.x' \("):
        state.sections()
    state.sections()
    TrainingState(model=Plain(np.ones(3), len), rng=False).sections()  # code is no state
