"""Reported bugs of checkpoint directories, each as a test of its whole kind: mixed steps, losers, rotation, names, other worlds."""

from __future__ import annotations

import errno
import json
import mmap
import os
import threading

import pytest
import torch
from torch.optim import lr_scheduler

from checkpoint.states import State, names_in
from firekeep.checkpoint import CheckpointManager, KeepAll, KeepBest, KeepLast, StepExistsError
from firekeep.errors import FirekeepError, UnsupportedError
from firekeep.training import RestoreError, TrainingState
from training.states import adam, net, trained


def numbers(manager):
    return [info.step for info in manager.steps()]


@pytest.mark.parametrize("background", [False, True])
def test_of_all_who_save_one_step_at_once_one_wins_and_the_others_are_told(tmp_path, background):
    """B101: ranks wrote into files of one name."""
    won, told, ready = [], [], threading.Barrier(4)

    def save(rank):
        manager = CheckpointManager(tmp_path, background=background, durable=False, keep=KeepAll())
        ready.wait()
        for step in range(5):
            try:
                manager.save(State(rank), step=step)
                manager.wait()
                won.append((step, rank))
            except StepExistsError:
                told.append(step)

    ranks = [threading.Thread(target=save, args=(rank,)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert sorted(step for step, _ in won) == [0, 1, 2, 3, 4]
    assert len(told) == 15
    kept, values = CheckpointManager(tmp_path), dict(won)
    for info in kept.steps():
        state = State()
        kept.restore(state, info.step)
        assert state.value == values[info.step]


def test_whether_a_step_is_there_is_decided_where_it_is_published(tmp_path, monkeypatch):
    """B102: each rank asked by itself whether something exists, and they did not agree."""
    early, late = CheckpointManager(tmp_path), CheckpointManager(tmp_path)
    monkeypatch.setattr(type(late._store), "refuse_existing", lambda *_: None)
    early.save(State(1), step=1)
    monkeypatch.undo()
    with pytest.raises(StepExistsError):
        late.save(State(2), step=1)
    state = State()
    late.restore(state)
    assert state.value == 1


@pytest.mark.parametrize("layout", ["firekeep", "burn"])
def test_a_part_of_an_earlier_save_is_never_mixed_into_a_step(tmp_path, layout):
    """B104: the state of the generators was of an old save, the weights of a new one."""
    manager = CheckpointManager(tmp_path, layout=layout)
    manager.save(State(1, names=("model", "optimizer", "rng")), step=1)
    manager.save(State(2), step=1, overwrite=True)
    state = State(names=())
    manager.restore(state)
    assert state.restored == ["model", "optimizer"]
    assert not any("rng" in path.name for path in tmp_path.rglob("*") if path in manager.latest().paths.values())


@pytest.mark.parametrize("layout", ["firekeep", "burn"])
def test_an_overwrite_that_breaks_off_leaves_the_old_step_whole(tmp_path, layout):
    """B104, in the middle of a save."""
    manager = CheckpointManager(tmp_path, layout=layout)
    manager.save(State(1), step=1)

    class Broken(State):
        def sections(self):
            yield super().sections()[0]
            raise ValueError("no second part")

    with pytest.raises(ValueError, match="no second part"):
        manager.save(Broken(2), step=1, overwrite=True)
    state = State()
    manager.restore(state)
    assert state.value == 1
    assert numbers(manager) == [1]


def test_saving_a_step_again_is_refused_with_a_remedy_and_does_not_count_as_saved(tmp_path):
    """B105: the second epoch could not be saved, training went on, and the file stayed that of the first."""
    manager = CheckpointManager(tmp_path, every=1)
    manager.save(State(1), step=1)
    for _ in range(2):
        with pytest.raises(StepExistsError, match="overwrite=True"):
            CheckpointManager(tmp_path, every=1).tick(State(2), step=1)
    manager.save(State(3), step=1, overwrite=True)
    state = State()
    manager.restore(state)
    assert state.value == 3


@pytest.mark.parametrize("error", [errno.ENODEV, errno.ENOMEM])
def test_a_step_is_restored_where_no_file_can_be_mapped(tmp_path, monkeypatch, error):
    """B106: file systems that do not map files."""
    trained_one = trained()
    manager = CheckpointManager(tmp_path)
    manager.save(trained_one, step=1)

    def refuse(*_args, **_options):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(mmap, "mmap", refuse)
    fresh = TrainingState(model=(model := net(5)), optimizer=adam(model))
    assert manager.restore(fresh).report.exact
    assert torch.equal(model[0].weight, trained_one.model[0].weight)


def test_a_state_without_its_scheduler_is_not_called_complete(tmp_path):
    """B117: the scheduler was not saved at all."""
    manager = CheckpointManager(tmp_path)
    manager.save(trained(), step=1)
    fresh = TrainingState(model=(model := net(5)), optimizer=(optimizer := adam(model)))
    fresh.scheduler = lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(RestoreError, match="scheduler"):
        manager.restore(fresh)
    assert manager.latest().paths.keys() == {"model", "optimizer", "state"}
    lenient = TrainingState(model=model, optimizer=optimizer, scheduler=fresh.scheduler, strict=False)
    report = manager.restore(lenient).report
    assert not report.exact
    assert "scheduler" in report.fresh


def test_a_state_of_a_later_version_or_without_a_key_is_an_error_that_names_it(tmp_path):
    """B118: the step was kept inside another part, and its absence was a KeyError."""
    from training.states import restore, write

    state = trained(step=7)
    sections = {section.name: section for section in state.sections()}
    metadata = sections["state"].contents.metadata
    assert sections["state"].contents.scalars["step"].value == 7
    key = next(iter(metadata))
    metadata[key] = metadata[key].replace('"step"', '"stop"')
    state.sections = lambda: list(sections.values())
    with pytest.raises(FirekeepError, match="'step'"):
        restore(trained(), write(state, tmp_path))


def test_generators_are_kept_by_name_and_missing_ones_are_told(tmp_path):
    """B121: as many states as there had been ranks, and now there are others."""
    ranks = lambda count: {f"rank{number}": torch.Generator().manual_seed(number) for number in range(count)}  # noqa: E731
    manager = CheckpointManager(tmp_path)
    manager.save(trained(generators=ranks(2)), step=1)
    wider = trained(generators=ranks(4))
    report = manager.restore(wider).report
    told = " ".join([*report.fresh, *report.fresh.values()])
    assert "rank2" in told
    assert "rank3" in told
    assert "rank0" not in told
    assert not report.exact
    narrower = trained(generators=ranks(1))
    report = manager.restore(narrower).report
    assert "rank1" in " ".join([*report.dropped, *report.dropped.values()])
    assert not report.exact


def test_steps_are_numbers_when_old_ones_go(tmp_path):
    """B122: '9900' was newer than '10000', or what was touched last was."""
    manager = CheckpointManager(tmp_path, keep=KeepLast(2))
    for step in (900, 9900, 10000, 100000000, 100000001):
        manager.save(State(step), step=step)
        os.utime(manager.latest().folder, (1, 1))
    assert numbers(manager) == [100000000, 100000001]


@pytest.mark.parametrize("keep", [KeepLast(1), KeepLast(2), KeepBest("loss")])
def test_the_step_just_written_stays_in_a_directory_of_a_longer_run_and_that_is_told(tmp_path, keep):
    """B122: a new run in an old directory had each of its steps deleted as soon as it was saved."""
    CheckpointManager(tmp_path).save(State(700), step=700, metrics={"loss": 0.1})
    manager = CheckpointManager(tmp_path, keep=keep)
    for step in (100, 200):
        report = manager.save(State(step), step=step, metrics={"loss": 0.9})
        assert {700, step} <= set(numbers(manager))
        assert "step 700" in " ".join(report.notes)
    assert not CheckpointManager(tmp_path).save(State(701), step=701).notes


def test_last_is_the_last_though_the_metric_never_gets_better(tmp_path):
    """B124: "last" was a link to the best, or to itself."""
    manager = CheckpointManager(tmp_path, keep=KeepLast(1), best="loss")
    for step, loss in enumerate([0.1, 0.5, float("nan"), 0.9]):
        manager.save(State(step), step=step, metrics={"loss": loss})
        assert (manager.latest().step, manager.best().step) == (step, 0)
    assert numbers(manager) == [0, 3]
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


class Key:
    """Looks like an array of keys of generators: it has no bytes to give."""

    shape, dtype = (), "key<fry>"

    def __array__(self, *_args, **_options):
        raise TypeError("JAX array with PRNGKey dtype cannot be converted to a NumPy array")


def test_an_array_that_has_no_bytes_is_refused_by_its_place_and_nothing_is_saved(tmp_path):
    """B125: keys of generators with a type of their own."""
    manager = CheckpointManager(tmp_path)
    manager.save(trained(), step=1)
    with pytest.raises(UnsupportedError, match="seeds"):
        manager.save(trained(values={"seeds": {"drop": Key()}}), step=2)
    assert numbers(manager) == [1]


@pytest.mark.parametrize("name", ["val/loss", "loss[1]", "*", "..", "a\nb", "é", "", "metrics\\x"])
@pytest.mark.parametrize("folder", ["model[1]", "a*b", "run?", " x "])
def test_names_of_metrics_and_folders_are_no_patterns_and_no_paths(tmp_path, name, folder):
    """B129: a slash or a bracket in a name led elsewhere."""
    place = tmp_path / folder
    manager = CheckpointManager(place, keep=KeepLast(1), best=name)
    for step, value in enumerate([0.5, 0.1, 0.9]):
        manager.save(State(step), step=step, metrics={name: value})
    assert names_in(tmp_path) == [folder]
    assert (manager.best().step, numbers(manager)) == (1, [1, 2])
    assert json.loads((manager.best().folder / "manifest.json").read_text())["metrics"] == {name: 0.1}
