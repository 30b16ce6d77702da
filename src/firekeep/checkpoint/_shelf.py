"""What the two ways of laying out steps have in common: a folder for each step, or Burn's files side by side."""

from __future__ import annotations

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path

from firekeep.blobs import MemoryBlob
from firekeep.checkpoint._catalog import Layout
from firekeep.checkpoint._digest import digested
from firekeep.checkpoint._names import MANIFEST, file_name, section_of, step_name
from firekeep.checkpoint._seen import Seen
from firekeep.checkpoint._step import IncompleteStep, StepFile, StepInfo
from firekeep.disk import Part, WritePlan, is_scratch, write_file
from firekeep.errors import FirekeepError
from firekeep.formats import FORMATS, Contents
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.saving import prepare
from firekeep.sections import Section

Found = tuple[list[StepInfo], list[IncompleteStep]]


class Pen:
    """Writes the files of a step into its scratch folder."""

    def __init__(self, folder: Path, *, durable: bool, digest: bool, limits: Limits = DEFAULT_LIMITS) -> None:
        self.folder = folder
        self._durable = durable
        self._digest = digest
        self._limits = limits

    def write(self, section: str, contents: Contents, name: str | None = None) -> StepFile:
        """Write a section, as a burnpack file, and say what was written."""
        name = name or file_name(section)
        path = self.folder / name
        try:
            plan, _, _ = prepare(contents, FORMATS["burnpack"], digest=False, limits=self._limits)
            digest = None
            if self._digest:
                plan, digest = digested(plan)
            write_file(path, plan, durable=self._durable)
        except FirekeepError as error:
            raise error.at(path=path)  # noqa: B904 - the same error, with its place
        return StepFile(section=section, name=name, nbytes=plan.nbytes, xxh3=digest and digest.hexdigest())

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a small file."""
        plan = WritePlan(nbytes=len(data), parts=[Part(0, MemoryBlob(data))])
        write_file(self.folder / name, plan, durable=self._durable)


class Shelf(ABC):
    """A way of laying out steps in a directory. All that moves or removes something is called with the directory's lock held."""

    layout: Layout

    @abstractmethod
    def scan(self, directory: Path, names: Sequence[str], seen: Seen) -> Found:
        """Find the steps among the names of a directory."""

    @abstractmethod
    def numbers(self, names: Iterable[str]) -> set[int]:
        """Tell which steps the names of a directory speak of, complete or not."""

    @abstractmethod
    def look(self, directory: Path, step: int, seen: Seen | None = None) -> StepInfo | IncompleteStep | None:
        """Look for one step. What was `seen` of it before is not read again while its files are the same."""

    def look_again(self, info: StepInfo) -> StepInfo | IncompleteStep | None:
        """Look for a step where it was found."""
        return self.look(info.folder, info.step)

    @abstractmethod
    def write(self, pen: Pen, sections: Sequence[Section], info: StepInfo) -> StepInfo:
        """Write all files of a step into its scratch folder, the one that makes it complete last."""

    @abstractmethod
    def publish(self, directory: Path, scratch: Path, info: StepInfo, *, aside: Path, durable: bool) -> None:
        """Put a written step in its place; what is there of it already goes to the folder `aside`, which does not exist yet."""

    @abstractmethod
    def take(self, directory: Path, info: StepInfo, *, into: Path) -> None:
        """Take a step out of its place, into a folder that does not exist yet: from the first move on it is no step any more."""

    @abstractmethod
    def put_back(self, directory: Path, aside: Path, step: int) -> bool:
        """Put a step that was to be replaced back where it was, unless the new one is there; says whether it was put back."""

    @abstractmethod
    def finish_taking(self, directory: Path, doomed: Path, step: int) -> None:
        """Go on with a deletion that was cut short."""


def listed(folder: Path) -> list[str]:
    """List the names in a folder, in order; none where there is no folder."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names alone
    except (FileNotFoundError, NotADirectoryError):
        return []


def sync(folder: Path) -> None:
    """Bring the names in a folder to the disk; file systems that cannot do that have nothing to wait for."""
    fd = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(fd)


def clear(folder: Path, step: int) -> Path | None:
    """Remove a scratch folder and what firekeep has written in it.

    Files of others come to light again in a folder with a plain name, which is given.
    """
    if folder.is_symlink():
        folder.unlink()  # where it leads is somebody else's
        return None
    for name in listed(folder):
        if name == MANIFEST or is_scratch(name) or section_of(name) is not None:
            with contextlib.suppress(OSError):
                (folder / name).unlink()
    try:
        folder.rmdir()
    except FileNotFoundError:
        return None
    except OSError:
        if any(listed(folder)):
            spare = spare_path(folder.parent / step_name(step), "left")
            with contextlib.suppress(OSError):
                folder.rename(spare)
                return spare
    return None


def spare_path(path: Path, word: str) -> Path:
    """Find a free name beside a path, for what must not be lost."""
    number = 1
    while os.path.lexists(spare := path.with_name(f"{path.name}.{word}-{number}")):
        number += 1
    return spare
