"""How much one scan may do, over all members and pickles of a file together."""

from __future__ import annotations

from dataclasses import replace

from firekeep.limits import Limits

INFLATED_BYTES = 64 << 20
_FREE = 500_000
_EACH_BYTE = 8
_START = 100
"""What to start on a pickle counts for, in opcodes."""
_SHOWN = 3


class Budget:
    """What is left of the opcodes and of the bytes to inflate, and the names of what was not looked at.

    All pickles together may take what one may, and less in a small file: a few kilobytes can be packed so that they hold a hundred
    pickles, each as long as it is allowed to be.
    """

    def __init__(self, limits: Limits, size: int) -> None:
        self.inflatable = INFLATED_BYTES
        self.left = min(limits.pickle_opcodes, _FREE + _EACH_BYTE * size)
        self._limits = limits
        self._unseen = 0
        self._shown: list[str] = []

    def limits(self) -> Limits | None:
        """Give the limits for the next pickle, None when nothing is left for it."""
        return replace(self._limits, pickle_opcodes=self.left) if self.left > 0 else None

    def spend(self, opcodes: int) -> None:
        """Count what a pickle took."""
        self.left -= opcodes + _START

    def inflate(self, nbytes: int) -> bool:
        """Count bytes about to be inflated, and say whether they may be."""
        if nbytes > self.inflatable or self.left <= 0:
            return False
        self.inflatable -= nbytes
        return True

    def skip(self, name: str) -> None:
        """Note what is not looked at, or not to its end."""
        self._unseen += 1
        if len(self._shown) < _SHOWN:
            self._shown.append(repr(name[:200]) if name else "the rest of the file")

    def verdict(self) -> str | None:
        """Say what was not looked at, and why; None when all was."""
        if not self._unseen:
            return None
        names = ", ".join(self._shown) + (f" and {self._unseen - _SHOWN} more" if self._unseen > _SHOWN else "")
        return (
            f"not scanned, or not to the end: {names}: more than {INFLATED_BYTES:,} bytes in all would be inflated to be looked at, "
            f"or more opcodes read than limits.pickle_opcodes lets all pickles of a file have together"
        )
