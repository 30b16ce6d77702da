"""What a manager has read of steps is not read again, and yet whatever others do to the directory meanwhile is seen."""

from __future__ import annotations

import json
import os
import random
import shutil

import pytest

from checkpoint.states import State
from firekeep.checkpoint import (
    CheckpointManager,
    KeepAll,
    KeepBest,
    KeepEvery,
    KeepLast,
    _flat,
    _folders,
    _seen,
    scan_steps,
)

LAYOUTS = ("firekeep", "burn")
ALWAYS, NEVER = -(10**18), 10**19
"""How long ago a file must have been changed to be remembered, so that clocks play no part here."""


@pytest.fixture(autouse=True)
def remembered(monkeypatch):
    monkeypatch.setattr(_seen, "SETTLED", ALWAYS)


def make(folder, layout, keep=None):
    return CheckpointManager(folder, layout=layout, keep=keep or KeepAll(), durable=False)


def save(manager, *steps, metric=None, overwrite=False):
    for step in steps:
        metrics = {"valid_loss": -step if metric is None else metric}
        manager.save(State(step), step=step, metrics=metrics, overwrite=overwrite)


def heart(folder, layout, step):
    """Give the file that makes a step complete."""
    return folder / (f"step-{step:08d}/manifest.json" if layout == "firekeep" else f"model-{step}.bpk")


def body(folder, layout, step):
    return folder / (f"step-{step:08d}/optimizer.bpk" if layout == "firekeep" else f"optim-{step}.bpk")


def count_readings(monkeypatch, layout):
    """Have the steps noted that are read, and those that are looked at."""
    read, looked = [], []
    module = _folders if layout == "firekeep" else _flat
    name = "_read_manifest" if layout == "firekeep" else "_read"
    real_read, shelf = getattr(module, name), _folders.Folders if layout == "firekeep" else _flat.Flat
    real_look = shelf.look
    monkeypatch.setattr(module, name, lambda folder, step, *more: read.append(step) or real_read(folder, step, *more))
    monkeypatch.setattr(
        shelf, "look", lambda self, folder, step, *more: looked.append(step) or real_look(self, folder, step, *more)
    )
    return read, looked


@pytest.mark.parametrize("keep", [KeepAll(), KeepEvery(1) | KeepBest("valid_loss")])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_save_looks_at_no_step_that_was_seen_before(tmp_path, monkeypatch, layout, keep):
    save(make(tmp_path, layout), *range(12))
    manager = make(tmp_path, layout, keep)
    save(manager, 12)
    read, looked = count_readings(monkeypatch, layout)
    save(manager, 13)
    assert (set(read), set(looked)) == ({13}, {13})
    assert [info.step for info in manager.steps()] == list(range(14))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_save_that_deletes_looks_at_all_steps_and_reads_none_again(tmp_path, monkeypatch, layout):
    save(make(tmp_path, layout), *range(6))
    manager = make(tmp_path, layout, KeepLast(6))
    manager.steps()
    read, looked = count_readings(monkeypatch, layout)
    save(manager, 6)
    assert set(read) == {6}
    assert set(looked) == set(range(7))
    assert [info.step for info in manager.steps()] == list(range(1, 7))


def written_in_place(path, change):
    """Change a file as another program might: it stays the same one, and its time is another."""
    data = change(path.read_bytes())
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(data)
    os.utime(path, ns=(10**18, 10**18))


def another_metric(data):
    document = json.loads(data)
    document["metrics"]["valid_loss"] = -70
    return json.dumps(document).encode()


