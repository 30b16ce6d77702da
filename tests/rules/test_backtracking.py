"""Patterns that might keep a search busy for ever are refused when they are given, and ordinary ones are not."""

from __future__ import annotations

import re

import pytest

from firekeep.errors import RuleError
from firekeep.rules import PRESETS, KeyRemapper, PathFilter
from firekeep.rules._backtracking import is_endless

ENDLESS = [
    r"(a+)+$",
    r"(.*\.)*x",
    r"(\w+_)*x",
    r"(\w*\.?)*$",
    r"((ab)+)+c",
    r"(a|b+)*c",
    r"(?:(?:a*)*)*",
    r"(?i)(A+)+x",
    r"(x+x+)+y",
    r"(a+?)*?b",
    r"([a-z]+\w)*x",
    r"(?:[^.]+x)*y",
    r"(?=(\w+)+x)",
    r"(a{1,50})+b",
]
FINE = [
    r"(\w+\.)*weight",
    r"^(?:[^.]+\.)*weight$",
    r"(\d+\.\w+\.)+",
    r"((?:layers|blocks)\.\d+\.)+",
    r"([a-z]+[0-9])*x",
    r"layers\.(\d+)\.(.*)$",
    r"(.*)(.*)",
    r"^(?:.+\.)?w",
    r"(a{1,3})+",
    r"(?>a+)+",
    r"(a++)+",
    r"(\w+\b\.)*x",
    r"(\S+\s)*x",
    r"(?P<n>[0-9]+-)+(?P=n)",
]


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_repeat_in_a_repeat_is_refused_wherever_patterns_are_given(pattern):
    for give in (
        lambda: KeyRemapper.of([(pattern, "x")]),
        lambda: KeyRemapper.of([(re.compile(pattern), "x")]),
        lambda: PathFilter.of(include=pattern),
    ):
        with pytest.raises(RuleError, match="a repeat within a repeat") as caught:
            give()
        assert pattern in str(caught.value)
        assert caught.value.remedy


@pytest.mark.parametrize("pattern", FINE)
def test_rounds_that_something_tells_apart_are_fine(pattern):
    assert not is_endless(pattern, 0)
    assert PathFilter.of(include=pattern)


def test_the_patterns_of_the_presets_are_fine():
    assert all(KeyRemapper.preset(name) for name in PRESETS)


def test_what_the_remedy_says_is_taken():
    assert KeyRemapper.of([r"(\w+\.)+w=>v"]).rename(["a.b.w"]).names == {"a.b.w": "v"}


def test_a_pattern_as_long_as_a_list_of_names_is_refused_without_showing_all_of_it():
    long = "|".join(f"layer{number}" for number in range(12_000))
    for give in (lambda: KeyRemapper.of([f"{long}=>x"]), lambda: PathFilter.of(exclude=[long])):
        with pytest.raises(RuleError, match=r"has 1\d\d,\d\d\d letters, and 100,000 are the most") as caught:
            give()
        assert len(str(caught.value)) < 400
    assert KeyRemapper.table({f"layer{number}": f"x{number}" for number in range(12_000)})
