"""Architectures in bfloat16, and between bfloat16 and float32."""

from __future__ import annotations

import pytest
import torch

import firekeep
from interop.architectures.zoo import ZOO, assert_equal_states, every_architecture, fresh, trained

every_suffix = pytest.mark.parametrize("suffix", ["bpk", "safetensors"])


def floats(name: str, model: torch.nn.Module) -> set[str]:
    """Give the names of floats, of tied ones the first."""
    further = {second for _, second in ZOO[name].ties}
    return {key for key, value in model.state_dict().items() if value.is_floating_point()} - further


@every_architecture
@every_suffix
def test_a_model_in_bfloat16_comes_back_the_same(name, suffix, tmp_path):
    model, target = trained(name).bfloat16(), fresh(name).bfloat16()
    firekeep.save(model, tmp_path / f"model.{suffix}", durable=False)
    report = firekeep.load_into(target, tmp_path / f"model.{suffix}")
    assert report.exact
    assert not report.casts
    assert_equal_states(target, model)


@every_architecture
@every_suffix
def test_a_model_in_float32_says_what_was_cast_from_a_file_in_bfloat16(name, suffix, tmp_path):
    model, target = trained(name).bfloat16(), fresh(name)
    firekeep.save(model, tmp_path / f"model.{suffix}", durable=False)
    report = firekeep.load_into(target, tmp_path / f"model.{suffix}")
    assert dict(report.casts) == dict.fromkeys(floats(name, model), ("BF16", "F32"))
    assert not report.losses
    assert "BF16 -> F32" in str(report)
    assert_equal_states(target, model.float())


@every_architecture
@every_suffix
def test_a_model_in_bfloat16_rounds_a_file_in_float32_as_torch_does(name, suffix, tmp_path):
    model, target = trained(name), fresh(name).bfloat16()
    firekeep.save(model, tmp_path / f"model.{suffix}", durable=False)
    report = firekeep.load_into(target, tmp_path / f"model.{suffix}")
    assert dict(report.casts) == dict.fromkeys(floats(name, model), ("F32", "BF16"))
    assert_equal_states(target, model.bfloat16())


@every_architecture
def test_a_file_may_be_saved_in_bfloat16_and_decide_what_the_model_holds(name, tmp_path):
    model, target = trained(name), fresh(name)
    firekeep.save(model, tmp_path / "model.bpk", dtype="bf16", durable=False)
    report = firekeep.load_into(target, tmp_path / "model.bpk", dtype="file")
    assert not report.casts or set(report.casts.values()) == {("BF16", "BF16")}
    assert_equal_states(target, model.bfloat16())
