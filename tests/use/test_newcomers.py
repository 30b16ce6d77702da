"""What a call says that does not do what its caller may have meant."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import firekeep
from firekeep.errors import RuleError


class Net(nn.Module):
    def __init__(self, *, hidden: int = 4, extra: bool = False) -> None:
        super().__init__()
        self.fc = nn.Linear(3, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        if extra:
            self.extra = nn.Linear(2, 2)


def test_a_save_tells_what_is_no_tensor(tmp_path):
    held = {"model": Net().state_dict(), "epoch": 3, "none": None}
    with pytest.warns(firekeep.LeftOutWarning, match=r"'epoch' \(int\)"):
        report = firekeep.save(held, tmp_path / "ck.bpk", layout="torch")
    assert "left out, being no tensors: 'epoch'" in report.steps


def test_a_state_dict_in_a_file_of_burns_kind_is_warned_of(tmp_path):
    model = Net()
    with pytest.warns(firekeep.LayoutWarning, match="Burn itself would misread"):
        report = firekeep.save(model.state_dict(), tmp_path / "m.bpk")
    assert "Burn itself would misread" in str(report).replace("\n    ", " ")
    for given in ({"layout": "torch"}, {"like": model}):
        firekeep.save(model.state_dict(), tmp_path / "m.bpk", **given)
    firekeep.save(model, tmp_path / "m.bpk")


@pytest.mark.parametrize(
    ("change", "switches"),
    [
        ({"extra": True}, "allow_missing=True"),
        ({"hidden": 5}, "allow_mismatched=True"),
        ({"hidden": 5, "extra": True}, "allow_missing=True, allow_mismatched=True"),
    ],
)
def test_what_a_refused_load_says_to_allow_makes_it_work(tmp_path, change, switches):
    path = tmp_path / "m.safetensors"
    firekeep.save(Net(), path)
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(Net(**change), path)
    (remedy,) = caught.value.report.remedies
    assert remedy.python == switches
    assert firekeep.load_into(Net(**change), path, **dict.fromkeys(switches.replace("=True", "").split(", "), True)).ok


def test_a_store_says_it_in_its_own_words(tmp_path):
    path = tmp_path / "m.safetensors"
    firekeep.save(Net(extra=True), path)
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.SafetensorsStore(path, allow_unused=False).load_into(Net(hidden=5))
    (remedy,) = caught.value.report.remedies
    assert remedy.python == "allow_unused=True, validate=False"
    assert firekeep.SafetensorsStore(path, allow_unused=True, validate=False).load_into(Net(hidden=5)).ok


def test_nothing_is_to_be_allowed_where_no_name_matches(tmp_path):
    firekeep.save({"other": np.zeros(2)}, tmp_path / "m.safetensors")
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(Net(), tmp_path / "m.safetensors")
    assert not caught.value.report.remedies


def test_suggestions_and_remedies_speak_of_names_after_the_renames(tmp_path):
    firekeep.save(Net(), tmp_path / "m.safetensors")
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(Net(), tmp_path / "m.safetensors", rename={"fc": "head"})
    report = caught.value.report
    assert report.suggestions["fc.weight"].name == "head.weight"
    (remedy,) = report.remedies
    assert remedy.reason.startswith("after the renames, names begin with 'head.'")
    assert remedy.python == r'rename=[..., r"^head\.=>fc."]'


@pytest.mark.parametrize(
    ("name", "scalars", "said"),
    [("optimizer.bpk", {"7.__rank": 1}, "an optimizer"), ("scheduler.bpk", {"step": 3}, "a scheduler")],
)
def test_records_of_other_things_are_no_models(tmp_path, name, scalars, said):
    tensors = {"7.momentum": np.zeros(2)} if name == "optimizer.bpk" else {}
    firekeep.save_file(tensors, tmp_path / name, scalars=scalars)
    with pytest.raises(RuleError, match=f"the record of {said}") as caught:
        firekeep.load_into(Net(), tmp_path / name)
    assert caught.value.remedy == "Give the model's own file."
    firekeep.save(Net(), tmp_path / "model.bpk")
    with pytest.raises(RuleError) as caught:
        firekeep.load_into(Net(), tmp_path / name)
    assert caught.value.remedy is not None
    assert str(tmp_path / "model.bpk") in caught.value.remedy


@pytest.mark.parametrize("dtype", [torch.bfloat16, ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16), "bf16"])
def test_dtypes_are_given_as_they_are_anywhere_else(tmp_path, dtype):
    path = tmp_path / "m.safetensors"
    firekeep.save(Net(), path, dtype=dtype)
    assert str(firekeep.collect(Net(), dtype=dtype).entries[0].dtype) == "BF16"
    model = Net()
    firekeep.load_into(model, path, dtype=dtype)
    assert model.fc.weight.dtype == torch.bfloat16
    firekeep.SafetensorsStore(path, dtype=dtype).save(Net())
    assert firekeep.load_file(path)["fc.weight"].dtype == ml_dtypes.bfloat16
    other = Net()
    firekeep.apply(other, Net(), dtype=dtype)
    assert other.fc.weight.dtype == torch.bfloat16
    firekeep.SafetensorsStore(path, dtype=dtype).load_into(model)
    assert model.norm.weight.dtype == torch.bfloat16


def test_counters_of_batches_are_tensors_again_in_pytorchs_layout(tmp_path):
    model = Net()
    model.norm.num_batches_tracked.fill_(7)
    firekeep.save(model, tmp_path / "m.bpk")
    report = firekeep.convert(tmp_path / "m.bpk", tmp_path / "m.safetensors", layout="torch", like=model)
    back = firekeep.load_file(tmp_path / "m.safetensors")
    assert set(back) == set(model.state_dict())
    assert (back["norm.num_batches_tracked"].dtype, back["norm.num_batches_tracked"].tolist()) == (np.int64, 7)
    assert report.dropped.scalars == ()
    assert json.dumps(report.to_dict())


def test_a_model_to_be_like_has_the_names_that_the_renames_give(tmp_path):
    model = Net()
    inner = {f"module.{name}": value for name, value in model.state_dict().items()}
    out = tmp_path / "m.bpk"
    firekeep.save(inner, out, layout="burn", like=model, rename=r"^module\.=>")
    assert np.array_equal(firekeep.load_file(out)["fc.weight"], model.fc.weight.detach().numpy().T)
    with pytest.raises(RuleError, match=r"nothing like 'module\.fc\.weight'"):
        firekeep.save(inner, out, layout="burn", like=model)
