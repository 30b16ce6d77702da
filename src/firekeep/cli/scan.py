"""`firekeep scan`: what the pickles in a file would import and call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from firekeep.cli import _output, _reports
from firekeep.cli._options import as_json_option, examples, files_argument
from firekeep.wording import WIDTH, count

if TYPE_CHECKING:
    from firekeep.formats.pytorch._report import ScanGlobal, ScanReport

_SOME = 20


@click.command(
    "scan",
    short_help="Say what pickles would import and call.",
    epilog=examples("firekeep scan model.pt", "firekeep scan --strict download/*.bin --json"),
)
@files_argument
@click.option("--strict", is_flag=True, help="Exit with 1 for names that are not known to be harmless, too.")
@click.option("--all", "everything", is_flag=True, help="Show the harmless names, too.")
@as_json_option
def command(*, files: tuple[str, ...], strict: bool, everything: bool, as_json: bool) -> int:
    """Say what the pickles in each FILE would import and call, without importing or calling it.

    Looks into every pickle of an archive, also hidden and damaged ones, and into all files of a folder. Exit code 0 when no name is
    known to run code and every pickle is whole, 1 otherwise; with --strict, 0 only when every name is known to be harmless. Where
    there is no pickle at all (text, an empty file or folder, safetensors) that is said ("scanned" in JSON), and the exit code is 0.
    firekeep itself never runs any of it: scan before you load a file elsewhere.
    """
    from firekeep import api

    def is_good(report: ScanReport) -> bool:
        return report.safe if strict else not report.dangerous and report.damaged is None

    def show(report: ScanReport) -> Iterator[str]:
        return _show(report, everything=everything)

    return _reports.ask_each(files, ask=api.scan, is_good=is_good, show=show, as_json=as_json, with_records=True)


def _show(report: ScanReport, *, everything: bool) -> Iterator[str]:
    yield f"{_output.escape(report.path or 'this')}: {_verdict(report)}"
    told = [found for found in report.globals if everything or found.verdict != "safe"]
    few = told if everything else told[:_SOME]
    yield from _table(few)
    if len(few) < len(told):
        yield f"  and {count(len(told) - len(few), 'name')} more: --all shows them"
    if report.damaged is not None:
        closed = "not looked at" in report.damaged or "encrypted" in report.damaged
        yield from _output.folded(f"{'closed' if closed else 'damaged'}: {report.damaged}", indent="  ")


def _verdict(report: ScanReport) -> str:
    where = f"({count(report.pickles, 'pickle')})"
    if report.dangerous:
        return f"DANGEROUS, {count(len(report.dangerous), 'name')} that can run code {where}"
    if report.pickles == 0 and report.safe:
        return "nothing to scan, no pickle in it"
    if report.safe:
        return f"safe, {count(len(report.globals), 'name')}, all harmless {where}"
    unknown = sum(found.verdict != "safe" for found in report.globals)
    if not unknown:
        return f"not known to be safe, not all of it could be looked at {where}"
    return f"not known to be safe, {count(unknown, 'unknown name')} {where}"


def _table(found: Sequence[ScanGlobal]) -> Iterator[str]:
    """Give one line a name; where that is too long with the member it stands in, below the name of the member."""
    beside = _output.columns([_cells(one, member=True) for one in found], indent="  ")
    if all(_output.width(line) <= WIDTH for line in beside):
        yield from beside
        return
    members: dict[str, list[ScanGlobal]] = {}
    for one in found:
        members.setdefault(one.member, []).append(one)
    for member, held in members.items():
        yield from [f"  in {_output.shown(member)}:"] if member else []
        indent = "    " if member else "  "
        rows = [_cells(one, member=False) for one in held]
        drawn = _output.columns(rows, indent=indent)
        if any(_output.width(line) > WIDTH for line in drawn):
            drawn = [
                line for verdict, name, done in rows for line in (f"{indent}{verdict}  {name}", f"{indent}  {done}")
            ]
        yield from drawn


def _cells(found: ScanGlobal, *, member: bool) -> tuple[str, str, str]:
    done = "called" if found.called else "imported"
    where = f" of {_output.shown(found.member)}" if member and found.member else ""
    return found.verdict, _output.shown(found.path), f"{done} {found.count} x, byte {found.offset}{where}"
