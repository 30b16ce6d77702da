"""What a run says: reports, lines and bars, and that PyTorch is missing."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from firekeep.errors import MissingExtraError
from firekeep.learner import _progress as progress
from learner import runs


def test_without_pytorch_the_install_line_is_told(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("firekeep.learner")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'firekeep\[torch\]'"):
        importlib.import_module("firekeep.learner")


def test_a_report_is_text_of_80_columns_and_data(tmp_path):
    runs.learner(tmp_path, num_epochs=1).fit(runs.train_loader(), runs.valid_loader())
    report = runs.learner(tmp_path, num_epochs=2).fit(runs.train_loader(), runs.valid_loader())
    text = str(report)
    assert text.startswith("complete: 2 of 2 epochs, 12 steps\n")
    assert f"went on exactly from step 6 in\n    {tmp_path / 'step-00000006'}\n" in text
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert (data["step"], data["stopped"], data["exact"], data["resumed"]["info"]["step"]) == (12, None, True, 6)
    assert [record["epoch"] for record in data["epochs"]] == [1, 2]


def test_a_run_says_each_epoch_and_what_it_goes_on_from(tmp_path, capsys):
    runs.learner(tmp_path, num_epochs=1, progress=True).fit(runs.train_loader(), runs.valid_loader())
    runs.learner(tmp_path, num_epochs=2, progress=True).fit(runs.train_loader(), runs.valid_loader())
    out, err = capsys.readouterr()
    said = err.splitlines()
    assert out == ""
    assert said[0].startswith("epoch 1/1  train_loss ")
    assert said[1] == "complete: 1 of 1 epoch, 6 steps"
    assert said[2] == f"going on from step 6 in {tmp_path / 'step-00000006'}: epoch 2 of 2"
    assert said[3].startswith("epoch 2/2  train_loss ")
    assert all(len(line) <= 80 for line in (said[0], said[3]))


def test_a_run_without_progress_says_nothing(tmp_path, capsys):
    runs.learner(tmp_path, num_epochs=1).fit(runs.train_loader(), runs.valid_loader())
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    runs.learner(tmp_path, num_epochs=2, progress=True).fit(runs.train_loader(), runs.valid_loader())
    shown = capsys.readouterr().err
    assert "epoch 2/2" in shown
    assert "validating epoch 1" in shown
    assert "/6" in shown
    assert "loss " in shown
