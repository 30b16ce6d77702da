"""The two biases of PyTorch's recurrent layers through layouts that have their sum."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import firekeep
from firekeep.rules.layout import BIASES, read_biases
from firekeep.rules.layout import _biases as biases

SIDES = ("flax", "linen", "equinox", "keras")


def net(kind, **options):
    torch.manual_seed(3)
    return nn.ModuleDict({"cell": kind(3, 4, **options), "head": nn.Linear(4, 2)})


def equal(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    return [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


@pytest.mark.parametrize("suffix", ["safetensors", "bpk"])
@pytest.mark.parametrize("layout", SIDES)
def test_an_lstm_comes_back_bit_for_bit(tmp_path, layout, suffix):
    model, other = net(nn.LSTM), net(nn.LSTM)
    path = tmp_path / f"a.{suffix}"
    report = firekeep.save(model, path, layout=layout)
    assert "1 pair of biases kept in the metadata beside their sums" in report.steps
    with torch.no_grad():
        for value in other.parameters():
            value.zero_()
    assert "where their sum is still" in " ".join(str(firekeep.load_into(other, path)).split())
    assert equal(model, other)


@pytest.mark.parametrize(
    ("kind", "layout"), [(nn.GRU, "linen"), (nn.GRU, "equinox"), (nn.RNN, "flax"), (nn.RNN, "keras")]
)
def test_other_cells_do_too(tmp_path, kind, layout):
    model, other = net(kind), net(kind)
    with torch.no_grad():
        for value in other.parameters():
            value.zero_()
    firekeep.save(model, tmp_path / "a.bpk", layout=layout)
    assert firekeep.load_into(other, tmp_path / "a.bpk").ok
    assert equal(model, other)


def test_both_directions(tmp_path):
    model, other = net(nn.LSTM, bidirectional=True), net(nn.LSTM, bidirectional=True)
    with torch.no_grad():
        for value in other.parameters():
            value.zero_()
    firekeep.save(model, tmp_path / "a.bpk", layout="flax")
    firekeep.load_into(other, tmp_path / "a.bpk")
    assert equal(model, other)


def changed(path, tmp_path, name="cell.cell.dense_h.bias"):
    """Write the file again with another sum, as training elsewhere would."""
    with firekeep.open(path) as file:
        tensors, metadata = {name: file.array(name).copy() for name in file}, dict(file.metadata)
    tensors[name][0] += 1
    return firekeep.save_file(tensors, tmp_path / "changed.bpk", metadata=metadata), tensors[name]


def test_a_sum_that_was_changed_is_taken_as_it_is(tmp_path):
    model, other = net(nn.LSTM), net(nn.LSTM)
    firekeep.save(model, tmp_path / "a.bpk", layout="equinox")
    path, total = changed(tmp_path / "a.bpk", tmp_path, "cell.bias")
    firekeep.load_into(other, path)
    assert other["cell"].bias_ih_l0.tolist() == total.tolist()
    assert not other["cell"].bias_hh_l0.any()


def test_two_biases_that_were_changed_with_an_equal_sum_are_taken_as_they_are(tmp_path):
    model, other = net(nn.GRU), net(nn.GRU)
    firekeep.save(model, tmp_path / "a.bpk", layout="equinox")
    path, kept = changed(tmp_path / "a.bpk", tmp_path, "cell.bias_n")
    firekeep.load_into(other, path)
    assert other["cell"].bias_hh_l0[8:].tolist() == kept.tolist()


def test_a_conversion_keeps_them_and_puts_them_back(tmp_path):
    model, other = net(nn.LSTM), net(nn.LSTM)
    firekeep.save(model, tmp_path / "a.bpk", layout="torch")
    firekeep.convert(tmp_path / "a.bpk", tmp_path / "b.safetensors", layout="keras", like=model)
    assert BIASES in firekeep.saved_metadata(tmp_path / "b.safetensors")
    report = firekeep.convert(tmp_path / "b.safetensors", tmp_path / "c.bpk", layout="torch", like=model)
    assert "1 sum of two biases taken apart" in str(report)
    assert BIASES not in firekeep.saved_metadata(tmp_path / "c.bpk")
    with torch.no_grad():
        for value in other.parameters():
            value.zero_()
    firekeep.load_into(other, tmp_path / "c.bpk")
    assert equal(model, other)


def test_layouts_with_two_biases_keep_nothing(tmp_path):
    firekeep.save(net(nn.LSTM), tmp_path / "a.bpk", layout="burn")
    firekeep.save(net(nn.GRU), tmp_path / "b.bpk", layout="keras")
    assert BIASES not in firekeep.saved_metadata(tmp_path / "a.bpk")
    assert BIASES not in firekeep.saved_metadata(tmp_path / "b.bpk")


def test_more_than_the_limit_is_not_kept_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(biases, "MOST_BYTES", 100)
    report = firekeep.save(net(nn.LSTM), tmp_path / "a.bpk", layout="flax")
    assert "1 pair of biases too large to be kept beside their sums" in report.steps
    assert BIASES not in firekeep.saved_metadata(tmp_path / "a.bpk")


def test_what_is_cast_is_not_taken_from_the_metadata(tmp_path):
    model, other = net(nn.LSTM), net(nn.LSTM)
    firekeep.save(model, tmp_path / "a.bpk", layout="flax", dtype="bf16")
    firekeep.load_into(other, tmp_path / "a.bpk")
    assert not other["cell"].bias_hh_l0.any()


GOOD = {"names": ["a.bias_ih_l0", "a.bias_hh_l0"], "dtype": "F32", "shape": [1], "data": ["AACAPw==", "AAAAAA=="]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "3",
        "[1]",
        "[" * 5000,
        *(
            json.dumps([{**GOOD, **wrong}])
            for wrong in (
                {"names": ["a"]},
                {"dtype": "F99"},
                {"dtype": "I32"},
                {"dtype": []},
                {"shape": [-1]},
                {"shape": [2]},
                {"shape": 1},
                {"data": ["AACAPw==", "!"]},
                {"data": ["AACAPw==", 3]},
                {"data": ["AACAPw==", "é"]},
            )
        ),
    ],
)
def test_metadata_that_lie_are_passed_over(text):
    assert read_biases({BIASES: json.dumps([GOOD])})[0].first.shape == (1,)
    assert read_biases({BIASES: text}) == ()
