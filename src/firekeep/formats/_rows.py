"""What the lazy entries of a file have in common: they are gone through in order, without a search for each name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import ItemsView, Iterator, Mapping, ValuesView

from firekeep.entry import TensorEntry


class Rows(Mapping[str, TensorEntry]):
    """Name -> entry, whose members make all of their entries one by one faster than each by its name."""

    __slots__ = ()

    @abstractmethod
    def rows(self) -> Iterator[TensorEntry]:
        """Make all entries, one by one."""

    def named_rows(self) -> Iterator[tuple[str, TensorEntry]]:
        """Make all entries, each beside its name."""
        return ((entry.name, entry) for entry in self.rows())

    def values(self) -> ValuesView[TensorEntry]:
        """Give the entries, in order."""
        return _Values(self)

    def items(self) -> ItemsView[str, TensorEntry]:
        """Give names and entries, in order."""
        return _Items(self)


class _Values(ValuesView[TensorEntry]):
    """The entries without a search for each name."""

    def __init__(self, entries: Rows) -> None:
        super().__init__(entries)
        self._entries = entries

    def __iter__(self) -> Iterator[TensorEntry]:
        return self._entries.rows()


class _Items(ItemsView[str, TensorEntry]):
    """Names and entries without a search for each name."""

    def __init__(self, entries: Rows) -> None:
        super().__init__(entries)
        self._entries = entries

    def __iter__(self) -> Iterator[tuple[str, TensorEntry]]:
        return self._entries.named_rows()