CHANGES = {
    "added": lambda folder, layout: save(make(folder, layout), 9, metric=-1),
    "removed": lambda folder, layout: (
        shutil.rmtree(folder / "step-00000002")
        if layout == "firekeep"
        else [(folder / f"{part}-2.bpk").unlink() for part in ("model", "optim", "scheduler")]
    ),
    "damaged": lambda folder, layout: written_in_place(body(folder, layout, 2), lambda data: data[:-1]),
    "a file short": lambda folder, layout: body(folder, layout, 2).unlink(),
    "a file short that holds nothing": lambda folder, layout: (
        heart(folder, layout, 2).with_name("scheduler-2.bpk" if layout == "burn" else "model.bpk").unlink()
    ),
    "its heart gone": lambda folder, layout: heart(folder, layout, 2).unlink(),
    "its heart damaged": lambda folder, layout: written_in_place(heart(folder, layout, 2), lambda data: data[:40]),
    "replaced": lambda folder, layout: save(make(folder, layout), 2, metric=-1, overwrite=True),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_others_do_to_steps_that_were_seen_is_seen(tmp_path, layout, change):
    manager = make(tmp_path, layout)
    save(manager, 1, 2, 3)
    before = manager.steps()
    CHANGES[change](tmp_path, layout)
    found, fresh = manager.catalog(), scan_steps(tmp_path, layout=layout)
    assert found == fresh
    assert list(found.steps) != before
    assert manager.best() == KeepBest("valid_loss").best(fresh.steps)


def test_a_manifest_that_is_written_anew_in_its_place_is_read_again(tmp_path):
    manager = make(tmp_path, "firekeep")
    save(manager, 1, 2)
    manager.steps()
    written_in_place(heart(tmp_path, "firekeep", 2), another_metric)
    assert manager.best().metrics == {"valid_loss": -70}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_was_changed_just_now_is_not_remembered(tmp_path, monkeypatch, layout):
    """It could be changed once more within the same tick of the clock, and would look the same."""
    monkeypatch.setattr(_seen, "SETTLED", NEVER)
    manager = make(tmp_path, layout)
    save(manager, 1, 2)
    manager.steps()
    read, _ = count_readings(monkeypatch, layout)
    assert [info.step for info in manager.steps()] == [1, 2]
    assert sorted(read) == [1, 2]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_that_was_damaged_since_counts_for_nothing_when_one_is_to_go(tmp_path, layout):
    manager = make(tmp_path, layout, KeepLast(2))
    save(manager, 1, 2)
    manager.steps()
    body(tmp_path, layout, 2).unlink()
    save(manager, 3)
    assert [info.step for info in manager.steps()] == [1, 3], "two whole ones stay"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_best_step_that_was_replaced_by_a_worse_one_is_the_best_no_longer(tmp_path, layout):
    manager = make(tmp_path, layout, KeepLast(1) | KeepBest("valid_loss"))
    save(manager, 1, metric=-10)
    save(manager, 2)
    assert [info.step for info in manager.steps()] == [1, 2]
    save(make(tmp_path, layout), 1, metric=50, overwrite=True)
    save(manager, 3)
    assert [info.step for info in manager.steps()] == [3]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_higher_step_that_was_damaged_since_hides_none(tmp_path, layout):
    manager = make(tmp_path, layout)
    save(manager, 5)
    manager.steps()
    body(tmp_path, layout, 5).unlink()
    report = manager.save(State(1), step=1)
    assert report.hidden_by is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_managers_and_somebody_else_never_disagree_with_the_disk(tmp_path, layout, seed):
    draw = random.Random(seed)
    managers = [make(tmp_path, layout, keep) for keep in (KeepAll(), KeepLast(4) | KeepBest("valid_loss"))]
    for _ in range(25):
        manager, step = draw.choice(managers), draw.randrange(8)
        what = draw.choice(("save", "save", "save", "remove", "cut", "prune"))
        if what == "save":
            save(manager, step, metric=draw.randrange(5), overwrite=True)
        elif what == "prune":
            manager.prune()
        elif body(tmp_path, layout, step).exists():
            if what == "remove":
                body(tmp_path, layout, step).unlink()
            else:
                os.truncate(body(tmp_path, layout, step), draw.randrange(20))
        for manager in managers:
            assert manager.catalog() == scan_steps(tmp_path, layout=layout)
