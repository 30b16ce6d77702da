"""One named tensor: what it declares, what it gives, and when two of them are one."""

from __future__ import annotations

import pytest

from firekeep.blobs import Blob, DeferredBlob, MemoryBlob, WindowBlob
from firekeep.dtypes import dtype
from firekeep.entry import TensorEntry, find_ties, make_entries, tie_key, untied
from firekeep.errors import EntryError, FirekeepError, TruncatedError, UnsupportedError
from firekeep.ids import ParamId
from firekeep.sources import MemorySource

F32 = dtype("F32")


def entry(name: str = "weight", shape: tuple[int, ...] = (2, 3), blob: Blob | None = None, **more) -> TensorEntry:
    return TensorEntry(name, F32, shape, MemoryBlob(bytes(24)) if blob is None else blob, **more)


@pytest.mark.parametrize(
    ("shape", "count"), [((), 1), ((0,), 0), ((2, 3), 6), ((4, 0, 1 << 40), 0), ((1 << 40, 1 << 40), 1 << 80)]
)
def test_a_shape_counts_its_elements(shape, count):
    assert entry(shape=shape).numel == count


def test_declared_bytes_are_known_without_drawing_any():
    def provider():
        raise AssertionError("drawn")

    assert entry(blob=DeferredBlob(24, provider)).nbytes == 24


def test_reading_gives_the_bytes():
    assert entry(blob=DeferredBlob(24, lambda: bytes(range(24)))).read() == bytes(range(24))


@pytest.mark.parametrize(
    ("blob", "error", "words"),
    [
        (DeferredBlob(24, lambda: b"short"), EntryError, "24 bytes were declared, 5 came"),
        (DeferredBlob(24, lambda: None), EntryError, "bytes were expected, NoneType came"),
        (WindowBlob(MemorySource(b"short"), 0, 24), TruncatedError, "lie outside the file of 5 bytes"),
    ],
    ids=["length", "kind", "window"],
)
def test_bytes_that_do_not_come_are_an_error_naming_the_tensor(blob, error, words):
    with pytest.raises(error, match=f"tensor 'weight': .*{words}"):
        entry(blob=blob).read()


def test_a_blob_that_lies_about_its_length_is_found_out():
    class Liar(Blob):
        def view(self):
            return memoryview(b"12")

    with pytest.raises(EntryError, match="tensor 'weight': 24 bytes were declared, 2 came"):
        entry(blob=Liar(24)).read()


def test_a_deeper_place_is_kept():
    def provider():
        raise EntryError("not there", tensor="inner", path="deep.pt")

    with pytest.raises(FirekeepError, match=r"deep\.pt: tensor 'inner': not there"):
        entry(blob=DeferredBlob(24, provider)).read()


def test_an_entry_with_a_problem_is_listed_and_refused_when_touched():
    listed = TensorEntry("sparse", None, (5,), MemoryBlob(b""), problem="it is sparse")
    assert (listed.name, listed.shape, listed.numel) == ("sparse", (5,), 5)
    for touch in (listed.require, listed.read):
        with pytest.raises(UnsupportedError, match="tensor 'sparse': it is sparse"):
            touch()


def test_a_problem_is_told_even_where_the_dtype_is_known():
    with pytest.raises(UnsupportedError, match="its storage is missing"):
        entry(problem="its storage is missing").read()


def test_an_entry_without_a_dtype_says_so():
    with pytest.raises(UnsupportedError, match="tensor 'x': its dtype is unknown"):
        TensorEntry("x", None, (), MemoryBlob(b"")).require()


def test_a_renamed_entry_is_the_same_tensor():
    first = entry(param_id=ParamId(7))
    second = first.renamed("other")
    assert (second.name, second.blob, second.param_id, second.shape) == ("other", first.blob, ParamId(7), (2, 3))
    assert first.name == "weight"


def test_columns_become_entries():
    blobs = [MemoryBlob(bytes(4)), MemoryBlob(bytes(8))]
    made = make_entries(["a", "b"], [F32, F32], [(1,), (2,)], blobs, problems=[None, "no"])
    assert list(made) == [TensorEntry("a", F32, (1,), blobs[0]), TensorEntry("b", F32, (2,), blobs[1], problem="no")]


def test_one_place_of_one_dtype_and_shape_is_one_tensor():
    source = MemorySource(bytes(100))

    def at(name, offset, shape=(2, 3)):
        return entry(name, shape, WindowBlob(source, offset, 24))

    ties = find_ties([at("a", 0), at("b", 0), at("c", 24), at("d", 0, (3, 2)), at("e", 24), at("f", 0)])
    assert ties == {"b": "a", "e": "c", "f": "a"}


def test_equal_values_in_two_places_are_two_tensors():
    assert find_ties([entry("a"), entry("b")]) == {}


def test_empty_tensors_and_those_with_a_problem_are_never_tied():
    source = MemorySource(bytes(100))
    empty = [entry(name, (0,), WindowBlob(source, 0, 0)) for name in "ab"]
    lost = [entry(name, (6,), WindowBlob(source, 0, 24), problem="meta tensors have no data") for name in "cd"]
    assert find_ties(empty + lost) == {}
    assert [tie_key(one) for one in empty + lost] == [None] * 4


def test_an_untied_entry_is_its_own_and_gives_the_same_bytes():
    source = MemorySource(bytes(range(100)))
    first, second = (entry(name, blob=WindowBlob(source, 8, 24)) for name in "ab")
    alone = untied(second)
    assert find_ties([first, alone]) == {}
    assert alone.read() == second.read()
