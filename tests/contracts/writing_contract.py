"""What every store must do whose format is written, in memory and on disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import firekeep
from contracts.nets import (
    NAMES,
    NativeNet,
    arrays_of,
    file_arrays,
    make_native,
    make_plain,
    make_torch,
    only,
    state_of,
)
from firekeep.stores import Store

ONE_WAY = r"^(?:net|model)\.=>"
"""A rule that nothing turns round: it takes one of two prefixes away and does not tell which."""


class WritingContract:
    """What a store does with a model."""

    store: ClassVar[type[Store]]
    suffix: ClassVar[str]
    layout: ClassVar[str]

    @pytest.fixture(params=["memory", "disk"])
    def where(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def make(self, where: str, tmp_path: Path, **options: Any) -> Store:
        return self.store(None if where == "memory" else tmp_path / f"made{self.suffix}", **options)

    def made(self, store: Store) -> Any:
        return store.data if store.path is None else store.path

    @pytest.mark.parametrize("make", [make_torch, make_native, make_plain])
    @pytest.mark.parametrize(
        "rename",
        [
            (),
            r"^model\.=>",
            [r"^encoder\.=>", r"^inner\.=>fc."],
            [r"\.kernel$=>.weight"],
            [(r"layers_(\d+)", r"blocks.\1")],
        ],
    )
    def test_what_one_store_saved_it_loads(self, make: Any, rename: Any, where: str, tmp_path: Path):
        store = self.make(where, tmp_path, rename=rename)
        model, twin = make(seed=1), make(seed=2)
        report = store.save(model)
        assert report.tensors == len(NAMES)
        assert store.load_into(twin).exact
        assert state_of(twin) == state_of(model)
        assert self.store(self.made(store), rename=rename).load_into(make(seed=3)).exact
        store.save(twin)
        assert store.load_into(make(seed=3)).exact

    def test_a_save_undoes_the_renames(self, where: str, tmp_path: Path):
        rules = [r"^model\.=>", r"^inner\.=>fc."]
        store = self.make(where, tmp_path, rename=rules, layout="torch")
        store.save(make_torch(seed=1))
        names = [f"model.{name.replace('fc.', 'inner.')}" for name in NAMES]
        assert sorted(firekeep.load_file(self.made(store))) == sorted(names)
        assert sorted(store.keys()) == sorted(NAMES)
        assert sorted(store.collect(make_torch(seed=1)).keys()) == sorted(names)

    @pytest.mark.parametrize(
        "rule", [ONE_WAY, r"^(net|enc)\.=>", r"fc\d*=>fc", r"(?i)FC=>fc", r"norm|layernorm=>norm", r"^=>$0"]
    )
    def test_a_rule_that_nothing_turns_round_is_named_and_nothing_is_written(
        self, rule: str, where: str, tmp_path: Path
    ):
        store = self.make(where, tmp_path, rename=[r"^a\.=>b.", rule])
        with pytest.raises(firekeep.RuleError, match=re.escape(rule)) as caught:
            store.save(make_torch(seed=1))
        assert "like=" in str(caught.value)
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(firekeep.RuleError, match="nothing has been saved" if where == "memory" else "on disk"):
            _ = store.data

    def test_a_rule_that_is_turned_round_wrongly_for_a_name_is_refused_with_the_name(self, where: str, tmp_path: Path):
        store = self.make(where, tmp_path, rename=r"a=>b")
        model = {"b": {"ab": np.ones(2, np.float32)}, "c": np.ones(2, np.float32)}
        with pytest.raises(firekeep.RuleError, match=r"'b\.ab'.*'a\.aa'.*'b\.bb'"):
            store.save(model)
        assert list(tmp_path.iterdir()) == []

    def test_after_a_load_names_are_restored_whatever_the_rules(self, where: str, tmp_path: Path):
        saved = self.make(where, tmp_path, rename=r"^net\.=>")
        saved.save(make_torch(seed=1))
        store = self.store(self.made(saved), rename=ONE_WAY)
        model = make_torch(seed=2)
        assert store.load_into(model).exact
        with torch.no_grad():
            model.head.weight.add_(1)
        store.save(model)
        found = file_arrays(self.made(store))
        assert set(found) == set(file_arrays(self.made(saved)))
        assert store.load_into(make_torch(seed=3)).exact
        again = make_torch(seed=3)
        store.load_into(again)
        assert state_of(again) == state_of(model)

    def test_a_dry_run_teaches_no_names(self, where: str, tmp_path: Path):
        saved = self.make(where, tmp_path, rename=r"^net\.=>")
        saved.save(make_torch(seed=1))
        store = self.store(self.made(saved), rename=ONE_WAY)
        store.load_into(make_torch(seed=2), dry_run=True)
        with pytest.raises(firekeep.RuleError, match="undo"):
            store.save(make_torch(seed=2))

    def test_a_tensor_that_the_loaded_file_had_not_is_saved_too(self, where: str, tmp_path: Path):
        saved = self.make(where, tmp_path, rename=r"^net\.=>", exclude="head")
        saved.save(make_torch(seed=1))
        store = self.store(self.made(saved), rename=r"^net\.=>", allow_partial=True)
        model = make_torch(seed=2)
        assert store.load_into(model).missing == ("head.weight",)
        store.save(model)
        twin = make_torch(seed=3)
        assert store.load_into(twin).exact
        assert state_of(twin) == state_of(model)
        assert all(name.startswith("net.") for name in file_arrays(self.made(store)))

    def test_two_names_that_change_places_do(self, where: str, tmp_path: Path):
        rules = [r"^a$=>tmp", r"^b$=>a", r"^tmp$=>b"]
        store = self.make(where, tmp_path, rename=rules, allow_partial=True)
        model = {"a": np.zeros(2, np.float32), "b": np.ones(2, np.float32)}
        store.save(model)
        assert file_arrays(self.made(store)) == {"a": model["b"].tobytes(), "b": model["a"].tobytes()}
        half = self.store(self.made(store), rename=rules, allow_partial=True, include="^b$")
        half.save(model)
        assert list(file_arrays(self.made(half))) == ["a"]
        whole = self.store(self.made(half), rename=rules, allow_partial=True)
        assert whole.load_into(model).missing == ("a",)
        whole.save(model)
        assert file_arrays(self.made(whole)) == {"a": model["b"].tobytes(), "b": model["a"].tobytes()}

    def test_after_a_load_that_left_a_shape_alone_the_model_is_saved(self, where: str, tmp_path: Path):
        saved = self.make(where, tmp_path)
        saved.save(make_torch(seed=1))
        model = make_torch(seed=2)
        model.head = nn.Linear(3, 5, bias=False)
        store = self.store(self.made(saved), validate=False)
        assert not store.load_into(model).complete
        store.save(model)
        twin = make_torch(seed=3)
        twin.head = nn.Linear(3, 5, bias=False)
        assert store.load_into(twin).exact
        assert state_of(twin) == state_of(model)

    @pytest.mark.parametrize("like", ["model", "file", "names"])
    def test_like_says_the_names_where_the_rules_do_not(self, like: str, where: str, tmp_path: Path):
        example = nn.Module()
        example.net = make_torch(seed=9)
        firekeep.save(example, tmp_path / "like.safetensors")
        given = {"model": example, "file": tmp_path / "like.safetensors", "names": [f"net.{name}" for name in NAMES]}
        store = self.make(where, tmp_path, rename=ONE_WAY, like=given[like], layout="torch")
        model, twin = make_torch(seed=1), make_torch(seed=2)
        store.save(model)
        assert sorted(file_arrays(self.made(store))) == sorted(f"net.{name}" for name in NAMES)
        assert store.load_into(twin).exact
        assert state_of(twin) == state_of(model)

    def test_like_another_net_is_refused(self, where: str, tmp_path: Path):
        store = self.make(where, tmp_path, like=nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
        with pytest.raises(firekeep.RuleError, match=r"Sequential.*0\.bias"):
            store.save(make_torch(seed=1))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("known", ["nothing", "like", "load"])
    def test_surgery_is_undone_before_renames_are(self, known: str, where: str, tmp_path: Path):
        cut = {"split": r"\.qkv\.", "into": [".q.", ".k.", ".v."]}
        fused = {"attn": {"qkv": {"weight": np.arange(18, dtype=np.float32).reshape(9, 2)}}}
        model = {"self": {name: {"weight": np.full((3, 2), n, np.float32)} for n, name in enumerate("qkv")}}
        store = self.make(
            where, tmp_path, surgery=[cut], rename=r"^attn\.=>self.", like=fused if known == "like" else None
        )
        if known == "load":
            firekeep.save(fused, tmp_path / "first.safetensors")
            first = self.store(tmp_path / "first.safetensors", surgery=[cut], rename=r"^attn\.=>self.")
            assert first.load_into(model).exact
            store = first
        store.save(model)
        found = file_arrays(self.made(store))
        assert list(found) == ["attn.qkv.weight"]
        assert found["attn.qkv.weight"] == b"".join(model["self"][name]["weight"].tobytes() for name in "qkv")
        twin = {"self": {name: {"weight": np.zeros((3, 2), np.float32)} for name in "qkv"}}
        assert store.load_into(twin).exact
        assert all(np.array_equal(twin["self"][name]["weight"], model["self"][name]["weight"]) for name in "qkv")

    def test_metadata_are_the_callers_over_those_of_its_own(self, where: str, tmp_path: Path):
        store = self.make(where, tmp_path, metadata={"epoch": "3", "producer": "somebody"})
        store.save(make_torch(seed=1))
        found = store.metadata()
        assert found["epoch"] == "3"
        assert found["producer"] == "somebody"
        assert found["version"] == firekeep.__version__
        assert found["format"] == {"torch": "pt", "burn": "burnpack"}[self.layout]
        assert found == firekeep.saved_metadata(self.made(store))
        with pytest.raises(firekeep.MetadataError, match="epoch"):
            self.make(where, tmp_path, metadata={"epoch": 3}).save(make_torch(seed=1))

    def test_what_there_is_stays_when_overwriting_is_not_allowed(self, where: str, tmp_path: Path):
        store = self.make(where, tmp_path, overwrite=False)
        store.save(make_torch(seed=1))
        before = file_arrays(self.made(store))
        with pytest.raises(FileExistsError, match="overwrite=False") as caught:
            store.save(make_torch(seed=2))
        assert isinstance(caught.value, firekeep.ExistsError)
        assert file_arrays(self.made(store)) == before
        store.with_options(overwrite=True).save(make_torch(seed=2))

    @pytest.mark.parametrize("layout", ["torch", "burn"])
    @pytest.mark.parametrize("make", [make_torch, make_native])
    def test_layout_is_the_files(self, layout: str, make: Any, where: str, tmp_path: Path):
        store = self.make(where, tmp_path, layout=layout)
        report = store.save(make(seed=1))
        assert report.layout == layout
        own = {"torch": make_torch, "burn": make_native}[layout](seed=2)
        found = firekeep.load_file(self.made(store))
        assert {name: array.shape for name, array in found.items()} == {
            name: array.shape for name, array in arrays_of(own).items()
        }
        assert ("firekeep.layout" in store.metadata()) == (layout != self.layout)
        for other in (own, make(seed=3)):
            assert self.store(self.made(store)).load_into(other).exact
            assert state_of(other) == state_of(make(seed=1))

    def test_a_store_that_loaded_one_layout_saves_the_other(self, where: str, tmp_path: Path):
        other = {"torch": "burn", "burn": "torch"}[self.layout]
        first = self.make(where, tmp_path, layout=other)
        first.save(make_torch(seed=1))
        store = self.store(self.made(first))
        model = make_torch(seed=2)
        assert store.load_into(model).exact
        assert store.save(model).layout == self.layout
        twin = make_torch(seed=3)
        assert store.load_into(twin).exact
        assert state_of(twin) == state_of(model) == state_of(make_torch(seed=1))
        own = {"torch": make_torch, "burn": make_native}[self.layout](seed=2)
        assert set(file_arrays(self.made(store))) == set(arrays_of(own))

    def test_dtype_is_that_of_the_floats_in_the_file(self, where: str, tmp_path: Path):
        model = make_torch(seed=1)
        with torch.no_grad():
            model.fc.bias[0] = 1e6
        model.register_buffer("steps", torch.tensor(3))
        store = self.make(where, tmp_path, dtype="f16")
        report = store.save(model)
        assert report.overflowed == {"fc.bias": 1}
        found = firekeep.load_file(self.made(store))
        assert {str(array.dtype) for name, array in found.items() if name != "steps"} == {"float16"}
        assert found["steps"].dtype == np.int64
        twin = make_torch(seed=2)
        twin.register_buffer("steps", torch.tensor(0))
        assert store.load_into(twin).exact
        assert twin.fc.weight.dtype is torch.float16

    def test_filters_speak_of_the_models_names(self, where: str, tmp_path: Path):
        options = {"rename": r"^fc\.=>inner.", "include": [r"^inner\.", "norm"], "exclude": r"^norm\.(bias|beta)$"}
        model, twin = make_torch(seed=1), make_torch(seed=2)
        model.inner, twin.inner = model.fc, twin.fc
        del model.fc, twin.fc
        before = state_of(twin)
        store = self.make(where, tmp_path, **options)
        report = store.save(model)
        assert set(report.left_out) == {"norm.bias", "head.weight"}
        assert len(file_arrays(self.made(store))) == 3
        assert set(store.keys()) >= {"inner.weight", "inner.bias"}
        loaded = store.load_into(twin)
        assert set(loaded.skipped) == {"norm.bias", "head.weight"}
        assert state_of(twin) == {**state_of(model), **only(before, "norm.bias", "head.weight")}

    def test_filters_that_leave_nothing_are_refused(self, where: str, tmp_path: Path):
        with pytest.raises(firekeep.RuleError, match="none of the 5 tensors is left"):
            self.make(where, tmp_path, include="^nothing$").save(make_torch(seed=1))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("ties", ["keep", "expand"])
    def test_ties_are_kept_or_written_out(self, ties: str, where: str, tmp_path: Path):
        model, twin = make_torch(seed=1), make_torch(seed=2)
        model.other = model.head
        twin.other = nn.Linear(3, 2, bias=False)
        store = self.make(where, tmp_path, ties=ties)
        store.save(model)
        found = firekeep.load_file(self.made(store))
        assert found["other.weight"].tobytes() == found["head.weight"].tobytes()
        with firekeep.open(self.made(store)) as opened:
            keys = {
                name: opened.entry(name).blob.identity() for name in ("head.weight", "other.weight") if name in opened
            }
        assert (len(set(keys.values())) == 1) == (ties == "keep")
        store.load_into(twin)
        assert torch.equal(twin.other.weight, model.head.weight)

    def test_collect_gives_what_a_save_writes(self, where: str, tmp_path: Path):
        store = self.make(where, tmp_path, rename=r"^model\.=>", dtype="bf16", exclude="head")
        collected = store.collect(make_native(seed=1))
        store.save(make_native(seed=1))
        assert isinstance(make_native(seed=1), NativeNet)
        with firekeep.open(self.made(store)) as opened:
            assert {entry.name: (entry.dtype, entry.shape, bytes(entry.read())) for entry in collected.entries} == {
                name: (entry.dtype, entry.shape, bytes(entry.read())) for name, entry in opened.entries.items()
            }
        assert collected.layout == self.layout

    def test_digests_are_written_and_hold(self, where: str, tmp_path: Path):
        store = self.make(where, tmp_path, digest=True)
        store.save(make_torch(seed=1))
        assert firekeep.verify(self.made(store)).ok
        damaged = bytearray(store.data if store.path is None else store.path.read_bytes())
        with firekeep.open(bytes(damaged)) as opened:
            window = opened.entry("head.weight").blob.window()
        assert window is not None
        damaged[window[1]] ^= 1
        assert not firekeep.verify(bytes(damaged)).ok

    def test_reports_tell_what_was_written(self, where: str, tmp_path: Path):
        store = self.make(where, tmp_path)
        report = store.save(make_torch(seed=1))
        assert report.nbytes == len(store.data if store.path is None else store.path.read_bytes())
        assert (report.format, report.layout, report.tensors) == (store.format, self.layout, len(NAMES))
        assert ("memory" if where == "memory" else str(store.path)) in str(report)
        assert bool(report.steps) == (self.layout == "burn")
