"""Tensors that are listed, and have no bytes to give; and what a check says of bools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from firekeep.blobs import Blob
from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.errors import UnsupportedError
from firekeep.formats._protocol import Finding
from firekeep.wording import count

_SHOWN = 5


class NoBlob(Blob):
    """The bytes of a tensor that has none to give; `nbytes` is what it would take."""

    __slots__ = ("_reason",)

    def __init__(self, nbytes: int, reason: str) -> None:
        self._reason = reason
        super().__init__(nbytes)

    def view(self) -> memoryview:
        """Raise `UnsupportedError` with the reason."""
        raise UnsupportedError(self._reason)


def absent(
    name: str, shape: tuple[int, ...], problem: str, *, dtype: DType | None = None, nbytes: int = 0
) -> TensorEntry:
    """List a tensor that no bytes can be given for."""
    return TensorEntry(name, dtype, shape, NoBlob(nbytes, problem), problem=problem)


def tell_absent(entries: Iterable[TensorEntry]) -> Iterator[str]:
    """Say in one note which tensors have no bytes, and why."""
    lost = [entry for entry in entries if entry.problem is not None]
    if lost:
        told = ", ".join(f"{entry.name!r}: {entry.problem}" for entry in lost[:_SHOWN])
        more = f" and {len(lost) - _SHOWN:,} more" if len(lost) > _SHOWN else ""
        yield f"{count(len(lost), 'tensor')} cannot be given: {told}{more}"


def check_bools(entries: Iterable[TensorEntry]) -> Iterator[Finding]:
    """Warn of bools that are neither 0 nor 1: an array of such bools computes nonsense."""
    for entry in entries:
        if entry.problem is None and entry.dtype is not None and entry.dtype.kind == "bool":
            odd = sum(len(bytes(piece).translate(None, b"\0\1")) for piece in entry.blob.chunks())
            if odd:
                yield Finding("warning", entry.name, f"{odd} of {entry.nbytes} booleans are neither 0 nor 1")
