"""Comparing what is copied with the digests that the source keeps, as it passes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from firekeep import digests
from firekeep.blobs import CHUNK, Blob
from firekeep.entry import TensorEntry, tie_key
from firekeep.errors import DigestError
from firekeep.loading import exclusion

if TYPE_CHECKING:
    import xxhash


class CheckedBlob(Blob):
    """The bytes of a tensor, refused with its last piece when they are not those of its digest."""

    __slots__ = ("_base", "_digest", "_name", "_path")

    def __init__(self, entry: TensorEntry, digest: str, *, path: str | None) -> None:
        self._base = entry.blob
        self._name = entry.name
        self._digest = digest
        self._path = path
        super().__init__(entry.blob.nbytes)

    def view(self) -> memoryview:
        """Give the bytes once they are checked."""
        view = self._base.view()
        running = digests.new_digest()
        running.update(view)
        self._compare(running)
        return view

    def chunks(self, size: int = CHUNK) -> Iterator[memoryview]:
        """Give the pieces as they come; the error follows the last of them, and who writes them publishes nothing then."""
        running = digests.new_digest()
        for chunk in self._base.chunks(size):
            running.update(chunk)
            yield chunk
            del chunk  # the next piece is made when this one is gone
        self._compare(running)

    def identity(self) -> Hashable | None:
        """Tied tensors are still tied."""
        return self._base.identity()

    def _compare(self, running: xxhash.xxh3_128) -> None:
        if (found := running.hexdigest()) != self._digest:
            raise DigestError(
                f"its bytes are not those it was saved with: {found}, not {self._digest}",
                path=self._path,
                tensor=self._name,
                remedy=f"Fetch or copy the source again, or leave the tensor out: {exclusion([self._name])}.",
            )


def check_entries(
    entries: Sequence[TensorEntry], known: Mapping[str, str], everything: Mapping[str, TensorEntry], *, path: str | None
) -> tuple[list[TensorEntry], int]:
    """Give the entries with their bytes checked where there is a digest of them, and how many those are.

    A digest stands under one name of a tied tensor and holds for all of them.
    """
    shared = {key: known[name] for name, entry in everything.items() if name in known and (key := tie_key(entry))}
    checked, count = [], 0
    for entry in entries:
        digest = known.get(entry.name) or shared.get(tie_key(entry) or ())
        if digest is None:
            checked.append(entry)
            continue
        count += 1
        checked.append(replace(entry, blob=CheckedBlob(entry, digest, path=path)))
    return checked, count
