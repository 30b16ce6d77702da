"""`firekeep checkpoints`: which steps there are, and which may go."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint.states import State, names_in
from firekeep.checkpoint import CheckpointManager, KeepAll, KeepBest

Run = Callable[..., Any]
LOSSES = [0.9, 0.5, 0.7, 0.8, 0.6]


def save(folder: Path, metrics: list[dict[str, float]], **options: Any) -> None:
    manager = CheckpointManager(folder, keep=KeepAll(), durable=False, **options)
    for step, each in enumerate(metrics, 1):
        manager.save(State(step), step=step, metrics=each)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Five steps with a loss and an accuracy that do not agree."""
    save(tmp_path / "run", [{"acc": number / 10, "valid_loss": loss} for number, loss in enumerate(LOSSES)])
    return tmp_path / "run"


def rows(done: Any) -> list[list[str]]:
    return [line.split() for line in done.lines if re.match(r" +[0-9]+ +[0-9.]+ k?B", line)]


def test_steps_are_listed_with_metrics_and_marks(fk: Run, run: Path):
    done = fk("checkpoints", run)
    assert (done.code, done.err) == (0, "")
    assert "5 complete steps" in done.text
    assert [row[0] for row in rows(done)] == ["1", "2", "3", "4", "5"]
    assert rows(done)[1][-3:] == ["0.5", "0.1", "best"], "the metric that decides stands first"
    assert rows(done)[4][-3:] == ["0.6", "0.4", "latest"]


def test_the_best_step_is_told_by_the_metric_that_is_named(fk: Run, run: Path):
    found = fk("checkpoints", run, "--best", "acc", "--mode", "max", "--json").json
    assert (found["latest"], found["best"], found["best_by"]) == (5, 5, {"metric": "acc", "mode": "max"})
    assert fk("checkpoints", run, "--best", "acc", "--mode", "min", "--json").json["best"] == 1


def test_a_metric_of_which_more_is_better_wants_the_mode(fk: Run, run: Path):
    before = names_in(run)
    for options in ((), ("--prune", "--keep-last", 1)):
        done = fk("checkpoints", run, "--best", "acc", *options)
        assert (done.code, done.out) == (2, "")
        assert "Say it: --best acc --mode max, or --mode min where less of it is better." in done.err
    assert names_in(run) == before
    assert "--mode goes with --best" in fk("checkpoints", run, "--mode", "max").err


def test_the_metric_of_the_manager_is_known(fk: Run, tmp_path: Path):
    metrics = [{"acc": value, "valid_loss": value} for value in (0.1, 0.9, 0.5, 0.3)]
    save(tmp_path, metrics, best=KeepBest("acc", mode="max"))
    assert fk("checkpoints", tmp_path, "--json").json["best_by"] == {"metric": "acc", "mode": "max"}
    assert rows(fk("checkpoints", tmp_path))[1][-1] == "best"
    assert fk("checkpoints", tmp_path, "--json", "--best", "valid_loss").json["best"] == 1
    assert fk("checkpoints", tmp_path, "--prune", "--keep-last", 1).code == 0
    assert [row[0] for row in rows(fk("checkpoints", tmp_path))] == ["2", "4"]


def test_how_the_best_is_named_is_told_where_nothing_tells_it(fk: Run, tmp_path: Path):
    save(tmp_path, [{"loss": 0.1}])
    assert "--best METRIC, and --mode max where more is better, name it" in fk("checkpoints", tmp_path).text
    save(tmp_path / "without", [{}])
    assert "--best" not in fk("checkpoints", tmp_path / "without").text


def test_a_metric_that_no_step_has_is_refused_with_those_there_are(fk: Run, run: Path):
    done = fk("checkpoints", run, "--best", "loss")
    assert (done.code, done.out) == (2, "")
    assert "no step has the metric 'loss': there are 'acc', 'valid_loss'" in done.err


def test_times_are_shown_when_asked_for(fk: Run, run: Path):
    assert "saved (UTC)" not in fk("checkpoints", run).out
    assert "saved (UTC)" in fk("checkpoints", run, "--times").out


def test_a_dry_run_deletes_nothing(fk: Run, run: Path):
    before = names_in(run)
    done = fk("checkpoints", run, "--prune", "--keep-last", 1, "--dry-run")
    assert done.code == 0
    assert "would be deleted: 1, 3, 4" in done.text
    assert "kept: 2, 5" in done.text
    assert names_in(run) == before


def test_prune_keeps_the_last_ones_and_the_best(fk: Run, run: Path):
    done = fk("checkpoints", run, "--prune", "--json")
    assert done.code == 0
    assert [info["step"] for info in done.json["pruned"]["deleted"]] == [1, 3]
    assert [info["step"] for info in done.json["steps"]] == [2, 4, 5]
    assert [name for name in names_in(run) if name.startswith("step-")] == [f"step-0000000{step}" for step in (2, 4, 5)]


