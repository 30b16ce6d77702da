from __future__ import annotations

import pytest

from firekeep.matching import suggest
from matching.sides import offer, offers, want, wants


def near(missing, unused):
    return {name: (one.name, one.score) for name, one in suggest(wants(missing), offers(unused)).items()}


@pytest.mark.parametrize(
    ("missing", "unused", "score"),
    [
        ("fc1.bias", "fc.bias", 0.958),
        ("fc1.weight", "fc.weight", 0.967),
        ("net.2.bias", "net.1.bias", 0.933),
        ("net.2.bias", "net.1.weight", 0.7),
        ("net.0.Linear.bias", "net.0.bias", 0.829),
        ("conv.weight", "head.weight", 0.758),
    ],
)
def test_near_names(missing, unused, score):
    assert near([missing], [unused]) == {missing: (unused, score)}


@pytest.mark.parametrize(
    ("missing", "unused"), [("fc1.bias", "fc.weight"), ("do_not_exist_in_pt.weight", "conv1.weight")]
)
def test_names_too_far_apart_are_not_suggested(missing, unused):
    assert near([missing], [unused]) == {}


def test_a_name_without_its_variant_comes_before_a_nearer_one():
    assert near(["net.0.Linear.bias"], ["net.0.Linear.bia", "net.0.bias"])["net.0.Linear.bias"][0] == "net.0.bias"
    assert near([want("a.Kind.w", short="a.w")], ["a.Kind.v", "a.w"])["a.Kind.w"][0] == "a.w"


def test_a_tensor_of_the_same_shape_comes_before_a_nearer_name():
    found = suggest([want("fc1.bias", (3,))], [offer("fc.bias", (4,)), offer("fb.bias", (3,))])
    assert (found["fc1.bias"].name, found["fc1.bias"].same_shape) == ("fb.bias", True)


def test_a_name_of_another_shape_is_better_than_none():
    found = suggest([want("fc1.bias", (3,))], [offer("fc.bias", (4,))])
    assert (found["fc1.bias"].name, found["fc1.bias"].same_shape) == ("fc.bias", False)


def test_each_name_is_suggested_once_and_to_the_one_it_is_nearest_to():
    assert near(["fc.bia", "fc1.bias"], ["fc.bias"]) == {"fc1.bias": ("fc.bias", 0.958)}
    assert {name for name, _ in near(["a1.w", "a2.w"], ["a3.w", "a4.w"]).values()} == {"a3.w", "a4.w"}


def test_of_very_many_names_some_are_compared():
    found = near([f"layer_a.{n}.w" for n in range(3000)], [f"layer_b.{n}.w" for n in range(3000)])
    assert 0 < len(found) < 3000
    assert found["layer_a.7.w"][0] == "layer_b.7.w"


def test_nothing_to_compare():
    assert near([], ["a"]) == {}
    assert near(["a"], []) == {}


def test_a_place_in_a_list_counts_but_does_not_decide():
    assert near(["layers.0.norm1.bias"], ["layers.1.norm_1.bias", "layers.0.norm_first.bias"]) == {
        "layers.0.norm1.bias": ("layers.0.norm_first.bias", 0.862)
    }
    found = near(["layers.0.norm1.bias"], ["layers.1.norm1.bias", "layers.0.attn.bias"])
    assert found["layers.0.norm1.bias"][0] == "layers.1.norm1.bias"
