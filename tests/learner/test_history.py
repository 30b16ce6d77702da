"""The history of a run on disk: whole lines, and none of what did not happen."""

from __future__ import annotations

import json
import math

import pytest

from firekeep.errors import ExistsError, FormatError
from firekeep.learner import read_history
from firekeep.learner._history import History
from learner import runs


def step(number, epoch=1):
    return {"kind": "step", "step": number, "epoch": epoch, "loss": 1 / number}


def epoch(number, at):
    return {"kind": "epoch", "step": at, "epoch": number, "train_loss": 0.5}


@pytest.fixture
def path(tmp_path):
    history = History(tmp_path / "deep" / "history.jsonl")
    history.open(step=0, epoch=0, anew=False)
    for record in (step(1), step(2), epoch(1, 2), step(3, 2), step(4, 2), epoch(2, 4), step(5, 3)):
        history.append(record)
    history.close()
    return history.path


@pytest.mark.parametrize(
    ("at", "epochs", "kept"),
    [(5, 2, 7), (4, 2, 6), (4, 1, 5), (3, 1, 4), (2, 1, 3), (2, 0, 2), (1, 0, 1), (0, 0, 0)],
)
def test_what_came_after_the_step_is_cut_off(path, at, epochs, kept):
    before = path.read_bytes().splitlines(keepends=True)
    history = History(path)
    known = history.open(step=at, epoch=epochs, anew=False)
    assert path.read_bytes() == b"".join(before[:kept])
    assert [record["epoch"] for record in known] == [*range(1, epochs + 1)]
    history.append(step(at + 1))
    history.sync()
    history.close()
    assert read_history(path)[-1] == step(at + 1)
    assert len(read_history(path)) == kept + 1


def test_a_line_that_was_cut_short_is_none(path):
    whole = read_history(path)
    data = path.read_bytes()
    for cut in (1, 5, 20):
        path.write_bytes(data[:-cut])
        assert read_history(path) == whole[:-1]
    history = History(path)
    history.open(step=5, epoch=2, anew=False)
    history.append(step(5, 3))
    history.close()
    assert path.read_bytes() == data


def test_numbers_that_json_has_not_are_kept(tmp_path):
    history = History(tmp_path / "history.jsonl")
    history.open(step=0, epoch=0, anew=False)
    history.append({**step(1), "loss": math.nan, "high": math.inf, "low": -math.inf})
    history.close()
    json.loads(history.path.read_text(), parse_constant=pytest.fail)
    (record,) = read_history(history.path)
    assert math.isnan(record["loss"])
    assert (record["high"], record["low"]) == (math.inf, -math.inf)


@pytest.mark.parametrize(
    "line", ["hello", "[1, 2]", '{"step": 1}', '{"kind": "step", "step": "1", "epoch": 1}', "[" * 9000]
)
def test_a_file_of_something_else_is_not_cut(tmp_path, line):
    path = tmp_path / "notes.txt"
    path.write_text(f"{line}\n")
    with pytest.raises(FormatError, match="line 1 is not one of a history"):
        runs.learner(tmp_path / "run", history=path).fit(runs.train_loader())
    assert path.read_text() == f"{line}\n"


def test_a_run_without_checkpoints_does_not_cut_the_history_of_another(tmp_path):
    path = tmp_path / "history.jsonl"
    runs.learner(None, history=path, num_epochs=1).fit(runs.train_loader())
    before = path.read_text()
    with pytest.raises(ExistsError, match="history of an earlier run"):
        runs.learner(None, history=path).fit(runs.train_loader())
    assert path.read_text() == before


def test_a_run_writes_steps_now_and_then_and_every_epoch(tmp_path):
    path = tmp_path / "losses.jsonl"
    report = runs.learner(tmp_path / "run", history=path, log_every=4).fit(runs.train_loader(), runs.valid_loader())
    records = read_history(path)
    assert [record["step"] for record in records if record["kind"] == "step"] == [4, 8, 12, 16]
    assert tuple(record for record in records if record["kind"] == "epoch") == report.epochs
    assert set(report.metrics) == {"train_loss", "train_accuracy", "valid_loss", "valid_accuracy"}
    assert report.history == path
