from __future__ import annotations

import math

import numpy as np
import pytest

from firekeep import module as fm
from firekeep.module import walk


def table(layer) -> list[tuple[str, tuple[int, ...]]]:
    return [(visited.path, visited.param.file_shape) for visited in walk(layer)]


def linear(name: str, d_in: int, d_out: int, *, bias: bool = True) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"{name}.weight", (d_in, d_out)), *([(f"{name}.bias", (d_out,))] if bias else [])]


def gate(name: str) -> list[tuple[str, tuple[int, ...]]]:
    return linear(f"{name}.input_transform", 3, 5) + linear(f"{name}.hidden_transform", 5, 5)


def under(prefix: str, rows):
    return [(f"{prefix}.{name}", shape) for name, shape in rows]


def norm(name: str, size: int):
    return [(f"{name}.gamma", (size,)), (f"{name}.beta", (size,))]


LSTM = gate("input_gate") + gate("forget_gate") + gate("output_gate") + gate("cell_gate")
GRU = gate("update_gate") + gate("reset_gate") + gate("new_gate")
MHA = [row for name in ("query", "key", "value", "output") for row in linear(name, 4, 4)]
PWFF = linear("linear_inner", 4, 8) + linear("linear_outer", 8, 4)
ENCODER = under("mha", MHA) + under("pwff", PWFF) + norm("norm_1", 4) + norm("norm_2", 4)
DECODER = (
    under("cross_attn", MHA) + under("self_attn", MHA) + under("pwff", PWFF)
    + norm("norm_1", 4) + norm("norm_2", 4) + norm("norm_3", 4)
)  # fmt: skip

ROWS = [
    (fm.Linear(3, 5), "linear", [("weight", (3, 5)), ("bias", (5,))]),
    (fm.Linear(3, 5, layout="col", bias=False), "linear_col", [("weight", (5, 3))]),
    (fm.Embedding(7, 3), "embedding", [("weight", (7, 3))]),
    (fm.Conv1d(4, 6, 3, groups=2), "conv1d", [("weight", (6, 2, 3)), ("bias", (6,))]),
    (fm.Conv2d(4, 6, (3, 2), bias=False), "conv2d", [("weight", (6, 4, 3, 2))]),
    (fm.Conv3d(4, 6, 3), "conv3d", [("weight", (6, 4, 3, 3, 3)), ("bias", (6,))]),
    (fm.ConvTranspose1d(4, 6, 3, groups=2), "conv_transpose1d", [("weight", (4, 3, 3)), ("bias", (6,))]),
    (fm.ConvTranspose2d(4, 6, 3), "conv_transpose2d", [("weight", (4, 6, 3, 3)), ("bias", (6,))]),
    (fm.ConvTranspose3d(4, 6, 3, bias=False), "conv_transpose3d", [("weight", (4, 6, 3, 3, 3))]),
    (
        fm.BatchNorm(3),
        "batch_norm",
        [("gamma", (3,)), ("beta", (3,)), ("running_mean", (3,)), ("running_var", (3,))],
    ),
    (fm.LayerNorm(3), "layer_norm", [("gamma", (3,)), ("beta", (3,))]),
    (fm.LayerNorm(3, bias=False), "layer_norm", [("gamma", (3,))]),
    (fm.GroupNorm(2, 4), "group_norm", [("gamma", (4,)), ("beta", (4,))]),
    (fm.GroupNorm(2, 4, affine=False), "group_norm", []),
    (fm.InstanceNorm(4), "instance_norm", [("gamma", (4,)), ("beta", (4,))]),
    (fm.InstanceNorm(4, affine=False), "instance_norm", []),
    (fm.RmsNorm(3), "rms_norm", [("gamma", (3,))]),
    (fm.PRelu(), "prelu", [("alpha", (1,))]),
    (fm.PRelu(4), "prelu", [("alpha", (4,))]),
    (
        fm.SwiGlu(3, 5),
        "swiglu",
        linear("linear_inner", 3, 5, bias=False) + linear("linear_outer", 3, 5, bias=False),
    ),
    (fm.MultiHeadAttention(4, 2), "multi_head_attention", MHA),
    (fm.GateController(3, 5), "", linear("input_transform", 3, 5) + linear("hidden_transform", 5, 5)),
    (fm.Lstm(3, 5), "lstm", LSTM),
    (fm.BiLstm(3, 5), "lstm", under("forward", LSTM) + under("reverse", LSTM)),
    (fm.Gru(3, 5), "gru", GRU),
    (fm.BiGru(3, 5), "gru", under("forward", GRU) + under("reverse", GRU)),
    (fm.Rnn(3, 5), "rnn", gate("gate")),
    (fm.PositionWiseFeedForward(4, 8), "feed_forward", PWFF),
    (fm.TransformerEncoderLayer(4, 8, 2), "transformer_encoder_layer", ENCODER),
    (fm.TransformerDecoderLayer(4, 8, 2), "transformer_decoder_layer", DECODER),
    (fm.TransformerEncoder(4, 8, 2, 2), "", under("layers.0", ENCODER) + under("layers.1", ENCODER)),
    (fm.TransformerDecoder(4, 8, 2, 2), "", under("layers.0", DECODER) + under("layers.1", DECODER)),
    (fm.Relu(), "", []),
    (fm.Dropout(prob=0.1), "", []),
]


