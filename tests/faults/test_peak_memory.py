"""Tensors are drawn one at a time and let go of: a model larger than memory can be written."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from firekeep.blobs import DeferredBlob, MemoryBlob, StridedBlob
from firekeep.disk import Part, WritePlan, to_bytes, write_file
from firekeep.strides import gather  # noqa: F401 - loads NumPy's parts before memory is counted

MiB = 1 << 20


class Drawn(bytearray):
    """Bytes of a tensor that know how many of their kind are alive."""

    alive = 0
    most = 0
    made = 0

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        Drawn.alive += 1
        Drawn.made += 1
        Drawn.most = max(Drawn.most, Drawn.alive)

    def __del__(self) -> None:
        Drawn.alive -= 1


@pytest.fixture(autouse=True)
def counted():
    Drawn.alive = Drawn.most = Drawn.made = 0


def plan_of(sizes: list[int]) -> WritePlan:
    parts, offset = [Part(0, MemoryBlob(b"head"))], 4
    for index, size in enumerate(sizes):
        parts.append(Part(offset, DeferredBlob(size, lambda size=size: Drawn(size)), f"t{index}"))
        offset += size + 3
    return WritePlan(nbytes=offset, parts=parts)


SIZES = {
    "small": [10] * 500,
    "large": [300_000] * 20,
    "very large": [20 * MiB, 9 * MiB, 20 * MiB],
    "mixed": [5, 100_000, 0, 70_000, 65_536, 65_537, 9 * MiB, 1, 1],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("how", ["plain", "observed", "in memory"])
def test_never_two_tensors_are_alive_at_once(tmp_path, sizes, how):
    plan = plan_of(sizes)
    if how == "in memory":
        to_bytes(plan)
    else:
        write_file(
            tmp_path / "out", plan, durable=False, observe=(lambda name, view: None) if how == "observed" else None
        )
    assert Drawn.made == len(sizes)
    assert Drawn.most == 1
    assert Drawn.alive == 0


def test_a_failed_save_keeps_no_tensor_alive(tmp_path):
    def fail(name, view):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError) as caught:
        write_file(tmp_path / "out", plan_of([100_000] * 3), observe=fail)
    del caught
    assert Drawn.alive <= 1


def peak_of(work) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("observe", [None, lambda name, view: None], ids=["plain", "observed"])
def test_a_large_transposed_tensor_is_gathered_a_piece_at_a_time(tmp_path, observe):
    array = np.arange(16 * MiB, dtype=np.float32).reshape(4096, 4096)
    blob = StridedBlob(MemoryBlob(array.data), offset=0, itemsize=4, shape=(4096, 4096), strides=(1, 4096))
    plan = WritePlan(nbytes=blob.nbytes, parts=[Part(0, blob, "weight")])
    peak = peak_of(lambda: write_file(tmp_path / "out", plan, durable=False, observe=observe))
    assert blob.nbytes == 64 * MiB
    assert peak < 20 * MiB
    assert np.array_equal(np.fromfile(tmp_path / "out", np.float32).reshape(4096, 4096), array.T)


def test_a_file_made_in_memory_takes_its_own_size_and_one_tensor(tmp_path):
    plan = plan_of([4 * MiB] * 8)
    assert peak_of(lambda: to_bytes(plan)) < 32 * MiB + 4 * MiB + MiB


def test_gaps_between_parts_take_no_memory(tmp_path):
    plan = WritePlan(nbytes=100 * MiB, parts=[Part(0, MemoryBlob(b"1")), Part(60 * MiB, MemoryBlob(b"2"))])
    assert peak_of(lambda: write_file(tmp_path / "out", plan, durable=False)) < 32 * MiB
    data = (tmp_path / "out").read_bytes()
    assert (len(data), data[0], data[60 * MiB], data.count(0)) == (100 * MiB, ord("1"), ord("2"), 100 * MiB - 2)
