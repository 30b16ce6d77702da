"""What of a layer's names and forms is told by where it stands, by another model's layer, and by shapes."""

from __future__ import annotations

import pytest

from firekeep.rules.layout import groups_told, join_facts, stacked
from firekeep.slots import Layer


@pytest.mark.parametrize(
    ("path", "facts", "role", "expected"),
    [
        ("net.1", {}, "weight_ih_l0", ("net.weight_ih_l1",)),
        ("net.1", {"bidirectional": True}, "bias_hh_l0_reverse", ("net.bias_hh_l1_reverse",)),
        ("net", {"num_layers": 3}, "weight_hh_l2", ("net.2.weight_hh_l0",)),
        ("net", {"num_layers": 2, "bidirectional": True}, "bias_ih_l1_reverse", ("net.1.bias_ih_l0_reverse",)),
        ("", {"num_layers": 2}, "weight_ih_l1", ("1.weight_ih_l0",)),
        ("1", {}, "weight_ih_l0", ("weight_ih_l1",)),
        ("net", {}, "weight_ih_l0", ()),
        ("net.1", {}, "weight", ()),
    ],
)
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_layers_upon_one_another_are_one_layer_or_a_list(kind, path, facts, role, expected):
    assert stacked(Layer(kind=kind, path=path, facts=facts), role) == expected


def test_other_layers_of_a_list_are_not_one():
    assert stacked(Layer(kind="linear", path="net.1"), "weight_l0") == ()


@pytest.mark.parametrize(
    ("kind", "own", "other", "source", "target", "expected"),
    [
        # PyTorch asks the other side how its layers lie there,
        (
            "conv_transpose2d",
            {"groups": 1},
            {"transpose_kernel": True},
            "torch",
            "flax",
            {"groups": 1, "transpose_kernel": True},
        ),
        (
            "batch_norm",
            {"affine": True},
            {"mode": "ema", "affine": False},
            "torch",
            "equinox",
            {"affine": True, "mode": "ema"},
        ),
        # a cell of Equinox lies in nothing, and Flax's may,
        ("gru", {"wrapped": False}, {"wrapped": True}, "equinox", "flax", {"wrapped": True}),
        # and how many layers there are is not the other's to say.
        ("lstm", {"num_layers": 1}, {"num_layers": 2}, "torch", "flax", {"num_layers": 1}),
        # Flax knows about its own.
        (
            "lstm",
            {"cell": "optimized"},
            {"cell": "", "reset_after": True},
            "flax",
            "torch",
            {"cell": "optimized", "reset_after": True},
        ),
    ],
)
def test_a_layer_takes_what_the_same_layer_elsewhere_knows_of_its_form(kind, own, other, source, target, expected):
    (joined,) = join_facts(
        [Layer(kind=kind, path="a.b", facts=own)],
        [Layer(kind=kind, path="a.b", facts=other), Layer(kind=kind, path="c", facts={"cell": "another"})],
        source=source,
        target=target,
    )
    assert joined.facts == expected


def test_a_layer_of_another_kind_or_place_knows_nothing_of_it():
    layer = Layer(kind="gru", path="a", facts={"wrapped": False})
    others = [
        Layer(kind="lstm", path="a", facts={"wrapped": True}),
        Layer(kind="gru", path="b", facts={"wrapped": True}),
    ]
    assert join_facts([layer], others, source="equinox", target="flax") == (layer,)


@pytest.mark.parametrize(
    ("kind", "wanted", "found", "groups"),
    [
        ("conv_transpose2d", (8, 6, 3, 3), (8, 3, 3, 3), 2),
        ("conv_transpose1d", (6, 12, 4), (6, 2, 4), 6),
        ("conv_transpose2d", (8, 6, 3, 3), (8, 6, 3, 3), 1),
        ("conv_transpose2d", (8, 6, 3, 3), (8, 4, 3, 3), 1),
        ("conv_transpose2d", (8, 6, 3, 3), (4, 3, 3, 3), 1),
        ("conv_transpose2d", (8, 6, 3, 3), (8, 3, 5, 3), 1),
        ("conv_transpose2d", (8, 6, 3, 3), (), 1),
        ("conv_transpose2d", (6,), (3,), 1),
        ("conv_transpose2d", (8, 6, 3, 3), (8, 0, 3, 3), 1),
        ("conv2d", (8, 6, 3, 3), (8, 3, 3, 3), 1),
    ],
)
def test_shapes_tell_the_groups_of_a_transposed_convolution(kind, wanted, found, groups):
    assert groups_told(Layer(kind=kind, path="up"), wanted, found) == groups
