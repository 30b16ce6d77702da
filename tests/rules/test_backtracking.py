"""Patterns that might keep a search busy for ever are refused when they are given, and ordinary ones are not."""

from __future__ import annotations

import re

import pytest

from firekeep.errors import RuleError
from firekeep.rules import PRESETS, KeyRemapper, PathFilter
from firekeep.rules._ambiguity import is_ambiguous
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
TWO_WAYS = [
    r"(?:\w|_\w)+x",
    r"(?:a|ab?)*c",
    r"(?i)([A-Z][a-z]*)+$",
    r"(?i:(a|A\w)+)x",
    r"([а-я]|я[а-я])+x",
    r"(a{1,3})+b",
    r"(?:\d{1,2}\.?)+x",
    r"(?:a?b?)*c",
    r"(?:x(?:a*)?)*y",
    r"(?:x(?:a*|b*))+y",
    r"layers\.(?:(?:[a-z]|[a-z][0-9_a-z])\.?)+weight$",
    r"(?>(?:a|aa)+b)",
    r"(?=(?:a|a\w)+b)",
    r"(?:(?:a|aa)+){3}",
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
    r"(?:\w|_)+x",  # one kind of letters to the engine
    r"(\w|\.)+x",
    r"([A-Z][a-z]*)+$",
    r"(?i:a|B\w)+x",
    r"(?:layers?|blocks?|h)+\.x",
    r"(?:a|ab?)*",  # nothing behind it can fail
    r"^(?:[a-z]+_)?(?:\w+\.)*w$",
    r"(?>a|ab)+c",
    r"(?:layers\.\d+\.|blocks\.\d+\.)*weight",
    r"^(?:model\.|module\.|_orig_mod\.)+",
    "|".join(f"(?:a{number}b?)+" for number in range(300)) + "x",
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


@pytest.mark.parametrize("pattern", TWO_WAYS)
def test_a_repeat_that_takes_the_same_letters_in_two_ways_is_refused(pattern):
    for give in (lambda: KeyRemapper.of([(pattern, "x")]), lambda: PathFilter.of(exclude=re.compile(pattern))):
        with pytest.raises(RuleError, match="in more than one way") as caught:
            give()
        assert pattern in str(caught.value)


@pytest.mark.parametrize("pattern", FINE)
def test_rounds_that_something_tells_apart_are_fine(pattern):
    assert not is_endless(pattern, 0)
    assert not is_ambiguous(pattern, 0)
    assert PathFilter.of(include=pattern)


def test_the_patterns_of_the_presets_are_fine():
    assert all(KeyRemapper.preset(name) for name in PRESETS)


def test_what_the_remedy_says_is_taken():
    assert KeyRemapper.of([r"(\w+\.)+w=>v"]).rename(["a.b.w"]).names == {"a.b.w": "v"}
    for bad, good in ((r"(\w|_\w)+x", r"(\w|-\w)+x"), (r"(\d{1,2})+x", r"\d+x")):
        with pytest.raises(RuleError, match="in more than one way"):
            PathFilter.of(include=bad)
        assert PathFilter.of(include=good)


def test_repeats_that_are_too_large_to_be_looked_at_are_let_through():
    words = "|".join(f"w{number:03}a?" for number in range(400))
    assert not is_ambiguous(f"(?:{words}|w(?:a|aa))+x", 0)


def test_a_pattern_as_long_as_a_list_of_names_is_refused_without_showing_all_of_it():
    long = "|".join(f"layer{number}" for number in range(12_000))
    for give in (lambda: KeyRemapper.of([f"{long}=>x"]), lambda: PathFilter.of(exclude=[long])):
        with pytest.raises(RuleError, match=r"has 1\d\d,\d\d\d letters, and 100,000 are the most") as caught:
            give()
        assert len(str(caught.value)) < 400
    assert KeyRemapper.table({f"layer{number}": f"x{number}" for number in range(12_000)})
