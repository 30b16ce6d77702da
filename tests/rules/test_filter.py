from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.errors import RuleError
from firekeep.rules import PathFilter

NAMES = ("encoder.0.weight", "encoder.0.bias", "decoder.weight", "norm.weight")


@pytest.mark.parametrize(
    ("include", "exclude", "kept"),
    [
        ((), (), NAMES),
        ((r"^encoder",), (), NAMES[:2]),
        ((r"^encoder", r"^norm"), (), (*NAMES[:2], "norm.weight")),
        ((), (r"bias$",), ("encoder.0.weight", "decoder.weight", "norm.weight")),
        ((r"weight",), (r"^norm", r"^dec"), ("encoder.0.weight",)),
        ((r"oder",), (), NAMES[:3]),
        (("nothing",), (), ()),
        (re.compile("NORM", re.IGNORECASE), (), ("norm.weight",)),
        ("^encoder", "bias", ("encoder.0.weight",)),
    ],
)
def test_patterns_are_searched_and_exclusion_wins(include, exclude, kept):
    chosen = PathFilter.of(include=include, exclude=exclude)
    assert chosen.select(NAMES).kept == kept
    assert tuple(name for name in NAMES if chosen.accepts(name)) == kept


def test_a_selection_names_what_was_left_out_and_which_patterns_met_nothing():
    made = PathFilter.of(include=[r"weight$", "absent"], exclude=["^decoder", "typo"]).select(NAMES)
    assert made.left_out == ("encoder.0.bias", "decoder.weight")
    assert made.idle == ("absent", "typo")


def test_a_filter_without_patterns_is_false():
    assert not PathFilter.of()
    assert PathFilter.of(exclude="x")


@pytest.mark.parametrize("pattern", ["(", "[a", "a{9999999999999999999}", "(?P<x", "*", "\\"])
@pytest.mark.parametrize("side", ["include", "exclude"])
def test_what_is_no_regular_expression_is_refused_with_its_text(pattern: str, side: str):
    with pytest.raises(RuleError, match="is not a regular expression") as caught:
        PathFilter.of(**{side: [pattern]})
    assert repr(pattern) in str(caught.value)
    assert str(caught.value).startswith(side)


def test_what_is_no_text_is_refused():
    with pytest.raises(RuleError, match=r"exclude: 3 is int, where a regular expression is due"):
        PathFilter.of(exclude=[3])
    with pytest.raises(RuleError, match="include: 3 is int, where regular expressions are due"):
        PathFilter.of(include=3)


def test_named_groups_are_taken_in_the_spelling_of_rust():
    assert PathFilter.of(include=[r"layers\.(?<index>\d+)\."]).accepts("layers.12.weight")


@given(st.lists(st.text(max_size=6), unique=True), st.sampled_from(["a", "^.", "x$", ""]))
def test_nothing_is_lost_between_kept_and_left_out(names: list[str], pattern: str):
    made = PathFilter.of(include=pattern).select(names)
    assert sorted((*made.kept, *made.left_out)) == sorted(names)
    assert [name for name in names if name in set(made.kept)] == list(made.kept)
