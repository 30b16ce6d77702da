"""Commands that ask the same of several files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from firekeep.cli import _errors, _output, _records
from firekeep.errors import FirekeepError
from firekeep.wording import lines, unfold

if TYPE_CHECKING:
    from firekeep.matching import Remedy
    from firekeep.report import LoadReport


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
    for text in unfold(str(report)):  # an argument may stand across two lines
        said = _output.escape(_errors.for_command_line(text))
        yield from lines([said.strip()]) if text.startswith("  ") else (said,)


def told_load(report: LoadReport) -> Iterator[str]:
    """Give what the report of a load says of itself, line by line, escaped, with remedies as they are typed."""
    say = _errors.for_command_line
    typed = replace(
        report,
        errors=tuple(replace(one, message=say(one.message)) for one in report.errors),
        ambiguities=tuple(replace(one, reason=say(one.reason)) for one in report.ambiguities),
        remedies=tuple(_typed(one) for one in report.remedies),
        notes=tuple(map(say, report.notes)),
    )
    yield from _output.escape_lines(str(typed))


def _typed(remedy: Remedy) -> Remedy:
    """Spell a remedy for the command line alone."""
    if remedy.python == "match='auto'":
        return replace(remedy, reason=f"{remedy.reason.removesuffix(' with')} without", python="--exact", cli=None)
    return replace(remedy, python=remedy.cli or _errors.for_command_line(remedy.python), cli=None)


def findings(found: Iterable[Finding]) -> Iterator[str]:
    """Give findings one a line, escaped, with the options that their remedies mean."""
    for one in found:
        place = f"{_output.shown(one.place)}: " if one.place else ""
        yield from _output.folded(f"{one.severity}: {place}{_errors.for_command_line(one.message)}", indent="  ")


def ask_each(
    files: Sequence[str],
    *,
    ask: Callable[[str], Answer],
    is_good: Callable[[Answer], bool],
    show: Callable[[Answer], Iterable[str]],
    as_json: bool,
    with_records: bool = False,
) -> int:
    """Ask of each file in turn and give the worst exit code; a file that cannot be asked of does not stop the rest.

    With `as_json` the answers are one list, in the order of the files; one that could not be had is an object with an "error".
    `with_records` adds what a file is a record of, where it is one.
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
        record = _records.summary_of(file) if with_records else None
        if as_json:
            answers.append(answer.to_dict() | ({} if record is None else {"record": record}))
        else:
            about = () if record is None else _output.folded(record, indent="  ")
            _output.write_lines([*([""] if number else []), *show(answer), *about])
    if as_json:
        _output.write_json(answers)
    return worst