def test_prune_by_another_metric_keeps_its_best(fk: Run, run: Path):
    fk("checkpoints", run, "--prune", "--keep-last", 1, "--best", "acc", "--mode", "min")
    assert [row[0] for row in rows(fk("checkpoints", run))] == ["1", "5"]


def test_prune_asks_for_the_metric_where_it_would_have_to_guess(fk: Run, tmp_path: Path):
    save(tmp_path, [{"loss": 0.1}, {"loss": 0.2}, {"loss": 0.3}, {"loss": 0.4}])
    before = names_in(tmp_path)
    done = fk("checkpoints", tmp_path, "--prune")
    assert (done.code, done.out) == (2, "")
    assert "which of them tells the best is not known. Say it with --best METRIC" in done.err
    assert names_in(tmp_path) == before
    assert fk("checkpoints", tmp_path, "--prune", "--best", "loss").code == 0
    assert [row[0] for row in rows(fk("checkpoints", tmp_path))] == ["1", "3", "4"]


@pytest.mark.parametrize("option", [("--dry-run",), ("--keep-last", 3)])
def test_options_of_prune_want_prune(option: tuple[Any, ...], fk: Run, run: Path):
    done = fk("checkpoints", run, *option)
    assert done.code == 2
    assert "go with --prune" in done.err


def test_what_is_not_complete_is_named_with_the_reason(fk: Run, run: Path):
    (run / "step-00000004" / "model.bpk").unlink()
    (run / "step-00000009").mkdir()
    (run / "step-00000009" / "model.bpk").touch()
    (run / ".step-00000010.4321-0.new.tmp").mkdir()
    done = fk("checkpoints", run)
    assert done.code == 0
    assert "4 complete steps, 2 incomplete" in done.text
    assert "incomplete: step-00000004: model.bpk is not there" in done.text
    assert "incomplete: step-00000009: manifest.json, which is written last, is not there" in done.text
    assert "unfinished save of step 10 by process 4321" in done.text
    assert (run / ".step-00000010.4321-0.new.tmp").exists(), "a look changes nothing"
    assert fk("checkpoints", run, "--json").json["scratch"] == [".step-00000010.4321-0.new.tmp"]


def test_prune_leaves_what_is_not_complete_and_removes_what_killed_saves_left(fk: Run, run: Path):
    (run / "step-00000004" / "model.bpk").unlink()
    (run / ".step-00000010.4321-0.new.tmp").mkdir()
    assert fk("checkpoints", run, "--prune", "--keep-last", 1).code == 0
    assert names_in(run) == [".firekeep.lock", "step-00000002", "step-00000004", "step-00000005"]


def test_burns_folders_are_read_and_pruned(fk: Run, tmp_path: Path):
    save(tmp_path, [{"valid_loss": loss} for loss in LOSSES], layout="burn")
    done = fk("checkpoints", tmp_path, "--prune")
    assert done.code == 0
    assert "Burn's layout" in done.text
    assert [row[0] for row in rows(done)] == ["2", "4", "5"]
    (tmp_path / "optim-4.bpk").unlink()
    assert "incomplete: model-4.bpk: 'optim-4.bpk' is not there" in fk("checkpoints", tmp_path).text


def test_a_folder_without_steps_says_no_and_where_there_are_some(fk: Run, tmp_path: Path):
    save(tmp_path / "checkpoint", [{}], layout="burn")
    done = fk("checkpoints", tmp_path)
    assert done.code == 1
    assert "0 complete steps" in done.text
    assert f"there are steps in {tmp_path / 'checkpoint'}: give that" in done.text


def test_nan_is_told_and_never_best(fk: Run, tmp_path: Path):
    save(tmp_path, [{"valid_loss": float("nan")}, {"valid_loss": 2.0}])
    done = fk("checkpoints", tmp_path)
    assert rows(done)[0][-1] == "nan"
    assert rows(done)[1][-3:] == ["2", "latest,", "best"]
    assert fk("checkpoints", tmp_path, "--json").json["steps"][0]["metrics"] == {"valid_loss": "nan"}


def test_a_folder_that_is_not_there_is_not_a_run_without_steps(fk: Run, tmp_path: Path):
    done = fk("checkpoints", tmp_path / "rnu")
    assert (done.code, done.out) == (2, "")
    assert "rnu: No such file or directory" in done.err
    (tmp_path / "file").touch()
    done = fk("checkpoints", tmp_path / "file")
    assert (done.code, done.out) == (2, "")
    assert "it is a file, and steps lie in a directory" in done.err
