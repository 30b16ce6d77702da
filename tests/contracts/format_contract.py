"""What every member of the formats family must do, whatever its bytes look like.

A member's test class inherits `FormatContract` (it reads and writes) or `ReadContract` (it only reads, and its tests know how to
make a file) and fills in the class variables.
"""

from __future__ import annotations

import contextlib
import math
import random
import tracemalloc
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firekeep.arrays import as_array
from firekeep.blobs import DeferredBlob, MemoryBlob
from firekeep.disk import WritePlan, to_bytes
from firekeep.dtypes import BY_NAME, DType
from firekeep.entry import TensorEntry
from firekeep.errors import EntryError, FirekeepError, FormatError, LimitError, UnsupportedError
from firekeep.formats import FORMATS, Container, Contents, OpenOptions, format_for_suffix, open_source
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.scalars import Scalar
from firekeep.sources import MemorySource

F32 = BY_NAME["F32"]

# The same test function runs in every member's class.
shared = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])


def payload(dtype: DType, shape: Sequence[int], *, seed: object = 0) -> bytes:
    """Give bytes that differ from seed to seed and are valid for the dtype (bools are 0 or 1)."""
    raw = random.Random(repr(seed)).randbytes(dtype.nbytes(shape))
    if dtype.kind != "bool":
        return raw
    width = dtype.bits // 8
    return b"".join((raw[start] & 1).to_bytes(width, "little") for start in range(0, len(raw), width))


def tensor(name: str, dtype: DType = F32, shape: Sequence[int] = (2, 3), *, seed: object = None) -> TensorEntry:
    """Make an entry whose bytes are in memory."""
    raw = payload(dtype, shape, seed=name if seed is None else seed)
    return TensorEntry(name, dtype, tuple(shape), MemoryBlob(raw))


def deferred(name: str, provider: Callable[[], bytes | bytearray], shape: Sequence[int] = (4,)) -> TensorEntry:
    """Make an F32 entry whose bytes a function gives."""
    return TensorEntry(name, F32, tuple(shape), DeferredBlob(F32.nbytes(shape), provider))


def read_all(container: Container) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Draw everything: name -> dtype, shape, bytes."""
    return {name: (str(entry.require()), entry.shape, bytes(entry.read())) for name, entry in container.entries.items()}


def truth(entries: Sequence[TensorEntry]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """What `read_all` has to give for these entries."""
    return {entry.name: (str(entry.dtype), entry.shape, bytes(entry.read())) for entry in entries}


def touch_everything(container: Container) -> None:
    """Look at all a container offers."""
    for entry in container.entries.values():
        if entry.problem is None:
            entry.read()
            with contextlib.suppress(UnsupportedError):
                as_array(entry)
    for scalar in container.scalars.values():
        str(scalar)
    dict(container.metadata)
    container.values()
    list(container.check())


class CountingSource(MemorySource):
    """Bytes in memory that count how many were looked at."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.seen = 0

    def view(self, offset: int, length: int) -> memoryview:
        self.seen += length
        return super().view(offset, length)


class Tracked(bytearray):
    """Bytes whose life can be watched."""


