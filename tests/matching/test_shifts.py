"""Equal numbers in lists that may have been shifted: what a load that takes what fits must leave alone."""

from __future__ import annotations

import pytest

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
