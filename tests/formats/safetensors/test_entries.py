from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

from firekeep.blobs import MemoryBlob, WindowBlob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry, make_entries, tie_key
from firekeep.formats import Container
from firekeep.garbage import collector_paused
from firekeep.ids import ParamId
from formats.safetensors.made import open_bytes, raw, row


def three() -> Container:
    table = {name: row("U8", [place + 1], place, 2 * place + 1) for place, name in enumerate(["a", "b"])}
    return open_bytes(raw(table | {"odd": row("I4", [2], 3, 4)}, b"abcd"))


def test_the_first_tensor_asked_for_and_the_later_ones_are_the_same() -> None:
    entries = three().entries
    first = entries["b"]
    again = entries["b"]
    assert (first.name, first.dtype, first.shape, bytes(first.read())) == ("b", BY_NAME["U8"], (2,), b"bc")
    assert (again.name, again.dtype, again.shape, bytes(again.read())) == ("b", BY_NAME["U8"], (2,), b"bc")
    assert tie_key(first) == tie_key(again)
    assert tie_key(entries["b"]) == tie_key(again)


def test_a_name_that_is_not_there_is_a_key_error_first_or_later() -> None:
    entries = three().entries
    for _ in range(3):
        with pytest.raises(KeyError, match="nothing"):
            entries["nothing"]
    assert entries.get("nothing") is None


def test_listing_sorts_no_names_in() -> None:
    entries = three().entries
    assert list(entries) == list(entries.keys()) == ["a", "b", "odd"]
    assert [name for name, _ in entries.items()] == ["a", "b", "odd"]
    assert [entry.name for entry in entries.values()] == list(entries)
    assert len(entries) == len(entries.values()) == 3
    assert entries._places is None  # type: ignore[attr-defined]


def test_entries_that_were_listed_are_those_asked_for() -> None:
    entries = three().entries
    for name, entry in entries.items():
        assert (entry.name, tie_key(entry)) == (name, tie_key(entries[name]))
    assert list(map(tie_key, entries.values())) == [tie_key(entries[name]) for name in entries]


@pytest.mark.parametrize("asked", [[], ["a"], ["a", "b"]])
def test_anything_may_be_asked_for(asked: list[str]) -> None:
    entries = three().entries
    for name in asked:
        assert entries[name].name == name
    assert "a" in entries
    assert "x" not in entries
    assert 3 not in entries
    assert None not in entries


def test_only_the_entry_of_an_unknown_dtype_has_a_problem() -> None:
    problems = {name: entry.problem for name, entry in three().entries.items()}
    assert problems["a"] is None
    assert problems["odd"] is not None
    assert "I4" in problems["odd"]


def test_entries_stay_usable_when_the_container_is_gone() -> None:
    entry = three().entries["b"]
    gc.collect()
    assert bytes(entry.read()) == b"bc"
    assert isinstance(entry.blob, WindowBlob)


def test_entries_made_of_columns_are_like_those_made_one_by_one() -> None:
    blobs = [MemoryBlob(b"x"), MemoryBlob(b"yz")]
    columns = ["a", "b"], [BY_NAME["U8"], None], [(1,), (2,)], blobs
    made = list(make_entries(*columns, param_ids=[ParamId(7), None], problems=[None, "odd"]))
    single = [
        TensorEntry("a", BY_NAME["U8"], (1,), blobs[0], ParamId(7)),
        TensorEntry("b", None, (2,), blobs[1], problem="odd"),
    ]
    assert made == single
    assert repr(made) == repr(single)
    assert type(made[0]) is TensorEntry
    assert replace(made[0], name="c") == replace(single[0], name="c")


class Node:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


def test_making_many_objects_leaves_the_collector_as_it_was() -> None:
    with collector_paused():
        assert not gc.isenabled()
        kept = [[number] for number in range(20_000)]
        garbage = weakref.ref(Node())
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert len(kept) == 20_000
    gc.collect()
    assert garbage() is None


def test_objects_someone_froze_stay_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with collector_paused():
            kept = [[number] for number in range(20_000)]
        assert gc.get_freeze_count() >= frozen - 10
        assert len(kept) == 20_000
    finally:
        gc.unfreeze()
