"""What every member of the bridges family must do, whatever its objects are.

A member's test class inherits `BridgeContract`, names the member and makes two objects of one build with other values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from firekeep.blobs import Blob, DeferredBlob, MemoryBlob
from firekeep.bridges import Bridge, Filling, bridge_of, entries_of, slots_of
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.errors import EntryError, FirekeepError, UnsupportedError
from firekeep.ids import ParamId

F32, F64, I64 = (BY_NAME[name] for name in ("F32", "F64", "I64"))

Values = dict[str, tuple[str, tuple[int, ...], bytes]]


def values_of(obj: Any) -> Values:
    """Draw everything an object holds."""
    return {entry.name: (str(entry.require()), entry.shape, bytes(entry.read())) for entry in entries_of(obj)}


def in_memory(entry: TensorEntry) -> TensorEntry:
    """Give the tensor with bytes of its own, which nothing done to its object can change. Ties are kept."""
    return replace(entry, blob=MemoryBlob(bytes(entry.read()), identity=entry.blob.identity()))


def fillings_from(obj: Any, other: Any) -> list[Filling]:
    """Pair the slots of one object with the values of another."""
    slots = {slot.path: slot for slot in slots_of(obj)}
    return [
        Filling(slots[entry.name], in_memory(entry), slots[entry.name].dtype)
        for entry in entries_of(other)
        if slots[entry.name].problem is None
    ]


class BridgeContract:
    name: ClassVar[str]
    keeps_ids: ClassVar[bool] = True

    def make(self, seed: int) -> Any:
        """Make an object with values of its own for each seed: three F32 tensors and more, none faulty, some tied if that is possible."""
        raise NotImplementedError

    @property
    def bridge(self) -> Bridge:
        return bridge_of(self.make(1))

    def some_f32(self, obj: Any) -> list[Filling]:
        found = [filling for filling in fillings_from(obj, self.make(2)) if filling.slot.dtype is F32]
        assert len(found) > 2
        return found

    def test_the_member_owns_its_objects_and_no_other(self):
        assert self.bridge.name == self.name
        assert not any(self.bridge.owns(thing) for thing in (object(), "text", 3, BridgeContract, None))

    def test_outline_and_entries_name_the_same_tensors_in_the_same_order(self):
        obj = self.make(1)
        slots, entries = slots_of(obj), entries_of(obj)
        assert len(slots) > 2
        assert slots.paths() == [entry.name for entry in entries]
        assert [(slot.dtype, slot.shape) for slot in slots] == [(entry.dtype, entry.shape) for entry in entries]
        assert len(set(slots.paths())) == len(slots)

    def test_ties_are_told_alike_by_slots_and_entries(self):
        obj = self.make(1)
        first = {}
        for entry in entries_of(obj):
            identity = entry.blob.identity()
            if identity is not None and entry.nbytes:
                first.setdefault((identity, entry.dtype, entry.shape), entry.name)
        told = {slot.path: slot.tied_to for slot in slots_of(obj)}
        for entry in entries_of(obj):
            kept = first.get((entry.blob.identity(), entry.dtype, entry.shape), entry.name)
            assert told[entry.name] == (None if kept == entry.name else kept)

    def test_two_objects_differ_until_one_fills_the_other(self):
        obj, other = self.make(1), self.make(2)
        before, wanted = values_of(obj), values_of(other)
        assert before != wanted
        done: list[str] = []
        fillings = fillings_from(obj, other)
        self.bridge.fill(obj, fillings, done)
        assert values_of(obj) == wanted == values_of(other)
        assert sorted(done) == sorted(filling.slot.path for filling in fillings)
        assert slots_of(obj).paths() == slots_of(other).paths()

    def test_a_filled_object_is_its_own(self):
        obj, other = self.make(1), self.make(2)
        self.bridge.fill(obj, fillings_from(obj, other), [])
        held = values_of(obj)
        self.bridge.fill(other, fillings_from(other, self.make(3)), [])
        assert values_of(obj) == held != values_of(other)

    def test_slots_that_are_not_filled_stay_as_they_are(self):
        obj = self.make(1)
        before = values_of(obj)
        chosen = next(filling for filling in self.some_f32(obj) if filling.slot.path not in tied(obj))
        done: list[str] = []
        self.bridge.fill(obj, [chosen], done)
        after = values_of(obj)
        assert done == [chosen.slot.path]
        assert after.pop(chosen.slot.path)[2] == bytes(chosen.entry.read())
        before.pop(chosen.slot.path)
        assert after == before

    def test_a_dtype_is_taken_over_when_it_is_wanted(self):
        import numpy as np

        obj = self.make(1)
        fillings = [replace(filling, dtype=F64) for filling in self.some_f32(obj)]
        self.bridge.fill(obj, fillings, [])
        held = {entry.name: entry for entry in entries_of(obj)}
        for filling in fillings:
            entry = held[filling.slot.path]
            assert entry.dtype is F64
            numbers = np.frombuffer(filling.entry.read(), np.float32).astype(np.float64)
            assert bytes(entry.read()) == numbers.tobytes()

    def test_values_are_cast_where_the_entry_is_of_another_type(self):
        import numpy as np

        obj = self.make(1)
        fillings = self.some_f32(obj)
        wide = [
            replace(
                filling,
                entry=replace(
                    filling.entry,
                    dtype=F64,
                    blob=MemoryBlob(np.frombuffer(filling.entry.read(), np.float32).astype(np.float64).tobytes()),
                ),
            )
            for filling in fillings
            if filling.slot.path not in tied(obj)
        ]
        self.bridge.fill(obj, wide, [])
        held = values_of(obj)
        for filling in fillings:
            if filling.slot.path not in tied(obj):
                assert held[filling.slot.path] == ("F32", filling.slot.shape, bytes(filling.entry.read()))

    @pytest.mark.parametrize("fault", ["shape", "kind", "problem", "slot"])
    def test_what_cannot_be_filled_is_refused_by_name_before_anything_is_touched(self, fault):
        obj = self.make(1)
        before = values_of(obj)
        fillings = self.some_f32(obj)
        last = fillings[-1]
        slot, entry = last.slot, last.entry
        if fault == "shape":
            shape = (*entry.shape, 2)
            entry = replace(entry, shape=shape, blob=MemoryBlob(bytes(F32.nbytes(shape))))
        elif fault == "kind":
            slot, entry = replace(slot, dtype=I64), entry
        elif fault == "problem":
            entry = replace(entry, problem="it is a sparse tensor", blob=Blob(entry.nbytes))
        else:
            slot = replace(slot, problem="it is packed")
        fillings[-1] = Filling(slot, entry, I64 if fault == "kind" else last.dtype)
        done: list[str] = []
        with pytest.raises((EntryError, UnsupportedError)) as caught:
            self.bridge.fill(obj, fillings, done)
        assert caught.value.tensor == last.slot.path
        assert done == []
        assert values_of(obj) == before

    def test_after_a_failure_done_names_what_was_filled(self):
        obj = self.make(1)
        before = values_of(obj)
        fillings = [filling for filling in self.some_f32(obj) if filling.slot.path not in tied(obj)]
        broken = fillings[1]

        def fail() -> bytes:
            raise OSError("the disk is gone")

        fillings[1] = replace(broken, entry=replace(broken.entry, blob=DeferredBlob(broken.entry.nbytes, fail)))
        done: list[str] = []
        with pytest.raises((OSError, FirekeepError)):
            self.bridge.fill(obj, fillings, done)
        assert broken.slot.path not in done
        given = {filling.slot.path: bytes(filling.entry.read()) for filling in fillings if filling is not fillings[1]}
        for path, (_, _, held) in values_of(obj).items():
            assert held == (given[path] if path in done else before[path][2])

    def test_ids_are_taken_over_and_told(self):
        if not self.keeps_ids:
            pytest.skip("these objects have nowhere to keep ids")
        obj = self.make(1)
        fillings = [filling for filling in self.some_f32(obj) if filling.slot.path not in tied(obj)]
        given = {filling.slot.path: ParamId(number) for number, filling in enumerate(fillings, 1)}
        fillings = [
            replace(filling, entry=replace(filling.entry, param_id=given[filling.slot.path])) for filling in fillings
        ]
        self.bridge.fill(obj, fillings, [])
        assert {slot.path: slot.param_id for slot in slots_of(obj) if slot.path in given} == given
        assert {entry.name: entry.param_id for entry in entries_of(obj) if entry.name in given} == given

    def test_ids_stay_from_one_look_to_the_next(self):
        if not self.keeps_ids:
            pytest.skip("these objects have nowhere to keep ids")
        obj = self.make(1)
        ids = [entry.param_id for entry in entries_of(obj)]
        assert ids == [entry.param_id for entry in entries_of(obj)] == [slot.param_id for slot in slots_of(obj)]
        assert any(param_id is not None for param_id in ids)


def tied(obj: Any) -> set[str]:
    """Names of all slots that share a tensor with another one."""
    further = {slot.path: slot.tied_to for slot in slots_of(obj) if slot.tied_to is not None}
    return {*further, *further.values()}
