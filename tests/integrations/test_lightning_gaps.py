"""What Lightning does behind a checkpoint, and a run that goes on from it leaves out: made up for, or told."""

from __future__ import annotations

import warnings

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, GradientAccumulationScheduler, OnExceptionCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, Subset

from firekeep.integrations.lightning import ExactResume
from firekeep.training import ResumableLoader, ResumableSampler
from integrations import lightning_run as runs


@pytest.fixture(autouse=True)
def quiet():
    """Lightning has advice for small runs, as warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def straight_and_resumed(tmp_path, step, **options):
    straight = runs.run(tmp_path / "straight", **options)
    again = runs.run(tmp_path / "again", resume=tmp_path / "straight" / f"step={step}.ckpt", seed=9, **options)
    return straight, again


def goes_on_exactly(tmp_path, step, **options):
    straight, again = straight_and_resumed(tmp_path, step, **options)
    assert again["report"]["exact"], again["report"]
    assert again["losses"] == {step: straight["losses"][step] for step in again["losses"]}
    assert again["weights"] == straight["weights"]


def schedule(metric, interval):
    class Plateau(runs.Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("train", loss, on_step=True, on_epoch=True)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            made = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5, factor=0.3)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": made, "monitor": metric, "interval": interval},
            }

    return Plateau


@pytest.mark.parametrize(
    ("step", "every", "metric", "interval"), [(10, None, "valid", "epoch"), (7, 7, "train_step", "step")]
)
def test_a_schedule_that_goes_by_a_metric_makes_the_step_behind_the_checkpoint(tmp_path, step, every, metric, interval):
    goes_on_exactly(tmp_path, step, every=every, net=schedule(metric, interval))


def test_a_schedule_that_goes_by_what_the_epoch_gathers_is_told(tmp_path):
    straight, again = straight_and_resumed(tmp_path, 7, every=7, net=schedule("train_epoch", "epoch"))
    assert again["weights"] != straight["weights"]
    assert again["report"]["reasons"][0].startswith("ReduceLROnPlateau goes by 'train_epoch', which is gathered over")


class Averaged(runs.Net):
    def on_train_batch_end(self, *_):
        self.net[1].weight.data.mul_(0.9)


class Begun(runs.Net):
    def on_train_epoch_start(self):
        self.net[2].p = 0.1 * self.current_epoch


@pytest.mark.parametrize(
    ("net", "told"),
    [
        (Averaged, "the on_train_batch_end of Averaged comes behind the checkpoint"),
        (Begun, "Lightning left out the on_train_epoch_start of Begun"),
    ],
)
def test_hooks_of_the_module_that_are_left_out_are_told(tmp_path, net, told):
    straight, again = straight_and_resumed(tmp_path, 14, every=7, net=net)
    assert again["weights"] != straight["weights"]
    assert again["report"]["reasons"][0].startswith(told)


def test_a_stop_and_a_validation_that_are_left_out_are_told(tmp_path):
    early = [EarlyStopping("valid", patience=0, min_delta=9.0)]
    reasons = straight_and_resumed(tmp_path / "stop", 20, callbacks=early)[1]["report"]["reasons"]
    assert reasons == ("the run had been told to stop, and goes on",)
    early = [EarlyStopping("valid", patience=9)]
    reasons = straight_and_resumed(tmp_path / "valid", 10, every=10, callbacks=early)[1]["report"]["reasons"]
    assert reasons == ("EarlyStopping goes by 'valid', and the validation behind the checkpoint is left out",)


class Fails(Callback):
    def __init__(self, hook):
        setattr(self, hook, self.fail)

    def fail(self, trainer, *_):
        if trainer.global_step == 10 and not trainer.sanity_checking:
            raise ZeroDivisionError


@pytest.mark.parametrize(("hook", "exact"), [("on_after_backward", False), ("on_validation_batch_start", True)])
def test_a_checkpoint_that_an_error_wrote_is_exact_only_between_steps(tmp_path, hook, exact):
    straight = runs.run(tmp_path / "straight")
    with pytest.raises(ZeroDivisionError):
        runs.run(tmp_path / "failed", callbacks=[Fails(hook), OnExceptionCheckpoint(tmp_path, "failed")])
    again = runs.run(tmp_path / "again", resume=tmp_path / "failed.ckpt", seed=9)
    assert again["report"]["exact"] is exact
    assert (again["weights"] == straight["weights"]) is exact
    if not exact:
        assert again["report"]["reasons"][0].startswith("the checkpoint was written in the middle of a step")


def test_a_schedule_of_accumulation_goes_on_in_the_middle_of_an_epoch(tmp_path):
    scheduled = [GradientAccumulationScheduler({0: 1, 1: 3})]
    goes_on_exactly(tmp_path, 12, every=12, callbacks=scheduled)


class Both(runs.Net):
    def training_step(self, batch, batch_idx):
        found = [one for one in batch.values() if one is not None]
        return super().training_step([torch.cat(part) for part in zip(*found, strict=True)], batch_idx)


def two(mode):
    long = runs.data()
    short = Subset(long.loader.dataset, range(16))
    sampler = ResumableSampler(16, seed=4)
    short = ResumableLoader(DataLoader(short, batch_size=runs.BATCH, sampler=sampler))
    return CombinedLoader({"long": long, "short": short}, mode)


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (5, {"limit_train_batches": 5}),
        (5, {"net": Both, "loaders": lambda: two("max_size_cycle"), "limit_train_batches": 5}),
        (10, {"net": Both, "loaders": lambda: two("max_size_cycle")}),
        (4, {"net": Both, "loaders": lambda: two("min_size")}),
    ],
    ids=["limited", "limited cycle", "cycle", "shortest"],
)
def test_loaders_begin_the_epoch_behind_one_that_ended_before_their_last_batch(tmp_path, step, options):
    goes_on_exactly(tmp_path, step, every=step, **options)


def test_a_loader_that_was_gone_through_and_begins_again_is_told(tmp_path):
    again = straight_and_resumed(tmp_path, 7, every=7, net=Both, loaders=lambda: two("max_size"))[1]
    assert again["report"]["reasons"][0].startswith("a CombinedLoader of mode 'max_size' had gone through a loader")


def test_a_checkpoint_before_the_first_batch_keeps_the_generators_of_the_one_before():
    resume = ExactResume()
    state = resume.state_dict()
    resume.load_state_dict(state)
    torch.rand(3)
    assert torch.equal(resume.state_dict()["rng"]["torch"]["cpu"], state["rng"]["torch"]["cpu"])
