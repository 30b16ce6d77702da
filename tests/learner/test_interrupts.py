"""What ends a run before its time: signals, errors of the data, errors of the training."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from torch.utils.data import TensorDataset

import firekeep
from firekeep.checkpoint import CheckpointManager, KeepAll
from firekeep.learner import read_history
from firekeep.records import LrSchedulerRecord, OptimizerRecord
from firekeep.schedulers import Cosine
from learner import runs


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    one = runs.learner(folder)
    assert one.fit(runs.train_loader(), runs.valid_loader()).complete
    return runs.bits(one), runs.losses(folder)


def steps_in(folder):
    return [info.step for info in CheckpointManager(folder).steps()]


def goes_on(folder, straight, **options):
    """Finish a run with a new model, as a new process would, and compare it with the one that was never interrupted."""
    one = runs.learner(folder, **options)
    report = one.fit(runs.train_loader(), runs.valid_loader())
    assert report.complete
    assert (runs.bits(one), runs.losses(folder)) == straight
    return report


def interrupt(name):
    return lambda: signal.raise_signal(getattr(signal, name))


@pytest.mark.parametrize(
    ("name", "step"), [("SIGTERM", 1), ("SIGINT", 5), ("SIGUSR1", 6), ("SIGTERM", 12)]
)  # an epoch has six
def test_a_signal_saves_at_the_end_of_the_step(tmp_path, straight, name, step):
    handler = signal.getsignal(getattr(signal, name))
    model = runs.network()
    runs.at_forward(model, step, interrupt(name))
    report = runs.learner(tmp_path, model=model).fit(runs.train_loader(), runs.valid_loader())
    assert (report.stopped, report.step, report.saved, report.complete) == (name, step, step, False)
    assert f"interrupted by {name}" in str(report)
    assert signal.getsignal(getattr(signal, name)) is handler
    again = goes_on(tmp_path, straight)
    assert (again.resumed.step, again.exact) == (step, True)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_signal_in_a_validation_leaves_it_to_the_next_run(tmp_path, straight, batch):
    model = runs.network()
    runs.at_forward(model, 3 + batch, interrupt("SIGTERM"), training=False)
    report = runs.learner(tmp_path, model=model).fit(runs.train_loader(), runs.valid_loader())
    if batch == 3:  # the last: the epoch is complete by then
        assert (report.stopped, report.step, report.epoch) == ("SIGTERM", 12, 2)
    else:
        assert (report.stopped, report.step, report.epoch) == ("SIGTERM", 12, 1)
        assert [record["epoch"] for record in report.epochs] == [1]
    goes_on(tmp_path, straight)


def test_one_learner_can_be_interrupted_and_go_on(tmp_path, straight):
    manager = CheckpointManager(tmp_path, background=True)
    one = runs.learner(manager)
    runs.at_forward(one.model, 3, interrupt("SIGTERM"))
    runs.at_forward(one.model, 8, interrupt("SIGINT"))
    stopped = [one.fit(runs.train_loader(), runs.valid_loader()).stopped for _ in range(3)]
    assert stopped == ["SIGTERM", "SIGINT", None]
    assert (runs.bits(one), runs.losses(tmp_path)) == straight


class Broken(TensorDataset):
    """A dataset that fails once, at a sample that comes late in the second epoch."""

    calls = 0

    def __getitem__(self, index):
        self.calls += 1
        if self.calls == runs.SAMPLES + 3 * runs.BATCH + 2:
            raise OSError("the disk is gone")
        return super().__getitem__(index)


def test_an_error_of_the_data_saves_and_is_raised(tmp_path, straight):
    with pytest.raises(OSError, match="the disk is gone") as caught:
        runs.learner(tmp_path).fit(runs.train_loader(Broken(*runs.points())), runs.valid_loader())
    assert any("saved in" in note and "as step 9" in note for note in caught.value.__notes__)
    assert steps_in(tmp_path) == [6, 9]
    assert goes_on(tmp_path, straight).exact


def test_batches_that_were_fetched_and_not_used_are_fetched_again(tmp_path):
    whole = runs.learner(tmp_path / "whole", accumulate=2)
    whole.fit(runs.train_loader())
    with pytest.raises(OSError, match="the disk is gone"):
        runs.learner(tmp_path / "broken", accumulate=2).fit(runs.train_loader(Broken(*runs.points())))
    assert steps_in(tmp_path / "broken")[-1] == 4, (
        "three of the first epoch, and one of two batches: the fifth batch failed"
    )
    again = runs.learner(tmp_path / "broken", accumulate=2)
    again.fit(runs.train_loader())
    assert runs.bits(again) == runs.bits(whole)


def test_an_error_of_the_data_does_not_replace_a_complete_epoch(tmp_path):
    class Gone(TensorDataset):
        def __getitem__(self, index):
            raise OSError("gone")

    runs.learner(tmp_path, num_epochs=1).fit(runs.train_loader(), runs.valid_loader())
    with pytest.raises(OSError, match="gone"):
        runs.learner(tmp_path, num_epochs=2).fit(runs.train_loader(Gone(*runs.points())), runs.valid_loader())
    assert "valid_loss" in CheckpointManager(tmp_path).latest().metrics


def test_an_error_of_the_validation_data_saves_what_was_trained(tmp_path, straight):
    def bad():
        raise OSError("no such image")

    batches = [*runs.valid_loader()]

    class Failing:
        def __iter__(self):
            yield batches[0]
            torch.rand(3)
            bad()

    with pytest.raises(OSError, match="no such image"):
        runs.learner(tmp_path).fit(runs.train_loader(), Failing())
    assert steps_in(tmp_path) == [6]
    goes_on(tmp_path, straight)


def test_an_error_of_the_training_saves_nothing_and_names_the_last_step(tmp_path):
    def fail():
        raise RuntimeError("out of memory")

    one = runs.learner(tmp_path)
    runs.at_forward(one.model, 9, fail)
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        one.fit(runs.train_loader(), runs.valid_loader())
    assert steps_in(tmp_path) == [6]
    assert any("step 6" in note for note in caught.value.__notes__)


def test_a_run_that_failed_before_its_first_save_begins_anew(tmp_path, straight):
    def fail():
        raise RuntimeError("out of memory")

    one = runs.learner(tmp_path)
    runs.at_forward(one.model, 4, fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        one.fit(runs.train_loader(), runs.valid_loader())
    assert len(read_history(tmp_path / "history.jsonl")) == 3
    assert goes_on(tmp_path, straight).resumed is None


def test_burns_layout_counts_epochs_and_goes_on_all_the_same(tmp_path):
    def learner(folder, model=None):
        manager = CheckpointManager(folder, layout="burn", keep=KeepAll())
        return runs.learner(manager, model=model)

    whole = learner(tmp_path / "whole")
    whole.fit(runs.train_loader(), runs.valid_loader())
    names = {path.name for path in (tmp_path / "whole").glob("*-*.bpk")}
    assert {f"{part}-{epoch}.bpk" for part in ("model", "optim", "scheduler") for epoch in (1, 2, 3)} <= names
    model = runs.network()
    runs.at_forward(model, 8, interrupt("SIGTERM"))
    report = learner(tmp_path / "cut", model).fit(runs.train_loader(), runs.valid_loader())
    assert (report.step, report.saved) == (8, 2)
    again = learner(tmp_path / "cut")
    assert again.fit(runs.train_loader(), runs.valid_loader()).resumed.step == 2
    assert runs.bits(again) == runs.bits(whole)
    assert [info.step for info in again.checkpoint.steps()] == [1, 2, 3]


def test_a_run_that_burn_has_begun_goes_on_behind_its_epoch(tmp_path):
    def learner(epochs, folder):
        manager = CheckpointManager(folder, layout="burn")
        return runs.learner(manager, scheduler=lambda optimizer: Cosine(initial=0.02, iterations=18), num_epochs=epochs)

    whole = learner(2, tmp_path / "whole")
    whole.fit(runs.train_loader())
    folder = tmp_path / "burn"
    folder.mkdir()
    optimizer, model = whole.optimizers["optimizer"], whole.model
    firekeep.save(model, folder / "model-2.bpk")
    OptimizerRecord.of(optimizer, model, layout="burn").save(folder / "optim-2.bpk")
    scheduler = LrSchedulerRecord().with_record("0", LrSchedulerRecord.of(whole.schedulers["scheduler"]))
    scheduler.save(folder / "scheduler-2.bpk")
    again = learner(3, folder)
    before = again.optimizers["optimizer"].param_groups[0]["lr"]
    report = again.fit(runs.train_loader())
    assert (report.resumed.step, report.exact, report.step, report.epoch) == (2, False, 18, 3)
    assert [record["epoch"] for record in report.epochs] == [3]
    assert "Burn's checkpoints hold no random state" in " ".join(str(report).split())
    assert again.optimizers["optimizer"].state_dict()["state"][0]["step"].item() == 18
    assert report.epochs[-1]["lr"] < before
    assert (folder / "model-3.bpk").exists()


@pytest.mark.parametrize(("name", "ends"), [("SIGTERM", True), ("SIGINT", False)])
def test_a_forked_worker_can_be_ended_by_its_parent_and_leaves_the_keyboard_to_it(tmp_path, name, ends):
    number = getattr(signal, name)
    with CheckpointManager(tmp_path) as manager, manager.handle_signals():
        pid = os.fork()
        if pid == 0:
            try:
                os.kill(os.getpid(), number)
                time.sleep(0)  # where the handler runs
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (-number if ends else 0)
        assert not manager.stopping
