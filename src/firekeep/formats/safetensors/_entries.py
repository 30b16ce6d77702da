"""The tensors of an open file: a mapping that makes entries when they are asked for."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import accumulate, repeat

from firekeep.blobs import Source, WindowBlob
from firekeep.entry import TensorEntry, make_entries
from firekeep.formats.safetensors._table import Table
from firekeep.garbage import collector_paused


class Entries(Mapping[str, TensorEntry]):
    """Name -> entry, in the order the data lie. `start` is where the data begin in the file.

    The first tensor asked for by name is looked up alone, as most who ask for one ask for no other; all entries are made with the
    second, or when they are listed.
    """

    def __init__(self, source: Source, table: Table, start: int) -> None:
        self._source = source
        self._table = table
        self._start = start
        self._asked = False
        self._made: dict[str, TensorEntry] | None = None

    def __getitem__(self, name: str) -> TensorEntry:
        if self._made is None and not self._asked:
            self._asked = True
            found = self._table.find(name)
            if found is None:
                raise KeyError(name)
            (dtype, shape, nbytes, problem), begin = found
            return TensorEntry(
                name, dtype, shape, WindowBlob(self._source, self._start + begin, nbytes), problem=problem
            )
        return self._all()[name]

    def __contains__(self, name: object) -> bool:
        if self._made is not None:
            return name in self._made
        return isinstance(name, str) and self._table.find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.names() if self._made is None else self._made)

    def __len__(self) -> int:
        return len(self._table)

    def values(self) -> ValuesView[TensorEntry]:
        """Give the entries."""
        return self._all().values()

    def items(self) -> ItemsView[str, TensorEntry]:
        """Give names with entries."""
        return self._all().items()

    def _all(self) -> dict[str, TensorEntry]:
        if self._made is None:
            with collector_paused():
                names, forms = self._table.names(), self._table.forms()
                sizes = [form[2] for form in forms]
                blobs = map(WindowBlob, repeat(self._source), accumulate(sizes, initial=self._start), sizes)
                entries = make_entries(
                    names,
                    [form[0] for form in forms],
                    [form[1] for form in forms],
                    blobs,
                    problems=[form[3] for form in forms],
                )
                self._made = dict(zip(names, entries, strict=True))
        return self._made