class ReadContract:
    """A format that is read. `make` gives a file holding the entries; what the format cannot hold is not asked of it."""

    format: ClassVar[str]
    """The name of its row in `FORMATS`."""
    dtypes: ClassVar[Sequence[DType]]
    """All dtypes `make` can put into a file."""
    reserved_names: ClassVar[frozenset[str]] = frozenset()
    """Names no tensor can have in this format."""
    read_limits: ClassVar[Mapping[str, int]]
    """Fields of `Limits` with values that a file of three F32 tensors of shape [16] goes beyond."""

    def make(
        self,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, str] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
    ) -> bytes:
        """Make a file."""
        raise NotImplementedError

    def open(self, data: bytes | bytearray, limits: Limits = DEFAULT_LIMITS) -> Container:
        """Open bytes as this format, without detection."""
        return FORMATS[self.format].reader()(MemorySource(data), OpenOptions(limits=limits))

    def names(self) -> st.SearchStrategy[str]:
        """Give any text a name can be."""
        tricky = st.sampled_from(
            ["", ".", "..", "../x", "/etc/passwd", "a/b\\c", "fc.weight", "层.权重", "é", "\0", "🔥"]
        )
        return (tricky | st.text(max_size=40)).filter(lambda name: name not in self.reserved_names)

    def tensors(self) -> st.SearchStrategy[list[TensorEntry]]:
        """Give lists of entries: any dtype of the format, rank 0 to 4, extents from zero up."""
        shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
        forms = st.tuples(st.sampled_from(list(self.dtypes)), shapes).filter(
            lambda form: form[0].scheme is not None or math.prod(form[1]) * form[0].bits % 8 == 0
        )
        named = st.dictionaries(self.names(), forms, max_size=6)
        return named.map(lambda rows: [tensor(name, dtype, shape) for name, (dtype, shape) in rows.items()])

    def three(self) -> list[TensorEntry]:
        """Give the three tensors that `read_limits` speaks of."""
        return [tensor(name, shape=(16,)) for name in ("a", "b", "c")]

    @shared
    @given(st.data())
    def test_what_is_written_is_read(self, data: st.DataObject) -> None:
        entries = data.draw(self.tensors())
        assert read_all(self.open(self.make(entries))) == truth(entries)

    def test_every_dtype_is_read_as_it_was_written(self) -> None:
        entries = [tensor(f"t{index}", dtype, (2, 32)) for index, dtype in enumerate(self.dtypes)]
        assert read_all(self.open(self.make(entries))) == truth(entries)

    def test_it_is_told_by_its_content(self) -> None:
        container = open_source(MemorySource(self.make([tensor("w")])), OpenOptions())
        assert container.format == self.format
        assert list(container.entries) == ["w"]

    def test_a_file_without_tensors_opens(self) -> None:
        assert len(self.open(self.make([])).entries) == 0

    def test_entries_are_a_mapping(self) -> None:
        entries = self.open(self.make(self.three())).entries
        assert len(entries) == 3
        assert sorted(entries) == ["a", "b", "c"]
        assert "b" in entries
        assert "nothing" not in entries
        assert [entry.name for entry in entries.values()] == list(entries)
        with pytest.raises(KeyError):
            entries["nothing"]

    def test_bytes_are_drawn_when_asked_and_not_when_opened(self) -> None:
        entry = tensor("w", shape=(1000,))
        before = bytes(entry.read())
        after = payload(F32, (1000,), seed="later")
        data = bytearray(self.make([entry]))
        place = data.find(before)
        assert place > 0, "the bytes of a plain tensor lie in the file as they are"
        container = self.open(data)
        data[place : place + len(before)] = after
        try:
            drawn = bytes(container.entries["w"].read())
        except FirekeepError:
            return  # drawn now, and found not to be what its checksum says
        assert drawn == after

    def test_a_name_is_only_a_name(self) -> None:
        names = ["../x", "/etc/passwd", "a/../../b", "C:\\x", "con", "x\0y", "file:///x"]
        assert sorted(self.open(self.make([tensor(name) for name in names])).entries) == sorted(names)

    def test_truncation_at_any_byte_is_refused(self) -> None:
        data = self.make([tensor("a", shape=(3,)), tensor("b", shape=(2,))])
        for length in range(len(data)):
            with pytest.raises(FirekeepError):
                touch_everything(self.open(data[:length]))

    def test_trailing_rubbish_is_refused_or_reported(self) -> None:
        data = self.make([tensor("a")]) + b"rubbish"
        try:
            container = self.open(data)
        except FormatError:
            return
        assert container.notes or list(container.check())
        assert read_all(container) == truth([tensor("a")])

    @shared
    @given(st.data())
    def test_damage_raises_nothing_but_errors_of_ours(self, data: st.DataObject) -> None:
        raw = bytearray(self.make([tensor("ab", shape=(2,)), tensor("c", shape=(0, 3))]))
        places = st.integers(0, len(raw) - 1)
        for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)):
            raw[place] = byte
        with contextlib.suppress(FirekeepError):
            touch_everything(self.open(raw))

    @shared
    @given(st.data())
    def test_cut_out_or_doubled_bytes_raise_nothing_but_errors_of_ours(self, data: st.DataObject) -> None:
        raw = self.make([tensor("ab", shape=(2,)), tensor("c", shape=(0, 3))])
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(raw))] * 2)))
        times = data.draw(st.sampled_from([0, 2, 3]))
        with contextlib.suppress(FirekeepError):
            touch_everything(self.open(raw[:start] + raw[start:stop] * times + raw[stop:]))

    @shared
    @given(st.binary(max_size=400))
    def test_any_bytes_raise_nothing_but_errors_of_ours(self, raw: bytes) -> None:
        with contextlib.suppress(FirekeepError):
            touch_everything(self.open(raw))

    def test_limits_are_obeyed_on_reading(self) -> None:
        data = self.make(self.three())
        assert self.read_limits
        for field, value in self.read_limits.items():
            with pytest.raises(LimitError) as caught:
                touch_everything(self.open(data, replace(DEFAULT_LIMITS, **{field: value})))
            assert caught.value.limit == value, field
            assert caught.value.actual is not None
            assert caught.value.actual > value, field

    def test_opening_takes_no_memory_for_the_data(self) -> None:
        data = self.make([tensor("w", shape=(1 << 20,))])
        self.open(self.make([tensor("w")]))  # what is imported on the way is not counted
        tracemalloc.start()
        try:
            container = self.open(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1 << 20
        assert container.entries["w"].nbytes == 4 << 20


class WriteContract:
    """A format that is written."""

    format: ClassVar[str]
    suffix: ClassVar[str]
    """The suffix it is saved under."""
    dtypes: ClassVar[Sequence[DType]]
    foreign_dtypes: ClassVar[Sequence[DType]]
    """Some dtypes the format has no name for."""
    holds_scalars: ClassVar[bool] = False
    write_limits: ClassVar[Mapping[str, int]]
    """Fields of `Limits` with values that three F32 tensors of shape [16] go beyond."""

    def plan(
        self,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, str] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> WritePlan:
        """Plan a file."""
        contents = Contents(entries=entries, metadata=metadata or {}, scalars=scalars or {})
        return FORMATS[self.format].writer()(contents, limits)

    def make(
        self,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, str] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
    ) -> bytes:
        """Make a file with the format's own writer."""
        return to_bytes(self.plan(entries, metadata, scalars))

    def test_its_suffix_chooses_it(self) -> None:
        assert format_for_suffix(f"model{self.suffix}").name == self.format

    def test_planning_draws_nothing(self) -> None:
        def provide() -> bytes:
            raise AssertionError("drawn while planning")

        plan = self.plan([deferred("a", provide), deferred("b", provide)])
        assert plan.nbytes >= 32

    def test_parts_ascend_and_fill_the_file(self) -> None:
        plan = self.plan([tensor("b"), tensor("a", shape=(0,)), tensor("c", shape=())], {"k": "v"})
        end = 0
        for part in plan.parts:
            assert part.offset >= end
            end = part.offset + part.blob.nbytes
        assert end <= plan.nbytes
        assert len(to_bytes(plan)) == plan.nbytes

    def test_providers_run_once_in_order_and_one_at_a_time(self) -> None:
        log: list[str] = []
        alive: set[int] = set()
        most = 0

        def provider(name: str) -> Callable[[], bytearray]:
            def provide() -> bytearray:
                nonlocal most
                log.append(name)
                drawn = Tracked(16)
                alive.add(len(log))
                weakref.finalize(drawn, alive.discard, len(log))
                most = max(most, len(alive))
                return drawn

            return provide

        names = ["z", "a", "m", "b"]
        plan = self.plan([deferred(name, provider(name)) for name in names])
        assert log == []
        to_bytes(plan)
        assert log == [part.tensor for part in plan.parts if part.tensor is not None]
        assert sorted(log) == sorted(names)
        assert most == 1

    @pytest.mark.parametrize("length", [0, 15, 17])
    def test_a_provider_of_another_length_is_refused_by_name(self, length: int) -> None:
        plan = self.plan([tensor("fine"), deferred("wrong", lambda: bytes(length))])
        with pytest.raises(EntryError, match=f"16 bytes were declared, {length} came") as caught:
            to_bytes(plan)
        assert caught.value.tensor == "wrong"

    @pytest.mark.parametrize("length", [0, 23, 25])
    def test_a_length_that_does_not_follow_from_the_shape_is_refused_by_name(self, length: int) -> None:
        wrong = TensorEntry("wrong", F32, (2, 3), MemoryBlob(bytes(length)))
        with pytest.raises(FormatError, match="24") as caught:
            self.plan([tensor("fine"), wrong])
        assert caught.value.tensor == "wrong"

    def test_a_name_given_twice_is_refused(self) -> None:
        with pytest.raises(FormatError, match="twice") as caught:
            self.plan([tensor("a"), tensor("b"), tensor("a")])
        assert caught.value.tensor == "a"

    def test_a_name_that_is_not_unicode_is_refused(self) -> None:
        with pytest.raises(FormatError):
            self.plan([tensor("\ud800")])

    def test_an_entry_with_a_problem_is_refused_by_name(self) -> None:
        broken = TensorEntry("sparse", F32, (2,), MemoryBlob(b""), problem="it is sparse")
        with pytest.raises(UnsupportedError, match="it is sparse") as caught:
            self.plan([broken])
        assert caught.value.tensor == "sparse"

    def test_a_dtype_the_format_lacks_is_refused_by_name_with_a_remedy(self) -> None:
        assert self.foreign_dtypes
        for dtype in self.foreign_dtypes:
            with pytest.raises(UnsupportedError, match=dtype.name) as caught:
                self.plan([TensorEntry("odd", dtype, (8,), MemoryBlob(bytes(dtype.nbytes((8,)))))])
            assert caught.value.tensor == "odd"
            assert caught.value.remedy

    def test_limits_are_obeyed_on_writing(self) -> None:
        entries = [tensor(name, shape=(16,)) for name in ("a", "b", "c")]
        assert self.write_limits
        for field, value in self.write_limits.items():
            with pytest.raises(LimitError) as caught:
                self.plan(entries, limits=replace(DEFAULT_LIMITS, **{field: value}))
            assert caught.value.limit == value, field
            assert caught.value.actual is not None
            assert caught.value.actual > value, field

    def test_writing_twice_gives_the_same_bytes(self) -> None:
        entries = [tensor(name) for name in "cab"]
        assert self.make(entries, {"b": "1", "a": "2"}) == self.make(list(entries), {"a": "2", "b": "1"})


