"""What went wrong for people with the names of weights: wrappers, lists, other spellings, fused tensors, silent misses."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import firekeep
import pickles
from contracts.nets import NAMES, arrays_of, file_arrays, make_native, make_plain, make_torch, state_of
from firekeep.limits import Limits
from firekeep.module import Linear, Lstm, Module, MultiHeadAttention, Relu
from reports.files import described, raw_safetensors
from use.experiments import refusal

both = pytest.mark.parametrize("suffix", [".bpk", ".safetensors"])
makers = pytest.mark.parametrize("make", [make_torch, make_native, make_plain], ids=["torch", "native", "plain"])


def torch_file(arrays: dict[str, np.ndarray]) -> bytes:
    return firekeep.save_bytes(arrays, format="safetensors", metadata={"format": "pt"})


class TestWrappers:
    """`module.` of DataParallel, `_orig_mod.` of torch.compile, at any depth and in any mixture; what PEFT puts in front."""

    @makers
    @pytest.mark.parametrize(
        "spell",
        [
            "module.{}",
            "_orig_mod.{}",
            "model.{}",
            "module._orig_mod.{}",
            "_orig_mod.module.{}",
            "module.module.{}",
            "base_model.model.{}",
            "state_dict.{}",
            "model.module._orig_mod.{}",
        ],
    )
    def test_a_wrapper_around_the_whole_is_seen_through_and_told(self, spell: str, make: Any):
        arrays = arrays_of(make_torch(seed=1))
        model = make(seed=2)
        report = firekeep.load_into(model, torch_file({spell.format(name): array for name, array in arrays.items()}))
        assert report.exact
        assert state_of(model) == state_of(make_torch(seed=1))
        told = " ".join(report.steps)
        assert spell.format("") in told
        assert "5" in told

    @makers
    def test_wrappers_inside_are_seen_through_wherever_they_stand(self, make: Any):
        arrays = {
            name.replace("fc.", "fc._orig_mod.").replace("head.", "_orig_mod.head.module."): array
            for name, array in arrays_of(make_torch(seed=1)).items()
        }
        model = make(seed=2)
        assert firekeep.load_into(model, torch_file(arrays)).exact
        assert state_of(model) == state_of(make_torch(seed=1))

    @makers
    def test_exact_matching_sees_through_nothing_and_a_fix_is_offered_with_its_gain(self, make: Any):
        arrays = {f"module.{name}": array for name, array in arrays_of(make_torch(seed=1)).items()}
        report = refusal(firekeep.load_into, make(seed=2), torch_file(arrays), match="exact")
        assert report.nothing_matched
        assert any(remedy.gain == 5 for remedy in report.remedies)
        offered = max(report.remedies, key=lambda remedy: remedy.gain)
        model = make(seed=2)
        options = eval(f"dict({offered.python})")  # the remedy is code that a user would paste
        assert firekeep.load_into(model, torch_file(arrays), **{"match": "exact", **options}).exact

    @both
    def test_a_wrapped_model_is_saved_for_the_bare_one_and_back(self, suffix: str, tmp_path: Path):
        wrapped = nn.DataParallel(make_torch(seed=1))
        firekeep.save(wrapped, tmp_path / f"m{suffix}")
        bare = make_torch(seed=2)
        assert firekeep.load_into(bare, tmp_path / f"m{suffix}").exact
        assert state_of(bare) == state_of(make_torch(seed=1))
        firekeep.save(make_torch(seed=3), tmp_path / f"m{suffix}", rename=r"^=>module.")
        assert all(name.startswith("module.") for name in file_arrays(tmp_path / f"m{suffix}"))
        assert firekeep.load_into(wrapped, tmp_path / f"m{suffix}").exact
        assert state_of(wrapped.module) == state_of(make_torch(seed=3))

    def test_adapters_go_both_ways(self):
        names = [f"layers.{layer}.q.lora_{half}.weight" for layer in (0, 1) for half in "AB"]
        mine = {name: np.full((2, 3), number, np.float32) for number, name in enumerate(names)}
        theirs = {
            f"base_model.model.{name.replace('.weight', '.default.weight')}": array for name, array in mine.items()
        }
        for held, given in ((mine, theirs), (theirs, mine)):
            model = {name: np.zeros_like(array) for name, array in held.items()}
            assert firekeep.load_into(model, torch_file(given)).exact
            assert all(np.array_equal(model[name], held[name]) for name in held)


class TestSilentMisses:
    """Files of which nothing, or too little, matched, and that loaded "successfully"."""

    @makers
    def test_names_that_match_nothing_are_refused_and_both_sides_are_shown(self, make: Any):
        report = refusal(
            firekeep.load_into, make(seed=2), torch_file({"lora.down": np.ones((2, 2)), "lora.up": np.ones(2)})
        )
        assert report.nothing_matched
        assert report.unused == ("lora.down", "lora.up")
        assert len(report.missing) == 5
        assert "lora.down" in str(report)

    def test_a_deeper_model_than_the_file_is_refused_with_all_that_is_missing(self):
        small = {f"layers.{i}.w": np.ones(2, np.float32) for i in range(12)}
        model = {"layers": [{"w": np.zeros(2, np.float32)} for _ in range(16)]}
        report = refusal(firekeep.load_into, model, torch_file(small))
        assert report.missing == tuple(f"layers.{i}.w" for i in range(12, 16))
        assert not any(layer["w"].any() for layer in model["layers"])
        report = refusal(firekeep.load_into, {"layers": model["layers"][:8]}, torch_file(small))
        assert report.unused == tuple(f"layers.{i}.w" for i in range(8, 12))

    def test_with_most_missing_a_partial_load_counts_and_is_not_complete(self):
        arrays = {"fc.bias": arrays_of(make_torch(seed=1))["fc.bias"]}
        report = firekeep.load_into(make_torch(seed=2), torch_file(arrays), strict=False)
        assert report.ok
        assert not report.complete
        assert not report
        assert (len(report.applied), len(report.missing), report.wanted) == (1, 4, 5)
        assert "1 of 5" in str(report)
        with pytest.raises(firekeep.LoadError):
            report.raise_if()

    def test_misspelt_names_are_shown_with_those_that_were_meant(self):
        arrays = {name.replace("fc.", "fcc."): array for name, array in arrays_of(make_torch(seed=1)).items()}
        report = refusal(firekeep.load_into, make_torch(seed=2), torch_file(arrays))
        assert {name: near.name for name, near in report.suggestions.items()} == {
            "fc.weight": "fcc.weight",
            "fc.bias": "fcc.bias",
        }


class Mlp(Module):
    net: list


class TestLists:
    """Activations take numbers in a Sequential and hold nothing."""

    @staticmethod
    def sequential() -> nn.Module:
        model = nn.Module()
        model.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        return model

    @both
    def test_gaps_are_closed_by_a_load_and_opened_by_a_save_that_is_told(self, suffix: str, tmp_path: Path):
        model, twin = self.sequential(), self.sequential()
        mlp = Mlp(net=[Linear(4, 8), Linear(8, 2)])
        firekeep.save(model, tmp_path / f"m{suffix}")
        assert firekeep.load_into(mlp, tmp_path / f"m{suffix}").exact
        for like in (twin, tmp_path / f"m{suffix}", ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]):
            firekeep.save(mlp, tmp_path / f"n{suffix}", like=like)
            assert file_arrays(tmp_path / f"n{suffix}") == file_arrays(tmp_path / f"m{suffix}")
        assert firekeep.load_into(twin, tmp_path / f"n{suffix}", match="exact").exact
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))

    def test_a_list_that_keeps_the_gap_is_filled_by_equal_names(self, tmp_path: Path):
        firekeep.save(self.sequential(), tmp_path / "m.safetensors")
        mlp = Mlp(net=[Linear(4, 8), Relu(), Linear(8, 2)])
        report = firekeep.load_into(mlp, tmp_path / "m.safetensors")
        assert report.exact
        assert report.steps == ()

    def test_numbers_as_keys_are_numbers_of_lists(self, tmp_path: Path):
        model = {"layers": {number: {"w": np.full(2, number, np.float32)} for number in (0, 2, 10)}}
        firekeep.save(model, tmp_path / "m.safetensors")
        assert sorted(file_arrays(tmp_path / "m.safetensors")) == ["layers.0.w", "layers.10.w", "layers.2.w"]
        twin: Any = {"layers": {number: {"w": np.zeros(2, np.float32)} for number in (0, 2, 10)}}
        assert firekeep.load_into(twin, tmp_path / "m.safetensors").exact
        assert [twin["layers"][number]["w"][0] for number in (0, 2, 10)] == [0, 2, 10]
        texts: Any = {"layers": {str(number): {"w": np.zeros(2, np.float32)} for number in (0, 2, 10)}}
        assert firekeep.load_into(texts, tmp_path / "m.safetensors").exact

    def test_leaves_in_a_row_are_told_by_count_and_name(self):
        file = firekeep.save_bytes({"0": np.ones(2, np.float32), "1": np.ones(3, np.float32)}, format="safetensors")
        leaves = [np.zeros(2, np.float32), np.zeros(3, np.float32), np.zeros(4, np.float32)]
        assert refusal(firekeep.load_into, leaves, file).missing == ("2",)
        swapped = [np.zeros(3, np.float32), np.zeros(2, np.float32)]
        assert [error.name for error in refusal(firekeep.load_into, swapped, file).errors] == ["0", "1"]


class TestOtherSpellings:
    """gamma and beta, fused projections, gates."""

    @makers
    def test_a_norm_is_found_under_either_spelling(self, make: Any):
        arrays = arrays_of(make_torch(seed=1))
        old = {
            name.replace("norm.weight", "norm.gamma").replace("norm.bias", "norm.beta"): a for name, a in arrays.items()
        }
        model = make(seed=2)
        if make is make_plain:  # of its layers nothing is known
            assert set(refusal(firekeep.load_into, model, torch_file(old)).missing) == {"norm.weight", "norm.bias"}
            return
        report = firekeep.load_into(model, torch_file(old), layout="torch")
        assert report.exact
        assert state_of(model) == state_of(make_torch(seed=1))
        assert any("other spelling" in step for step in report.steps)

    def test_a_gamma_beside_a_weight_is_not_mixed_up(self):
        arrays = {**arrays_of(make_torch(seed=1)), "norm.gamma": np.full(3, 9, np.float32)}
        model = make_torch(seed=2)
        report = firekeep.load_into(model, torch_file(arrays), allow_unused=True)
        assert report.unused == ("norm.gamma",)
        assert state_of(model) == state_of(make_torch(seed=1))

    @both
    def test_a_fused_projection_is_three_in_burns_layout_and_one_again(self, suffix: str, tmp_path: Path):
        attention, back = nn.MultiheadAttention(6, 2), nn.MultiheadAttention(6, 2)
        firekeep.save(attention, tmp_path / f"m{suffix}")
        native = MultiHeadAttention(6, 2)
        assert firekeep.load_into(native, tmp_path / f"m{suffix}").exact
        query = native.query.weight.value
        assert np.array_equal(query, attention.in_proj_weight.detach().numpy()[:6].T)
        firekeep.save(native, tmp_path / f"n{suffix}")
        assert firekeep.load_into(back, tmp_path / f"n{suffix}").exact
        assert state_of(back) == state_of(attention)

    @both
    def test_gates_are_split_and_joined(self, suffix: str, tmp_path: Path):
        lstm, back = nn.LSTM(3, 5), nn.LSTM(3, 5)
        with torch.no_grad():
            lstm.bias_hh_l0.zero_()
        firekeep.save(lstm, tmp_path / f"m{suffix}")
        native = Lstm(3, 5)
        assert firekeep.load_into(native, tmp_path / f"m{suffix}").complete
        firekeep.save(native, tmp_path / f"n{suffix}")
        assert firekeep.load_into(back, tmp_path / f"n{suffix}").complete
        x = torch.arange(12.0).reshape(4, 1, 3) / 10
        with torch.no_grad():
            assert torch.allclose(lstm(x)[0], back(x)[0])

    def test_a_projection_of_a_plain_tree_is_cut_by_a_rule(self):
        fused = np.arange(18, dtype=np.float32).reshape(9, 2)
        model = {name: {"w": np.zeros((3, 2), np.float32)} for name in "qkv"}
        cut = {"split": r"^qkv\.", "into": ["q.", "k.", "v."]}
        assert firekeep.load_into(model, torch_file({"qkv.w": fused}), surgery=[cut]).exact
        assert np.array_equal(np.concatenate([model[name]["w"] for name in "qkv"]), fused)
        assert refusal(firekeep.load_into, model, torch_file({"qkv.w": fused})).nothing_matched


class TestHeaders:
    @makers
    def test_a_name_that_stands_twice_is_refused_with_it_and_nothing_is_filled(self, make: Any):
        entry = '{"dtype":"F32","shape":[3],"data_offsets":[0,12]}'
        model = make(seed=2)
        with pytest.raises(firekeep.FirekeepError, match=r"fc\.bias"):
            firekeep.load_into(
                model, raw_safetensors(f'{{"fc.bias":{entry},"fc.bias":{entry}}}', bytes(12)), strict=False
            )
        assert state_of(model) == state_of(make(seed=2))

    @pytest.mark.parametrize(
        ("format", "limits"),
        [
            ("safetensors", Limits(safetensors_tensors=3)),
            ("safetensors", Limits(safetensors_header_bytes=64)),
            ("burnpack", Limits(burnpack_tensors=3)),
            ("burnpack", Limits(burnpack_metadata_bytes=64)),
        ],
    )
    def test_more_than_a_reader_takes_is_refused_by_the_save(self, format: str, limits: Limits, tmp_path: Path):
        with pytest.raises(firekeep.LimitError):
            firekeep.save(make_torch(seed=1), tmp_path / "m", format=format, limits=limits)
        assert list(tmp_path.iterdir()) == []

    @both
    def test_metadata_are_kept_from_one_save_to_the_next_by_those_who_pass_them_on(self, suffix: str, tmp_path: Path):
        firekeep.save(make_torch(seed=1), tmp_path / f"m{suffix}", metadata={"epoch": "3", "note": "é\n"})
        kept = firekeep.saved_metadata(tmp_path / f"m{suffix}")
        assert (kept["epoch"], kept["note"]) == ("3", "é\n")
        firekeep.save(make_torch(seed=2), tmp_path / f"m{suffix}", metadata=kept)
        assert firekeep.saved_metadata(tmp_path / f"m{suffix}") == kept

    def test_a_file_of_metadata_alone_matches_nothing_and_is_none_too_few_for_an_empty_model(self):
        for header in ({"__metadata__": {}}, {"__metadata__": {"a": "b"}}, {}):
            file = raw_safetensors(header)
            assert refusal(firekeep.load_into, make_torch(seed=1), file, strict=False).nothing_matched
            assert firekeep.load_into(nn.Identity(), file).exact

    @makers
    @pytest.mark.parametrize("name", ["", "..", "/", "\x00", "fc..weight", "fc.weight.", "fc.weight\n", "ﬀ"])
    def test_odd_names_are_unused_and_never_taken_for_others(self, name: str, make: Any):
        arrays = {**arrays_of(make_torch(seed=1)), name: np.ones((3, 4), np.float32)}
        model = make(seed=2)
        assert firekeep.load_into(model, torch_file(arrays), allow_unused=True).unused == (name,)
        assert state_of(model) == state_of(make_torch(seed=1))


class TestPartsOfCheckpoints:
    """Weights among callbacks, optimizers and averages of themselves."""

    @makers
    def test_the_one_model_in_a_checkpoint_is_found_and_the_rest_is_told(self, make: Any, tmp_path: Path):
        net = make_torch(seed=1)
        optimizer = torch.optim.Adam(net.parameters())
        sum(parameter.sum() for parameter in net.parameters()).backward()
        optimizer.step()
        torch.save(
            {"epoch": 3, "state_dict": net.state_dict(), "optimizer_states": [optimizer.state_dict()], "callbacks": {}},
            tmp_path / "m.ckpt",
        )
        model = make(seed=2)
        report = firekeep.load_into(model, tmp_path / "m.ckpt")
        assert report.exact
        assert any("state_dict" in note for note in report.notes)
        assert state_of(model) == state_of(net)

    @makers
    def test_of_two_models_one_has_to_be_chosen(self, make: Any, tmp_path: Path):
        both = {"model": make_torch(seed=1).state_dict(), "ema": make_torch(seed=3).state_dict()}
        torch.save({**both, "epoch": 3}, tmp_path / "m.pt")
        with pytest.raises(firekeep.RuleError, match=r"'model', 'ema'.*top_level_key='model'"):
            firekeep.load_into(make(seed=2), tmp_path / "m.pt", strict=False)
        for key, seed in (("model", 1), ("ema", 3)):
            model = make(seed=2)
            assert firekeep.load_into(model, tmp_path / "m.pt", top_level_key=key).exact
            assert state_of(model) == state_of(make_torch(seed))

    def test_a_tensor_whose_storage_is_lost_is_named_and_costs_no_other(self):
        tensors = {name: pickles.tensor("FloatStorage", key, 2) for name, key in (("a", "0"), ("b", "1"))}
        file = pickles.zip_file(pickles.pickled(pickles.ordered(tensors)), {"0": pickles.floats(1, 2)})
        model = {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}
        report = refusal(firekeep.load_into, model, file, strict=False)
        assert [(error.name, error.kind) for error in report.errors] == [("b", "read")]
        assert not model["a"].any()
        assert firekeep.load_into(model, file, include="a", allow_unused=True).applied == ("a",)
        assert model["a"].tolist() == [1, 2]

    def test_a_dtype_that_nobody_knows_is_named_and_costs_no_other(self):
        header = OrderedDict(a=described("F32", (2,), 0, 8), b=described("F6_E2M3", (4,), 8, 11))
        model = {"a": np.zeros(2, np.float32), "b": np.zeros(4, np.float32)}
        report = refusal(
            firekeep.load_into, model, raw_safetensors(header, pickles.floats(1, 2) + bytes(3)), strict=False
        )
        assert [error.name for error in report.errors] == ["b"]
        assert "a" not in report.missing
        assert set(NAMES).isdisjoint(model)
