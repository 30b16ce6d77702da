"""Windows of files read into memory of one's own, as fast as the memory takes them."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from firekeep.errors import LimitError, TruncatedError
from firekeep.garbage import collector_paused
from firekeep.sources import Source, check_range, remaining

Window = tuple[Source, int, int]
"""A source, an offset in it and a length in bytes."""

ALIGNMENT = 64
ARENA = 64 << 20
"""Bytes that share one allocation: once all arrays of an arena are dropped, its memory goes back."""
GAP = 4096
"""Bytes between two windows that are read along rather than skipped."""
JOB = 16 << 20
LARGE = 1 << 20
"""Bytes of a target, on average, from which on copying them out of a mapping is faster than a gathering read."""
HUGE_PAGE = 2 << 20
THREADS = 2
"""Fresh memory is filled twice as fast by two threads as by one."""
_VECTORS = 1000
_ADDRESS_SPACE = 1 << 46
_MADV_POPULATE_WRITE = 23
_SLOW = 4e-3
_AROUND = 64 << 10
"""Bytes that Linux maps at the first touch of one of them. Touching one in so many before a copy takes a fifth of the time that
`MAP_POPULATE` takes, which goes from page to page."""


def read_windows(windows: Sequence[Window], *, tied: bool = True) -> list[memoryview]:
    """Read windows into fresh writable memory and give a view of each, in the order asked for.

    Views are aligned for their elements. Windows that overlap within one source are read once and share memory: tied tensors stay
    tied, and no more memory is taken than the files hold; with `tied=False` each window has bytes of its own. Memory comes in huge
    pages where the system has them, 64 MiB or one window at a time. Raises `TruncatedError` when a window lies outside its file or
    the file has become shorter.
    """
    for source, offset, length in windows:
        check_range(offset, length, source.size)
    with collector_paused():
        segments, places = _lay_out(windows, tied=tied)
        arenas = [_Arena(size) for size in _arena_sizes(segments)]
        views = [
            arenas[arena].view[place : place + window[2]] if window[2] else memoryview(bytearray())
            for (arena, place), window in zip(places, windows, strict=True)
        ]
        jobs = deque(_jobs(segments, arenas))
    _run(jobs)
    return views


def read_into(windows: Sequence[Window], targets: Sequence[memoryview], finished: list[int]) -> None:
    """Read windows into memory that is there, each into the writable bytes beside it, which are as long.

    The number of each window is appended to `finished` once all its bytes have come, in no particular order: after a failure,
    targets of the others hold old bytes, new ones or some of both. Raises as `read_windows` does; a window outside its file
    is found before anything is read.
    """
    for (source, offset, length), target in zip(windows, targets, strict=True):
        check_range(offset, length, source.size)
        if target.nbytes != length:
            raise ValueError(f"a window of {length} bytes does not fit a target of {target.nbytes}")
    with collector_paused():
        finished += [index for index, (_, _, length) in enumerate(windows) if not length]
        jobs = deque(_jobs_into(windows, targets, finished))
    _run(jobs)


@dataclass(slots=True)
class _Segment:
    """Bytes that lie in memory, from `place` in an arena, as they lie in the file."""

    source: Source
    start: int
    end: int
    arena: int
    place: int

    @property
    def stop(self) -> int:
        """Where the segment ends in its arena."""
        return self.place + self.end - self.start


def _lay_out(windows: Sequence[Window], *, tied: bool) -> tuple[list[_Segment], list[tuple[int, int]]]:
    """Choose an arena and a place in it for each window: beside its neighbour as in the file where that is aligned."""
    order = sorted((id(source), offset, index) for index, (source, offset, length) in enumerate(windows) if length)
    places = [(0, 0)] * len(windows)
    segments: list[_Segment] = []
    last: _Segment | None = None
    for _, offset, index in order:
        source, _, length = windows[index]
        shared = last is not None and offset < last.end
        if last is None or last.source is not source or (shared and not tied) or not _follows(last, offset, length):
            last = _next_segment(last, source, offset, length)
            segments.append(last)
        places[index] = (last.arena, last.place + offset - last.start)
        last.end = max(last.end, offset + length)
    return segments, places


def _follows(last: _Segment, offset: int, length: int) -> bool:
    if offset < last.end:
        return True
    place = last.place + offset - last.start
    # The lowest set bit of a length is a multiple of the element's size, or the length is of no power-of-two elements.
    aligned = place % min(ALIGNMENT, length & -length) == 0
    return aligned and offset - last.end <= GAP and place + length <= ARENA


def _next_segment(last: _Segment | None, source: Source, offset: int, length: int) -> _Segment:
    if last is None:
        return _Segment(source, offset, offset, 0, 0)
    place = -(-last.stop // ALIGNMENT) * ALIGNMENT
    if place + length <= ARENA:
        return _Segment(source, offset, offset, last.arena, place)
    return _Segment(source, offset, offset, last.arena + 1, 0)


def _arena_sizes(segments: list[_Segment]) -> list[int]:
    sizes: dict[int, int] = {}
    for segment in segments:
        sizes[segment.arena] = segment.stop
    return list(sizes.values())


class _Arena:
    """Fresh private memory, in huge pages while these are quick to come by."""

    def __init__(self, nbytes: int) -> None:
        try:
            if nbytes > _ADDRESS_SPACE:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            # Linux places a mapping at a huge page's boundary only if its length is a multiple of one (since 6.13).
            whole = -(-nbytes // HUGE_PAGE) * HUGE_PAGE if nbytes >= HUGE_PAGE else nbytes
            self._map = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise LimitError(
                f"{nbytes} bytes of memory are needed for a copy, and the system refuses them",
                actual=nbytes,
                remedy="Read without a copy.",
            ) from None
        self.view = memoryview(self._map)[:nbytes]

    def prepare(self, place: int, nbytes: int, pages: _Pages) -> None:
        """Choose the pages for a range about to be filled."""
        first = -(-place // HUGE_PAGE) * HUGE_PAGE
        length = min(place + nbytes, self.view.nbytes) - first
        if not hasattr(mmap, "MADV_HUGEPAGE") or length < HUGE_PAGE:
            return
        with contextlib.suppress(OSError):  # a kernel built without huge pages, or older than 5.14
            if huge := pages.may_be_huge():
                self._map.madvise(mmap.MADV_HUGEPAGE, first, length)
                before = time.thread_time()
                self._map.madvise(_MADV_POPULATE_WRITE, first, HUGE_PAGE)
                huge = pages.came_in(time.thread_time() - before)
            if not huge:
                self._map.madvise(mmap.MADV_NOHUGEPAGE, first, length)


@dataclass(slots=True)
class _Pages:
    """Whether huge pages are worth asking for: of a thread, as it goes from job to job.

    A huge page at hand takes 0.1 to 0.5 ms. One that a virtual machine must first get back from its host takes ten, and then small
    pages, of which enough are at hand, are faster. One slow page does not say that all are: after the first of a row one job goes on
    with small pages, after the second two, then four, and so on.
    """

    pause: int = 1
    paused: int = 0

    def may_be_huge(self) -> bool:
        """Say whether the next job is to try."""
        self.paused -= 1
        return self.paused < 0

    def came_in(self, seconds: float) -> bool:
        """Take note of how long a huge page took, and say whether that was fast."""
        if seconds < _SLOW:
            self.pause = 1
            return True
        self.paused, self.pause = self.pause, 2 * self.pause
        return False


@dataclass(slots=True)
class _Job:
    """One gathering read: consecutive bytes of a file, scattered to `targets`."""

    source: Source
    start: int
    end: int
    targets: list[memoryview]
    arena: _Arena | None = None
    place: int = 0
    whole: list[int] = field(default_factory=list)
    """The windows that end in this job and began in it."""
    counts: list[_Count] = field(default_factory=list)
    """Those that are cut."""
    finished: list[int] | None = None

    def prepare(self, pages: _Pages) -> None:
        """See `_Arena.prepare`; where later targets lie a little further on, the advice is near enough."""
        if self.arena is not None:
            self.arena.prepare(self.place, self.end - self.start, pages)

    def run(self) -> None:
        """Fill the targets, however many reads it takes, and count that in."""
        self._fill()
        if self.finished is not None:
            self.finished += self.whole
        for count in self.counts:
            count.one_done()

    def _fill(self) -> None:
        fd = self.source.fileno()
        if fd is None:
            self._copy(self.source.view(self.start, self.end - self.start))
        elif (mapped := self._mapped(fd)) is not None:
            self._copy(mapped)
        else:
            self._read(fd)

    def _mapped(self, fd: int) -> memoryview | None:
        """Map the bytes if they are in the page cache and few targets take them.

        Copying from a mapping whose pages are large takes a tenth to a half less time than the system takes to copy for `preadv`. With
        small pages, such as files have that were written in small parts, it takes longer, and from a disk the system reads ahead better
        for `preadv`. The mapping is this job's own and goes with it: bytes that were read do not count as memory of the process for
        longer. A file that is cut short in the very milliseconds of the copy stops the process, as it would under any view of a mapping;
        one cut short before is found.
        """
        length = self.end - self.start
        if length < LARGE * len(self.targets) or not _is_cached(fd, self.end - 1):
            return None
        # A mapping can have large pages where it begins at the boundary of one.
        before = self.start % HUGE_PAGE
        try:
            mapped = mmap.mmap(
                fd, before + length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=self.start - before
            )
        except (OSError, ValueError):  # a file system that cannot map, or a file that is shorter now
            return None
        return memoryview(mapped)[before:]

    def _read(self, fd: int) -> None:
        offset, targets = self.start, self.targets
        while True:
            got = os.preadv(fd, targets, offset)
            offset += got
            if offset == self.end:
                return
            if got == 0:
                raise TruncatedError(
                    f"the file had {self.source.size} bytes when it was opened and ends at {offset} now",
                    path=self.source.path,
                    limit=self.source.size,
                    actual=offset,
                )
            targets = remaining(targets, got)

    def _copy(self, values: memoryview) -> None:
        import numpy as np

        given, place = np.frombuffer(values, np.uint8), 0
        given[::_AROUND].max()
        for target in self.targets:
            end = place + target.nbytes
            # Unlike an assignment to a view, NumPy lets other threads run meanwhile.
            np.copyto(np.frombuffer(target, np.uint8), given[place:end])
            place = end


def _is_cached(fd: int, offset: int) -> bool:
    """Say whether a byte of a file is in memory already; where the system cannot tell, it is not."""
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except (OSError, AttributeError):  # not cached, or a file system or a system that cannot tell
        return False


@dataclass(slots=True)
class _Count:
    """The jobs that a window still waits for, one element each. The first element is taken last, and tells."""

    index: int
    finished: list[int]
    waiting: list[bool]

    def one_done(self) -> None:
        """Take one off: a list does that at once for both threads, where a number would need a lock."""
        if self.waiting.pop():
            self.finished.append(self.index)


def _jobs_into(windows: Sequence[Window], targets: Sequence[memoryview], finished: list[int]) -> list[_Job]:
    """Cut windows into jobs, those next to each other in the file into one."""
    jobs: list[_Job] = []
    waste = memoryview(bytearray(GAP))
    order = sorted((id(source), offset, index) for index, (source, offset, length) in enumerate(windows) if length)
    last: _Job | None = None
    for _, offset, index in order:
        source, _, length = windows[index]
        count = _Count(index, finished, [True] + [False] * (-(-length // JOB) - 1)) if length > JOB else None
        for start in range(offset, offset + length, JOB):
            end = min(start + JOB, offset + length)
            if last is None or last.source is not source or not _joins(last, start, end):
                last = _Job(source, start, start, [], finished=finished)
                jobs.append(last)
            elif start > last.end:
                last.targets.append(waste[: start - last.end])
            last.targets.append(targets[index] if count is None else targets[index][start - offset : end - offset])
            last.end = end
            if count is None:
                last.whole.append(index)
            else:
                last.counts.append(count)
    return jobs


def _jobs(segments: list[_Segment], arenas: list[_Arena]) -> list[_Job]:
    jobs: list[_Job] = []
    waste = memoryview(bytearray(GAP))
    for segment in segments:
        arena = arenas[segment.arena]
        for start in range(segment.start, segment.end, JOB):
            end = min(start + JOB, segment.end)
            place = segment.place + start - segment.start
            target = arena.view[place : place + end - start]
            last = jobs[-1] if jobs else None
            if last is not None and last.source is segment.source and _joins(last, start, end):
                if start > last.end:
                    last.targets.append(waste[: start - last.end])
                last.targets.append(target)
                last.end = end
            else:
                jobs.append(_Job(segment.source, start, end, [target], arena, place))
    return jobs


def _joins(job: _Job, start: int, end: int) -> bool:
    return 0 <= start - job.end <= GAP and end - job.start <= JOB and len(job.targets) < _VECTORS


def _run(jobs: deque[_Job]) -> None:
    """Run the jobs on this thread, and on a second one where there is enough to do; a failure stops both."""
    failures: list[BaseException] = []

    def work() -> None:
        pages = _Pages()
        try:
            while not failures and (job := _next(jobs)) is not None:
                job.prepare(pages)
                job.run()
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            failures.append(error)

    helpers = [threading.Thread(target=work, daemon=True) for _ in range(_helpers(len(jobs)))]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]


def _next(jobs: deque[_Job]) -> _Job | None:
    try:
        return jobs.popleft()
    except IndexError:
        return None


def _helpers(jobs: int) -> int:
    able = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, min(THREADS, able, jobs) - 1)
