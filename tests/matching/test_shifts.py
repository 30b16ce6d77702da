"""Equal numbers in lists that may have been shifted: what a load that takes what fits must leave alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firekeep.matching import find_remedies
from matching.sides import match, offer, paired, want


def layers(*numbers, shape=(2, 2), make=want):
    return [make(f"net.{number}.weight", shape) for number in numbers]


def sure(model, file, **options):
    """The numbers that are paired with equal ones, cautiously."""
    return [int(name.split(".")[1]) for name in paired(match(model, file, **options).cautious())]


def test_layers_after_one_that_was_put_in_are_in_doubt():
    made = match(layers(0, 3, 6), layers(0, 2, 4, 6, make=offer))
    assert list(paired(made)) == ["net.0.weight", "net.6.weight"], "as it stands, for a strict load to tell"
    cautious = made.cautious()
    assert list(paired(cautious)) == ["net.0.weight"]
    assert {want.name for want in cautious.missing} == {"net.3.weight", "net.6.weight"}
    assert {offer.name for offer in cautious.unused} == {"net.2.weight", "net.4.weight", "net.6.weight"}
    (doubt,) = map(str, cautious.ambiguities)
    assert doubt.startswith(
        "'net.6': from net.2 on the numbers differ on the two sides, so layers after it may have been shifted"
    )


def test_a_list_that_matching_did_not_dare_to_renumber_gives_no_pair():
    made = match(layers(2, 4, 6), layers(5, 6, 7, make=offer))
    assert made.ambiguities
    assert list(paired(made)) == ["net.6.weight"]
    assert sure(layers(2, 4, 6), layers(5, 6, 7, make=offer)) == []


@pytest.mark.parametrize(
    ("model", "file"),
    [((0, 1, 2), (0, 1, 2, 3)), ((0, 1, 2, 3), (1, 2)), ((0, 1, 2, 3), (2, 3, 4, 5, 6))],
    ids=["a longer file", "a part of the model", "two overlapping parts"],
)
def test_lists_of_which_one_is_a_part_of_the_other_keep_their_numbers(model, file):
    assert sure(layers(*model), layers(*file, make=offer)) == sorted({*model} & {*file})


def test_an_end_of_its_own_on_either_side_leaves_no_doubt_about_what_comes_before():
    assert sure(layers(0, 2, 4), [*layers(0, 2, make=offer), *layers(5, shape=(7, 2), make=offer)]) == [0, 2]


def test_in_lists_of_different_length_an_element_of_another_shape_leaves_doubt_about_those_after_it():
    model = [*layers(0), *layers(1, shape=(3, 2)), *layers(2, 3, 4)]
    file = layers(0, 1, 2, 3, make=offer)
    assert sure(model, file) == [0]
    assert sure(model[:-1], file) == [0, 2, 3], "lists of the same numbers are not in doubt"


def test_numbers_that_are_names_mean_what_they_say():
    modules = frozenset({"net", "net.3", "net.7", "net.12"})
    heads = layers(3, 7, 12)
    file = layers(3, 5, 12, 20, make=offer)
    assert sure(heads, file, modules=modules) == [3, 12]
    assert sure(heads, file) == [3]


def test_exact_names_are_taken_at_their_word():
    assert sure(layers(0, 3, 6), layers(0, 2, 4, 6, make=offer), match="exact") == [0, 6]


def test_only_the_list_in_doubt_is_left_alone():
    model = [*layers(0, 3, 6), want("head.weight"), want("tail.0.weight"), want("tail.1.weight")]
    file = [*layers(0, 2, 4, 6, make=offer), offer("head.weight"), offer("tail.0.weight"), offer("tail.1.weight")]
    made = match(model, file).cautious()
    assert list(paired(made)) == ["net.0.weight", "head.weight", "tail.0.weight", "tail.1.weight"]
    assert made.cautious() == made


def shaped(make, **sizes):
    """Layers by number, each with a weight and a bias of its own size: net.2 of n2=5."""
    return [
        make(f"net.{number[1:]}.{end}", shape)
        for number, size in sizes.items()
        for end, shape in (("weight", (size, 2)), ("bias", (size,)))
    ]


def test_layers_after_one_of_another_shape_keep_their_numbers_where_no_other_ones_fit():
    model, file = shaped(want, n0=4, n1=5, n2=6), shaped(offer, n0=3, n1=5, n2=6, n3=7)
    assert sure(model, file) == [1, 1, 2, 2]
    model, file = [*shaped(want, n0=4), *layers(1, 2)], [*shaped(offer, n0=3), *layers(1, 2, 3, make=offer)]
    assert sure(model, file) == [], "of three alike ones it may be any two"


def test_the_way_in_which_more_layers_fit_is_told_and_proposed_and_not_taken():
    model = shaped(want, n0=4, n2=5, n4=6)
    file = [*shaped(offer, n0=3, n3=5, n5=6), offer("net.1.weight", (4,)), offer("net.1.bias", (4,))]
    made = match(model, file)
    assert not made.pairs
    assert not made.ambiguities, "a strict load is told by the remedy"
    assert list(map(str, made.cautious().ambiguities)) == [
        "'net.2, net.4': by order and shapes these may be they, under other numbers; rename them if that is so: 'net.3, net.5'"
    ]
    (remedy,) = find_remedies(made, model, file)
    assert remedy.python == r'rename=[r"^net\.3\.=>net.2.", r"^net\.5\.=>net.4."]'
    assert remedy.gain == 4
    given = {"net.3": "net.2", "net.5": "net.4"}
    names = {one.name: f"{given.get(path, path)}.{end}" for one in file for path, _, end in (one.name.rpartition("."),)}
    renamed = [one.renamed(names[one.name]) for one in file]
    followed = match(model, renamed, sources={new: old for old, new in names.items()}).cautious()
    assert paired(followed) == {
        f"net.{number}.{end}": f"net.{number}.{end}" for number in (2, 4) for end in ("weight", "bias")
    }


def test_nothing_is_proposed_where_layers_fit_in_more_than_one_way():
    model = [*shaped(want, n0=4), *layers(2, 4)]
    file = [*shaped(offer, n0=3), *layers(1, 3, 5, make=offer)]
    made = match(model, file)
    assert not made.pairs
    assert not find_remedies(made, model, file)


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ({"n0": 4, "n1": 4, "n2": 6}, {"n0": 4, "n1": 4, "n2": 4, "n3": 6}),
        ({"n0": 4, "n1": 5, "n2": 5, "n3": 6}, {"n0": 4, "n1": 5, "n2": 6, "n3": 7}),
    ],
    ids=["one put in", "one taken out"],
)
def test_of_alike_layers_before_the_one_that_shows_a_shift_none_is_taken(model, file):
    found = sure(shaped(want, **model), shaped(offer, **file))
    assert found == ([] if model["n1"] == 4 else [0, 0])
    exact = match(shaped(want, **model), shaped(offer, **file), match="exact").cautious()
    assert len(exact.pairs) >= 4


def test_the_bias_of_another_kind_of_layer_is_not_taken():
    model = [*shaped(want, n0=4), *shaped(want, n1=4)]
    file = [*shaped(offer, n0=4), offer("net.1.weight", (4,)), offer("net.1.bias", (4,))]
    made = match(model, file).cautious()
    assert list(paired(made)) == ["net.0.weight", "net.0.bias"]
    assert "not of one kind" in str(made.ambiguities[0])


def test_a_bias_stays_with_a_layer_of_another_width_and_a_block_with_its_parts():
    model, file = shaped(want, n0=4), [offer("net.0.weight", (4, 3)), offer("net.0.bias", (4,))]
    assert sure(model, file) == [0]
    model = [want("net.0.norm.weight", (4,)), want("net.0.fc.weight", (4, 4))]
    file = [offer("net.0.norm.weight", (4, 1)), offer("net.0.fc.weight", (4, 4))]
    assert sure(model, file) == [0]


def one_list(make, kinds):
    """A list of a few layers without gaps, each of a kind that tells its shapes."""
    return [one for number, kind in enumerate(kinds) for one in shaped(make, **{f"n{number}": kind})]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(2, 4), min_size=1, max_size=6), st.lists(st.integers(2, 4), min_size=1, max_size=6))
def test_what_is_taken_at_an_equal_number_has_no_better_partner(mine, theirs):
    """Where shapes of some pair differ and moving the rest would fit more, no way to fit so many gives what is taken another partner."""
    made = match(one_list(want, mine), one_list(offer, theirs)).cautious()
    taken = {int(name.split(".")[1]) for name in paired(made) if name.endswith("weight")}
    ways: dict[int, list[dict[int, int]]] = {}

    def go(own, other, found):
        if own == len(mine) or other == len(theirs):
            ways.setdefault(len(found), []).append(found)
            return
        if mine[own] == theirs[other]:
            go(own + 1, other + 1, found | {own: other})
        go(own + 1, other, found)
        go(own, other + 1, found)

    go(0, 0, {})
    most = max(ways)
    equal = sum(one == other for one, other in zip(mine, theirs, strict=False))
    if most > equal and made.mismatched:
        assert all(way.get(number, number) == number for way in ways[most] for number in taken)


@pytest.mark.parametrize("base", ["net.", "module.net.", "layers."])
def test_one_doubt_is_told_once_however_the_names_are_read(base):
    model = [want(f"{base}{number}.w") for number in range(4)]
    file = [offer(f"{base}{number}.w") for number in range(3, 7)]
    made = match(model, file)
    (doubt,) = made.ambiguities
    assert doubt.want == f"{base}{{0…3}}"
    (cautious,) = made.cautious().ambiguities
    assert cautious.speaks_of == doubt.speaks_of
    assert cautious.reason == (
        f"{doubt.reason}; equal numbers ({base}3) need not mean equal layers, and match='exact' takes them so"
    )
