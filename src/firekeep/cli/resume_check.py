"""`firekeep resume-check`: would a step be restored exactly, and what would start fresh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from firekeep.cli import _output, _reports
from firekeep.cli._best import best_option, best_rule, mode_option
from firekeep.cli._errors import NO, YES, for_command_line
from firekeep.cli._options import as_json_option, examples

if TYPE_CHECKING:
    from firekeep.checkpoint import ResumeReport


@click.command(
    "resume-check",
    short_help="Say if a step would be restored exactly.",
    epilog=examples(
        "firekeep resume-check run --like other-run",
        "firekeep resume-check run --like model.safetensors --step best",
        "firekeep resume-check run --like run/step-00000010 --step 5 --json",
    ),
)
@click.argument("directory", metavar="DIR")
@click.option(
    "--like",
    metavar="PLACE",
    required=True,
    help="What it would be restored into: a directory of steps, one step of it, or a file of the model.",
)
@click.option("--step", default="latest", metavar="N", help="A number, 'latest' or 'best'. Default: latest.")
@best_option("The metric of --step best. Default: the one that the run was saved with.")
@mode_option
@as_json_option
def command(*, directory: str, like: str, step: str, best: str | None, mode: str | None, as_json: bool) -> int:
    """Say whether a step of DIR would be restored exactly into a run like PLACE, part by part, and what would start fresh.

    Nothing is changed, and no framework is needed: names, ids, shapes, classes and settings are compared. Of a file of a model it is
    told where weights and moments would go; schedules, data and random numbers are not checked then. Exit code 0 when all that was
    checked would be restored exactly, 1 when not.
    """
    from firekeep import checkpoint

    report = checkpoint.check_resume(
        directory,
        like,
        step=_step(step),
        best=best_rule(best, mode),
    )
    if as_json:
        _output.write_json(report.to_dict())
    else:
        _output.write_lines(_told(report))
    return YES if report.exact else NO


def _told(report: ResumeReport) -> Iterator[str]:
    for line in report.headline():
        yield from _output.escape_lines(line)
    for remark in report.remarks():
        spoken = remark if "from Python" in remark else for_command_line(remark)  # code stays code
        yield from _output.folded(spoken, indent="  ")
    for part in report.parts:
        if part.report is not None and not part.exact:
            yield ""
            yield from _output.folded(f"{part.name} in full:")
            if hasattr(part.report, "remedies"):  # a load's, whose remedies are spelled for the command line
                yield from _reports.told_load(part.report)
            else:
                yield from _output.escape_lines(str(part.report))


def _step(text: str) -> int | str:
    if text in ("latest", "best"):
        return text
    if text.isascii() and text.isdecimal() and len(text) <= 19:
        return int(text)
    raise click.UsageError(f"--step {text}: a number, 'latest' or 'best'.")
