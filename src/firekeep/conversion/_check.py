"""Comparing what is copied with the digests and the checksums that the source keeps, as it passes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from firekeep import digests
from firekeep.blobs import CHUNK, Blob
from firekeep.entry import TensorEntry, tie_key
from firekeep.errors import DigestError, FirekeepError
from firekeep.loading import exclusion

if TYPE_CHECKING:
    import xxhash

    from firekeep.opened import OpenedFile


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
    entries: Sequence[TensorEntry], known: Mapping[str, str], source: OpenedFile, attester: Attester
) -> tuple[list[TensorEntry], int]:
    """Give the entries with their bytes checked, and how many of them by their digests; the others are by the source's checksums.

    A digest stands under one name of a tied tensor and holds for all of them.
    """
    everything, ties = source.filled(), source.container.ties
    shared = {key: known[name] for name, entry in everything.items() if name in known and (key := tie_key(entry))}
    checked, count = [], 0
    for entry in entries:
        digest = known.get(entry.name) or shared.get(tie_key(entry) or ())
        if digest is None:
            held = entry.name if entry.name in source.entries else ties.get(entry.name, entry.name)
            checked.append(attester.watch(entry, held))
            continue
        count += 1
        checked.append(replace(entry, blob=CheckedBlob(entry, digest, path=source.path)))
    return checked, count


class Attester:
    """Compares tensors with the checksums that their file keeps: whatever they are made of, before the first byte is given.

    Those of an archive are of its members, so that a tensor that is a part of one, or strided, has all of it compared.
    """

    def __init__(self, attest: Callable[[TensorEntry], bool], *, path: str | None) -> None:
        self._attest = attest
        self._path = path
        self._entries: list[TensorEntry] = []
        self._kept: set[Hashable] = set()

    @property
    def count(self) -> int:
        """How many tensors were compared so far, under all names of tied ones."""
        return sum(_key(entry) in self._kept for entry in self._entries)

    def watch(self, entry: TensorEntry, source: str) -> TensorEntry:
        """Give an entry that is compared before it is drawn; `source` is the name under which the file holds it."""
        held = entry if entry.name == source else entry.renamed(source)
        self._entries.append(held)
        return replace(entry, blob=AttestedBlob(entry.blob, lambda: self._require(held)))

    def _require(self, entry: TensorEntry) -> None:
        try:
            if self._attest(entry):
                self._kept.add(_key(entry))
        except FirekeepError as error:
            names = [
                entry.name,
                *(other.name for other in self._entries if other is not entry and self._is_damaged(other)),
            ]
            raise DigestError(
                error.message,
                path=self._path,
                tensor=entry.name,
                remedy=f"Fetch or copy the source again, or leave out what is damaged: {exclusion(names)}.",
            ) from None

    def _is_damaged(self, entry: TensorEntry) -> bool:
        with suppress(FirekeepError):
            self._attest(entry)
            return False
        return True


def _key(entry: TensorEntry) -> Hashable:
    return tie_key(entry) or entry.name


class AttestedBlob(Blob):
    """The bytes of a tensor, given once they are known to be those that the file has a checksum of."""

    __slots__ = ("_base", "_require")

    def __init__(self, base: Blob, require: Callable[[], None]) -> None:
        self._base = base
        self._require = require
        super().__init__(base.nbytes)

    def view(self) -> memoryview:
        """Give the bytes once they are checked."""
        self._require()
        return self._base.view()

    def chunks(self, size: int = CHUNK) -> Iterator[memoryview]:
        """Give the pieces once all of them are checked."""
        self._require()
        yield from self._base.chunks(size)

    def identity(self) -> Hashable | None:
        """Tied tensors are still tied."""
        return self._base.identity()
