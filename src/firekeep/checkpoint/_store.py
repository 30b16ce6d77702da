"""Steps in a directory: found, saved by one commit each, and deleted, whatever other processes do there."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from firekeep.checkpoint._catalog import Catalog, Layout
from firekeep.checkpoint._errors import StepExistsError
from firekeep.checkpoint._flat import Flat, part_of
from firekeep.checkpoint._folders import Folders
from firekeep.checkpoint._lock import locked, try_flock
from firekeep.checkpoint._names import ASIDE, DOOMED, WRITING, scratch_name, scratch_of, step_of
from firekeep.checkpoint._retention import KeepBest, Policy, doomed
from firekeep.checkpoint._seen import Seen
from firekeep.checkpoint._shelf import Pen, Shelf, clear, listed
from firekeep.checkpoint._step import IncompleteStep, StepInfo
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.sections import Section

SHELVES: dict[Layout, Shelf] = {"firekeep": Folders(), "burn": Flat()}
_STALE_SECONDS = 3600


def scan_steps(directory: str | os.PathLike[str], *, layout: Layout | None = None) -> Catalog:
    """Look at a directory of checkpoints, changing nothing; one that is not there holds no steps.

    Without a `layout` it is told from what is there: folders `step-00000001` are firekeep's, files `model-1.bpk` Burn's.
    """
    return _scan(Path(directory), layout, Seen())


def _scan(folder: Path, layout: Layout | None, seen: Seen) -> Catalog:
    names = listed(folder)
    if layout is None:
        ours = any(step_of(name) is not None for name in names)
        layout = "burn" if not ours and any(part_of(name) is not None for name in names) else "firekeep"
    steps, incomplete = SHELVES[layout].scan(folder, names, seen)
    seen.forget_others({info.step for info in steps})
    return Catalog(
        directory=folder,
        layout=layout,
        steps=tuple(sorted(steps, key=lambda info: info.step)),
        incomplete=tuple(sorted(incomplete, key=lambda step: (step.step, step.name))),
        scratch=tuple(name for name in names if scratch_of(name)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A directory, and how steps are saved in it."""

    directory: Path
    layout: Layout = "firekeep"
    durable: bool = True
    digest: bool = False
    lock_timeout: float = 60.0
    limits: Limits = field(default=DEFAULT_LIMITS)
    seen: Seen = field(default_factory=Seen, repr=False, compare=False)
    """What was read of steps: none is read twice while its files are the same."""

    @property
    def shelf(self) -> Shelf:
        """How steps lie in the directory."""
        return SHELVES[self.layout]

    def scan(self) -> Catalog:
        """Look at the directory."""
        return _scan(self.directory, self.layout, self.seen)

    def latest(self) -> StepInfo | None:
        """Find the complete step of the highest number; steps below it are not looked at."""
        names = listed(self.directory)
        if any(map(_is_aside, names)):
            return self.scan().latest()  # what stands aside may still be the step
        steps = sorted(self.shelf.numbers(names), reverse=True)
        looked = (self.find(step) for step in steps)
        return next((info for info in looked if info is not None), None)

    def passed_over(self, step: int) -> bool:
        """Say whether there is something of a step above this one: it is incomplete, or being replaced at this moment."""
        names = listed(self.directory)
        aside = {found[0] for name in names if (found := scratch_of(name)) is not None and found[2] == ASIDE}
        return any(number > step for number in aside | self.shelf.numbers(names))

    def is_unclear(self, catalog: Catalog) -> bool:
        """Say whether there is something of a step that was not among the complete ones of a reading: it may be being replaced."""
        names = listed(self.directory)
        known = {info.step for info in catalog.steps}
        return not known.issuperset(self.shelf.numbers(names)) or any(map(_is_aside, names))

    def incomplete_after(self, step: int) -> tuple[IncompleteStep, ...]:
        """Give the steps above this one that cannot be used, and why."""
        numbers = sorted(number for number in self.shelf.numbers(listed(self.directory)) if number > step)
        looked = (self.shelf.look(self.directory, number) for number in numbers)
        return tuple(found for found in looked if isinstance(found, IncompleteStep))

    def find(self, step: int) -> StepInfo | None:
        """Find one step, if it is complete and in its place."""
        found = self.shelf.look(self.directory, step)
        return found if isinstance(found, StepInfo) else None

    def refuse_existing(self, step: int) -> None:
        """Raise `StepExistsError` if a step is there, and complete."""
        if self.find(step) is not None:
            raise StepExistsError(
                f"step {step} has been saved already",
                path=self.directory,
                remedy="Pass overwrite=True to replace it, or save under another number or in another directory.",
            )

    def save(self, sections: Sequence[Section], info: StepInfo, *, overwrite: bool) -> StepInfo:
        """Write a step and publish it; whatever fails, the steps that were there are there.

        The files are written without the lock: other processes may save other steps meanwhile. Of two that save the same step the
        second to finish gets `StepExistsError`.
        """
        shelf = self.shelf
        with self._draft(info.step) as scratch:
            pen = Pen(scratch, durable=self.durable, digest=self.digest, limits=self.limits)
            written = replace(shelf.write(pen, sections, info), folder=scratch)
            aside = self.directory / scratch_name(info.step, ASIDE)
            with self._locked():
                if not overwrite:
                    self.refuse_existing(info.step)
                shelf.publish(self.directory, scratch, written, aside=aside, durable=self.durable)
                replaced = self.directory / scratch_name(info.step, DOOMED)
                with contextlib.suppress(OSError):  # most often there was nothing to replace
                    aside.rename(replaced)  # or somebody might put it back once the new step is gone, too
        clear(replaced, info.step)
        found = shelf.look(self.directory, info.step)
        return found if isinstance(found, StepInfo) else written

    def recover(self) -> tuple[str, ...]:
        """Tidy up after killed processes: a step that was being replaced is put back, what nobody writes any more is removed.

        Gives what was done, in words.
        """
        if not any(scratch_of(name) for name in listed(self.directory)):
            return ()
        with self._locked():
            return tuple(self._recover())

    def prune(
        self, policy: Policy, *, best: KeepBest | None, spared: Collection[int] = (), dry_run: bool = False
    ) -> tuple[tuple[StepInfo, ...], tuple[StepInfo, ...]]:
        """Delete the steps that need not stay, oldest first, and give those that stayed and those that went."""
        steps, gone = self._doomed(self._glance(spared), policy, best, spared)
        if gone and not dry_run:
            with self._locked():
                # As it is now that nobody changes it.
                steps, gone = self._doomed(self.scan().steps, policy, best, spared)
                folders = [(self.directory / scratch_name(info.step, DOOMED), info.step) for info in gone]
                for info, (folder, _) in zip(gone, folders, strict=True):
                    self.shelf.take(self.directory, info, into=folder)
            for folder, step in folders:
                clear(folder, step)
        numbers = {info.step for info in gone}
        return tuple(info for info in steps if info.step not in numbers), gone

    def _glance(self, written: Collection[int]) -> tuple[StepInfo, ...]:
        """Give the steps as they were when they were looked at last, but for those from the first one just written on.

        That is enough to see that none needs to go, in no more time than it takes to list the names. What has become of a step
        meanwhile is seen when one is to go: then all are looked at.
        """
        names = listed(self.directory)
        if not written or any(map(_is_aside, names)):
            return self.scan().steps
        first = min(written)
        known = ((step, self.seen.last(step) if step < first else None) for step in self.shelf.numbers(names))
        looked = (info or self.shelf.look(self.directory, step, self.seen) for step, info in known)
        return tuple(sorted((info for info in looked if isinstance(info, StepInfo)), key=lambda info: info.step))

    def _doomed(
        self, steps: tuple[StepInfo, ...], policy: Policy, best: KeepBest | None, spared: Collection[int]
    ) -> tuple[tuple[StepInfo, ...], tuple[StepInfo, ...]]:
        """Give all steps, and those that may go."""
        gone = doomed(steps, policy, now=time.time(), best=best, spared=spared)
        return steps, tuple(info for info in gone if not info.folder.is_symlink())  # what somebody links here is theirs

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return locked(self.directory, timeout=self.lock_timeout)

    @contextlib.contextmanager
    def _draft(self, step: int) -> Iterator[Path]:
        """Make the scratch folder of a step. Its own lock tells everybody, for as long as this process lives, that it is in use."""
        self.directory.mkdir(parents=True, exist_ok=True)
        scratch = self.directory / scratch_name(step, WRITING)
        fd = -1
        try:
            with self._locked():
                tuple(self._recover())
                scratch.mkdir()
                fd = os.open(scratch, os.O_RDONLY | os.O_CLOEXEC)
                try_flock(fd)
            yield scratch
        finally:
            if fd >= 0:
                os.close(fd)
            clear(scratch, step)

    def _recover(self) -> Iterator[str]:
        for name in listed(self.directory):
            found = scratch_of(name)
            if found is None:
                continue
            step, pid, kind = found
            folder = self.directory / name
            if kind == WRITING and not _is_stale(folder, pid):
                continue
            if kind == ASIDE and self.shelf.put_back(self.directory, folder, step):
                yield f"step {step}, whose replacement was cut short, is back"
                continue
            if kind == DOOMED:
                self.shelf.finish_taking(self.directory, folder, step)
            left = clear(folder, step)
            yield f"what a killed process left of step {step} was removed" + (
                f"; files of others are in {left}" if left else ""
            )


def _is_aside(name: str) -> bool:
    """Say whether a name is that of a step that is being replaced."""
    found = scratch_of(name)
    return found is not None and found[2] == ASIDE


def _is_stale(folder: Path, pid: int) -> bool:
    """Say whether nobody writes in a scratch folder any more: its lock is free, or, where there are none, its process is long gone."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        free = try_flock(fd)
        age = time.time() - os.fstat(fd).st_mtime
    finally:
        os.close(fd)
    return free if free is not None else age > _STALE_SECONDS and not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True
