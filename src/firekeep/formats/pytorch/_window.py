"""A part of a file as a file of its own: the members of archives."""

from __future__ import annotations

from firekeep.sources import Source, check_range


class Window:
    """Bytes `start` to `start + size` of a source. Offsets in messages count from `start`."""

    def __init__(self, source: Source, start: int, size: int) -> None:
        self.source = source
        self.start = start
        self.size = size
        self.path: str | None = source.path

    def view(self, offset: int, length: int) -> memoryview:
        """Give a window of the window."""
        check_range(offset, length, self.size)
        return self.source.view(self.start + offset, length)

    def fileno(self) -> int | None:
        """A part of a file has no descriptor of its own."""
        return None

    def close(self) -> None:
        """The file is closed by whoever opened it."""
