"""A state copied into memory that is kept from one save to the next, as fast as the memory takes it."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import replace

from firekeep.blobs import Blob, expecting
from firekeep.entry import TensorEntry, tie_key
from firekeep.errors import EntryError, FirekeepError, LimitError
from firekeep.garbage import collector_paused
from firekeep.sections import Section

ALIGNMENT = 64
PIECE = 8 << 20
BATCH = 64 << 20
"""Bytes drawn before they are copied: no more than these, and one tensor, exist besides the state and its copy."""
HUGE_PAGE = 2 << 20
_MADV_POPULATE_WRITE = 23
_MADV_WIPEONFORK = 18
_SMALL = 32 << 10

_Copy = tuple[memoryview, memoryview]


class Buffers:
    """Memory for one snapshot. It grows when a state has grown, and is never shared with processes forked meanwhile."""

    def __init__(self) -> None:
        self._view = memoryview(b"")

    @property
    def nbytes(self) -> int:
        """The memory held."""
        return self._view.nbytes

    def reserve(self, nbytes: int, *, populate: bool = False) -> None:
        """Have at least so much memory; with `populate` all its pages are taken now, where they come at first use otherwise."""
        if nbytes > self._view.nbytes:
            self._view = memoryview(b"")  # the old memory goes before the new is asked for
            self._view = _allocate(nbytes)
        if populate and self._view.nbytes:
            _populate(self._view)

    def snapshot(self, sections: Sequence[Section]) -> list[Section]:
        """Copy the tensors of a state here, and give sections that hold the copies, until the next snapshot.

        Tied tensors are copied once and stay tied; bytes that no program changes are held where they are. Errors name the tensor.
        """
        with collector_paused():
            return self._snapshot(sections)

    def _snapshot(self, sections: Sequence[Section]) -> list[Section]:
        drawn = [(section, list(map(_lasting, section.contents.entries))) for section in sections]
        places, nbytes = _lay_out([entry for _, entries in drawn for entry in entries])
        self.reserve(nbytes)
        copier = _Copier()
        copied: set[int] = set()
        taken = []
        spots = iter(places)
        try:
            for section, entries in drawn:
                ahead = expecting([entry.blob for entry in entries])
                held = [self._hold(entry, next(spots), copier, copied) for entry, _ in zip(entries, ahead, strict=True)]
                contents = replace(
                    section.contents,
                    entries=held,
                    metadata=dict(section.contents.metadata),
                    scalars=dict(section.contents.scalars),
                )
                taken.append(replace(section, contents=contents))
            copier.flush()
        finally:
            copier.close()
        return taken

    def _hold(self, entry: TensorEntry, place: int, copier: _Copier, copied: set[int]) -> TensorEntry:
        entry.require()  # what cannot be saved is told here, and not by the call after this one
        nbytes = entry.blob.nbytes
        if not nbytes or isinstance(entry.blob, _Lasting):
            return entry
        target = self._view[place : place + nbytes]
        if place not in copied:
            copied.add(place)
            copier.add(target, entry)
        held = _Held(target, (id(self), place))
        return TensorEntry(entry.name, entry.dtype, entry.shape, held, entry.param_id)


class _Held(Blob):
    """Bytes in the buffers. Tens of thousands are made while the training loop waits: there is no lighter way to say it."""

    __slots__ = ("_identity", "_view")

    def __init__(self, view: memoryview, identity: Hashable | None) -> None:
        self._view = view
        self._identity = identity
        self.nbytes = view.nbytes

    def view(self) -> memoryview:
        return self._view

    def identity(self) -> Hashable | None:
        return self._identity


class _Lasting(_Held):
    """Bytes that need no copy: no program changes them where they are."""

    __slots__ = ()


def _lasting(entry: TensorEntry) -> TensorEntry:
    view = entry.blob.lasting() if entry.problem is None else None
    if view is None:
        return entry
    held = _Lasting(view, entry.blob.identity())
    return TensorEntry(entry.name, entry.dtype, entry.shape, held, entry.param_id)


def room_for(sections: Sequence[Section]) -> int:
    """Say how much memory a snapshot takes."""
    return _lay_out([_lasting(entry) for section in sections for entry in section.contents.entries])[1]


def size_of(sections: Sequence[Section]) -> int:
    """Say how many bytes the tensors of a state are, tied ones once."""
    entries = [entry for section in sections for entry in section.contents.entries if entry.problem is None]
    return sum({tie_key(entry) or number: entry.nbytes for number, entry in enumerate(entries)}.values())


def _lay_out(entries: Sequence[TensorEntry]) -> tuple[list[int], int]:
    """Give each tensor a place, tied ones the same."""
    places: list[int] = []
    known: dict[object, int] = {}
    end = 0
    for entry in entries:
        key = tie_key(entry)
        place = end if key is None else known.setdefault(key, end)
        places.append(place)
        if place == end and entry.problem is None and not isinstance(entry.blob, _Lasting):
            end += -(-entry.nbytes // ALIGNMENT) * ALIGNMENT
    return places, end


def _allocate(nbytes: int) -> memoryview:
    whole = -(-nbytes // HUGE_PAGE) * HUGE_PAGE if nbytes >= HUGE_PAGE else nbytes
    try:
        memory = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError):
        raise LimitError(
            f"{nbytes} bytes of memory are needed for a copy of the state, and the system refuses them",
            actual=nbytes,
            remedy="Save with background=False, which needs none.",
        ) from None
    # Workers forked later would make every page be copied again. They get empty ones: with none at all, one that saves would crash.
    for advice in (getattr(mmap, "MADV_HUGEPAGE", None), _MADV_WIPEONFORK if sys.platform == "linux" else None):
        if advice is not None:
            with contextlib.suppress(OSError):
                memory.madvise(advice)
    return memoryview(memory)


def _populate(view: memoryview) -> None:
    memory = view.obj
    assert isinstance(memory, mmap.mmap)  # noqa: S101
    try:
        memory.madvise(_MADV_POPULATE_WRITE)
    except (OSError, AttributeError):  # a kernel older than 5.14
        for start in range(0, view.nbytes, mmap.PAGESIZE):
            view[start : start + 1] = b"\0"


class _Copier:
    """Copies on this thread and a second one, a batch at a time."""

    def __init__(self) -> None:
        self._batch: deque[_Copy] = deque()
        self._waiting = 0
        self._helper: _Helper | None = None

    def add(self, target: memoryview, entry: TensorEntry) -> None:
        """Draw a tensor and have it copied."""
        nbytes = target.nbytes
        if nbytes > BATCH:
            self._add_pieces(target, entry)
            return
        view = entry.read()
        if nbytes <= _SMALL:
            target[:] = view
        else:
            self._put(target, view)

    def _add_pieces(self, target: memoryview, entry: TensorEntry) -> None:
        position = 0
        try:
            for piece in entry.blob.chunks(PIECE):
                if position + piece.nbytes > target.nbytes:
                    raise EntryError(f"{target.nbytes} bytes were declared, and more came")
                self._put(target[position : position + piece.nbytes], piece)
                position += piece.nbytes
        except FirekeepError as error:
            raise error.at(tensor=entry.name)  # noqa: B904 - the same error, with its place
        if position < target.nbytes:
            raise EntryError(f"{target.nbytes} bytes were declared, {position} came", tensor=entry.name)

    def _put(self, target: memoryview, piece: memoryview) -> None:
        for start in range(0, piece.nbytes, PIECE):
            self._batch.append((target[start : start + PIECE], piece[start : start + PIECE]))
        self._waiting += piece.nbytes
        if self._waiting >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Copy what waits."""
        if len(self._batch) > 1 and self._helper is None and _cpus() > 1:
            self._helper = _Helper()
        batch, self._batch, self._waiting = self._batch, deque(), 0
        if self._helper is not None and len(batch) > 1:
            self._helper.start(batch)
            try:
                _copy_all(batch)
            finally:
                self._helper.finish()
        else:
            _copy_all(batch)

    def close(self) -> None:
        """Let the second thread go."""
        if self._helper is not None:
            self._helper.close()


class _Helper:
    """A second thread, for as long as a snapshot takes."""

    def __init__(self) -> None:
        self._go = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._batch: deque[_Copy] | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="firekeep-snapshot", daemon=True)
        self._thread.start()

    def start(self, batch: deque[_Copy]) -> None:
        self._batch = batch
        self._go.release()

    def finish(self) -> None:
        self._done.acquire()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._batch = None
        self._go.release()
        self._thread.join()

    def _work(self) -> None:
        while True:
            self._go.acquire()
            if self._batch is None:
                return
            try:
                _copy_all(self._batch)
            except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
                self._failure = error
            self._done.release()


def _copy_all(batch: deque[_Copy]) -> None:
    import numpy as np

    while True:
        try:
            target, source = batch.popleft()
        except IndexError:
            return
        # Other threads run meanwhile: NumPy lets go of the interpreter, a memoryview's own assignment does not.
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
