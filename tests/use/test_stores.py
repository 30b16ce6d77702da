"""The stores, each against the contract of all, and what is its format's own."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firekeep
from contracts.nets import NAMES, arrays_of, make_native, make_torch, state_of
from contracts.store_contract import StoreContract
from contracts.writing_contract import WritingContract
from firekeep.module import Linear, Module
from firekeep.stores import Store


class TestBurnpackStore(StoreContract, WritingContract):
    store = firekeep.BurnpackStore
    suffix = ".bpk"
    layout = "burn"

    def write(self, arrays: Mapping[str, np.ndarray]) -> bytes:
        return firekeep.save_bytes(arrays, format="burnpack", metadata={"firekeep.layout": "torch"})


class TestSafetensorsStore(StoreContract, WritingContract):
    store = firekeep.SafetensorsStore
    suffix = ".safetensors"
    layout = "torch"

    def write(self, arrays: Mapping[str, np.ndarray]) -> bytes:
        return firekeep.save_bytes(arrays, format="safetensors", metadata={"format": "pt"})


class TestPytorchStore(StoreContract):
    store = firekeep.PytorchStore
    suffix = ".pt"

    def write(self, arrays: Mapping[str, np.ndarray]) -> bytes:
        buffer = io.BytesIO()
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, buffer)
        return buffer.getvalue()

    def test_it_is_read_and_not_written(self, where: str, tmp_path: Path):
        store = self.store(None if where == "memory" else tmp_path / "out.pt")
        with pytest.raises(firekeep.UnsupportedError, match=r"safetensors\.torch\.load_file"):
            store.save(make_torch(seed=1))
        assert list(tmp_path.iterdir()) == []

    def test_one_part_of_several_is_chosen_by_its_key(self, where: str, tmp_path: Path):
        parts = {
            name: {n: torch.from_numpy(a) for n, a in arrays_of(make_torch(seed)).items()}
            for name, seed in (("model", 1), ("ema", 2))
        }
        buffer = io.BytesIO()
        torch.save({**parts, "epoch": 3}, buffer)
        place: Any = buffer.getvalue()
        if where == "disk":
            (tmp_path / "both.pt").write_bytes(place)
            place = tmp_path / "both.pt"
        for name, seed in (("model", 1), ("ema", 2)):
            model = make_torch(seed=3)
            store = self.store(place, top_level_key=name)
            assert sorted(store.keys()) == sorted(NAMES)
            assert store.load_into(model).exact
            assert state_of(model) == state_of(make_torch(seed))
        with pytest.raises(firekeep.RuleError, match="top_level_key='model'"):
            self.store(place).load_into(make_torch(seed=3))
        assert set(self.store(place, top_level_key="").keys()) == {f"{part}.{name}" for part in parts for name in NAMES}


class TestNames:
    """Of paths without a suffix."""

    @pytest.mark.parametrize(
        ("name", "options", "written"),
        [
            ("model", {}, "model.bpk"),
            ("model", {"auto_extension": False}, "model"),
            ("model.bpk", {}, "model.bpk"),
            ("model.BPK", {}, "model.BPK"),
            ("model.v1", {}, "model.v1"),
            (".hidden", {}, ".hidden.bpk"),
        ],
    )
    def test_burns_suffix_is_added_where_there_is_none(self, name: str, options: Any, written: str, tmp_path: Path):
        store = firekeep.BurnpackStore(tmp_path / name, **options)
        store.save(make_native(seed=1))
        assert [path.name for path in tmp_path.iterdir()] == [written]
        assert store.load_into(make_native(seed=2)).exact
        assert firekeep.BurnpackStore(tmp_path / name, **options).load_into(make_native(seed=2)).exact

    def test_a_folder_of_the_name_is_not_in_the_way(self, tmp_path: Path):
        (tmp_path / "model").mkdir()
        assert firekeep.BurnpackStore(tmp_path / "model").save(make_native(seed=1)).path == tmp_path / "model.bpk"

    def test_a_file_of_the_very_name_is_the_one_that_is_meant(self, tmp_path: Path):
        firekeep.BurnpackStore(tmp_path / "model", auto_extension=False).save(make_native(seed=1))
        model = make_native(seed=2)
        assert firekeep.BurnpackStore(tmp_path / "model").load_into(model).exact
        assert state_of(model) == state_of(make_native(seed=1))

    @pytest.mark.parametrize("name", ["model", "model.v1", "model.safetensors"])
    def test_other_stores_take_names_as_they_are(self, name: str, tmp_path: Path):
        firekeep.SafetensorsStore(tmp_path / name).save(make_torch(seed=1))
        assert [path.name for path in tmp_path.iterdir()] == [name]
        assert firekeep.SafetensorsStore(tmp_path / name).load_into(make_torch(seed=2)).exact


class TestAnyStore:
    def test_its_suffix_tells_the_format(self, tmp_path: Path):
        for suffix, layout in ((".bpk", "burn"), (".safetensors", "torch")):
            store = Store(tmp_path / f"a{suffix}")
            assert store.save(make_torch(seed=1)).layout == layout
            assert store.load_into(make_torch(seed=2)).exact
        with pytest.raises(firekeep.FirekeepError, match=r"\.xyz"):
            Store(tmp_path / "a.xyz").save(make_torch(seed=1))

    def test_content_tells_what_is_read(self, tmp_path: Path):
        firekeep.save(make_torch(seed=1), tmp_path / "a.safetensors")
        assert firekeep.PytorchStore(tmp_path / "a.safetensors").load_into(make_torch(seed=2)).exact

    def test_a_key_is_for_pytorch_files(self, tmp_path: Path):
        firekeep.save(make_torch(seed=1), tmp_path / "a.safetensors")
        with pytest.raises(firekeep.RuleError, match="is for PyTorch files"):
            firekeep.SafetensorsStore(tmp_path / "a.safetensors", top_level_key="model").keys()

    def test_it_says_where_it_is(self, tmp_path: Path):
        assert repr(firekeep.BurnpackStore(tmp_path / "a")) == f"BurnpackStore({tmp_path / 'a.bpk'})"
        assert repr(firekeep.SafetensorsStore()) == "SafetensorsStore(in memory)"
        with pytest.raises(firekeep.RuleError, match="a file on disk"):
            _ = firekeep.BurnpackStore(tmp_path / "a").data

    def test_gaps_that_a_load_closed_are_opened_by_the_next_save(self, tmp_path: Path):
        path = tmp_path / "gaps.safetensors"
        firekeep.save_file({f"net.{index}.w": np.full(2, index, np.float32) for index in (0, 2, 5)}, path)
        model = {"net": [{"w": np.zeros(2, np.float32)} for _ in range(3)]}
        store = firekeep.SafetensorsStore(path)
        assert store.load_into(model).exact
        model["net"][1]["w"][:] = 7
        store.save(model)
        assert {name: array.tolist() for name, array in firekeep.load_file(path).items()} == {
            "net.0.w": [0, 0],
            "net.2.w": [7, 7],
            "net.5.w": [5, 5],
        }
        exact = firekeep.SafetensorsStore(path, match="exact", allow_partial=True)
        exact.load_into(model)
        exact.save(model)
        assert sorted(firekeep.load_file(path)) == ["net.0.w", "net.1.w", "net.2.w"]


class TestWhatIsNoTensor:
    """What a file in Burn's layout keeps beside its tensors goes by the names that renames give them."""

    @pytest.mark.parametrize("way", ["store", "doors", "convert"])
    def test_counters_of_batches_follow_their_layers(self, way: str, tmp_path: Path):
        model, twin = (torch.nn.Sequential(torch.nn.Conv1d(2, 3, 1), torch.nn.BatchNorm1d(3)) for _ in range(2))
        model(torch.ones(4, 2, 5))
        path = tmp_path / "m.bpk"
        if way == "store":
            store = firekeep.BurnpackStore(path, rename=r"^net\.=>")
            store.save(model)
            assert store.load_into(twin).complete
        else:
            if way == "doors":
                firekeep.save(model, path, rename=r"^=>net.")
            else:
                firekeep.save(model, tmp_path / "first.bpk")
                firekeep.convert(tmp_path / "first.bpk", path, rename=r"^=>net.")
            assert firekeep.load_into(twin, path, rename=r"^net\.=>").complete
        with firekeep.open(path) as file:
            assert list(file.scalars) == ["firekeep.num_batches_tracked.net.1"]
        assert twin[1].num_batches_tracked.item() == 1

    def test_where_there_is_no_place_for_counters_it_is_told(self):
        store = firekeep.SafetensorsStore(layout="burn")
        report = store.save(torch.nn.BatchNorm1d(3))
        assert any("1 counter of batches left out" in step for step in report.steps)
        twin = torch.nn.BatchNorm1d(3)
        twin.num_batches_tracked.fill_(7)
        assert store.load_into(twin).no_counterpart == ("num_batches_tracked",)
        assert twin.num_batches_tracked.item() == 7

    def test_linear_layers_that_lie_the_other_way_follow_too(self, tmp_path: Path):
        class Net(Module):
            col: Linear
            row: Linear

        def make() -> Net:
            return Net(col=Linear(3, 3, layout="col"), row=Linear(3, 3))

        model, twin, other = make(), make(), torch.nn.ModuleDict({n: torch.nn.Linear(3, 3) for n in ("col", "row")})
        store = firekeep.BurnpackStore(tmp_path / "m.bpk", rename=[r"^net\.=>", r"^c\.=>col."])
        store.save(model)
        assert set(firekeep.load_file(tmp_path / "m.bpk")) >= {"net.c.weight", "net.row.weight"}
        assert store.load_into(twin).exact
        assert store.load_into(other).exact
        x = np.float32([[1, 2, 3]])
        for name in ("col", "row"):
            expected = getattr(model, name)(x)
            np.testing.assert_array_equal(getattr(twin, name)(x), expected)
            np.testing.assert_allclose(
                other[name](torch.from_numpy(x)).detach().numpy(), expected, rtol=1e-5, atol=1e-6
            )
