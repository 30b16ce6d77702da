"""`firekeep doctor`: what any file is, and the next step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from firekeep.cli import _errors, _output, _records, _reports
from firekeep.cli._options import as_json_option, examples, files_argument

if TYPE_CHECKING:
    from firekeep.formats._diagnose import Diagnosis

_OF_RECORDS = ("metadata keys", "scalars")
"""Facts that are left out of a record: they begin with the numbers of parameters, and what they hold is told otherwise."""


@click.command(
    "doctor",
    short_help="Say what a file is and what to do next.",
    epilog=examples("firekeep doctor weights.bin", "firekeep doctor download/* --json"),
)
@files_argument
@as_json_option
def command(*, files: tuple[str, ...], as_json: bool) -> int:
    """Say what each FILE is, whatever it is, what is wrong with it, and what to do next.

    Knows the kinds of files that are mistaken for weights (Git LFS pointers, web pages, archives, other frameworks'
    formats) and the usual damage. Exit code 0 when firekeep opens every file, 1 otherwise.
    """
    from firekeep import api

    def ask(file: str) -> Diagnosis:
        found = api.doctor(file)
        record = _records.asked(file) if found.opens else None
        if record is None:
            return found
        facts = (fact for fact in found.facts if fact[0] not in _OF_RECORDS)
        return replace(found, facts=(*facts, ("record", record.summary)))

    return _reports.ask_each(files, ask=ask, is_good=lambda found: found.opens, show=_show, as_json=as_json)


def _show(found: Diagnosis) -> Iterator[str]:
    yield from _output.headed(found.path or "this", found.title)
    label_width = max((len(label) for label, _ in found.facts), default=0)
    for label, text in found.facts:
        first, *more = [*_output.folded(_output.shorten(text), indent=" " * (label_width + 4))] or [""]
        yield f"  {label.ljust(label_width)}  {first.strip()}"
        yield from more
    yield from _reports.findings(found.findings)
    yield "  firekeep opens it." if found.opens else "  firekeep does not open it."
    if found.next_step:
        yield from _output.advice(f"Next: {_errors.for_command_line(found.next_step)}", indent="  ")