class FormatContract(WriteContract, ReadContract):
    """A format that is read and written."""

    def rewrite(self, container: Container) -> bytes:
        """Write what was read."""
        return self.make(list(container.entries.values()), container.metadata, container.scalars)

    @shared
    @given(st.data())
    def test_rewriting_gives_the_same_file(self, data: st.DataObject) -> None:
        metadata = data.draw(st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=4))
        scalars = (
            data.draw(st.dictionaries(st.text(max_size=10), any_scalar(), max_size=4)) if self.holds_scalars else {}
        )
        raw = self.make(data.draw(self.tensors()), metadata, scalars)
        container = self.open(raw)
        assert dict(container.metadata) == metadata
        assert {key: as_bits(scalar) for key, scalar in container.scalars.items()} == {
            key: as_bits(scalar) for key, scalar in scalars.items()
        }
        assert self.rewrite(container) == raw

    def test_entries_come_in_the_order_their_data_lie(self) -> None:
        container = self.open(self.make([tensor(name, shape=(5,)) for name in "zaymb"]))
        places = [entry.blob.window() for entry in container.entries.values()]
        offsets = [place[1] for place in places if place is not None]
        assert len(offsets) == 5
        assert offsets == sorted(offsets)

    def test_opening_looks_at_the_table_and_not_at_the_data(self) -> None:
        source = CountingSource(self.make([tensor("w", shape=(1 << 16,))]))
        container = FORMATS[self.format].reader()(source, OpenOptions())
        assert source.seen < 1 << 16
        assert container.entries["w"].read().nbytes == 4 << 16


def any_scalar() -> st.SearchStrategy[Scalar]:
    """Give scalars of every kind."""
    return st.one_of(
        st.booleans().map(lambda value: Scalar("bool", value)),
        st.integers(-(1 << 63), (1 << 63) - 1).map(lambda value: Scalar("int", value)),
        st.integers(0, (1 << 64) - 1).map(lambda value: Scalar("uint", value)),
        st.floats().map(lambda value: Scalar("float", value)),
    )


def as_bits(scalar: Scalar) -> tuple[str, object]:
    """Make scalars comparable, NaN and signed zeros included."""
    return (scalar.kind, repr(scalar.value))
