"""The progress bar: on a terminal, for work that takes a while, and gone afterwards."""

from __future__ import annotations

import io
import sys

import pytest

from firekeep.cli import _progress


class Terminal(io.StringIO):
    """A standard error that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch, *, patience: float = -1) -> Terminal:
    """Put a terminal under standard error, inside the test: pytest lays its own before each."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    for name, value in {"TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_progress, "_PATIENCE", patience)
    return screen


def test_no_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with _progress.progress_bar("x") as report:
        assert report is None


def test_quick_work_draws_nothing(monkeypatch: pytest.MonkeyPatch):
    terminal = use_terminal(monkeypatch, patience=60)
    with _progress.progress_bar("x") as report:
        assert report is not None
        report(1, 2)
    assert terminal.getvalue() == ""


def test_long_work_draws_its_title_as_it_is_and_wipes_it_away(monkeypatch: pytest.MonkeyPatch):
    terminal = use_terminal(monkeypatch)
    with _progress.progress_bar("verify [red]a\x1b[2J.pt") as report:
        assert report is not None
        report(500_000, 1_000_000)
        report(1_000_000, 1_000_000)
    drawn = terminal.getvalue()
    assert r"verify [red]a\x1b[2J.pt" in drawn
    assert "1.0/1.0 MB" in drawn
    assert drawn.endswith("\x1b[2K")


def test_a_long_title_keeps_its_end(monkeypatch: pytest.MonkeyPatch):
    terminal = use_terminal(monkeypatch)
    with _progress.progress_bar(f"verify /{'folder/' * 20}model.pt") as report:
        assert report is not None
        report(1, 2)
    assert "model.pt" in terminal.getvalue()


def test_an_error_under_the_bar_comes_through_and_wipes_it_away(monkeypatch: pytest.MonkeyPatch):
    terminal = use_terminal(monkeypatch)

    def work() -> None:
        with _progress.progress_bar("x") as report:
            assert report is not None
            report(1, 2)
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        work()
    assert terminal.getvalue().endswith("\x1b[2K")
