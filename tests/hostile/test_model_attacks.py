"""Attacks on loads: tensors that would be wrong without a word, refusals with false reasons, loads that leave half a change."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import firekeep
import firekeep.module as fm
from firekeep.errors import RuleError
from firekeep.report import LoadError


class Pair(fm.Module):
    a: fm.Linear
    b: fm.Linear


def native_pair():
    return Pair(a=fm.Linear(4, 4), b=fm.Linear(4, 4))


def torch_pair():
    return nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})


def named(**parts):
    """Make a torch model of parts and parameters."""
    made = nn.Module()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(model, state):
    now = model.state_dict()
    return all(torch.equal(now[name], value) for name, value in state.items())


def write(path, state, **metadata):
    save_file({name: value.contiguous() for name, value in state.items()}, path, metadata=metadata or None)
    return path


SWAP = [r"^a\.=>t.", r"^b\.=>a.", r"^t\.=>b."]


class TestModelsPutIntoThemselves:
    def test_two_layers_of_a_torch_model_change_places(self):
        model = torch_pair()
        before = state_of(model)
        firekeep.apply(model, model, rename=SWAP)
        assert torch.equal(model["a"].weight, before["b.weight"])
        assert torch.equal(model["b"].weight, before["a.weight"])
        assert torch.equal(model["b"].bias, before["a.bias"])

    def test_two_layers_of_a_native_model_change_places(self):
        model = native_pair()
        a, b = np.array(model.a.weight.value), np.array(model.b.weight.value)
        firekeep.apply(model, firekeep.collect(model), rename=SWAP)
        np.testing.assert_array_equal(model.a.weight.value, b)
        np.testing.assert_array_equal(model.b.weight.value, a)

    def test_two_arrays_change_places(self):
        tree = {"a": np.arange(4.0), "b": np.arange(4.0) + 10}
        firekeep.apply(tree, {"a": tree["b"], "b": tree["a"]})
        assert tree["a"].tolist() == [10, 11, 12, 13]
        assert tree["b"].tolist() == [0, 1, 2, 3]

    def test_parts_of_one_array_change_places(self):
        memory = np.arange(6.0)
        firekeep.apply({"a": memory[:4], "b": memory[4:]}, {"a": memory[2:], "b": memory[:2]})
        assert memory.tolist() == [2, 3, 4, 5, 0, 1]

    def test_layers_cast_and_joined_on_the_way_count_as_the_memory_they_are_drawn_from(self):
        model = named(x=nn.MultiheadAttention(4, 2), y=nn.MultiheadAttention(4, 2))
        before = state_of(model)
        theirs = firekeep.collect(model, layout="burn", dtype="f64")
        firekeep.apply(model, theirs, rename=[r"^x\.=>t.", r"^y\.=>x.", r"^t\.=>y."])
        assert torch.equal(model.x.in_proj_weight, before["y.in_proj_weight"])
        assert torch.equal(model.y.in_proj_weight, before["x.in_proj_weight"])


class TestOneMemorySeenInTwoWays:
    def tied(self):
        model = named(encoder=nn.Linear(4, 4, bias=False), decoder=nn.Linear(4, 4, bias=False))
        model.decoder.weight = nn.Parameter(model.encoder.weight.detach().t())
        return model

    def test_values_that_agree_are_taken(self, tmp_path):
        source, target = self.tied(), self.tied()
        firekeep.load_into(target, firekeep.save(source, tmp_path / "model.bpk"))
        assert same(target, state_of(source))

    def test_values_that_do_not_are_refused_and_nothing_is_changed(self, tmp_path):
        target = self.tied()
        before = state_of(target)
        theirs = {"encoder.weight": torch.ones(4, 4).tril(), "decoder.weight": torch.zeros(4, 4)}
        with pytest.raises(LoadError, match=r"shares its\s+memory"):
            firekeep.load_into(target, write(tmp_path / "model.safetensors", theirs))
        assert same(target, before)

    def test_slices_of_one_buffer_beside_each_other_are_no_such_thing(self, tmp_path):
        flat = torch.zeros(32)
        model = named(a=nn.Parameter(flat[:16].view(4, 4)), b=nn.Parameter(flat[16:]))
        theirs = {"a": torch.ones(4, 4), "b": torch.ones(16) * 2}
        firekeep.load_into(model, write(tmp_path / "model.safetensors", theirs))
        assert same(model, theirs)


class TestLayoutsThatNothingTells:
    def test_a_file_of_burns_that_may_lie_either_way_is_refused_where_tensors_may_be_missing_too(self, tmp_path):
        path = write(tmp_path / "a.safetensors", state_of(named(a=nn.Linear(4, 4))), producer="burn")
        target = torch_pair()
        before = state_of(target)
        for options in ({"strict": False}, {"allow_missing": True}):
            with pytest.raises(RuleError, match="all shapes fit both"):
                firekeep.load_into(target, path, **options)
        assert same(target, before)
        firekeep.load_into(target, path, allow_missing=True, layout="burn")
        assert torch.equal(target["a"].weight, firekeep_array(path, "a.weight").t())

    def test_a_state_dict_does_not_become_burns_without_a_word(self, tmp_path):
        source = nn.Linear(4, 4)
        with pytest.warns(firekeep.LayoutWarning, match="Burn itself would misread"):
            path = firekeep.save(state_of(source), tmp_path / "state.bpk")
        target = nn.Linear(4, 4)
        firekeep.load_into(target, path)
        assert same(target, state_of(source))
        with pytest.raises(RuleError, match="is not known"):
            firekeep.save(state_of(source), tmp_path / "refused.bpk", layout="burn")
        firekeep.load_into(target, firekeep.save(state_of(source), tmp_path / "like.bpk", layout="burn", like=source))
        assert same(target, state_of(source))

    def test_a_file_in_burns_layout_does_not_go_into_a_state_dict_as_it_lies(self, tmp_path):
        source = nn.Linear(4, 4)
        path = firekeep.save(source, tmp_path / "model.bpk")
        target = {name: torch.zeros_like(value) for name, value in source.state_dict().items()}
        with pytest.raises(RuleError, match="turned round"):
            firekeep.load_into(target, path)
        assert not target["weight"].any()
        firekeep.load_into(target, path, layout="torch")
        assert torch.equal(target["weight"], source.weight.t())

    def test_a_native_model_does_not_go_into_a_state_dict_as_it_lies(self):
        source = fm.Linear(4, 4)
        target = {"weight": torch.zeros(4, 4), "bias": torch.zeros(4)}
        with pytest.raises(RuleError, match="turned round"):
            firekeep.apply(target, source)
        firekeep.apply(target, firekeep.collect(source, layout="torch"))
        np.testing.assert_array_equal(target["weight"].numpy(), np.asarray(source.weight.value).T)


def firekeep_array(path, name):
    return torch.from_numpy(np.array(firekeep.load_file(path)[name]))


class TestLikeModels:
    def test_a_module_dict_is_a_model_and_no_list_of_names(self, tmp_path):
        source, target = torch_pair(), torch_pair()
        torch.save(source.state_dict(), tmp_path / "model.pt")
        firekeep.convert(tmp_path / "model.pt", tmp_path / "model.bpk", layout="burn", like=source)
        firekeep.load_into(target, tmp_path / "model.bpk")
        assert same(target, state_of(source))

    def test_a_model_without_layers_tells_that_nothing_is_turned(self, tmp_path):
        source, target = named(p=nn.Parameter(torch.randn(4, 4))), named(p=nn.Parameter(torch.zeros(4, 4)))
        torch.save(source.state_dict(), tmp_path / "model.pt")
        firekeep.convert(tmp_path / "model.pt", tmp_path / "model.bpk", layout="burn", like=source)
        firekeep.load_into(target, tmp_path / "model.bpk")
        assert same(target, state_of(source))


class TestReasons:
    def test_half_of_a_joined_tensor_is_missing_and_not_held_once(self, tmp_path):
        source = named(attn=nn.MultiheadAttention(4, 2))
        arrays = firekeep.load_file(firekeep.save(source, tmp_path / "whole.bpk"))
        firekeep.save_file(
            {name: array for name, array in arrays.items() if "query" not in name}, tmp_path / "half.bpk"
        )
        target = named(attn=nn.MultiheadAttention(4, 2))
        before = state_of(target)
        with pytest.raises(LoadError) as refused:
            firekeep.load_into(target, tmp_path / "half.bpk")
        assert "holds it" not in str(refused.value)
        assert "2 missing" in str(refused.value)
        report = firekeep.load_into(target, tmp_path / "half.bpk", strict=False)
        assert "holds it" not in str(report)
        assert torch.equal(target.attn.in_proj_weight, before["attn.in_proj_weight"])
        assert torch.equal(target.attn.out_proj.weight, source.attn.out_proj.weight)

    def test_tied_tensors_of_two_types_are_not_said_to_have_other_numbers(self, tmp_path):
        model = named(a=nn.Linear(4, 4, bias=False), b=nn.Linear(4, 4, bias=False))
        model.b.weight = model.a.weight
        half = torch.ones(4, 4, dtype=torch.float16)
        with pytest.raises(LoadError, match=r"of types F32 and F16"):
            firekeep.load_into(model, write(tmp_path / "a.safetensors", {"a.weight": half, "b.weight": half.float()}))

    def test_a_note_names_the_tied_tensor_that_the_file_has(self, tmp_path):
        model = named(a=nn.Linear(4, 4, bias=False), b=nn.Linear(4, 4, bias=False))
        model.b.weight = model.a.weight
        report = firekeep.load_into(model, write(tmp_path / "a.safetensors", {"b.weight": torch.ones(4, 4)}))
        assert "'a.weight' is 'b.weight' in the model" in " ".join(report.notes)


class TestWholeNumbers:
    def model(self):
        made = named(linear=nn.Linear(4, 4))
        made.register_buffer("steps", torch.zeros(3, dtype=torch.int8))
        made.register_buffer("mask", torch.zeros(3, dtype=torch.bool))
        return made

    @pytest.mark.parametrize(
        ("name", "values"),
        [("steps", torch.tensor([1, 2, 300])), ("mask", torch.tensor([0, 1, 2], dtype=torch.uint8))],
    )
    def test_numbers_that_do_not_fit_are_found_before_anything_is_changed(self, tmp_path, name, values):
        target = self.model()
        before = state_of(target)
        theirs = {name: value + 1 if value.is_floating_point() else value for name, value in before.items()}
        path = write(tmp_path / "model.safetensors", {**theirs, name: values})
        with pytest.raises(LoadError, match="nothing was changed"):
            firekeep.load_into(target, path)
        assert same(target, before)
        report = firekeep.load_into(target, path, strict=False)
        assert name not in report.applied
        assert same(target, theirs)

    def test_bytes_of_0_and_1_become_bools_as_a_dry_run_says(self, tmp_path):
        target = self.model()
        mask = torch.tensor([0, 1, 1], dtype=torch.uint8)
        path = write(tmp_path / "model.safetensors", {**state_of(target), "mask": mask})
        assert firekeep.load_into(target, path, dry_run=True).ok
        firekeep.load_into(target, path)
        assert target.mask.tolist() == [False, True, True]


def test_what_is_loaded_in_inference_mode_can_be_trained(tmp_path):
    path = firekeep.save(nn.BatchNorm1d(4), tmp_path / "norm.bpk")
    with torch.device("meta"):
        model = nn.BatchNorm1d(4)
    with torch.inference_mode():
        firekeep.load_into(model, path)
    model(torch.randn(3, 4)).sum().backward()
    assert model.weight.grad is not None


@pytest.mark.parametrize("surgery", [5, [5]])
def test_surgery_that_is_none_is_refused(surgery):
    with pytest.raises(RuleError, match="surgery"):
        firekeep.collect(nn.Linear(2, 2), surgery=surgery)
