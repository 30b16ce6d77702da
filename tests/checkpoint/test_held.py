"""A step that another process replaces while its files are being opened: what is read is of one save, or nothing is."""

from __future__ import annotations

import math
import os
import shutil

import pytest

import firekeep
from checkpoint.states import State, names_in
from firekeep.checkpoint import (
    CheckpointManager,
    DirectoryBusyError,
    KeepAll,
    KeepLast,
    NoStepError,
    _held,
    _resume,
    _store,
    check_resume,
    scan_steps,
)
from firekeep.checkpoint._lock import locked
from firekeep.checkpoint._names import ASIDE, LOCK, WRITING, scratch_name
from firekeep.training import TrainingState

LAYOUTS = ("firekeep", "burn")
NAMES = ("model", "optimizer", "scheduler")


def make(folder, layout, **options):
    return CheckpointManager(
        folder, layout=layout, **{"durable": False, "keep": KeepAll(), "lock_timeout": 0.05, **options}
    )


def before_a_file(monkeypatch, happen, *, times=10**6, number=2):
    """Have something happen before one of the files is opened, between the first and the second, at each of the first tries."""
    real, seen = _held.hold_file, []

    def hold(path):
        seen.append(path)
        if len(seen) % len(NAMES) == number % len(NAMES) and (len(seen) - 1) // len(NAMES) < times:
            happen()
        return real(path)

    monkeypatch.setattr(_held, "hold_file", hold)
    return seen


def saver(folder, layout, *, values=None, metric=None):
    """Give a call that replaces the step by another save, whose numbers go on; `values` are those that were saved."""
    manager, values = make(folder, layout), [] if values is None else values

    def save():
        number = 10.0 * (len(values) + 1)
        metrics = {"valid_loss": number if metric is None else metric}
        manager.save(State(number, names=NAMES), step=1, metrics=metrics, overwrite=True)
        values.append(number)

    return save


def replace_without_the_lock(folder, layout, spare):
    """Give a call that puts other files in the place of a step, as a process does that asks nobody."""
    number = 0

    def replace():
        nonlocal number
        number += 1
        there = spare / str(number)
        make(there, layout).save(State(10.0 * number, names=NAMES), step=1)
        if layout == "firekeep":
            shutil.rmtree(folder / "step-00000001")
            (there / "step-00000001").rename(folder / "step-00000001")
        else:
            for part in ("scheduler", "optim", "model"):
                (there / f"{part}-1.bpk").replace(folder / f"{part}-1.bpk")

    return replace


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("step", "times", "number"), [("latest", 1, 2), ("latest", 2, 2), ("best", 1, 3), (1, 2, 3), (1, 1, 1)]
)
def test_a_step_that_is_replaced_while_it_is_opened_is_opened_again(tmp_path, monkeypatch, layout, step, times, number):
    manager = make(tmp_path, layout)
    manager.save(State(1, names=NAMES), step=1, metrics={"valid_loss": 1})
    values = []
    before_a_file(monkeypatch, saver(tmp_path, layout, values=values), times=times, number=number)
    state = State(names=NAMES)
    restored = manager.restore(state, step)
    assert len(values) == times
    assert [float(state.parts[name]["a"][0]) - index for index, name in enumerate(NAMES)] == [values[-1]] * 3
    assert restored.info.metrics == {"valid_loss": values[-1]}, "the manifest is of the same save"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_last_try_keeps_those_out_that_would_replace_the_step_again(tmp_path, monkeypatch, layout):
    manager = make(tmp_path, layout)
    manager.save(State(1, names=NAMES), step=1)
    values, kept_out = [], []
    save = saver(tmp_path, layout, values=values)

    def try_to_save():
        try:
            save()
        except DirectoryBusyError as error:
            kept_out.append(error)

    seen = before_a_file(monkeypatch, try_to_save)
    state = State(names=NAMES)
    manager.restore(state)
    assert len(seen) == _held.TRIES * len(NAMES)
    assert (len(values), len(kept_out)) == (_held.TRIES - 1, 1)
    assert [float(state.parts[name]["a"][0]) - index for index, name in enumerate(NAMES)] == [values[-1]] * 3
    with locked(tmp_path, timeout=0.05):
        pass  # nothing is held any more


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_that_is_replaced_at_each_try_is_refused_with_the_reason(tmp_path, monkeypatch, layout):
    folder = tmp_path / "run"
    manager = make(folder, layout)
    manager.save(State(1, names=NAMES), step=1)
    before_a_file(monkeypatch, replace_without_the_lock(folder, layout, tmp_path / "spare"))
    state = State(-1, names=NAMES)
    hold, sources = _held.hold_file, []
    monkeypatch.setattr(_held, "hold_file", lambda path: sources.append(hold(path)) or sources[-1])
    with pytest.raises(DirectoryBusyError, match="another process replaced step 1 each of the 3 times") as caught:
        manager.restore(state)
    assert "two saves" in str(caught.value)
    assert (state.restored, state.value) == (None, -1)
    assert [source.fileno() for source in sources] == [None] * _held.TRIES * len(NAMES), "they are closed"
    monkeypatch.undo()
    manager.restore(state)
    assert state.value == 30


