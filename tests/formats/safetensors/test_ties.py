"""Tied tensors are stored once; both names come back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from firekeep.arrays import as_array, entry_of
from firekeep.disk import to_bytes
from firekeep.entry import TensorEntry, untied
from firekeep.errors import MetadataError
from firekeep.formats import Container, Contents
from firekeep.formats.safetensors import plan
from firekeep.limits import DEFAULT_LIMITS
from formats.safetensors.made import open_bytes, raw, row, u8

SHARED = np.arange(6, dtype=np.float32).reshape(2, 3)


def reopened(*entries: TensorEntry, metadata: Mapping[str, str] | None = None) -> Container:
    return open_bytes(to_bytes(plan(Contents(entries=entries, metadata=metadata or {}), DEFAULT_LIMITS)))


def with_metadata(names: list[str], metadata: dict[str, str]) -> Container:
    table: dict[str, object] = {"__metadata__": metadata}
    table.update((name, row("U8", [1], place, place + 1)) for place, name in enumerate(names))
    return open_bytes(raw(table, bytes(len(names))))


def test_two_names_of_one_array_are_stored_once_under_the_first_in_order() -> None:
    container = reopened(entry_of("model.embed.weight", SHARED), entry_of("lm_head.weight", SHARED))
    assert list(container.entries) == ["lm_head.weight"]
    assert container.ties == {"model.embed.weight": "lm_head.weight"}
    assert container.metadata == {"model.embed.weight": "lm_head.weight"}


@pytest.mark.parametrize(
    "names", [["a", "b"], ["weight", "x"], ["format", "version"], ["b.x", "a"], ["", "é"], ["modelspec.x", "a"]]
)
def test_ties_of_names_without_the_look_of_one_come_back_too(names: list[str]) -> None:
    kept, dropped = sorted(names)
    container = reopened(*(entry_of(name, SHARED) for name in names))
    assert list(container.entries) == [kept]
    assert container.ties == {dropped: kept}


def test_three_names_share_one_tensor() -> None:
    container = reopened(*(entry_of(f"{name}.weight", SHARED) for name in "cab"))
    assert list(container.entries) == ["a.weight"]
    assert container.ties == {"b.weight": "a.weight", "c.weight": "a.weight"}


def test_another_view_of_the_same_memory_is_another_tensor() -> None:
    container = reopened(
        entry_of("a", SHARED), entry_of("b", SHARED.T), entry_of("c", SHARED[:1]), entry_of("d", SHARED.view(np.int32))
    )
    assert sorted(container.entries) == ["a", "b", "c", "d"]
    assert not container.ties
    np.testing.assert_array_equal(as_array(container.entries["b"]), SHARED.T)


def test_equal_values_in_different_memory_are_not_tied() -> None:
    container = reopened(entry_of("a.weight", SHARED), entry_of("b.weight", SHARED.copy()))
    assert sorted(container.entries) == ["a.weight", "b.weight"]
    assert not container.ties


def test_empty_tensors_are_never_tied() -> None:
    empty = np.empty((0, 3), np.float32)
    assert sorted(reopened(entry_of("a.w", empty), entry_of("b.w", empty)).entries) == ["a.w", "b.w"]


def test_an_untied_entry_is_written_in_full() -> None:
    container = reopened(untied(entry_of("a.weight", SHARED)), untied(entry_of("b.weight", SHARED)))
    assert sorted(container.entries) == ["a.weight", "b.weight"]
    assert not container.ties
    np.testing.assert_array_equal(as_array(container.entries["b.weight"]), SHARED)


def test_the_window_of_an_untied_entry_is_kept() -> None:
    entry = reopened(u8("a", 3, 7)).entries["a"]
    assert untied(entry).blob.window() == entry.blob.window()
    assert untied(entry).blob.identity() is None


def test_metadata_that_stands_where_a_tie_is_recorded_is_refused() -> None:
    entries = [entry_of("a.weight", SHARED), entry_of("b.weight", SHARED)]
    with pytest.raises(
        MetadataError, match=r"tensor 'b.weight': it is tied to 'a.weight'.*that key says 'other'.*expand"
    ):
        reopened(*entries, metadata={"b.weight": "other"})
    assert reopened(*entries, metadata={"b.weight": "a.weight"}).ties == {"b.weight": "a.weight"}


def test_a_rewritten_file_keeps_its_ties() -> None:
    first = reopened(entry_of("b", SHARED), entry_of("a", SHARED), metadata={"k": "v"})
    again = reopened(*first.entries.values(), metadata=first.metadata)
    assert again.ties == {"b": "a"}
    assert again.metadata == first.metadata
    more = reopened(*first.entries.values(), entry_of("c", SHARED), entry_of("d", SHARED), metadata=first.metadata)
    assert more.ties == {"b": "a", "d": "c"}


def test_a_record_as_the_torch_library_writes_it_is_a_tie() -> None:
    container = with_metadata(["lm_head.weight"], {"format": "pt", "model.embed.weight": "lm_head.weight"})
    assert container.ties == {"model.embed.weight": "lm_head.weight"}
    assert with_metadata(["emb.weight"], {"weight": "emb.weight"}).ties == {"weight": "emb.weight"}


@pytest.mark.parametrize(
    "metadata",
    [
        {"format": "pt"},
        {"name": "pt"},
        {"producer": "pt"},
        {"step": "pt"},
        {"base_model": "layers.0.weight"},
        {"best_layer": "layers.0.weight"},
        {"weight": "pt"},
        {"modelspec.architecture": "pt"},
        {"general.name": "pt"},
        {"firekeep.layout": "pt"},
        {"a.b": "absent"},
        {"layers.0.weight": "pt"},
        {"pt": "pt"},
        {"a.b": "layers"},
    ],
)
def test_ordinary_metadata_is_no_tie_even_if_its_value_is_a_tensor(metadata: dict[str, str]) -> None:
    container = with_metadata(["pt", "layers.0.weight"], metadata)
    assert not container.ties
    assert container.metadata == metadata


@pytest.mark.parametrize("text", ["", "[]", "{", '{"b":1}', '{"b":"absent"}', '{"a":"a"}', '{"b":"a","b":"a"}'])
def test_a_record_of_ties_that_makes_no_sense_is_left_aside(text: str) -> None:
    container = with_metadata(["a"], {"firekeep.ties": text})
    assert not container.ties
    assert list(container.entries) == ["a"]
    assert bool(container.notes) == (text in ("", "[]", "{", '{"b":"a","b":"a"}'))


def test_many_records_are_looked_up_at_once() -> None:
    records = {f"layer.{number}.tied": "a" for number in range(5000)}
    assert with_metadata(["a"], records).ties == records
