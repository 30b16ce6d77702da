"""The tensors of an open file: a mapping that makes entries when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, repeat
from operator import itemgetter

from firekeep.blobs import WindowBlob
from firekeep.entry import TensorEntry, make_entries
from firekeep.formats._rows import Rows
from firekeep.formats.safetensors._table import Form, Table
from firekeep.garbage import collector_paused
from firekeep.sources import Source

_DTYPE, _SHAPE, _NBYTES, _PROBLEM = (itemgetter(place) for place in range(4))


class Entries(Rows):
    """Name -> entry, in the order the data lie. `start` is where the data begin in the file.

    Entries are made anew whenever they are looked at, and none is kept: who lists tens of thousands holds one at a time. The first
    tensor asked for by name is looked up alone, as most who ask for one ask for no other; names are sorted in with the second.
    """

    def __init__(self, source: Source, table: Table, start: int) -> None:
        self._source = source
        self._table = table
        self._start = start
        self._asked = False
        self._listed: tuple[list[str], list[Form]] | None = None
        self._places: dict[str, tuple[Form, int]] | None = None

    def __getitem__(self, name: str) -> TensorEntry:
        if self._places is None and not self._asked:
            self._asked = True
            found = self._table.find(name)
        else:
            found = self._by_name().get(name)
        if found is None:
            raise KeyError(name)
        (dtype, shape, nbytes, problem), begin = found
        return TensorEntry(name, dtype, shape, WindowBlob(self._source, begin + self._start, nbytes), problem=problem)

    def __contains__(self, name: object) -> bool:
        if self._places is not None:
            return name in self._places
        return isinstance(name, str) and self._table.find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns()[0])

    def __len__(self) -> int:
        return len(self._table)

    def rows(self) -> Iterator[TensorEntry]:
        """Make all entries, one by one."""
        names, forms = self._columns()
        begins = accumulate(map(_NBYTES, forms), initial=self._start)
        blobs = map(WindowBlob, repeat(self._source), begins, map(_NBYTES, forms))
        return make_entries(names, map(_DTYPE, forms), map(_SHAPE, forms), blobs, problems=map(_PROBLEM, forms))

    def named_rows(self) -> Iterator[tuple[str, TensorEntry]]:
        """Make all entries, each beside its name."""
        return zip(self._columns()[0], self.rows(), strict=True)

    def _columns(self) -> tuple[list[str], list[Form]]:
        if self._listed is None:
            with collector_paused():
                self._listed = self._table.names(), self._table.forms()
        return self._listed

    def _by_name(self) -> dict[str, tuple[Form, int]]:
        if self._places is None:
            with collector_paused():
                names, forms = self._columns()
                begins = accumulate(map(_NBYTES, forms), initial=0)
                self._places = dict(zip(names, zip(forms, begins, strict=False), strict=True))
        return self._places