@pytest.mark.parametrize("how", ["in place", "by renames"])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_files_of_burn_that_are_written_anew_are_found(tmp_path, monkeypatch, times, how):
    """They say nothing of each other: in place only their times tell, and after renames only which files they are."""
    run, written = tmp_path, []
    paths = [run / f"{part}-1.bpk" for part in ("model", "optim", "scheduler")]

    def write():
        value = 10.0 * len(written) + 1
        written.append(value)
        moment = 10**9 * (len(written) if how == "in place" else 1)
        for path in paths:
            fresh = path.with_name(f"fresh-{path.name}")
            state = State(value, names=("model",)).parts["model"]
            firekeep.save_file(state, fresh, scalars={"value": value}, durable=False)  # always of the same size
            if how == "in place" and path.exists():
                path.write_bytes(fresh.read_bytes())
            else:
                fresh.replace(path)
            os.utime(path, ns=(moment, moment))

    write()
    before_a_file(monkeypatch, write, times=times)
    state = State(-1.0)
    if times < _held.TRIES:
        make(run, "burn").restore(state)
        assert {float(part["a"][0]) for part in state.parts.values()} == {written[-1]}
    else:
        with pytest.raises(DirectoryBusyError, match="step 1"):
            make(run, "burn").restore(state)
        assert state.restored is None


