"""What every load does with what is missing, unused or of another shape, whatever kind the model is of."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

import firekeep
from contracts.nets import arrays_of, make_torch, state_of

FAULTS = ("missing", "unused", "mismatched")
SETS = [frozenset(chosen) for size in range(4) for chosen in combinations(FAULTS, size)]
"""All subsets of the three."""


def faulty_file(faults: Iterable[str]) -> bytes:
    """Make a file of the net, in PyTorch's layout, with these things wrong."""
    arrays = arrays_of(make_torch(seed=1))
    if "missing" in faults:
        del arrays["head.weight"]
    if "unused" in faults:
        arrays["extra.weight"] = np.ones((2, 2), np.float32)
    if "mismatched" in faults:
        arrays["fc.weight"] = np.ones((4, 3), np.float32)
    return firekeep.save_bytes(arrays, format="safetensors", metadata={"format": "pt"})


def names_of(report: firekeep.LoadReport) -> frozenset[str]:
    """Say which faults a report tells, and that it tells them of the right tensors."""
    assert report.missing in ((), ("head.weight",))
    assert report.unused in ((), ("extra.weight",))
    assert [error.name for error in report.errors] in ([], ["fc.weight"])
    told = {"missing": report.missing, "unused": report.unused, "mismatched": report.errors}
    return frozenset(fault for fault, names in told.items() if names)


class PolicyContract:
    """A member says how its nets are made; `load` may be another door than `firekeep.load_into`."""

    def make(self, seed: int) -> Any:
        raise NotImplementedError

    def load(self, model: Any, data: bytes, **options: Any) -> firekeep.LoadReport:
        return firekeep.load_into(model, data, **options)

    def expected(self, faults: frozenset[str], before: dict[str, bytes]) -> dict[str, bytes]:
        """Give what a model holds when all that fits was taken."""
        kept = {"missing": "head.weight", "mismatched": "fc.weight"}
        untouched = {kept[fault] for fault in faults if fault in kept}
        return {
            name: before[name] if name in untouched else bits for name, bits in state_of(make_torch(seed=1)).items()
        }

    @pytest.mark.parametrize("faults", SETS, ids=lambda faults: "+".join(sorted(faults)) or "none")
    @pytest.mark.parametrize("allowed", SETS, ids=lambda allowed: "+".join(sorted(allowed)) or "none")
    @pytest.mark.parametrize("strict", [True, False])
    def test_what_is_not_allowed_refuses_and_all_is_told(
        self, strict: bool, allowed: frozenset[str], faults: frozenset[str]
    ):
        options = {f"allow_{fault}": fault in allowed for fault in FAULTS}
        self.judge(faults, allowed=allowed, options={"strict": strict, **options})

    @pytest.mark.parametrize("faults", SETS, ids=lambda faults: "+".join(sorted(faults)) or "none")
    @pytest.mark.parametrize("said", FAULTS)
    @pytest.mark.parametrize(("strict", "verdict"), list(product([True, False], repeat=2)))
    def test_strict_says_it_of_what_is_not_said_by_itself(
        self, strict: bool, verdict: bool, said: str, faults: frozenset[str]
    ):
        allowed = frozenset(FAULTS) if not strict else frozenset()
        allowed = allowed | {said} if verdict else allowed - {said}
        self.judge(faults, allowed=allowed, options={"strict": strict, f"allow_{said}": verdict})

    def judge(self, faults: frozenset[str], *, allowed: frozenset[str], options: dict[str, Any]) -> None:
        model = self.make(seed=2)
        before = state_of(model)
        data = faulty_file(faults)
        if faults <= allowed:
            report = self.load(model, data, **options)
            assert report.ok
            assert state_of(model) == self.expected(faults, before)
            assert set(report.applied) == {
                slot for slot, bits in self.by_path(model).items() if bits != self.by_path(self.make(seed=2))[slot]
            }
        else:
            with pytest.raises(firekeep.LoadError) as caught:
                self.load(model, data, **options)
            report = caught.value.report
            assert not isinstance(caught.value, firekeep.NothingMatchedError)
            assert len(report.refusals) == len(faults - allowed)
            assert report.applied == ()
            assert state_of(model) == before
            for name, fault in (("head.weight", "missing"), ("extra.weight", "unused"), ("fc.weight", "mismatched")):
                assert (name in str(caught.value)) >= (fault in faults)
        assert names_of(report) == faults
        assert report.exact == (not faults)
        assert report.complete == (faults <= allowed and faults <= {"unused"})
        with_dry_run = self.make(seed=2)
        dry = self.load(with_dry_run, data, dry_run=True, **options)
        assert dry.ok == (faults <= allowed)
        if dry.ok:
            assert (dry.applied, dry.missing, dry.unused, dry.errors) == (
                report.applied,
                report.missing,
                report.unused,
                report.errors,
            )
        else:
            assert (dry.applied, dry.refusals, dry.missing) == ((), report.refusals, report.missing)
        assert state_of(with_dry_run) == before

    @staticmethod
    def by_path(model: Any) -> dict[str, bytes]:
        return {entry.name: bytes(entry.read()) for entry in firekeep.entries_of(model)}

    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.parametrize("match", ["auto", "exact"])
    def test_nothing_matched_is_refused_whatever_is_allowed(self, match: str, strict: bool):
        data = firekeep.save_bytes({"a.b": np.ones(2, np.float32), "c": np.ones(3)}, format="safetensors")
        model = self.make(seed=2)
        before = state_of(model)
        with pytest.raises(firekeep.NothingMatchedError) as caught:
            self.load(
                model,
                data,
                strict=strict,
                match=match,
                allow_missing=True,
                allow_unused=True,
                allow_mismatched=True,
            )
        assert caught.value.report.nothing_matched
        assert len(caught.value.report.missing) == 5
        assert state_of(model) == before

    @pytest.mark.parametrize("strict", [True, False])
    def test_an_empty_file_matches_nothing(self, strict: bool):
        model = self.make(seed=2)
        with pytest.raises(firekeep.NothingMatchedError):
            self.load(model, firekeep.save_bytes({}, format="safetensors"), strict=strict)

    def test_another_kind_of_numbers_is_never_allowed(self):
        arrays = {**arrays_of(make_torch(seed=1)), "fc.bias": np.ones(3, np.int64)}
        data = firekeep.save_bytes(arrays, format="safetensors", metadata={"format": "pt"})
        model = self.make(seed=2)
        before = state_of(model)
        with pytest.raises(firekeep.LoadError) as caught:
            self.load(model, data, strict=False)
        assert [(error.name, error.kind) for error in caught.value.report.errors] == [("fc.bias", "kind")]
        assert state_of(model) == before
