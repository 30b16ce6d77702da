"""`firekeep checkpoints`: which steps of a run there are, and which may go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firekeep.cli import _output, _reports
from firekeep.cli._best import best_option, best_rule, mode_option
from firekeep.cli._errors import NO, YES
from firekeep.cli._options import as_json_option, examples
from firekeep.errors import RuleError
from firekeep.wording import count, headline, quote, size, some

if TYPE_CHECKING:
    from firekeep.checkpoint import Catalog, KeepBest, PruneReport, StepInfo

_DEFAULT = "valid_loss"
"""The metric by which a manager tells the best step unless it is told another one; steps of other programs do not say theirs."""
_METRICS = 4
"""Columns of metrics that are shown; `--json` gives all."""

_WITHOUT = "no step has the metric that tells the best one: --best METRIC, and --mode max where more is better, name it"

_SOUGHT = (
    "looked for: folders step-00000001, step-00000002 ... with a manifest.json, as CheckpointManager writes them; files model-1.bpk, "
    "optim-1.bpk, scheduler-1.bpk ..., as Burn's Learner does"
)


@click.command(
    "checkpoints",
    short_help="List the steps of a run, and prune them.",
    epilog=examples(
        "firekeep checkpoints run",
        "firekeep checkpoints run --best accuracy --mode max",
        "firekeep checkpoints run --prune --keep-last 3 --dry-run",
        "firekeep checkpoints artifacts/checkpoint --json",
    ),
)
@click.argument("directory", metavar="DIR")
@best_option("The metric that tells the best step. Default: the one that the run was saved with.")
@mode_option
@click.option("--times", is_flag=True, help="Show when each step was saved.")
@click.option("--prune", is_flag=True, help="Delete all steps but the last ones and the best one.")
@click.option(
    "--keep-last",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --prune: how many of the last steps stay. Default: 2.",
)
@click.option("--dry-run", is_flag=True, help="With --prune: say which steps would go, and delete nothing.")
@as_json_option
def command(
    *,
    directory: str,
    best: str | None,
    mode: str | None,
    times: bool,
    prune: bool,
    keep_last: int | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """List the steps that a CheckpointManager, or Burn's Learner, has saved in DIR: size, metrics, which is the latest and which the best.

    Steps that are not complete are named with what is wrong with them, and so is what killed saves have left. They are never
    restored. Exit code 0 when there is a complete step, 1 when there is none.
    """
    from firekeep import checkpoint

    if (keep_last is not None or dry_run) and not prune:
        raise click.UsageError("--keep-last and --dry-run go with --prune.")
    folder = Path(directory)
    folder.stat()  # a name that is mistyped is no run without steps
    if not folder.is_dir():
        raise NotADirectoryError(20, "it is a file, and steps lie in a directory", directory)
    catalog = checkpoint.scan_steps(folder)
    rule = _rule(catalog, best_rule(best, mode), needed=prune)
    report = None
    if prune:
        keep = checkpoint.KeepLast(2 if keep_last is None else keep_last)
        report = checkpoint.prune_steps(folder, keep=keep if rule is None else keep | rule, best=rule, dry_run=dry_run)
        catalog = catalog if dry_run else checkpoint.scan_steps(folder, layout=catalog.layout)
    if as_json:
        _output.write_json(_document(catalog, rule, report))
    else:
        _output.write_lines(_told(catalog, rule, report, times=times))
    return YES if catalog.steps else NO


def _rule(catalog: Catalog, asked: KeepBest | None, *, needed: bool) -> KeepBest | None:
    """Say how the best step is told; None where no step has the metric that tells it."""
    from firekeep import checkpoint

    known = _metrics(catalog)
    if asked is not None and known and asked.metric not in known:
        raise RuleError(
            f"no step has the metric {quote(asked.metric)}: there are {some(known)}", path=catalog.directory
        )
    rule = asked or checkpoint.remembered(catalog.steps) or checkpoint.KeepBest(_DEFAULT)
    if rule.metric in known:
        return rule
    if known and needed:
        raise RuleError(
            f"the steps have the metrics {some(known)}, and which of them tells the best is not known",
            path=catalog.directory,
            remedy="Say it with --best METRIC, and --mode max where more is better: the best step is never deleted.",
        )
    return None


def _metrics(catalog: Catalog) -> list[str]:
    return list(dict.fromkeys(name for info in catalog.steps for name in info.metrics))


def _told(catalog: Catalog, rule: KeepBest | None, report: PruneReport | None, *, times: bool) -> Iterator[str]:
    if report is not None:
        yield from _reports.told(report)
        yield ""
    facts = [count(len(catalog.steps), "complete step"), size(sum(info.nbytes for info in catalog.steps))]
    if catalog.incomplete:
        facts.insert(1, f"{len(catalog.incomplete):,} incomplete")
    facts += ["Burn's layout"] if catalog.layout == "burn" else []
    yield from _output.escape_lines(headline(f"{catalog.directory}:", ", ".join(facts)))
    if catalog.steps:
        yield ""
        yield from _table(catalog, rule, times=times)
    remarks = [_WITHOUT] if rule is None and _metrics(catalog) else []
    remarks += [f"incomplete: {step.name}: {step.reason}" for step in catalog.incomplete]
    remarks += [_left(name) for name in catalog.scratch]
    remarks += [] if catalog.steps else _hints(catalog)
    if remarks:
        yield ""
        for remark in remarks:
            yield from _output.folded(remark, indent="  ")


def _table(catalog: Catalog, rule: KeepBest | None, *, times: bool) -> list[str]:
    metrics = _metrics(catalog)
    if rule is not None:  # the metric that decides stands first
        metrics.sort(key=lambda name: name != rule.metric)
    shown = metrics[:_METRICS]
    rows = [("step", *(("saved (UTC)",) if times else ()), "size", *(_output.shown(name, 20) for name in shown), "")]
    for info in catalog.steps:
        saved = (info.to_dict()["saved"][:16].replace("T", " "),) if times else ()
        values = (_number(info.metrics.get(name)) for name in shown)
        rows.append((str(info.step), *saved, size(info.nbytes), *values, ", ".join(_marks(info, catalog, rule))))
    right = [0, 1 + times, *range(2 + times, 2 + times + len(shown))]
    lines = _output.columns(rows, right=right, indent="  ")
    if len(metrics) > len(shown):
        lines += [f"  {count(len(metrics) - len(shown), 'metric')} more: --json shows them"]
    return lines


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _marks(info: StepInfo, catalog: Catalog, rule: KeepBest | None) -> Iterator[str]:
    if info == catalog.latest():
        yield "latest"
    if rule is not None and info == rule.best(catalog.steps):
        yield "best"


def _left(name: str) -> str:
    """Say of a scratch folder whose it is: its name has the number of the process in it."""
    step, process = name.split(".")[1].removeprefix("step-").lstrip("0") or "0", name.split(".")[2].partition("-")[0]
    return f"unfinished save of step {step} by process {process}: if that one is gone, the next save removes {name}"


def _hints(catalog: Catalog) -> Sequence[str]:
    from firekeep import checkpoint

    above = catalog.directory.parent
    names = [info.folder.name for info in checkpoint.scan_steps(above).steps]
    if catalog.directory.name in names:
        return [f"it is one of the {count(len(names), 'step')} of {above}: give that"]
    below = [catalog.directory / name for name in ("checkpoint", "checkpoints")]
    found = [f"there are steps in {place}: give that" for place in below if checkpoint.scan_steps(place).steps]
    other = None if found or catalog.incomplete else checkpoint.hint(catalog.directory)
    return found or ([_SOUGHT] if other is None else [other])


def _document(catalog: Catalog, rule: KeepBest | None, report: PruneReport | None) -> dict[str, Any]:
    latest, best = catalog.latest(), None if rule is None else rule.best(catalog.steps)
    return {
        **catalog.to_dict(),
        "latest": None if latest is None else latest.step,
        "best": None if best is None else best.step,
        "best_by": None if rule is None else {"metric": rule.metric, "mode": rule.mode},
        "pruned": None if report is None else report.to_dict(),
    }
