"""What can be asked of a directory that no manager holds: retention by hand, and a restore tried without its program."""

from __future__ import annotations

import os
import time
from pathlib import Path

from firekeep.checkpoint._catalog import Layout
from firekeep.checkpoint._reports import PruneReport
from firekeep.checkpoint._resume_report import ResumeReport
from firekeep.checkpoint._retention import KeepBest, Policy, doomed
from firekeep.checkpoint._store import Store, scan_steps
from firekeep.limits import DEFAULT_LIMITS, Limits


def prune_steps(
    directory: str | os.PathLike[str],
    *,
    keep: Policy,
    best: KeepBest | None = None,
    layout: Layout | None = None,
    dry_run: bool = False,
    durable: bool = True,
) -> PruneReport:
    """Delete the steps of a directory that need not stay, but never the newest, nor the best by `best`.

    What killed saves have left goes, too. `dry_run` only says which steps would go, and touches nothing. The layout is told from what is
    there unless it is given.
    """
    folder = Path(directory)
    catalog = scan_steps(folder, layout=layout)
    if dry_run:
        gone = doomed(catalog.steps, keep, now=time.time(), best=best)
        gone = tuple(info for info in gone if not info.folder.is_symlink())
        kept = tuple(info for info in catalog.steps if info not in gone)
        return PruneReport(directory=folder, kept=kept, deleted=gone, dry_run=True)
    store = Store(directory=folder, layout=catalog.layout, durable=durable)
    store.recover()
    kept, gone = store.prune(keep, best=best)
    return PruneReport(directory=folder, kept=kept, deleted=gone)


def check_resume(
    directory: str | os.PathLike[str],
    like: str | os.PathLike[str],
    *,
    step: int | str = "latest",
    best: KeepBest | str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> ResumeReport:
    """Say whether a step would be restored exactly into a run like another, and what would start fresh; nothing is changed.

    `directory` holds steps, or is one. `like` is another directory of steps (its latest is taken), a step of one, or a file: a model of
    any format, which says nothing of schedules and data, or a record of an optimizer or a schedule. No framework is needed: what is
    compared are names, ids, shapes, classes and settings. A restore into the objects themselves, with `dry_run=True`, says more. `best`
    is the metric of `step="best"`, unless told that by which the manager of the steps knew it.

    Raises `NoStepError` saying which steps there are, and `RuleError` where the two have no part in common.
    """
    from firekeep.checkpoint import _resume  # with all that loads and matches, which no save needs

    rule = KeepBest(best) if isinstance(best, str) else best
    return _resume.check(Path(directory), Path(like), step=step, best=rule, limits=limits)
