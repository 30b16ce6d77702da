"""What a file tells of its layers: as text and back, and a way between two models whose layers have other facts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from firekeep.arrays import as_array, entry_of
from firekeep.errors import MetadataError
from firekeep.rules.layout import LAYERS, read_layers, route_of, tell_reader, tellable, with_facts, write_layers
from firekeep.slots import Layer

UP = Layer(kind="conv_transpose2d", path="net.up", facts={"transpose_kernel": True})


def text(**parts):
    return json.dumps([{"kind": "conv_transpose2d", "facts": {"transpose_kernel": True}, "paths": ["up"], **parts}])


def test_layers_are_told_once_for_each_kind_and_read_again():
    layers = (
        UP,
        Layer(kind="conv_transpose2d", path="", facts={"transpose_kernel": True}),
        Layer(kind="conv_transpose2d", path="other", facts={"transpose_kernel": False}),
        Layer(kind="lstm", path="é.0", facts={"wrapped": False, "cell": "optimized"}),
        Layer(kind="batch_norm", path="norm", facts={"mode": "batch", "momentum": "1e-05"}),
        Layer(kind="linear", path="q", facts={"in_shape": "8", "out_shape": "2,4"}),
        Layer(kind="embedding", path="head", facts={"tied": True}),
    )
    told = write_layers(layers)
    assert len(json.loads(told)) == 6
    assert {one.path: one for one in read_layers({LAYERS: told})} == {one.path: one for one in layers}


def test_nothing_is_told_where_there_is_nothing_or_too_much():
    assert write_layers(()) is None
    assert (
        write_layers(Layer(kind="gru", path="x" * 1000 + str(n), facts={"wrapped": True}) for n in range(1100)) is None
    )
    assert read_layers({}) == read_layers({LAYERS: ""}) == read_layers({LAYERS: "[]"}) == ()


@pytest.mark.parametrize(
    "damaged",
    [
        "{",
        "{}",
        "null",
        "[1]",
        "[" * 100_000,
        '[{"kind":"linear"}]',
        text(more=1),
        text(kind="convolution"),
        text(kind=["conv1d"]),
        text(facts=[]),
        text(facts={"transpose_kernel": 1}),
        text(facts={"transpose_kernel": "True"}),
        text(facts={"groups": 2}),
        text(facts={"cell": "slow"}),
        text(facts={"momentum": "1.5"}),
        text(facts={"momentum": "nan"}),
        text(facts={"momentum": 0.5}),
        text(facts={"in_shape": "-1,-4"}),
        text(facts={"in_shape": "9" * 13}),
        text(facts={"in_shape": ",".join("2" * 9)}),
        text(facts={"tied": None}),
        text(paths="up"),
        text(paths=[1]),
        text(paths=["up", "up"]),
        text(paths=["x" * (1 << 20)]),
    ],
    ids=lambda damaged: damaged[-70:],
)
def test_what_is_not_as_it_is_written_is_refused(damaged):
    with pytest.raises(
        MetadataError, match=r"the metadata key 'firekeep.layers', which tells .* --metadata firekeep.layers=`"
    ):
        read_layers({LAYERS: damaged})


@pytest.mark.parametrize(
    ("kind", "facts", "layout", "told"),
    [
        ("conv_transpose1d", {"groups": 1}, "flax", {"transpose_kernel": False}),
        ("conv_transpose1d", {"transpose_kernel": True}, "torch", None),
        ("conv_transpose1d", {"transpose_kernel": True}, "equinox", None),
        ("conv2d", {"groups": 2}, "flax", None),
        ("lstm", {"num_layers": 1}, "flax", {"wrapped": True, "cell": ""}),
        ("lstm", {"wrapped": False, "cell": "optimized"}, "linen", {"wrapped": False}),
        ("gru", {"wrapped": False}, "burn", None),
        ("batch_norm", {"affine": True}, "equinox", {"mode": "batch", "momentum": "0.99"}),
        ("batch_norm", {"mode": "ema", "momentum": "0.9"}, "equinox", {"mode": "ema"}),
        ("rms_norm", {}, "equinox", {"use_bias": True}),
        ("linear", {}, "flax", None),
        ("linear", {"in_shape": "4", "out_shape": "2,2"}, "keras", {"in_shape": "4", "out_shape": "2,2"}),
        ("linear", {"tied": True}, "burn", {"tied": True}),
    ],
)
def test_only_what_a_reader_cannot_know_is_told(kind, facts, layout, told):
    found = tellable([Layer(kind=kind, path="a", facts=facts)], layout)
    assert [layer.facts for layer in found] == ([] if told is None else [told])


def test_layers_are_told_under_the_names_they_have_there():
    attention = Layer(kind="multi_head_attention", path="attn")
    out = Layer(kind="linear", path="attn.out_proj", parent=attention, facts={"tied": True})
    (told,) = tell_reader([attention, out], source="torch", target="flax")
    assert (told.path, told.parent) == ("attn.out", None)


def test_a_file_knows_better_than_who_tells_its_layers():
    layers = [Layer(kind="conv_transpose2d", path="up", facts={"groups": 1}), Layer(kind="gru", path="rnn")]
    told = [Layer(kind="conv_transpose2d", path="up", facts={"transpose_kernel": True}), Layer(kind="lstm", path="rnn")]
    assert [layer.facts for layer in with_facts(layers, told)] == [{"groups": 1, "transpose_kernel": True}, {}]


def test_a_way_between_kernels_of_one_layout_goes_there_and_back():
    kernel = np.arange(2 * 3 * 3 * 3, dtype=np.float32).reshape(2, 3, 3, 3)
    bias = np.arange(3, dtype=np.float32)
    entries = [entry_of("net.up.kernel", kernel), entry_of("net.up.bias", bias), entry_of("other", bias)]
    own = Layer(kind="conv_transpose2d", path="net.up", facts={"transpose_kernel": False})
    route = route_of([own], [UP], source="flax", target="flax")
    made = route.forth(entries)
    assert made.origins == {entry.name: (entry.name,) for entry in entries}
    assert set(made.steps) == {"net.up.kernel"}
    found = {entry.name: as_array(entry) for entry in made.entries}
    assert np.array_equal(found["net.up.kernel"], np.swapaxes(kernel[::-1, ::-1], 2, 3))
    back = {entry.name: as_array(entry) for entry in route.back(made.entries).entries}
    assert np.array_equal(back["net.up.kernel"], kernel)
    assert np.array_equal(back["other"], bias)
    assert route_of([own], [own], source="flax", target="flax").legs == ()


@pytest.mark.parametrize(("tied", "shape"), [({"tied": True}, (7, 4)), ({}, (4, 7))])
def test_a_linear_map_is_an_embedding_in_a_file_only_where_it_shares_its_weight(tied, shape):
    head = entry_of("head.weight", np.arange(28, dtype=np.float32).reshape(7, 4))
    linear = Layer(kind="linear", path="head")
    route = route_of([linear], [Layer(kind="embedding", path="head", facts=tied)], source="equinox", target="burn")
    (made,) = route.forth([head]).entries
    assert made.shape == shape