@pytest.mark.parametrize(
    ("layer", "kind", "rows"), ROWS, ids=[f"{type(row[0]).__name__}-{n}" for n, row in enumerate(ROWS)]
)
def test_names_shapes_and_order_are_burns(layer, kind, rows):
    assert layer.kind == kind
    assert table(layer) == rows
    assert not any(visited.param.is_initialized for visited in walk(layer))


def test_facts_are_what_no_tensor_tells():
    assert fm.Lstm(3, 5).facts == fm.Gru(3, 5).facts == fm.Rnn(3, 5).facts == {"num_layers": 1, "bidirectional": False}
    assert fm.BiLstm(3, 5).facts == fm.BiGru(3, 5).facts == {"num_layers": 1, "bidirectional": True}
    for layer in (fm.TransformerEncoderLayer, fm.TransformerDecoderLayer):
        assert layer(4, 8, 2).facts == {"norm_first": False}
        assert layer(4, 8, 2, norm_first=True).facts == {"norm_first": True}
    assert fm.Linear(3, 5).facts == {}


def spread(param) -> float:
    return float(np.abs(param.value).max())


@pytest.mark.parametrize(
    ("layer", "bound"),
    [
        (fm.Linear(64, 32, rng=0), 1 / math.sqrt(64)),
        (fm.Linear(64, 32, layout="col", rng=0), 1 / math.sqrt(64)),
        (fm.Conv2d(16, 32, 3, groups=2, rng=0), 1 / math.sqrt(8 * 9)),
        (fm.ConvTranspose2d(16, 32, 3, groups=2, rng=0), 1 / math.sqrt(16 * 9)),
    ],
)
def test_first_values_are_uniform_within_burns_bounds(layer, bound):
    values = layer.weight.value
    assert values.dtype == np.float32
    assert 0.95 * bound < spread(layer.weight) <= bound * 1.0001
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert 0.5 * bound < spread(layer.bias) <= bound * 1.0001


def test_first_values_of_the_others():
    assert fm.Embedding(100, 50, rng=0).weight.value.std() == pytest.approx(1, rel=0.05)
    gates = fm.Lstm(60, 40, rng=0)
    assert gates.cell_gate.input_transform.weight.value.std() == pytest.approx(math.sqrt(2 / 100), rel=0.1)
    norm = fm.BatchNorm(3)
    for name, value in {"gamma": 1, "beta": 0, "running_mean": 0, "running_var": 1}.items():
        np.testing.assert_array_equal(getattr(norm, name).value, [value] * 3)
    np.testing.assert_array_equal(fm.PRelu(2).alpha.value, np.float32([0.25, 0.25]))