class ReadWhileWritten(State):
    """A state whose files another program writes into, in their place, while they are read."""

    def __init__(self, happen, *, fails=False):
        super().__init__(names=NAMES)
        self.happen, self.fails = happen, fails

    def restore(self, opened):
        super().restore(opened)
        self.happen()
        if self.fails:
            raise ValueError("the numbers make no sense")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_is_written_into_while_it_is_read_is_told(tmp_path, layout):
    manager = make(tmp_path, layout)
    manager.save(State(1, names=NAMES), step=1)
    path = tmp_path / ("step-00000001/optimizer.bpk" if layout == "firekeep" else "optim-1.bpk")

    def write():
        data = path.read_bytes()
        path.write_bytes(data)  # not a byte more, and the same file
        os.utime(path, ns=(10**18, 10**18))

    with pytest.raises(DirectoryBusyError, match=f"wrote '{path.name}' of step 1 anew while it was read") as caught:
        manager.restore(ReadWhileWritten(write))
    assert "Restore again" in caught.value.remedy
    with pytest.raises(ValueError, match="no sense") as failed:
        manager.restore(ReadWhileWritten(lambda: os.utime(path, ns=(1, 1)), fails=True))
    assert any(f"wrote '{path.name}' anew" in note for note in failed.value.__notes__)
    manager.restore(ReadWhileWritten(lambda: None))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_that_is_replaced_by_the_last_look_is_found(tmp_path, monkeypatch, layout):
    """All files are of the old save, and the names are of the new one: the old one was whole, and is not what is asked for."""
    manager, values = make(tmp_path, layout), []
    manager.save(State(1, names=NAMES), step=1)
    save, real, looks = saver(tmp_path, layout, values=values, metric=math.nan), _held._is_still, []

    def late(*args):
        looks.append(args)
        if len(looks) == 1:
            save()
        return real(*args)

    monkeypatch.setattr(_held, "_is_still", late)
    state = State(names=NAMES)
    restored = manager.restore(state)
    assert (len(looks), state.value) == (2, 10)
    assert math.isnan(restored.info.metrics["valid_loss"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_held_stays_when_the_step_is_replaced_or_gone(tmp_path, layout):
    manager = make(tmp_path, layout)
    manager.save(State(1, names=NAMES), step=1)
    save = saver(tmp_path, layout)
    state = State(names=NAMES)
    real = state.restore

    def replaced_meanwhile(opened):
        save()
        shutil.rmtree(tmp_path)
        return real(opened)

    state.restore = replaced_meanwhile
    manager.restore(state)
    assert [float(state.parts[name]["a"][0]) for name in NAMES] == [1, 2, 3]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_training_state_reads_what_is_held_alone(tmp_path, layout):
    torch = pytest.importorskip("torch")
    from torch import nn

    def state(value):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            for one in (*model.parameters(), *(held["exp_avg"] for held in optimizer.state.values())):
                one.fill_(value)
        return TrainingState(model=model, optimizer=optimizer, **({"layout": "burn"} if layout == "burn" else {}))

    manager = make(tmp_path, layout)
    manager.save(state(1.0), step=1)
    mine = state(-1.0)

    class Late:
        def restore(self, opened):
            manager.save(state(2.0), step=1, overwrite=True)
            shutil.rmtree(tmp_path)
            return mine.restore(opened)

    manager.restore(Late())
    held = [*mine.model.parameters(), *(one["exp_avg"] for one in mine.optimizer.state.values())]
    assert {float(value) for one in held for value in one.detach().flatten()} == {1.0}


def test_a_step_is_verified_of_one_save(tmp_path, monkeypatch):
    manager = make(tmp_path, "firekeep", digest=True)
    manager.save(State(1, names=NAMES), step=1)
    other = make(tmp_path, "firekeep", digest=True)
    before_a_file(monkeypatch, lambda: other.save(State(2, names=NAMES), step=1, overwrite=True), times=1)
    assert manager.verify() == ()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resume_is_checked_against_one_save(tmp_path, monkeypatch, layout):
    manager = make(tmp_path, layout)
    manager.save(State(1, names=NAMES), step=1)
    seen = before_a_file(monkeypatch, saver(tmp_path, layout), times=1)
    assert check_resume(tmp_path, tmp_path).exact
    assert len(seen) == 3 * len(NAMES), "the first try, the second, and the step that it is compared with"
    before_a_file(monkeypatch, saver(tmp_path, layout))
    with pytest.raises(DirectoryBusyError, match="replaced step 1"):
        check_resume(tmp_path, tmp_path)  # which keeps nobody out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("step", ["latest", 2])
@pytest.mark.parametrize("times", [1, 2])
def test_a_step_that_is_not_there_for_a_moment_is_looked_for_again(tmp_path, monkeypatch, layout, step, times):
    """While a step is being replaced it is neither the old one nor the new one: that is no reason to go back to an older step."""
    manager = make(tmp_path, layout)
    for number in (1, 2):
        manager.save(State(number, names=NAMES), step=number)
    real, calls = manager._choose, []
    there, away = tmp_path / ("step-00000002" if layout == "firekeep" else "model-2.bpk"), tmp_path / "away"

    def choose(asked):
        calls.append(asked)
        if len(calls) > times:
            return real(asked)
        there.rename(away)
        try:
            return real(asked)
        finally:
            away.rename(there)

    monkeypatch.setattr(manager, "_choose", choose)
    state = State(names=NAMES)
    assert manager.restore(state, step).step == 2
    assert (state.value, len(calls)) == (2, times + 1)


def while_it_is_replaced(monkeypatch, folder, layout, *, times):
    """Have the best step, 1, be between its old save and its new one when it is looked at, at the first readings of the directory."""
    shelf, readings = _store.SHELVES[layout], []
    real = shelf.look
    aside = folder / scratch_name(1, ASIDE)
    there = folder / ("step-00000001" if layout == "firekeep" else "model-1.bpk")

    def look(directory, step, *more):
        if step != 1 or len(readings) >= times:
            return real(directory, step, *more)
        readings.append(step)
        there.rename(aside)
        try:
            return real(directory, step, *more)
        finally:
            aside.rename(there)

    monkeypatch.setattr(type(shelf), "look", lambda self, *args: look(*args))
    return readings


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("times", [1, 2])
def test_the_best_step_is_the_best_while_it_is_being_replaced(tmp_path, monkeypatch, layout, times):
    """It was not there when it was looked at, and another step would have been taken without a word."""
    manager = make(tmp_path, layout)
    for number in (1, 2, 3):
        manager.save(State(number, names=NAMES), step=number, metrics={"valid_loss": number})
    readings = while_it_is_replaced(monkeypatch, tmp_path, layout, times=times)
    state = State(names=NAMES)
    restored = manager.restore(state, "best")
    assert (restored.step, state.value, len(readings)) == (1, 1, times)
    assert restored.info.metrics == {"valid_loss": 1}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_best_step_that_goes_while_it_is_chosen_makes_room_for_the_next_best(tmp_path, monkeypatch, layout):
    manager = make(tmp_path, layout)
    for number in (1, 2, 3):
        manager.save(State(number, names=NAMES), step=number, metrics={"valid_loss": number})
    prune = make(tmp_path, layout, keep=KeepLast(2), best="other")
    seen = before_a_file(monkeypatch, prune.prune, times=1, number=1)
    state = State(names=NAMES)
    restored = manager.restore(state, "best")
    assert (restored.step, state.value) == (2, 2)
    assert len(seen) == 1 + len(NAMES)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_incomplete_step_does_not_keep_the_best_one_from_being_read(tmp_path, layout):
    manager = make(tmp_path, layout)
    for number in (1, 2, 3):
        manager.save(State(number, names=NAMES), step=number, metrics={"valid_loss": number})
    (tmp_path / ("step-00000001/optimizer.bpk" if layout == "firekeep" else "optim-1.bpk")).unlink()
    state = State(names=NAMES)
    assert manager.restore(state, "best").step == 2
    with locked(tmp_path, timeout=0.05):  # by somebody who does not let go
        assert manager.restore(state, "best").step == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_that_stands_aside_is_not_passed_over_unseen(tmp_path, layout):
    store = _store.Store(directory=tmp_path, layout=layout)
    make(tmp_path, layout).save(State(1, names=NAMES), step=1)
    assert (store.passed_over(0), store.passed_over(1)) == (True, False)
    (tmp_path / scratch_name(5, ASIDE)).mkdir()
    (tmp_path / scratch_name(7, WRITING)).mkdir()  # that one has not been a step yet
    assert (store.passed_over(4), store.passed_over(5)) == (True, False)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_incomplete_step_does_not_keep_the_one_before_it_from_being_read(tmp_path, layout):
    manager = make(tmp_path, layout)
    for number in (1, 2):
        manager.save(State(number, names=NAMES), step=number)
    (tmp_path / ("step-00000002/model.bpk" if layout == "firekeep" else "model-2.bpk")).unlink()
    state = State(names=NAMES)
    assert manager.restore(state).step == 1
    with locked(tmp_path, timeout=0.05):  # by somebody who does not let go
        assert manager.restore(state).step == 1


def test_a_step_that_is_not_there_leaves_no_lock_behind(tmp_path):
    manager = make(tmp_path, "firekeep")
    with pytest.raises(NoStepError):
        manager.restore(State())
    assert LOCK not in names_in(tmp_path)
    assert scan_steps(tmp_path).steps == ()


def test_a_file_of_another_step_is_not_restored_whatever_its_size(tmp_path):
    with make(tmp_path, "firekeep") as manager:
        for step in (1, 2):
            manager.save(State(float(step), names=NAMES), step=step)
        shutil.copy(tmp_path / "step-00000001" / "model.bpk", tmp_path / "step-00000002" / "model.bpk")
        with pytest.raises(firekeep.FirekeepError, match=r"is of step 1, .* the step 2 it lies in") as caught:
            manager.restore(State(3.0, names=NAMES))
        assert "model.bpk" in str(caught.value)
        assert manager.restore(State(3.0, names=NAMES), step=1).step == 1


def test_steps_above_the_latest_that_cannot_be_used_are_told(tmp_path):
    with make(tmp_path, "burn") as manager:
        for step in (1, 2):
            manager.save(State(float(step), names=NAMES), step=step)
        shutil.copy(tmp_path / "optim-1.bpk", tmp_path / "optim-2.bpk")
        restored = manager.restore(State(3.0, names=NAMES))
        assert [step.step for step in restored.passed_over] == [2]
        assert "step 2 is newer and cannot be used: 'optim-2.bpk' is of another save" in str(restored)
        assert restored.to_dict()["passed_over"][0]["step"] == 2
        assert manager.restore(State(3.0, names=NAMES), step=1).passed_over == ()


@pytest.mark.parametrize("step", ["best", "latest"])
def test_a_check_looks_again_where_another_step_is_meant_once_the_directory_was_looked_at(tmp_path, monkeypatch, step):
    manager = make(tmp_path, "firekeep")
    for number in (1, 2):
        manager.save(State(number, names=NAMES), step=number, metrics={"valid_loss": number})
    meant = 2 if step == "best" else 3
    looks = []

    def scan(*args, **options):
        catalog = scan_steps(*args, **options)
        looks.append(catalog)
        if len(looks) == 1:
            manager.save(State(9, names=NAMES), step=meant, metrics={"valid_loss": 0.5}, overwrite=True)
        return catalog

    monkeypatch.setattr(_resume, "scan_steps", scan)
    assert check_resume(tmp_path, tmp_path, step=step).step == meant
    assert check_resume(tmp_path / "step-00000001", tmp_path, step=step).step == (meant if step == "best" else 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_check_of_files_that_are_written_anew_in_their_place_meanwhile_is_refused(tmp_path, monkeypatch, layout):
    manager = make(tmp_path, layout)
    manager.save(State(1, names=NAMES), step=1, metrics={"valid_loss": 1})
    path = next(tmp_path.rglob("model*.bpk"))
    real = _resume._step_checks

    def late(*args):
        os.utime(path, (1, 1))
        return real(*args)

    monkeypatch.setattr(_resume, "_step_checks", late)
    with pytest.raises(DirectoryBusyError, match=rf"wrote '{path.name}' of step 1 anew while it was read"):
        check_resume(tmp_path, tmp_path)
