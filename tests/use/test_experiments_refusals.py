"""What is refused touches nothing, bit for bit, whatever the model is; and a reading that breaks off says how far it came."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firekeep
from firekeep.blobs import DeferredBlob
from firekeep.collecting import Collection
from firekeep.entry import TensorEntry
from firekeep.errors import EntryError
from use.experiments import make_net, make_torch, refusal, run, state_of, stream

LARGE = {"a": (256, 256), "b": (300, 256)}
SHAPES = {"fc.weight": (4, 3), "fc.bias": (3,), "head.weight": (3, 2)}


def make_native() -> Any:
    net = make_net()
    run(net, np.ones((1, 4), np.float32))
    return net


def make_plain() -> Any:
    return {name: stream(5, 0, *shape) for name, shape in SHAPES.items()}


MAKERS: dict[str, Callable[[], Any]] = {"native": make_native, "plain": make_plain, "torch": make_torch}


@pytest.fixture(params=MAKERS)
def target(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]()


@pytest.fixture
def source() -> Any:
    """A net whose numbers are those of none of the targets."""
    return make_net(rng=11)


def changed(entries: Sequence[TensorEntry], which: str, /, **changes: Any) -> list[TensorEntry]:
    return [replace(one, **changes) if one.name == which else one for one in entries]


class TestBeforeAByteIsRead:
    def check(self, target: Any, entries: list[TensorEntry], refusals: tuple[str, ...], **options: Any) -> None:
        before = state_of(target)
        report = refusal(
            firekeep.apply, target, Collection(entries=tuple(entries), layout="burn"), **{"match": "exact", **options}
        )
        assert report.refusals == refusals
        assert report.applied == ()
        assert not report.failed
        assert state_of(target) == before

    def test_a_missing_tensor(self, target: Any, source: Any):
        entries = [one for one in firekeep.collect(source).entries if one.name != "head.weight"]
        self.check(target, entries, ("1 missing",))

    def test_a_tensor_too_many(self, target: Any, source: Any):
        entries = [*firekeep.collect(source).entries, replace(firekeep.collect(source).entries[1], name="other")]
        self.check(target, entries, ("1 unused",))

    def test_another_shape(self, target: Any, source: Any):
        entries = changed(firekeep.collect(source).entries, "fc.bias", shape=(3, 1))
        self.check(target, entries, ("1 of another shape",))

    def test_all_three_are_told_at_once(self, target: Any, source: Any):
        entries = changed(firekeep.collect(source).entries, "fc.bias", shape=(3, 1))
        entries = changed(entries, "head.weight", name="tail.weight")
        self.check(target, entries, ("1 missing", "1 unused", "1 of another shape"))

    def test_nothing_that_fits_even_where_all_is_allowed(self, target: Any, source: Any):
        entries = [replace(one, name=f"else.{one.name}x") for one in firekeep.collect(source).entries]
        self.check(target, entries, ("no name matched",), strict=False)

    def test_a_tensor_that_is_known_to_be_broken(self, target: Any, source: Any):
        entries = changed(firekeep.collect(source).entries, "head.weight", problem="its storage is not there")
        before = state_of(target)
        report = refusal(firekeep.apply, target, Collection(entries=tuple(entries), layout="burn"))
        assert [(error.kind, error.name) for error in report.errors] == [("read", "head.weight")]
        assert state_of(target) == before


@pytest.mark.parametrize("suffix", [".bpk", ".safetensors"])
def test_a_file_with_a_damaged_table(target: Any, source: Any, suffix: str, tmp_path: Path):
    path = tmp_path / f"net{suffix}"
    firekeep.save(source, path)
    path.write_bytes(path.read_bytes()[:-5])
    before = state_of(target)
    with pytest.raises(firekeep.TruncatedError):
        firekeep.load_into(target, path, layout="torch")
    assert state_of(target) == before


def failing(error: Exception) -> Callable[[], bytes]:
    def provide() -> bytes:
        raise error

    return provide


def broken(source: Any, name: str, error: Exception) -> Collection:
    """Give the tensors of a model, of which one cannot be drawn."""
    collection = firekeep.collect(source)
    nbytes = next(one.nbytes for one in collection.entries if one.name == name)
    blob = DeferredBlob(nbytes, failing(error))
    return replace(collection, entries=tuple(changed(collection.entries, name, blob=blob)))


class TestReadingThatBreaksOff:
    def test_staged_nothing_is_touched(self, target: Any, source: Any):
        before = state_of(target)
        supply = broken(source, "head.weight", EntryError("the sensor was unplugged"))
        report = refusal(firekeep.apply, target, supply, stage=True)
        assert report.failed
        assert report.applied == ()
        assert report.ids_restored == 0
        assert [(error.name, error.message) for error in report.errors] == [("head.weight", "the sensor was unplugged")]
        assert state_of(target) == before

    def test_a_failure_of_the_system_comes_through_and_touches_nothing(self, target: Any, source: Any):
        before = state_of(target)
        with pytest.raises(OSError, match="unplugged"):
            firekeep.apply(target, broken(source, "head.weight", OSError(5, "unplugged")), stage=True)
        assert state_of(target) == before

    def test_unstaged_the_report_says_what_was_set(self, target: Any, source: Any):
        before = state_of(target)
        supply = broken(source, "head.weight", EntryError("the sensor was unplugged"))
        report = refusal(firekeep.apply, target, supply)
        assert report.failed
        assert report.applied == ("fc.bias", "fc.weight")
        assert {name for name, bits in state_of(target).items() if bits != before[name]} == set(report.applied)
        assert any("stage=True" in note for note in report.notes)
        assert "2 of 3 tensors" in str(report)

    def test_the_same_load_goes_through_once_the_tensor_can_be_read(self, target: Any, source: Any):
        assert firekeep.apply(target, firekeep.collect(source), stage=True).exact
        x = stream(1, 0, 5, 4)
        if not isinstance(target, dict):
            np.testing.assert_allclose(run(target, x), run(source, x), rtol=0, atol=1e-6)
        else:
            assert state_of(target) == state_of(source)


class TestAFileThatIsCutWhileItIsOpen:
    """Large tensors: small ones may have been read with the table."""

    def make(self, kind: str, value: float) -> Any:
        arrays = {name: np.full(shape, value, np.float32) for name, shape in LARGE.items()}
        if kind == "plain":
            return arrays
        if kind == "native":
            from firekeep.module import Module, Param

            class Pair(Module):
                a: Param
                b: Param

            return Pair(**{name: Param(array) for name, array in arrays.items()})
        import torch

        return torch.nn.ParameterDict({name: torch.tensor(array) for name, array in arrays.items()})

    @pytest.mark.parametrize("kind", MAKERS)
    @pytest.mark.parametrize("stage", [True, False], ids=["staged", "unstaged"])
    def test_the_tensor_is_named(self, kind: str, stage: bool, tmp_path: Path):
        path = tmp_path / "pair.safetensors"
        firekeep.save(self.make("plain", 1.0), path)
        target = self.make(kind, 0.0)
        before = state_of(target)
        with firekeep.open(path) as file:
            supply = Collection(entries=tuple(file.entries.values()), layout=None)
            os.truncate(path, path.stat().st_size - 200_000)
            report = refusal(firekeep.apply, target, supply, stage=stage)
        assert report.failed
        assert [error.name for error in report.errors] == ["b"]
        assert "b" not in report.applied
        if stage:
            assert report.applied == ()
            assert state_of(target) == before
