"""The metric that tells the best step: what its name says, and what is told where steps lack it."""

from __future__ import annotations

import pickle
import warnings

import pytest

from checkpoint.states import State
from firekeep.checkpoint import (
    CheckpointManager,
    CheckpointWarning,
    KeepAll,
    KeepBest,
    KeepLast,
    NoStepError,
    check_resume,
    remembered,
    scan_steps,
)
from firekeep.checkpoint._metric import more_is_better, near_first, spelled
from firekeep.errors import RuleError

MORE = [
    "accuracy",
    "acc",
    "val_acc",
    "valAcc",
    "valid/accuracy",
    "eval_accuracy",
    "Accuracy",
    "top1",
    "val/top5",
    "acc@1",
    "acc5",
    "f1",
    "val_F1",
    "F1Score",
    "macro-f1",
    "auc",
    "AUROC",
    "roc_auc",
    "mAP",
    "mAP50",
    "map",
    "bleu",
    "BLEU-4",
    "rouge",
    "rougeL",
    "rouge1",
    "IoU",
    "mIoU",
    "mean_iou",
    "dice",
    "recall",
    "recall@5",
    "precision",
    "r2",
    "R2Score",
    "reward",
    "episode_reward",
    "score",
    "psnr",
    "SSIM",
    "win_rate",
    "winRate",
    "success-rate",
    "exact_match",
]
LESS = [
    "loss",
    "valid_loss",
    "val",
    "val_loss",
    "train/loss",
    "perplexity",
    "error",
    "top5_error",
    "top1_err",
    "dice_loss",
    "reward_loss",
    "iou_error",
    "accuracy_loss",
    "nll",
    "mse",
    "mae",
    "mape",
    "MAPE",
    "brier_score",
    "fid_score",
    "1-accuracy",
    "1-acc",
    "neg_reward",
    "negRecall",
    "wer",
    "cost",
    "latency_score",
    "mapping",
    "recalled",
    "accumulated",
    "unscored",
    "stopper",
    "top",
]


def make(folder, **options):
    return CheckpointManager(folder, **{"durable": False, **options})


@pytest.mark.parametrize("name", MORE)
def test_names_that_say_that_more_is_better(name):
    assert more_is_better(name)


@pytest.mark.parametrize("name", LESS)
def test_names_that_do_not_say_it(name):
    assert not more_is_better(name)


def test_a_name_alone_that_says_that_more_is_better_is_refused_with_what_works(tmp_path):
    remedy = r'best=KeepBest\("accuracy", mode="max"\)'
    with pytest.raises(RuleError, match=remedy):
        make(tmp_path / "run", best="accuracy")
    assert not (tmp_path / "run").exists()
    with pytest.raises(RuleError, match=remedy):
        KeepLast(2) | KeepBest("accuracy", n=3)
    with pytest.raises(RuleError, match=remedy):
        check_resume(tmp_path, tmp_path, step="best", best="accuracy")
    assert KeepBest("accuracy", "max").mode == "max"
    assert KeepBest("accuracy", mode="min").mode == "min"
    assert KeepBest("loss") == KeepBest("loss", "min")
    assert pickle.loads(pickle.dumps(KeepBest("accuracy", "min"))).mode == "min"


def test_the_best_by_accuracy_is_the_highest(tmp_path):
    manager = make(tmp_path, best=KeepBest("accuracy", mode="max"), keep=KeepLast(1), every=1)
    for step, accuracy in enumerate((0.1, 0.9, 0.5, 0.3), 1):
        manager.tick(State(step), step=step, metrics={"accuracy": accuracy})
    assert [info.step for info in manager.steps()] == [2, 4]
    assert manager.best().step == 2


@pytest.mark.parametrize("background", [False, True])
def test_a_metric_that_no_step_has_is_warned_of_once(tmp_path, background):
    manager = make(tmp_path, best="val_los", every=1, background=background)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        manager.tick(State(1), step=1)
        assert not warned, "a save without metrics says nothing"
        for step in (2, 3):
            manager.tick(State(step), step=step, metrics={"rate": 1, "val_loss": 2})
        manager.close()
    (one,) = warned
    assert issubclass(one.category, CheckpointWarning)
    assert one.filename == __file__
    told = str(one.message)
    assert told.startswith(f"step 2 was saved in {tmp_path} without the metric 'val_los'")
    assert "there are 'val_loss', 'rate'" in told, "the one that was likely meant stands first"
    assert 'best="val_loss"' in told


def test_the_remedy_of_the_warning_works(tmp_path):
    with pytest.warns(CheckpointWarning, match=r'best=KeepBest\("accuracy", mode="max"\)'):
        make(tmp_path, best="val").save(State(1), step=1, metrics={"accuracy": 0.5})
    with pytest.warns(CheckpointWarning, match="'accuracy'"):
        make(tmp_path, keep=KeepBest("acuracy", "max")).save(State(2), step=2, metrics={"accuracy": 0.5})


def test_a_metric_that_steps_have_is_not_warned_of(tmp_path):
    manager = make(tmp_path, best="val")
    manager.save(State(1), step=1, metrics={"val": 1})
    manager.save(State(2), step=2, metrics={"loss": 1})
    again = make(tmp_path, best="val")
    saved = again.save(State(3), step=3, metrics={"loss": 1})
    assert saved.notes == ("it has no metric 'val', which tells the best step: there are 'loss'",)


def test_where_nobody_named_a_metric_the_report_alone_tells_of_it(tmp_path):
    saved = make(tmp_path).save(State(1), step=1, metrics={"loss": 1})
    assert "no metric 'valid_loss'" in saved.notes[0]
    assert make(tmp_path).save(State(2), step=2).notes == ()


def test_the_best_that_is_not_there_is_told_with_the_metrics_there_are(tmp_path):
    manager = make(tmp_path)
    manager.save(State(1), step=1, metrics={"accuracy": 1, "val_loss": 2})
    for ask in (lambda: manager.restore(State(), "best"), lambda: check_resume(tmp_path, tmp_path, step="best")):
        with pytest.raises(
            NoStepError, match="The steps have the metrics 'val_loss', 'accuracy': tell the best by"
        ) as caught:
            ask()
        assert caught.value.remedy.endswith('best="val_loss".')


def test_steps_tell_by_what_their_manager_knew_the_best(tmp_path):
    manager = make(tmp_path, best=KeepBest("win rate", "max"), keep=KeepAll())
    for step, rate in enumerate((0.5, 0.9, 0.7), 1):
        manager.save(State(step), step=step, metrics={"win rate": rate, "valid_loss": step})
    steps = scan_steps(tmp_path).steps
    assert remembered(steps) == KeepBest("win rate", "max")
    assert remembered(()) is None
    assert check_resume(tmp_path, tmp_path, step="best").step == 2
    assert check_resume(tmp_path, tmp_path, step="best", best="valid_loss").step == 1
    assert check_resume(tmp_path, tmp_path).exact


def test_what_is_likely_meant_comes_first():
    assert near_first("acc", ["loss", "accuracy", "val_acc"]) == ["val_acc", "accuracy", "loss"]
    assert spelled('a"b') == 'best="a\\"b"'
