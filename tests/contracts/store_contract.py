"""What every store must do, whatever its format, in memory and on disk.

A member's test class inherits `StoreContract`, and `WritingContract` of the file beside this one if its format is written. It names its
class, and makes files of its format with PyTorch's layout in them.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import firekeep
from contracts.nets import NAMES, TorchNet, arrays_of, make_native, make_plain, make_torch, only, state_of
from firekeep.stores import Store, StoreOptions

Place = str | Path | bytes


class StoreContract:
    """What a store does with a file that is there."""

    store: ClassVar[type[Store]]
    suffix: ClassVar[str]

    def write(self, arrays: Mapping[str, np.ndarray]) -> bytes:
        """Give a file of the format that holds these, of which the layout is PyTorch's."""
        raise NotImplementedError

    @pytest.fixture(params=["memory", "disk"])
    def where(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def place(self, arrays: Mapping[str, np.ndarray], where: str, tmp_path: Path) -> Place:
        data = self.write(arrays)
        if where == "memory":
            return data
        path = tmp_path / f"file{self.suffix}"
        path.write_bytes(data)
        return path

    @pytest.fixture
    def teacher(self) -> TorchNet:
        return make_torch(seed=1)

    @pytest.fixture
    def file(self, teacher: TorchNet, where: str, tmp_path: Path) -> Place:
        return self.place(arrays_of(teacher), where, tmp_path)

    @pytest.fixture
    def renamed_file(self, teacher: TorchNet, where: str, tmp_path: Path) -> Place:
        arrays = {f"net.{name}".replace("fc.", "inner."): array for name, array in arrays_of(teacher).items()}
        return self.place(arrays, where, tmp_path)

    def test_keys_are_the_names_that_the_rules_give(self, file: Place):
        store = self.store(file, rename=r"^fc\.=>inner.")
        assert set(store.keys()) == {name.replace("fc.", "inner.") for name in NAMES}
        assert store.keys() == store.keys()
        assert set(self.store(file).keys()) == set(NAMES)

    def test_an_entry_stays_readable_when_the_store_is_gone(self, file: Place, teacher: TorchNet):
        entry = self.store(file, rename=r"^fc\.=>inner.").entry("inner.weight")
        gc.collect()
        assert entry.shape == (3, 4)
        assert bytes(entry.read()) == arrays_of(teacher)["fc.weight"].tobytes()

    def test_an_entry_that_is_not_there_is_named_and_others_are_shown(self, file: Place):
        with pytest.raises(firekeep.TensorNotFoundError, match=r"'fc\.weight'.*inner\.weight"):
            self.store(file, rename=r"^fc\.=>inner.").entry("fc.weight")

    @pytest.mark.parametrize("make", [make_torch, make_native, make_plain])
    def test_it_fills_models_of_all_kinds(self, file: Place, teacher: TorchNet, make: Any):
        model = make(seed=2)
        report = self.store(file).load_into(model)
        assert report.exact
        assert state_of(model) == state_of(teacher)

    def test_renames_stand_between_the_files_names_and_the_models(self, renamed_file: Place, teacher: TorchNet):
        model = make_torch(seed=2)
        report = self.store(renamed_file, rename=[r"^net\.=>", r"^inner\.=>fc."], match="exact").load_into(model)
        assert report.exact
        assert {one.file_name for one in report.renamed} == {
            f"net.{name}".replace("fc.", "inner.") for name in report.applied
        }
        assert state_of(model) == state_of(teacher)

    def test_filters_speak_of_the_models_names(self, renamed_file: Place, teacher: TorchNet):
        model = make_torch(seed=2)
        before = state_of(model)
        store = self.store(renamed_file, rename=[r"^net\.=>", r"^inner\.=>fc."], include=r"^fc\.", exclude="bias")
        report = store.load_into(model)
        assert report.applied == ("fc.weight",)
        assert set(report.skipped) == {*NAMES} - {"fc.weight"}
        assert state_of(model) == {**before, "fc.weight": state_of(teacher)["fc.weight"]}
        assert "inner.weight" not in store.keys()  # noqa: SIM118 - the store is no mapping
        assert "head.weight" in store.keys()  # noqa: SIM118 - keys know no filter

    def test_a_file_that_lacks_a_tensor_is_refused_unless_it_is_allowed(self, where: str, tmp_path: Path):
        arrays = arrays_of(make_torch(seed=1))
        del arrays["head.weight"]
        place = self.place(arrays, where, tmp_path)
        model = make_torch(seed=2)
        before = state_of(model)
        with pytest.raises(firekeep.LoadError) as caught:
            self.store(place).load_into(model)
        assert caught.value.report.missing == ("head.weight",)
        assert state_of(model) == before
        report = self.store(place, allow_partial=True).load_into(model)
        assert report.missing == ("head.weight",)
        assert state_of(model) == {
            **{name: array.tobytes() for name, array in arrays.items()},
            **only(before, "head.weight"),
        }

    def test_a_tensor_that_nothing_wants_is_told_and_refused_only_if_that_is_asked(self, where: str, tmp_path: Path):
        place = self.place({**arrays_of(make_torch(seed=1)), "extra": np.ones(2, np.float32)}, where, tmp_path)
        assert self.store(place).load_into(make_torch(seed=2)).unused == ("extra",)
        model = make_torch(seed=2)
        with pytest.raises(firekeep.LoadError) as caught:
            self.store(place, allow_unused=False).load_into(model)
        assert caught.value.report.unused == ("extra",)
        assert state_of(model) == state_of(make_torch(seed=2))

    def test_another_shape_is_refused_unless_shapes_are_not_validated(self, where: str, tmp_path: Path):
        arrays = {**arrays_of(make_torch(seed=1)), "head.weight": np.ones((7, 3), np.float32)}
        place = self.place(arrays, where, tmp_path)
        model = make_torch(seed=2)
        before = state_of(model)
        with pytest.raises(firekeep.LoadError) as caught:
            self.store(place).load_into(model)
        assert [(error.name, error.kind) for error in caught.value.report.errors] == [("head.weight", "shape")]
        assert state_of(model) == before
        report = self.store(place, validate=False).load_into(model)
        assert [error.name for error in report.errors] == ["head.weight"]
        assert not report.complete
        assert state_of(model)["head.weight"] == before["head.weight"]
        assert state_of(model)["fc.weight"] == arrays["fc.weight"].tobytes()

    def test_nothing_matched_is_refused_whatever_is_allowed(self, where: str, tmp_path: Path):
        place = self.place({"something.else": np.ones(2, np.float32)}, where, tmp_path)
        model = make_torch(seed=2)
        with pytest.raises(firekeep.NothingMatchedError):
            self.store(place, allow_partial=True, allow_unused=True, validate=False).load_into(model)
        assert state_of(model) == state_of(make_torch(seed=2))

    def test_exact_matching_takes_equal_names_only(self, where: str, tmp_path: Path):
        wrapped = {f"module.{name}": array for name, array in arrays_of(make_torch(seed=1)).items()}
        place = self.place(wrapped, where, tmp_path)
        assert self.store(place).load_into(make_torch(seed=2)).exact
        with pytest.raises(firekeep.NothingMatchedError):
            self.store(place, match="exact").load_into(make_torch(seed=2))

    @pytest.mark.parametrize(("dtype", "held"), [("module", "float32"), ("file", "float16"), ("bf16", "bfloat16")])
    def test_dtype_says_what_slots_hold(self, dtype: str, held: str, where: str, tmp_path: Path):
        import torch

        arrays = {name: array.astype(np.float16) for name, array in arrays_of(make_torch(seed=1)).items()}
        model = make_torch(seed=2)
        report = self.store(self.place(arrays, where, tmp_path), dtype=dtype).load_into(model)
        assert report.exact
        for name, tensor in model.state_dict().items():
            assert tensor.dtype is getattr(torch, held)
            assert torch.equal(tensor, torch.from_numpy(arrays[name]).to(tensor.dtype))

    def test_a_layout_is_believed_over_what_the_format_leads_one_to_expect(self, where: str, tmp_path: Path):
        native = make_native(seed=1)
        place = self.place(arrays_of(native), where, tmp_path)
        model = make_torch(seed=2)
        assert self.store(place, layout="burn").load_into(model).exact
        assert state_of(model) == state_of(native)
        with pytest.raises(firekeep.LoadError):
            self.store(place).load_into(model)
        with pytest.raises(firekeep.RuleError, match=r"'torch', 'burn'|torch, burn"):
            self.store(place, layout="tensorflow").load_into(model)

    def test_surgery_comes_before_renames(self, teacher: TorchNet, where: str, tmp_path: Path):
        arrays = arrays_of(teacher)
        fused = np.concatenate([arrays.pop("fc.weight"), arrays.pop("head.weight").repeat(2, 0)[:, [0, 1, 2, 0]]])
        place = self.place({**arrays, "both.weight": fused}, where, tmp_path)
        cut = {"split": r"^both\.", "into": ["a.", "b."], "sizes": [3, 4]}
        store = self.store(place, surgery=[cut], rename=[r"^a\.=>fc."], allow_partial=True)
        assert {"fc.weight", "b.weight"} <= set(store.keys())
        model = make_torch(seed=2)
        report = store.load_into(model)
        assert report.missing == ("head.weight",)
        assert report.unused == ("b.weight",)
        assert state_of(model)["fc.weight"] == state_of(teacher)["fc.weight"]

    def test_a_dry_run_changes_nothing(self, file: Place):
        model = make_torch(seed=2)
        report = self.store(file).load_into(model, dry_run=True)
        assert report.dry_run
        assert set(report.applied) == {*NAMES}
        assert state_of(model) == state_of(make_torch(seed=2))

    def test_with_stage_it_fills_all_the_same(self, file: Place, teacher: TorchNet):
        model = make_torch(seed=2)
        assert self.store(file, stage=True).load_into(model).exact
        assert state_of(model) == state_of(teacher)

    def test_limits_reach_the_reader(self, where: str, tmp_path: Path):
        limits = firekeep.Limits(safetensors_tensors=1, burnpack_tensors=1, pickle_opcodes=3)
        store = self.store(self.place(arrays_of(make_torch(seed=1)), where, tmp_path), limits=limits)
        with pytest.raises(firekeep.LimitError):
            store.load_into(make_torch(seed=2))

    def test_a_file_that_is_not_there_is_missing_and_damage_is_named(self, tmp_path: Path):
        path = tmp_path / f"none{self.suffix}"
        store = self.store(path)
        with pytest.raises(FileNotFoundError, match="none"):
            store.load_into(make_torch(seed=2))
        path.write_bytes(self.write(arrays_of(make_torch(seed=1)))[:-40])
        model = make_torch(seed=2)
        with pytest.raises(firekeep.FirekeepError) as caught:
            store.load_into(model)
        assert str(path) in str(caught.value)
        assert state_of(model) == state_of(make_torch(seed=2))

    def test_a_path_may_be_text(self, teacher: TorchNet, tmp_path: Path):
        place = self.place(arrays_of(teacher), "disk", tmp_path)
        model = make_torch(seed=2)
        assert self.store(str(place)).load_into(model).exact
        assert state_of(model) == state_of(teacher)

    def test_all_options_are_those_of_the_table_and_no_others(self, file: Place):
        options = {name: getattr(StoreOptions(), name) for name in StoreOptions.__slots__}
        assert self.store(file, **options).options == StoreOptions()
        with pytest.raises(TypeError, match="renames"):
            self.store(file, renames=())

    def test_a_store_like_it_has_the_options_that_are_not_changed(self, file: Place):
        store = self.store(file, rename=r"^fc\.=>inner.", allow_partial=True)
        other = store.with_options(allow_partial=False)
        assert type(other) is self.store
        assert other.keys() == store.keys()
        assert store.options.allow_partial
        assert not other.options.allow_partial

    @pytest.mark.parametrize("option", [{"rename": "no arrow"}, {"include": "("}, {"surgery": [{"cut": "x"}]}])
    def test_rules_that_make_no_sense_are_refused_when_they_are_given(self, file: Place, option: dict[str, Any]):
        with pytest.raises(firekeep.RuleError):
            self.store(file, **option)

    def test_a_store_of_nothing_says_so(self):
        for act in (
            lambda store: store.keys(),
            lambda store: store.load_into(make_torch(seed=2)),
            lambda store: store.data,
        ):
            with pytest.raises(firekeep.RuleError, match="nothing has been saved"):
                act(self.store())
