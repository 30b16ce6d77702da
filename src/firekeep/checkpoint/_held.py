"""The files of a step held open: all of one save, whatever other processes put under their names meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from firekeep.checkpoint._catalog import Layout
from firekeep.checkpoint._errors import DirectoryBusyError, NoStepError
from firekeep.checkpoint._lock import locked
from firekeep.checkpoint._marks import SAVE, save_of
from firekeep.checkpoint._names import LOCK
from firekeep.checkpoint._step import StepInfo
from firekeep.checkpoint._store import SHELVES
from firekeep.errors import FirekeepError, FormatError
from firekeep.formats import OpenOptions, open_source
from firekeep.opened import OpenedFile
from firekeep.sources import FileSource

TRIES = 3
_PATIENCE = 5.0
"""Seconds to wait for the lock of the last try, which then goes on without it."""

Choose = Callable[[], tuple[Layout, StepInfo]]
Mark = tuple[int, int, int, int]
"""Which file it is, and in what state: a file that is written anew in its place stays the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStep:
    """A step, and its files by section, each opened once: nothing is asked by name again."""

    info: StepInfo
    sources: dict[str, FileSource] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    """The files as they were when they were opened."""

    def opened(self, options: OpenOptions) -> dict[str, OpenedFile]:
        """Read what is in the files; they stay those of this object, which closes them.

        Raises `FormatError` for a file that says that it is of another save: somebody put it there.
        """
        opened = {section: _opened(source, options) for section, source in self.sources.items()}
        due = save_of(self.info)
        for one in opened.values():
            if (save := one.metadata.get(SAVE, due)) != due:
                raise FormatError(
                    f"this file is of step {save.partition(' ')[0]}, saved at another time than the step {self.info.step} it lies in",
                    path=one.path,
                    remedy="Put the step's own file back, or restore another step by its number.",
                )
        return opened

    def written_anew(self) -> list[str]:
        """Name the files that somebody has written into since they were opened: what was read of them may be of two saves."""
        return [
            os.path.basename(source.path or section)  # noqa: PTH119 - the name alone
            for section, source in self.sources.items()
            if (fd := source.fileno()) is not None and _mark(os.fstat(fd)) != self.marks[section]
        ]

    def fileno(self, section: str) -> int:
        """Give the descriptor of a file."""
        if (fd := self.sources[section].fileno()) is None:
            raise ValueError("the step is not held any more")
        return fd


def hold_file(path: Path) -> FileSource:
    """Open a file of a step."""
    return FileSource(path)


@contextlib.contextmanager
def hold_step(
    choose: Choose,
    *,
    directory: Path,
    lock_timeout: float | None = None,
    doubt: Callable[[StepInfo], bool] = lambda _: False,
) -> Iterator[HeldStep]:
    """Choose a step and open its files, again where another process replaces the step meanwhile.

    With a `lock_timeout` the last try keeps those out that save by firekeep. A choice in `doubt` is made again, and holds in the last
    try. Raises what `choose` raises, and `DirectoryBusyError` for a step that is another one at each try.
    """
    number: int | None = None
    with contextlib.ExitStack() as stack:
        for left in reversed(range(TRIES)):
            with contextlib.nullcontext() if left else _kept_still(directory, lock_timeout):
                try:
                    layout, info = choose()
                except NoStepError:
                    if left:  # a step that is being replaced is for a moment not there
                        continue
                    raise
                number = info.step
                if left and doubt(info):
                    continue
                held = _hold(layout, info, stack)
            if held is not None:
                yield held
                return
    raise DirectoryBusyError(
        f"another process replaced step {number} each of the {TRIES} times that its files were opened: they would be of two saves",
        path=directory,
        remedy="Try again when nobody saves this step any more, or ask for a step by a number that stays as it is.",
    )


def _hold(layout: Layout, info: StepInfo, stack: contextlib.ExitStack) -> HeldStep | None:
    """Open the files of a step; None where they are not those of one save."""
    with contextlib.ExitStack() as tried:
        try:
            held = _open_all(info, tried)
        except FileNotFoundError:
            return None
        if not _is_still(layout, held):
            return None
        stack.push(tried.pop_all())
        return held


def _open_all(info: StepInfo, stack: contextlib.ExitStack) -> HeldStep:
    held = HeldStep(info=info)
    for section, path in info.paths.items():
        held.sources[section] = stack.enter_context(contextlib.closing(hold_file(path)))
        held.marks[section] = _mark(os.fstat(held.fileno(section)))
    return held


def _is_still(layout: Layout, held: HeldStep) -> bool:
    """Say whether the names still lead to the files that are open, and the step is the one that was chosen.

    That is asked once all files are open. No save comes back after another one has taken its place, so that files of two are found:
    the names of those that were opened first lead to others now.
    """
    if SHELVES[layout].look_again(held.info) != held.info:
        return False
    try:
        return all(_mark(path.stat()) == held.marks[section] for section, path in held.info.paths.items())
    except OSError:
        return False


def _mark(status: os.stat_result) -> Mark:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def _kept_still(directory: Path, timeout: float | None) -> Iterator[None]:
    """Keep others from publishing meanwhile; nothing is held where nobody has saved yet, or this process may not write."""
    with contextlib.ExitStack() as stack:
        if timeout is not None and (directory / LOCK).exists():
            with contextlib.suppress(OSError, FirekeepError):
                stack.enter_context(locked(directory, timeout=min(timeout, _PATIENCE)))
        yield


def _opened(source: FileSource, options: OpenOptions) -> OpenedFile:
    try:
        return OpenedFile(open_source(source, options), source)
    except FirekeepError as error:
        raise error.at(path=source.path)  # noqa: B904 - the same error, with its place