@pytest.mark.parametrize(
    ("initializer", "low", "high", "std"),
    [
        (fm.Constant(2.0), 2, 2, 0),
        (fm.Uniform(1.0, 3.0), 1, 3, 2 / math.sqrt(12)),
        (fm.Normal(5.0, 0.5), 2, 8, 0.5),
        (fm.KaimingUniform(1.0), -math.sqrt(3 / 200), math.sqrt(3 / 200), 1 / math.sqrt(200)),
        (fm.KaimingUniform(1.0, fan_out_only=True), -math.sqrt(3 / 100), math.sqrt(3 / 100), 1 / math.sqrt(100)),
        (fm.KaimingNormal(2.0), -1, 1, 2 / math.sqrt(200)),
        (fm.XavierUniform(), -math.sqrt(6 / 300), math.sqrt(6 / 300), math.sqrt(2 / 300)),
        (fm.XavierNormal(2.0), -1, 1, 2 * math.sqrt(2 / 300)),
    ],
)
def test_initialisers(initializer, low, high, std):
    values = fm.Linear(200, 100, initializer=initializer, rng=1).weight.value
    assert values.dtype == np.float32
    assert values.min() >= low - 1e-6
    assert values.max() <= high + 1e-6
    assert values.std() == pytest.approx(std, rel=0.03, abs=1e-7)


def test_a_seed_decides_all_values_whichever_is_used_first():
    first, second = fm.Linear(3, 4, rng=5), fm.Linear(3, 4, rng=5)
    first_bias = first.bias.value  # the other order
    np.testing.assert_array_equal(second.weight.value, first.weight.value)
    np.testing.assert_array_equal(second.bias.value, first_bias)
    assert not np.array_equal(fm.Linear(3, 4, rng=6).bias.value, first_bias)
    generator = np.random.default_rng(5)
    third, fourth = fm.Linear(3, 4, rng=generator), fm.Linear(3, 4, rng=generator)
    np.testing.assert_array_equal(third.weight.value, first.weight.value)
    assert not np.array_equal(fourth.weight.value, third.weight.value)


def test_the_seed_of_all_layers_built_from_now_on():
    fm.seed(3)
    first = fm.TransformerEncoderLayer(4, 8, 2)
    fm.seed(3)
    second = fm.TransformerEncoderLayer(4, 8, 2)
    for one, other in zip(walk(first), walk(second), strict=True):
        np.testing.assert_array_equal(one.param.value, other.param.value)
        assert one.param.id != other.param.id


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: fm.Linear(2, 3, layout="diagonal"), "neither 'row' nor 'col'"),
        (lambda: fm.Conv1d(3, 4, 1, groups=2), "do not divide into 2 groups"),
        (lambda: fm.Conv2d(3, 4, (1, 2, 3)), "kernel_size.*2 numbers"),
        (lambda: fm.Conv2d(3, 4, 3, padding="full"), "'full'"),
        (lambda: fm.Conv2d(3, 4, 3, padding="same", stride=2), "stride 1 only"),
        (lambda: fm.GroupNorm(2, 3), "3 channels do not divide into 2 groups"),
        (lambda: fm.MultiHeadAttention(5, 2), "5 features do not divide into 2 heads"),
        (lambda: fm.TransformerEncoder(4, 8, 2, 1, activation=fm.PRelu()), "PRelu has tensors"),
        (lambda: fm.Conv1d(2, 3, 3)(np.zeros((1, 5, 9), np.float32)), r"\[batch, 2, size\], and \[1, 5, 9\] came"),
        (lambda: fm.Conv1d(2, 3, 3)(np.zeros((1, 2, 2), np.float32)), r"spans \[3\] does not fit into \[2\]"),
        (lambda: fm.BatchNorm(3)(np.zeros((1, 2), np.float32)), r"\[batch, 3, ...\], and \[1, 2\] came"),
        (lambda: fm.PRelu(3)(np.zeros((1, 2), np.float32)), "PRelu of 3 slopes"),
    ],
)
def test_what_cannot_be_is_refused_with_both_sides(build, words):
    with pytest.raises(fm.ModuleError, match=words):
        build()


def test_an_index_below_zero_is_no_index():
    with pytest.raises(IndexError):
        fm.Embedding(3, 2)(np.array([0, -1]))
