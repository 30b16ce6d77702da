from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.folding import fold, natural, ranges, some_alike


def labels(names):
    return [one.label for one in fold(names)]


def test_names_sort_as_people_count():
    names = ["layers.2.w", "layers.10.w", "layers.10.b", "a10b", "a2b", "", "10", "9"]
    shuffled = random.Random(1).sample(names, len(names))
    assert sorted(shuffled, key=natural) == ["", "9", "10", "a2b", "a10b", "layers.2.w", "layers.10.b", "layers.10.w"]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "3"),
        ([0, 1], "0,1"),
        ([0, 1, 2], "0…2"),
        ([2, 0, 1, 5], "0…2,5"),
        ([0, 2, 4], "0,2,4"),
        ([0, 2, 4, 6, 8], "0,2…8"),
        ([0, 1, 5, 6, 7, 9], "0,1,5…7,9"),
        ([0, 2, 3, 5, 8, 13, 21, 34, 55], "9 of 0…55"),
    ],
)
def test_numbers_as_ranges(numbers, text):
    assert ranges(numbers) == text


def test_alike_names_become_one():
    names = [f"layers.{n}.{end}" for n in range(30) for end in ("w", "b")]
    assert labels(names) == ["layers.{0…29}.w", "layers.{0…29}.b"]


def test_several_numbers_in_one_name():
    assert labels([f"l.{n}.m.{m}.w" for n in range(3) for m in (0, 2)]) == ["l.{0…2}.m.{0,2}.w"]


def test_a_label_stands_for_no_name_that_is_not_there():
    assert labels(["l.0.a.0", "l.0.a.1", "l.1.a.0"]) == ["l.{0,1}.a.0", "l.0.a.1"]


def test_what_only_looks_like_a_number_stands_alone():
    assert labels(["a.01", "a.1", "a.x2", "a.x3"]) == ["a.01", "a.1", "a.x2", "a.x3"]


@given(st.lists(st.lists(st.sampled_from(["a", "", *"0123"]), min_size=1, max_size=4).map(".".join), unique=True))
def test_every_name_is_in_one_fold(names):
    assert sorted(name for one in fold(names) for name in one.names) == sorted(names)


def test_names_that_are_not_shown_are_counted_one_by_one():
    names = [f"{kind}.{number}.w" for kind in "abcd" for number in range(10)]
    assert some_alike(names, 2) == "'a.{0…9}.w', 'b.{0…9}.w' and 20 more"
    assert some_alike(names[:20], 2) == "'a.{0…9}.w', 'b.{0…9}.w'"
    assert some_alike([]) == ""
