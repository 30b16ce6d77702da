"""The waist of the house: one named tensor, between a file and a framework."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat

from firekeep.blobs import Blob, UnsharedBlob
from firekeep.dtypes import DType
from firekeep.errors import EntryError, FirekeepError, LimitError, UnsupportedError
from firekeep.ids import ParamId


# Not frozen: a file of 20,000 tensors makes as many of these, and a frozen dataclass takes four times as long to make.
@dataclass(slots=True)
class TensorEntry:
    """A tensor by name, with bytes that may not exist yet.

    `blob` gives contiguous, row-major, little-endian bytes of exactly `dtype.nbytes(shape)`. `problem`, where set, says why no
    bytes can be had (a sparse tensor, an unknown dtype, a missing storage): the entry is listed, and refused when touched.
    Entries are never changed: `renamed` and `dataclasses.replace` give new ones.
    `dtype` is None only beside a problem.
    """

    name: str
    dtype: DType | None
    shape: tuple[int, ...]
    blob: Blob
    param_id: ParamId | None = None
    problem: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor as declared."""
        return self.blob.nbytes

    @property
    def numel(self) -> int:
        """How many elements the shape holds; a rank-0 tensor holds one."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def require(self) -> DType:
        """Give the dtype, or raise `UnsupportedError` naming the tensor and why it has no bytes."""
        if self.problem is not None or self.dtype is None:
            raise UnsupportedError(self.problem or "its dtype is unknown", tensor=self.name)
        return self.dtype

    def read(self) -> memoryview:
        """Draw the bytes: a window of the file where they lie there as they are, else a fresh buffer.

        Errors name the tensor; raises `EntryError` when another length than declared comes.
        """
        self.require()
        try:
            view = self.blob.view()
        except FirekeepError as error:
            raise error.at(tensor=self.name)  # noqa: B904 - the same error, with its place
        except MemoryError:  # an expanded view of a few bytes may be larger than any memory
            raise LimitError(
                f"{self.nbytes} bytes of memory are needed for it, and the system refuses them",
                tensor=self.name,
                actual=self.nbytes,
            ) from None
        if view.nbytes != self.blob.nbytes:
            raise EntryError(f"{self.blob.nbytes} bytes were declared, {view.nbytes} came", tensor=self.name)
        return view

    def renamed(self, name: str) -> TensorEntry:
        """Give the same tensor under another name."""
        return replace(self, name=name)


def make_entries(
    names: Iterable[str],
    dtypes: Iterable[DType | None],
    shapes: Iterable[tuple[int, ...]],
    blobs: Iterable[Blob],
    *,
    param_ids: Iterable[ParamId | None] = repeat(None),
    problems: Iterable[str | None] = repeat(None),
) -> Iterator[TensorEntry]:
    """Make many entries from columns of equal length, each when it is asked for."""
    return map(TensorEntry, names, dtypes, shapes, blobs, param_ids, problems)


def untied(entry: TensorEntry) -> TensorEntry:
    """Give the same tensor with bytes of its own, as far as a writer can tell: it is stored whole under its own name."""
    return replace(entry, blob=UnsharedBlob(entry.blob))


def tie_key(entry: TensorEntry) -> tuple[object, ...] | None:
    """Say where a tensor's bytes are, or None when it shares them with nobody.

    Two entries with equal keys are one tensor under two names. Empty tensors are never tied.
    """
    identity = entry.blob.identity()
    if identity is None or entry.blob.nbytes == 0 or entry.problem is not None:
        return None
    return (identity, entry.dtype, entry.shape)


def find_ties(entries: list[TensorEntry]) -> dict[str, str]:
    """Map each further name of a tensor to the first one, in the order given."""
    first: dict[tuple[object, ...], str] = {}
    ties = {}
    for entry in entries:
        key = tie_key(entry)
        if key is not None and first.setdefault(key, entry.name) != entry.name:
            ties[entry.name] = first[key]
    return ties
