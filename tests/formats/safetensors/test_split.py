from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from firekeep.arrays import entry_of
from firekeep.blobs import DeferredBlob
from firekeep.disk import to_bytes
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, MetadataError, RuleError
from firekeep.formats import Container, Contents, OpenOptions, open_path
from firekeep.formats.safetensors import plan_shards
from firekeep.formats.safetensors._split import ShardedPlan
from firekeep.limits import DEFAULT_LIMITS
from formats.safetensors.made import open_bytes, u8


def split(entries: list[TensorEntry], most: int, **metadata: str) -> ShardedPlan:
    return plan_shards(Contents(entries=entries, metadata=metadata), max_shard_bytes=most, limits=DEFAULT_LIMITS)


def groups(plans: ShardedPlan) -> list[list[str]]:
    return [sorted(part.tensor for part in plan.parts if part.tensor is not None) for plan in plans.files.values()]


@contextmanager
def reopened(plans: ShardedPlan, folder: Path) -> Iterator[Container]:
    for name, plan in plans.files.items():
        (folder / name).write_bytes(to_bytes(plan))
    assert plans.index is not None
    (folder / plans.index_name).write_bytes(plans.index)
    found = open_path(os.fspath(folder), OpenOptions())
    assert found is not None
    container, source = found
    yield container
    for each in (source, *container.sources):
        each.close()


def test_shards_are_filled_in_the_order_given() -> None:
    plans = split([u8("c", 4), u8("a", 4), u8("b", 4), u8("d", 1)], 9)
    assert groups(plans) == [["a", "c"], ["b", "d"]]
    assert list(plans.files) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def test_a_tensor_larger_than_a_shard_has_one_of_its_own() -> None:
    plans = split([u8("a", 2), u8("huge", 100), u8("b", 2)], 10)
    assert groups(plans) == [["huge"], ["a", "b"]]


def test_a_shard_may_be_filled_to_the_last_byte() -> None:
    assert groups(split([u8("a", 5), u8("b", 5), u8("c", 5)], 10)) == [["a", "b"], ["c"]]
    assert groups(split([u8("a", 10), u8("b", 10)], 10)) == [["a"], ["b"]]


@pytest.mark.parametrize("entries", [[], [u8("a", 3)], [u8("a", 3), u8("b", 3)]])
def test_what_fits_one_file_needs_no_index(entries: list[TensorEntry]) -> None:
    plans = split(entries, 100, k="v")
    assert list(plans.files) == ["model.safetensors"]
    assert plans.index is None
    assert dict(open_bytes(to_bytes(plans.files["model.safetensors"])).metadata) == {"k": "v"}


def test_the_index_says_where_each_tensor_is_and_how_much_there_is() -> None:
    plans = split([entry_of("b", np.ones((2, 3), np.float32)), entry_of("a", np.ones(4, np.int64))], 24)
    assert plans.index_name == "model.safetensors.index.json"
    assert plans.index is not None
    assert json.loads(plans.index) == {
        "metadata": {"total_parameters": 10, "total_size": 56},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }
    assert plans.index.startswith(b'{\n  "metadata": {\n    "total_parameters"')


def test_a_written_set_opens_and_gives_the_same_values(tmp_path: Path) -> None:
    arrays = {f"layer.{number}": np.full(number, number, np.float32) for number in range(20)}
    plans = split([entry_of(name, array) for name, array in arrays.items()], 200, format="pt")
    with reopened(plans, tmp_path) as container:
        assert sorted(container.entries) == sorted(arrays)
        for name, array in arrays.items():
            assert bytes(container.entries[name].read()) == array.tobytes()
        assert dict(container.metadata) == {"format": "pt"}
        assert not container.notes
        assert not list(container.check())


def test_ties_are_recorded_beside_the_tensor_that_was_kept(tmp_path: Path) -> None:
    shared = np.ones(8, np.uint8)
    other = np.ones(8, np.uint8)
    entries = [entry_of("z.w", shared), entry_of("m.w", other), entry_of("a.w", shared), entry_of("q", other)]
    plans = split(entries, 8)
    assert groups(plans) == [["m.w"], ["a.w"]]
    first, second = (open_bytes(to_bytes(plan)) for plan in plans.files.values())
    assert (first.ties, second.ties) == ({"q": "m.w"}, {"z.w": "a.w"})
    with reopened(plans, tmp_path) as container:
        assert container.ties == {"q": "m.w", "z.w": "a.w"}
        assert sorted(container.entries) == ["a.w", "m.w"]


def test_planning_draws_nothing() -> None:
    def provide() -> bytes:
        raise AssertionError("drawn")

    entries = [TensorEntry(name, BY_NAME["U8"], (4,), DeferredBlob(4, provide)) for name in "abc"]
    assert len(split(entries, 4).files) == 3


def test_another_stem_names_all_files() -> None:
    contents = Contents(entries=[u8("a", 4), u8("b", 4)])
    plans = plan_shards(contents, max_shard_bytes=4, limits=DEFAULT_LIMITS, stem="ema")
    assert list(plans.files) == ["ema-00001-of-00002.safetensors", "ema-00002-of-00002.safetensors"]
    assert plans.index_name == "ema.safetensors.index.json"


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(RuleError, match="at most 0 bytes"):
        split([u8("a")], 0)
    with pytest.raises(MetadataError, match="twice"):
        split([u8("a"), u8("a")], 1)
    shared = np.ones(4, np.uint8)
    with pytest.raises(FirekeepError, match="that key says 'other'"):
        split([entry_of("a.w", shared), entry_of("b.w", shared)], 1, **{"b.w": "other"})
