"""Reported bugs of optimizer and scheduler states, each as a test of its whole kind: who gets which moment, and what is told."""

from __future__ import annotations

import io
import random
import zipfile
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import firekeep
from firekeep.errors import UnsupportedError
from firekeep.records import LrSchedulerRecord, OptimizerError, OptimizerRecord
from firekeep.tagged import decode, encode
from records.models import MAKERS, Optim


def model_of(names: list[str], seed: int = 0) -> nn.Module:
    """Make a model of layers that all have the same shapes, so that nothing but names tells them apart."""
    torch.manual_seed(seed)
    return nn.ModuleDict({name: nn.Linear(4, 4) for name in names})


def made_steps(model: nn.Module, optimizer: Any, count: int = 2) -> None:
    for _ in range(count):
        for param in model.parameters():
            param.grad = torch.randn(param.shape)
        optimizer.step(lambda: torch.tensor(1.0))


def moments(model: nn.Module, optimizer: Any) -> dict[str, dict[str, Any]]:
    return {name: optimizer.state.get(param, {}) for name, param in model.named_parameters()}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def assert_same(got: dict[str, Any], wanted: dict[str, Any], place: str) -> None:
    assert got.keys() == wanted.keys(), place
    assert all(same(got[key], wanted[key]) for key in wanted), place


def saved(optimizer: Any, model: nn.Module, layout: str = "torch") -> OptimizerRecord:
    return OptimizerRecord.from_bytes(OptimizerRecord.of(optimizer, model, layout=layout).to_bytes())


KEPT_BY_PARAMETER = [name for name in MAKERS if "LBFGS" not in name]
NAMES = [f"layer{number}" for number in range(5)]


@pytest.mark.parametrize("layout", ["torch", "burn"])
@pytest.mark.parametrize("kind", KEPT_BY_PARAMETER)
@pytest.mark.filterwarnings("ignore::firekeep.records.OptimizerWarning")
def test_moments_follow_names_in_any_order(kind: str, layout: str) -> None:
    """B108, B109: parameters of one shape in another order, and the order of a set."""
    source = random.Random(kind)
    model, other = model_of(NAMES), model_of(source.sample(NAMES, len(NAMES)), seed=1)
    optimizer = MAKERS[kind](source.sample(list(model.parameters()), 10))
    made_steps(model, optimizer)
    restored = MAKERS[kind](source.sample(list(other.parameters()), 10))
    report = saved(optimizer, model, layout).apply(restored, other)
    wanted, got = moments(model, optimizer), moments(other, restored)
    if (kind, layout) == ("Muon", "burn"):  # Burn keeps another number, and rounds
        assert report.ok
        assert report.changed
        for name in (name for name in wanted if name.endswith("weight")):
            assert torch.allclose(got[name]["momentum_buffer"], wanted[name]["momentum_buffer"])
        return
    assert report.exact, str(report)
    for name, state in wanted.items():
        assert_same(got[name], state, name)


def test_ids_come_back_and_nothing_grows_from_save_to_save() -> None:
    """B110: ids were not restored, so that each cycle kept the states of the one before."""
    model = model_of(NAMES)
    optimizer = Optim.Adam(model.parameters())
    made_steps(model, optimizer)
    record, weights = OptimizerRecord.of(optimizer, model), firekeep.records.ModuleRecord.of(model)
    sizes, ids = set(), set()
    for seed in range(1, 4):
        model = model_of(NAMES, seed)
        weights.apply(model)
        optimizer = Optim.Adam(model.parameters())
        assert record.apply(optimizer, model).exact
        made_steps(model, optimizer)
        record, weights = saved(optimizer, model), firekeep.records.ModuleRecord.of(model)
        sizes.add(len(record.to_bytes()))
        ids.add(tuple(record.metadata))
        assert len(record.paths) == 10
    assert len(sizes) == len(ids) == 1


def test_states_of_parameters_that_are_gone_are_counted_and_not_kept() -> None:
    """B110, B112: the set of what is trained has changed."""
    model = model_of(NAMES)
    optimizer = Optim.Adam(model.parameters())
    made_steps(model, optimizer)
    model["layer2"].requires_grad_(requires_grad=False)
    fewer = Optim.Adam([one for one in model.parameters() if one.requires_grad])
    record = saved(optimizer, model)
    report = record.apply(fewer, model)
    assert report.orphaned == ("layer2.bias", "layer2.weight")
    assert not report.exact
    assert len(report.restored) == 8
    for name, state in moments(model, fewer).items():
        assert_same(state, {} if name.startswith("layer2") else moments(model, optimizer)[name], name)
    assert len(saved(fewer, model).paths) == 8
    with pytest.raises(OptimizerError, match="in the record only"):
        record.apply(fewer, model, allow_orphaned=False)


