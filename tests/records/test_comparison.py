"""Two records compared tell what a real restoration would do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from firekeep.records import FieldStates, LrSchedulerRecord, OptimizerRecord, compare_optimizers, compare_schedulers
from firekeep.schedulers import Linear
from records.models import MAKERS, Net, net, run

Optim = torch.optim


def through_a_file(record: OptimizerRecord) -> OptimizerRecord:
    return OptimizerRecord.from_bytes(record.to_bytes())


def wider() -> Net:
    model = net()
    model.outer = nn.Linear(8, 3, bias=False)
    model.norm = nn.LayerNorm(8, bias=False)
    return model


def split(params: list[Any]) -> Any:
    return Optim.AdamW([{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0}], lr=0.01)


PAIRS: dict[str, tuple[Any, Any, Any, Any]] = {
    **{name: (net, maker, net, maker) for name, maker in MAKERS.items()},
    "a layer more": (net, MAKERS["Adam"], lambda: net(1, extra=nn.Linear(2, 2)), MAKERS["Adam"]),
    "a layer less": (lambda: net(1, extra=nn.Linear(2, 2)), MAKERS["Adam"], net, MAKERS["Adam"]),
    "other parameters": (net, MAKERS["RMSprop"], wider, MAKERS["RMSprop"]),
    "another class": (net, MAKERS["Adam"], net, MAKERS["SGD, nesterov"]),
    "another of the family": (net, MAKERS["Adam"], net, MAKERS["AdamW"]),
    "an option more": (net, MAKERS["Adam"], net, MAKERS["Adam, amsgrad"]),
    "a group split": (net, MAKERS["AdamW"], net, split),
    "groups joined": (net, split, net, MAKERS["AdamW"]),
    "L-BFGS of another model": (net, MAKERS["LBFGS"], wider, MAKERS["LBFGS"]),
    "L-BFGS and another": (net, MAKERS["LBFGS"], net, MAKERS["Adam"]),
}


@pytest.mark.filterwarnings("ignore::firekeep.records.OptimizerWarning")
@pytest.mark.parametrize("name", PAIRS)
def test_the_comparison_says_what_the_restoration_does(name: str):
    model_of, maker, like_of, like_maker = PAIRS[name]
    model, like = model_of(), like_of()
    if name not in MAKERS:
        _align(like, model)
    optimizer, other = maker(list(model.parameters())), like_maker(list(like.parameters()))
    run(model, optimizer, 0, 2)
    run(like, other, 0, 1)
    record, theirs = (through_a_file(OptimizerRecord.of(*one)) for one in ((optimizer, model), (other, like)))
    found = compare_optimizers(record, theirs)
    real = record.apply(other, like, allow_dropped=True, dry_run=True)
    assert set(found.restored) == set(real.restored) or name.startswith("L-BFGS") or "LBFGS" in name
    assert set(found.fresh) == set(real.fresh)
    assert set(found.dropped) == set(real.dropped)
    assert set(found.orphaned) == set(real.orphaned)
    assert found.groups_restored == real.groups_restored
    assert found.groups_kept == real.groups_kept
    assert found.exact == real.exact


def _align(like: nn.Module, model: nn.Module) -> None:
    """Give the layers that both have one shape: they are the same model, changed in one place."""
    theirs = dict(model.named_parameters())
    for name, param in like.named_parameters():
        if name in theirs and theirs[name].shape == param.shape:
            param.data.copy_(theirs[name])


def test_other_shapes_are_told_by_name():
    model, like = net(), net()
    like.outer = nn.Linear(8, 3)
    like.inner = nn.Linear(4, 8)
    like.norm = nn.LayerNorm(8)
    other_model = nn.ModuleDict({"outer": nn.Linear(8, 5)})
    first, second = Optim.Adam(model.parameters()), Optim.Adam(other_model.parameters())
    run(model, first, 0, 1)
    other_model["outer"](torch.ones(1, 8)).sum().backward()
    second.step()
    found = compare_optimizers(OptimizerRecord.of(first, model), OptimizerRecord.of(second, other_model))
    assert found.dropped["outer.weight"] == "its shape was [3, 8], and is [5, 8] now"
    assert set(found.orphaned) == {"inner.weight", "inner.bias", "norm.weight", "norm.bias"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_cast_of_moments_is_told_as_by_the_restoration(dtype: torch.dtype):
    model, like = net(), net().to(dtype)
    optimizer, other = Optim.AdamW(model.parameters()), Optim.AdamW(like.parameters())
    run(model, optimizer, 0, 1)
    record, theirs = OptimizerRecord.of(optimizer, model), OptimizerRecord.of(other, like)
    found, real = compare_optimizers(record, theirs), record.apply(other, like, dry_run=True)
    assert set(found.changed) == set(real.changed)
    assert len(found.changed) == len(list(model.parameters()))
    assert not found.exact


def test_another_way_to_compute_a_step_is_told_as_by_the_restoration():
    model = net()
    optimizer, other = (Optim.AdamW(model.parameters(), foreach=each) for each in (True, False))
    run(model, optimizer, 0, 1)
    record, theirs = OptimizerRecord.of(optimizer, model), OptimizerRecord.of(other, model)
    found = compare_optimizers(record, theirs)
    assert found.changed == record.apply(other, model, dry_run=True).changed
    assert "foreach was True" in found.changed[0]


def test_parameters_that_are_another_one_by_their_name_are_told():
    def of(names: dict[int, str]) -> OptimizerRecord:
        moment = np.zeros(2, np.float32)
        fields = {"momentum.moment_1": moment, "momentum.moment_2": moment, "momentum.time": 1}
        return OptimizerRecord.of_states(
            FieldStates(param_id=key, path=path, rank=1, fields=fields) for key, path in names.items()
        )

    found = compare_optimizers(of({1: "a", 2: "b", 3: "c"}), of({1: "b", 2: "a", 3: "d"}))
    assert set(found.restored) == {"a", "b", "d"}
    assert found.changed == (
        "'a' is so by its name, and 'b' by its id, which is followed",
        "'b' is so by its name, and 'a' by its id, which is followed",
    )
    assert not found.exact


def test_layouts_that_differ_are_not_compared():
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 1)
    record, like = (OptimizerRecord.of(optimizer, model, layout=layout) for layout in ("burn", "torch"))
    assert all("layout 'burn'" in why for why in compare_optimizers(record, like).dropped.values())
    assert not compare_optimizers(record, like).restored


def schedule(kind: Any, **options: Any) -> LrSchedulerRecord:
    optimizer = Optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    return LrSchedulerRecord.of(kind(optimizer, **options))


CHAINED = Optim.lr_scheduler.SequentialLR
COSINE = Optim.lr_scheduler.CosineAnnealingLR


def test_schedules_of_one_kind_are_restored_and_other_settings_told():
    found = compare_schedulers(schedule(COSINE, T_max=10), schedule(COSINE, T_max=20))
    assert found.ok
    assert found.changed == ("T_max is 10 from the record; the other has 20",)
    assert not compare_schedulers(schedule(COSINE, T_max=10), schedule(COSINE, T_max=10)).changed


def test_schedules_of_other_kinds_and_other_groups_are_refused():
    step = schedule(Optim.lr_scheduler.StepLR, step_size=3)
    found = compare_schedulers(step, schedule(COSINE, T_max=10))
    assert dict(found.refused) == {"kind": "the record is of StepLR, and this is CosineAnnealingLR"}
    params = [{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    two = LrSchedulerRecord.of(COSINE(Optim.SGD(params, lr=0.5), T_max=10))
    assert dict(compare_schedulers(schedule(COSINE, T_max=10), two).refused) == {
        "groups": "the record has 1 group of parameters, and the optimizer 2"
    }


def test_counters_of_burns_are_found_one_level_up_and_down():
    record = LrSchedulerRecord.of(Linear(initial=0.5, final=0.25, iterations=4))
    learners = LrSchedulerRecord().with_record("0", record)
    assert compare_schedulers(learners, record).restored == ("remaining_iters",)
    assert compare_schedulers(record, learners).restored == ("0.remaining_iters",)
    other = LrSchedulerRecord({"current_iter": 3})
    assert compare_schedulers(other, record).missing == ("remaining_iters",)
    assert dict(compare_schedulers(LrSchedulerRecord({"remaining_iters": 3}), record).refused) == {
        "remaining_iters": "int, where uint is due"
    }


def test_counters_alone_do_not_fill_a_schedule_of_torch():
    record = LrSchedulerRecord.of(Linear(initial=0.5, final=0.25, iterations=4))
    found = compare_schedulers(record, schedule(COSINE, T_max=10))
    assert dict(found.refused) == {"state": "the record has Burn's counters alone"}
