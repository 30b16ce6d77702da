"""Running the command line inside the test's process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from firekeep.cli import run

CASES = Path(__file__).parents[1] / "data" / "cases" / "files"


@dataclass(frozen=True)
class Done:
    """What a command printed and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out, parse_constant=_refuse)

    @property
    def text(self) -> str:
        """The output as one line: reports break theirs where a path happens to be long."""
        return " ".join(self.out.split())

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.fixture
def fk(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run `firekeep ARGUMENTS...`."""

    def call(*arguments: object) -> Done:
        code = run([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture
def cases() -> Path:
    """The folder of real files."""
    return CASES
