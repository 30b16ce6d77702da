"""Commands that ask the same of several files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from firekeep.cli import _errors, _output
from firekeep.errors import FirekeepError


class Report(Protocol):
    """What the library's doors answer."""

    def to_dict(self) -> dict[str, Any]:
        """Give the report as plain data."""
        ...


class Finding(Protocol):
    """One thing that a check found."""

    @property
    def severity(self) -> str:
        """Say how bad it is."""
        ...

    @property
    def place(self) -> str:
        """Name the tensor or member."""
        ...

    @property
    def message(self) -> str:
        """Say what it is."""
        ...


Answer = TypeVar("Answer", bound=Report)


def told(report: Report) -> Iterator[str]:
    """Give what a report says of itself, line by line, escaped, in terms of options."""
    return (_output.escape(_errors.for_command_line(line)) for line in str(report).split("\n"))


def findings(found: Iterable[Finding]) -> Iterator[str]:
    """Give findings one a line, escaped, with the options that their remedies mean."""
    for one in found:
        place = f"{_output.shown(one.place)}: " if one.place else ""
        yield f"  {one.severity}: {place}{_output.escape(_errors.for_command_line(one.message))}"


def ask_each(
    files: Sequence[str],
    *,
    ask: Callable[[str], Answer],
    is_good: Callable[[Answer], bool],
    show: Callable[[Answer], Iterable[str]],
    as_json: bool,
) -> int:
    """Ask of each file in turn and give the worst exit code; a file that cannot be asked of does not stop the rest.

    With `as_json` the answers are one list, in the order of the files; one that could not be had is an object with an "error".
    """
    worst = _errors.YES
    answers: list[dict[str, Any]] = []
    for number, file in enumerate(files):
        try:
            answer = ask(file)
        except (FirekeepError, OSError, MemoryError) as error:
            worst = _errors.COULD_NOT
            _output.flush()
            _output.warn(_errors.say(error))
            answers.append({"path": file, "error": _errors.say(error)})
            continue
        worst = max(worst, _errors.YES if is_good(answer) else _errors.NO)
        if as_json:
            answers.append(answer.to_dict())
        else:
            _output.write_lines([*([""] if number else []), *show(answer)])
    if as_json:
        _output.write_json(answers)
    return worst