def test_a_part_of_the_parameters_is_restored_and_the_rest_starts_anew() -> None:
    """B113: an optimizer came back whole or not at all."""
    model = model_of(NAMES[:3])
    optimizer = Optim.Adam(model.parameters())
    made_steps(model, optimizer)
    larger = model_of(["new", *NAMES[:3]], seed=1)
    restored = Optim.Adam(larger.parameters())
    record = saved(optimizer, model)
    report = record.apply(restored, larger)
    assert report.fresh == ("new.bias", "new.weight")
    assert len(report.restored) == 6
    assert not report.exact
    got = moments(larger, restored)
    assert not got["new.weight"]
    assert_same(got["layer1.weight"], moments(model, optimizer)["layer1.weight"], "layer1.weight")
    made_steps(larger, restored)
    with pytest.raises(OptimizerError, match="start anew"):
        record.apply(restored, larger, allow_fresh=False)


class Pair(NamedTuple):
    mu: Any
    nu: Any


def test_tuples_come_back_as_tuples_and_named_ones_are_refused_by_their_place() -> None:
    """B114: a tuple came back as a list, a named one as a dict."""
    value = {"betas": (0.9, (0.5,)), "list": [(1, 2)], (1, "a"): {"nested": ()}}
    again = decode(encode(value))
    assert again == value
    assert type(again["betas"]) is tuple
    assert type(again["betas"][1]) is tuple
    model = model_of(NAMES[:1])
    optimizer = Optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["ema"] = Pair(1, 2)
    with pytest.raises(UnsupportedError, match=r"ema.*named tuple"):
        OptimizerRecord.of(optimizer, model)
    optimizer.param_groups[0]["ema"] = tuple(Pair(1, (2, 3)))
    other = Optim.SGD(model.parameters(), lr=0.2)
    assert saved(optimizer, model).apply(other, model).exact
    assert other.param_groups[0]["ema"] == (1, (2, 3))
    assert other.param_groups[0]["lr"] == 0.1


SCHEDULES = {
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
            lr_scheduler.CosineAnnealingLR(optimizer, 5),
            lr_scheduler.ExponentialLR(optimizer, 0.5),
        ],
        [3, 7],
    ),
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.1, 4), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    ),
    "chained sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.ConstantLR(optimizer, 0.1, 4), lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3, 2)],
        [5],
    ),
}


@pytest.mark.parametrize("split", range(12))
@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedules_within_schedules_go_on_in_every_phase(kind: str, split: int) -> None:
    """B116: of a sequence, the first schedule came back."""

    def rates(optimizer: Any, schedule: Any, count: int) -> list[float]:
        made = []
        for _ in range(count):
            optimizer.step()
            schedule.step()
            made.append(optimizer.param_groups[0]["lr"])
        return made

    def make() -> tuple[Any, Any]:
        optimizer = Optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        return optimizer, SCHEDULES[kind](optimizer)

    first, second = make(), make()
    rates(*first, split)
    data = LrSchedulerRecord.of(first[1]).to_bytes()
    wanted = rates(*first, 12)
    report = LrSchedulerRecord.from_bytes(data).restore(second[1])
    assert report.ok
    assert not report.changed
    assert rates(*second, 12) == wanted


def test_where_a_file_of_a_device_was_made_is_no_reason_not_to_read_it() -> None:
    """B126: a checkpoint of a CUDA device could not be opened without one."""
    buffer = io.BytesIO()
    torch.save({"weight": torch.arange(4.0), "bias": torch.ones(2)}, buffer)
    source = zipfile.ZipFile(io.BytesIO(buffer.getvalue()))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as file:
        for info in source.infolist():
            data = source.read(info)
            if info.filename.endswith("data.pkl"):
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:7")
                assert b"cuda:7" in data
            file.writestr(info, data)
    loaded = firekeep.load_file(target.getvalue())
    assert loaded["weight"].tolist() == [0.0, 1.0, 2.0, 3.0]
