"""Are the files of steps what was written: by the digests of their manifests, where those were kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from firekeep import verification
from firekeep.checkpoint._catalog import Layout
from firekeep.checkpoint._digest import digest_of
from firekeep.checkpoint._errors import NoStepError
from firekeep.checkpoint._folders import read_manifest
from firekeep.checkpoint._held import HeldStep, hold_step
from firekeep.checkpoint._names import step_of
from firekeep.checkpoint._step import IncompleteStep, StepInfo
from firekeep.checkpoint._store import Store, scan_steps
from firekeep.checkpoint._verified import StepsVerified, StepVerified
from firekeep.errors import FirekeepError
from firekeep.formats import Finding, OpenOptions
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.saving import Meter, Progress
from firekeep.verification import VerificationReport
from firekeep.wording import quote

CHANGED = "its bytes are not those that were written: the manifest of the step has another digest"
_UNKNOWN = (
    "no digests were kept, and flipped bits are not seen without: CheckpointManager(digest=True) keeps one of each file"
)


def verify_held(held: HeldStep, *, heard: Callable[[int], None] | None = None) -> StepVerified:
    """Compare the files of a step with the digests that were kept of them."""
    known = [file for file in held.info.files if file.xxh3 is not None]
    changed = [file.name for file in known if digest_of(held.fileno(file.section), heard=heard) != file.xxh3]
    names = tuple(file.name for file in held.info.files)
    compared = tuple(file.name for file in known)
    return StepVerified(changed, step=held.info.step, folder=held.info.folder, files=names, compared=compared)


def verify_steps(
    place: str | os.PathLike[str],
    *,
    values: bool = False,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> StepsVerified | None:
    """Check all steps of a directory, or the one that it is: sizes, digests of the manifests, the structure of each file.

    What is wrong is a finding and never raised, steps that are not complete among them. With `values=True` the numbers are looked at,
    too, as `firekeep.verify` does. None for a directory that has nothing of a step.
    """
    store, steps, broken = _there(Path(place), limits)
    if not (steps or broken):
        return None
    findings = [Finding("error", one.name, f"it is incomplete: {one.reason}") for one in broken]
    meter = Meter(sum(file.nbytes for info in steps for file in info.files if file.xxh3 is not None), progress)
    checked = []
    for info in steps:
        try:
            with hold_step(partial(_still, store, info.step), directory=store.directory) as held:
                checked.append(verify_held(held, heard=meter.step))
                findings += _findings(held, checked[-1], values=values, limits=limits)
        except NoStepError:
            findings.append(Finding("note", info.folder.name, "it was deleted, or replaced, meanwhile"))
    if any(len(one.compared) < len(one.files) for one in checked):
        findings.append(Finding("note", "", _UNKNOWN))
    return StepsVerified(path=str(place), steps=tuple(checked), values=values, findings=tuple(findings))


def _there(folder: Path, limits: Limits) -> tuple[Store, list[StepInfo], list[IncompleteStep]]:
    """Find the steps of a directory; of one that is a step, that one."""
    catalog = scan_steps(folder)
    number = step_of(folder.resolve().name)
    if number is None or catalog.steps or catalog.incomplete:
        store = Store(directory=folder, layout=catalog.layout, limits=limits)
        return store, list(catalog.steps), list(catalog.incomplete)
    store = Store(directory=folder.resolve().parent, limits=limits)
    found = store.shelf.look(store.directory, number)
    steps = [found] if isinstance(found, StepInfo) else []
    return store, steps, [found] if isinstance(found, IncompleteStep) else []


def _still(store: Store, step: int) -> tuple[Layout, StepInfo]:
    found = store.find(step)
    if found is None:
        raise NoStepError(f"step {step} is not there any more", path=store.directory)
    return store.layout, found


def _findings(held: HeldStep, checked: StepVerified, *, values: bool, limits: Limits) -> Iterator[Finding]:
    options = OpenOptions(limits=limits)
    prefix = f"{held.info.folder.name}/" if step_of(held.info.folder.name) is not None else ""
    well = True
    for file in held.info.files:
        place = f"{prefix}{file.name}"
        if file.name in checked:
            yield Finding("error", place, CHANGED)
        try:
            report = verification.verify(held.info.folder / file.name, options, values=values, progress=None)
        except (FirekeepError, OSError) as error:
            report = VerificationReport(path=None, format="", findings=(Finding("error", "", str(error)),))
        well = well and report.ok
        for found in report.findings:
            told = f"{quote(found.place)}: {found.message}" if found.place else found.message
            yield replace(found, place=place, message=told)
    if well:
        try:
            held.opened(options)  # each file says of which save it is
        except FirekeepError as error:
            yield Finding("error", os.path.basename(error.path or ""), error.message)  # noqa: PTH119 - the name alone


def with_manifest(report: VerificationReport, path: Path) -> VerificationReport:
    """Add to what was found of a file whether it is the one that the manifest beside it tells of, where it is a file of a step."""
    folder = path.parent.resolve()
    number = step_of(folder.name)
    if number is None:
        return report
    try:
        info = read_manifest(folder, number)
    except (FirekeepError, OSError) as error:
        why = error.message if isinstance(error, FirekeepError) else str(error)
        return _and(report, Finding("warning", "", f"it was not compared with the manifest beside it: {why}"))
    file = next((file for file in info.files if file.name == path.name), None)
    if file is None:
        return _and(report, Finding("note", "", "the manifest beside it does not name it"))
    if (nbytes := path.stat().st_size) != file.nbytes:
        told = f"it has {nbytes} bytes, and {file.nbytes} were written, as the manifest of the step says"
        return _and(report, Finding("error", "", told))
    if file.xxh3 is None:
        return _and(report, Finding("note", "", _UNKNOWN))
    with path.open("rb") as opened:
        same = digest_of(opened.fileno()) == file.xxh3
    compared = replace(report, manifest=True)
    return compared if same else _and(compared, Finding("error", "", CHANGED))


def _and(report: VerificationReport, finding: Finding) -> VerificationReport:
    return replace(report, findings=(*report.findings, finding))
