"""Steps in folders of their own: `step-00000005/` with a file for each section, and the manifest, which is written last."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from firekeep.checkpoint import _manifest as manifest
from firekeep.checkpoint._marks import marked
from firekeep.checkpoint._names import ASIDE, MANIFEST, scratch_of, section_of, step_name, step_of
from firekeep.checkpoint._seen import Seen, mark_of
from firekeep.checkpoint._shelf import Found, Pen, Shelf, listed, spare_path, sync
from firekeep.checkpoint._step import IncompleteStep, StepInfo
from firekeep.errors import FirekeepError
from firekeep.sections import Section


class Folders(Shelf):
    """A folder for each step, published by one rename."""

    layout = "firekeep"

    def scan(self, directory: Path, names: Sequence[str], seen: Seen) -> Found:
        found: dict[int, StepInfo] = {}
        incomplete = []
        for name in names:
            step = step_of(name)
            looked = None if step is None else self.look(directory, step, seen)
            if isinstance(looked, StepInfo):
                found[looked.step] = looked
            elif looked is not None:
                incomplete.append(looked)
        # A process that replaced a step was killed between the two renames: the old one still stands for it.
        for name in names:
            aside = scratch_of(name)
            if aside is not None and aside[2] == ASIDE and step_name(aside[0]) not in names:
                looked = _look(directory / name, aside[0])
                if isinstance(looked, StepInfo):
                    found.setdefault(aside[0], looked)
        return list(found.values()), incomplete

    def numbers(self, names: Iterable[str]) -> set[int]:
        return {step for name in names if (step := step_of(name)) is not None}

    def look(self, directory: Path, step: int, seen: Seen | None = None) -> StepInfo | IncompleteStep | None:
        # There can be thousands of steps: the folder of one that is known is not made anew.
        known = None if seen is None else seen.last(step)
        return _look(directory / step_name(step) if known is None else known.folder, step, seen)

    def look_again(self, info: StepInfo) -> StepInfo | IncompleteStep | None:
        return _look(info.folder, info.step)

    def write(self, pen: Pen, sections: Sequence[Section], info: StepInfo) -> StepInfo:
        told = [marked(section, info) for section in sections]
        written = replace(info, files=tuple(pen.write(section.name, section.contents) for section in told))
        pen.write_bytes(MANIFEST, manifest.render(written))
        return written

    def publish(self, directory: Path, scratch: Path, info: StepInfo, *, aside: Path, durable: bool) -> None:
        final = directory / step_name(info.step)
        found = self.look(directory, info.step)
        if not isinstance(found, StepInfo) and final.is_dir() and any(listed(final)):
            final.rename(spare_path(final, "incomplete"))  # not ours to throw away
        elif found is not None:
            final.rename(aside)
        try:
            scratch.rename(final)
        except BaseException:
            self.put_back(directory, aside, info.step)
            raise
        if durable:
            sync(directory)

    def take(self, directory: Path, info: StepInfo, *, into: Path) -> None:
        (directory / step_name(info.step)).rename(into)

    def put_back(self, directory: Path, aside: Path, step: int) -> bool:
        final = directory / step_name(step)
        if not any(listed(aside)) or final.exists():
            return False
        aside.rename(final)
        return True

    def finish_taking(self, directory: Path, doomed: Path, step: int) -> None:
        """One rename is never cut short."""


def _look(folder: Path, step: int, seen: Seen | None = None) -> StepInfo | IncompleteStep | None:
    """Look at the folder of a step; None where nothing in it is firekeep's, or where it has just gone."""
    found: StepInfo | IncompleteStep | None
    try:
        found = _read(folder, step, seen)
    except FirekeepError as error:
        found = IncompleteStep(step=step, name=folder.name, reason=error.message)
    except OSError as error:
        found = IncompleteStep(step=step, name=folder.name, reason=f"it cannot be looked at: {error.strerror}")
    # Another process may have taken it away meanwhile.
    return found if isinstance(found, StepInfo) or folder.is_dir() else None


def _read(folder: Path, step: int, seen: Seen | None) -> StepInfo | None:
    base = os.fspath(folder)  # a Path takes as long to make as its file to look at
    try:
        status = os.lstat(f"{base}/{MANIFEST}")
    except (FileNotFoundError, NotADirectoryError):
        if not any(section_of(name) for name in listed(folder)):
            return None
        raise FirekeepError(f"{MANIFEST}, which is written last, is not there") from None
    marks = (mark_of(status),)
    info = None if seen is None else seen.recall(step, marks)
    if info is None:
        began = time.time_ns()
        info = _read_manifest(folder, step, status)
        if seen is not None:
            seen.keep(marks, info, began=began)
    for file in info.files:
        check_size(base, file.name, file.nbytes)
    return info


def read_manifest(folder: Path, step: int) -> StepInfo:
    """Read the manifest of a step, without a look at the files it tells of."""
    return _read_manifest(folder, step, (folder / MANIFEST).lstat())


def _read_manifest(folder: Path, step: int, status: os.stat_result) -> StepInfo:
    if not stat.S_ISREG(status.st_mode) or status.st_size > manifest.MAX_BYTES:
        raise FirekeepError(f"{MANIFEST} is no file that firekeep writes")
    try:
        with (folder / MANIFEST).open("rb", buffering=0) as opened:
            return manifest.parse(opened.read(), folder=folder, step=step)
    except FirekeepError as error:
        raise FirekeepError(f"{MANIFEST} cannot be used: {error.message}") from None


def check_size(folder: str, name: str, nbytes: int) -> None:
    """Raise `FirekeepError` unless there is a regular file of this size."""
    try:
        status = os.lstat(f"{folder}/{name}")
    except FileNotFoundError:
        raise FirekeepError(f"{name} is not there") from None
    if not stat.S_ISREG(status.st_mode):
        raise FirekeepError(f"{name} is no regular file")
    if status.st_size != nbytes:
        raise FirekeepError(f"{name} has {status.st_size} bytes, and {nbytes} were written")
