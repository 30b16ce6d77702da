"""Bytes on their way to the disk: small ones gathered, large ones straight from where they are."""

from __future__ import annotations

import errno
from collections.abc import Callable

from firekeep.blobs import CHUNK, expecting
from firekeep.disk._plan import Part, WritePlan, draw, draw_pieces
from firekeep.disk._scratch import Scratch
from firekeep.errors import TruncatedError

SMALL = 64 << 10
"""Up to this size a tensor is copied into a buffer, so that thousands go out in one call."""

Progress = Callable[[int], None]
Observer = Callable[[str, memoryview], None]


def write_parts(
    scratch: Scratch, plan: WritePlan, *, write_behind: bool, progress: Progress | None, observe: Observer | None
) -> None:
    """Write all parts and the zeros between them. A tensor's bytes are let go of before the next are drawn."""
    stream = _Stream(scratch, write_behind=write_behind, progress=progress)
    for part, _ in zip(plan.parts, expecting([part.blob for part in plan.parts]), strict=True):
        if part.offset != stream.position:
            stream.fill(part.offset)
        for piece in draw_pieces(part) if part.blob.nbytes > SMALL else (draw(part),):
            if observe is not None and part.tensor is not None:
                observe(part.tensor, piece)
            stream.add(piece, part)
            del piece
    stream.fill(plan.nbytes)
    stream.flush()


class _Stream:
    def __init__(self, scratch: Scratch, *, write_behind: bool, progress: Progress | None) -> None:
        self.position = 0
        self._scratch = scratch
        self._write_behind = write_behind
        self._progress = progress
        self._staged = bytearray()
        self._written = 0
        self._started = 0

    def fill(self, offset: int) -> None:
        """Put zeros up to an offset."""
        gap = offset - self.position
        if gap < 0:
            raise ValueError(f"a part begins at {offset}, {-gap} bytes before the end of the one before it")
        while gap > 0:
            zeros = bytes(min(gap, 64 << 10))
            gap -= len(zeros)
            self._stage(zeros)

    def add(self, view: memoryview, part: Part) -> None:
        """Put bytes next."""
        if view.nbytes <= SMALL:
            self._stage(view)
            return
        try:
            for start in range(0, view.nbytes, CHUNK):
                self.flush(view[start : start + CHUNK])
        except OSError as error:
            if error.errno == errno.EFAULT:
                raise TruncatedError(
                    "its bytes are gone: the file they are read from has been cut short", tensor=part.tensor
                ) from None
            raise

    def _stage(self, data: memoryview | bytes) -> None:
        self._staged += data
        self.position = self._written + len(self._staged)
        if len(self._staged) >= CHUNK:
            self.flush()

    def flush(self, view: memoryview | None = None) -> None:
        """Write out what is gathered, and a view behind it."""
        before = self._written
        for data in (memoryview(self._staged), view):
            if data is not None:
                self._scratch.write(data, self._written)
                self._written += data.nbytes
        self.position = self._written
        self._staged = bytearray()
        if self._write_behind and self._written - self._started >= CHUNK:
            self._scratch.write_behind(self._started, self._written - self._started)
            self._started = self._written
        if self._progress is not None and self._written > before:
            self._progress(self._written - before)
