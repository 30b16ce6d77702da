"""Descriptions of records, and the names that other parts of the house agree with them on."""

from __future__ import annotations

import numpy as np
import pytest

import firekeep
from firekeep.errors import FormatError
from firekeep.records import FieldStates, OptimizerRecord, _comparison, _describe, describe_record


def described(data):
    with firekeep.open(data) as opened:
        return describe_record(opened)


def test_what_is_no_record_is_not_described(tmp_path):
    firekeep.save_file({"fc.weight": np.zeros(2, np.float32)}, tmp_path / "model.bpk")
    firekeep.save_file({"fc.weight": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
    assert described(tmp_path / "model.bpk") is None
    assert described(tmp_path / "model.safetensors") is None


def test_a_record_of_burns_is_described_by_what_is_in_it():
    moments = {"moment_1": np.zeros((3, 2), np.float32), "moment_2": np.ones((3, 2), np.float32), "time": 7}
    states = [
        FieldStates(param_id=42, path="fc.weight", rank=2, fields={"momentum": moments}),
        FieldStates(param_id=43, path=None, rank=1, fields={}),
    ]
    found = described(OptimizerRecord.of_states(states).to_bytes())
    assert (found.kind, found.of, found.layout) == ("optimizer", None, "burn")
    assert found.summary == "record of an optimizer: 1 state of 2 parameters"
    first, second = found.params
    assert first.tensors == {
        "momentum.moment_1": "42.momentum.moment_1",
        "momentum.moment_2": "42.momentum.moment_2",
    }
    assert (first.numbers, first.group) == ({"momentum.time": 7}, None)
    assert (second.path, second.tensors) == ("id 43", {})
    assert found.shown_names()["42.momentum.moment_1"] == "fc.weight.momentum.moment_1"
    assert found.consumed >= {"42", "42.__rank", "42.momentum.time", "43.__rank"}


def test_two_parameters_of_one_name_keep_their_ids():
    field = {"momentum": {"velocity": np.zeros(2, np.float32)}}
    states = [FieldStates(param_id=number, path="same", rank=1, fields=field) for number in (1, 2)]
    assert described(OptimizerRecord.of_states(states).to_bytes()).shown_names() == {}


def test_counters_that_differ_are_told_by_parameter():
    states = [
        FieldStates(param_id=number, path=f"p{number}", rank=1, fields={"momentum": {"time": number}})
        for number in (1, 2)
    ]
    assert described(OptimizerRecord.of_states(states).to_bytes()).told()["momentum.time"] == {"p1": 1, "p2": 2}


def test_a_record_that_contradicts_itself_is_refused_with_its_place(tmp_path):
    metadata = {"firekeep.record": "optimizer", "firekeep.optimizer": "{"}
    firekeep.save_file({}, tmp_path / "optim.bpk", metadata=metadata)
    with pytest.raises(FormatError) as caught:
        described(tmp_path / "optim.bpk")
    assert caught.value.path == str(tmp_path / "optim.bpk")


def test_the_keys_are_those_that_are_written():
    pytest.importorskip("torch")
    from firekeep.bridges.torch import _schedulers, _sifting
    from firekeep.training import _parts, _rest

    assert _describe.SCHEDULER == _schedulers.KEY
    assert _describe.TRAINING == _rest.KEY
    assert _describe.VALUES == _parts.VALUES
    assert _comparison.COUNTERS >= _sifting._COUNTERS
