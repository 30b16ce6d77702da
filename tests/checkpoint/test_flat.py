"""Burn's layout: three files a step side by side, of which the model comes last."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import firekeep
from checkpoint.states import State, names_in
from firekeep import module
from firekeep.checkpoint import CheckpointManager, KeepAll, KeepLast, NoStepError, scan_steps
from firekeep.errors import RuleError
from firekeep.records import FieldStates, ModuleRecord, OptimizerRecord

PARTS = ("model", "optim", "scheduler")


def make(folder, **options):
    return CheckpointManager(folder, layout="burn", **{"durable": False, "keep": KeepAll(), **options})


def burn_step(folder, step, *, parts=PARTS):
    """Write a step as Burn does: three files that say nothing of each other."""
    for part in parts:
        path = folder / f"{part}-{step}.bpk"
        state = State(step, names=("model",)).parts["model"]
        firekeep.save_file(state, path, scalars={"value": float(step)})


def test_the_three_files_are_published_in_their_order(tmp_path, monkeypatch):
    manager = make(tmp_path)
    published = []
    real = Path.rename

    def rename(path, target):
        if target.parent == tmp_path and not target.name.startswith("."):
            published.append(target.name)
            info = scan_steps(tmp_path, layout="burn").find(3)
            assert info is None
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    manager.save(State(names=("model", "optimizer", "scheduler", "extra")), step=3)
    assert published == ["extra-3.bpk", "scheduler-3.bpk", "optim-3.bpk", "model-3.bpk"]
    assert manager.latest().step == 3


@pytest.mark.parametrize("names", [("model",), ("model", "optim"), ("model", "optimizer", "scheduler", "rng")])
def test_sections_come_back_under_their_own_names(tmp_path, names):
    manager = make(tmp_path)
    manager.save(State(4, names=names), step=1, metrics={"valid_loss": 2})
    assert {f"{part}-1.bpk" for part in PARTS} <= set(names_in(tmp_path)), "Burn opens all three"
    state = State(names=names)
    manager.restore(state)
    assert state.restored == sorted(names)
    assert state.value == 4
    assert manager.latest().metrics == {"valid_loss": 2}


def test_a_run_of_burn_is_found_and_gone_on_with(tmp_path):
    for step in (1, 2, 10):
        burn_step(tmp_path, step)
    catalog = scan_steps(tmp_path)
    assert catalog.layout == "burn"
    assert [info.step for info in catalog.steps] == [1, 2, 10]
    assert catalog.latest().version is None
    manager = make(tmp_path, keep=KeepLast(2))
    state = State()
    assert manager.restore(state).step == 10
    assert state.restored == ["model", "optimizer", "scheduler"]
    manager.save(State(11), step=11)
    assert [info.step for info in manager.steps()] == [10, 11]


def test_a_step_with_a_file_too_few_is_never_chosen(tmp_path):
    burn_step(tmp_path, 1)
    for number, missing in enumerate(PARTS, 2):
        burn_step(tmp_path, number, parts=[part for part in PARTS if part != missing])
    catalog = scan_steps(tmp_path)
    assert [info.step for info in catalog.steps] == [1]
    assert [step.reason for step in catalog.incomplete] == [
        f"'{part}-{number}.bpk' is not there" for number, part in enumerate(PARTS, 2)
    ]


@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_file_makes_no_step(tmp_path, part):
    burn_step(tmp_path, 1)
    path = tmp_path / f"{part}-1.bpk"
    os.truncate(path, path.stat().st_size - 100)
    (found,) = scan_steps(tmp_path).incomplete
    assert path.name in found.reason
    with pytest.raises(NoStepError):
        make(tmp_path).restore(State())


def test_files_of_two_saves_do_not_make_a_step(tmp_path):
    make(tmp_path / "a").save(State(1, size=5), step=1)
    make(tmp_path / "b").save(State(1, size=500), step=1)
    (tmp_path / "b" / "optim-1.bpk").rename(tmp_path / "a" / "optim-1.bpk")
    (found,) = scan_steps(tmp_path / "a", layout="burn").incomplete
    assert "optim-1.bpk has" in found.reason


@pytest.mark.parametrize("part", ["optim-2.bpk", "scheduler-2.bpk", "extra-2.bpk"])
def test_a_file_of_another_step_is_found_whatever_its_size(tmp_path, part):
    manager = make(tmp_path)
    for step in (1, 2):
        manager.save(State(step, names=("model", "optimizer", "scheduler", "extra")), step=step)
    other = tmp_path / part.replace("2", "1")
    assert other.stat().st_size == (tmp_path / part).stat().st_size
    (tmp_path / part).write_bytes(other.read_bytes())
    assert [(step.step, step.reason) for step in manager.catalog().incomplete] == [(2, f"{part!r} is of another save")]
    assert manager.restore(State()).step == 1
    with pytest.raises(NoStepError, match="another save"):
        manager.restore(State(), 2)


def test_a_model_of_another_step_is_found(tmp_path):
    manager = make(tmp_path)
    for step in (1, 2):
        manager.save(State(step), step=step)
    (tmp_path / "model-2.bpk").write_bytes((tmp_path / "model-1.bpk").read_bytes())
    (found,) = manager.catalog().incomplete
    assert "that of step 1, not 2" in found.reason


def test_files_of_a_version_that_did_not_mark_them_are_a_step(tmp_path):
    manager = make(tmp_path)
    manager.save(State(3), step=1)
    for part in PARTS:
        path = tmp_path / f"{part}-1.bpk"
        with firekeep.open(path) as opened:
            metadata = {key: value for key, value in opened.metadata.items() if key != "firekeep.step"}
            arrays = {key: opened.array(key) for key in opened.keys()}  # noqa: SIM118
            scalars = dict(opened.scalars)
        firekeep.save_file(arrays, path, metadata=metadata, scalars=scalars, overwrite=True)
    _set_sizes(tmp_path)
    state = State()
    assert manager.restore(state).step == 1
    assert state.value == 3


def _set_sizes(folder):
    """Have the manifest say the sizes that the files have now."""
    path = folder / "model-1.bpk"
    with firekeep.open(path) as opened:
        told = json.loads(opened.metadata["firekeep.checkpoint"])
        for name, about in told["files"].items():
            about["nbytes"] = (folder / name).stat().st_size
        metadata = {**opened.metadata, "firekeep.checkpoint": json.dumps(told)}
        arrays = {key: opened.array(key) for key in opened.keys()}  # noqa: SIM118
        scalars = dict(opened.scalars)
    firekeep.save_file(arrays, path, metadata=metadata, scalars=scalars, overwrite=True)


def run_of_burn(folder, seed):
    """Write a model and an optimizer with the ids of a run of its own."""
    model = module.Linear(2, 3, rng=seed)
    ModuleRecord.of(model).save(folder / "model-1.bpk")
    states = [
        FieldStates(
            param_id=int(getattr(model, path).id),
            path=path,
            rank=1,
            fields={"time": 1, "moment": np.zeros(1, np.float32)},
        )
        for path in ("weight", "bias")
    ]
    OptimizerRecord.of_states(states).save(folder / "optim-1.bpk")
    firekeep.save_file({}, folder / "scheduler-1.bpk")


def test_an_optimizer_of_another_run_of_burn_makes_no_step(tmp_path):
    for number, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        run_of_burn(tmp_path / name, number)
        assert [info.step for info in scan_steps(tmp_path / name).steps] == [1]
    (tmp_path / "b" / "optim-1.bpk").rename(tmp_path / "a" / "optim-1.bpk")
    (found,) = scan_steps(tmp_path / "a").incomplete
    assert found.reason.startswith("optim-1.bpk is of another model")


@pytest.mark.parametrize(
    "name", ["model-01.bpk", "model-1.bpk.bak", "Model-1.bpk", "model--1.bpk", "model-x.bpk", "policy-1.bpk"]
)
def test_other_files_are_left_alone(tmp_path, name):
    (tmp_path / name).write_text("mine")
    manager = make(tmp_path, keep=KeepLast(1))
    for step in (1, 2):
        manager.save(State(step), step=step)
    assert [info.step for info in manager.steps()] == [2]
    assert (tmp_path / name).read_text() == "mine"


def test_a_model_without_the_rest_is_set_aside_and_not_lost(tmp_path):
    burn_step(tmp_path, 1, parts=["model"])
    before = (tmp_path / "model-1.bpk").read_bytes()
    manager = make(tmp_path)
    manager.save(State(5), step=1)
    assert (tmp_path / "model-1.bpk.incomplete-1").read_bytes() == before
    state = State()
    manager.restore(state)
    assert state.value == 5


def test_a_state_without_a_model_has_no_place_in_burns_layout(tmp_path):
    manager = make(tmp_path)
    with pytest.raises(RuleError, match=r'one section "model".*"firekeep"'):
        manager.save(State(names=("weights",)), step=1)
    with pytest.raises(RuleError, match='one section "model"'):
        manager.save(State(names=("model", "optim", "optimizer")), step=1)
    assert names_in(tmp_path) == [".firekeep.lock"]


def test_what_a_model_tells_leads_nowhere(tmp_path):
    burn_step(tmp_path, 1)
    told = (
        '{"kind":"firekeep checkpoint","manifest":1,"step":1,"time":0,"metrics":{},'
        '"files":{"../model-1.bpk":{"nbytes":1}}}'
    )
    firekeep.save_file({}, tmp_path / "model-1.bpk", metadata={"firekeep.checkpoint": told})
    (found,) = scan_steps(tmp_path).incomplete
    assert "is no name of a file of a step" in found.reason
