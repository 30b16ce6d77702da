from __future__ import annotations

import operator
import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.dtypes import BY_NAME
from firekeep.errors import RuleError
from firekeep.rules import PathFilter, Place
from firekeep.slots import Layer, Slot

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


def slot(path: str, *containers: str, kind: str | None = None) -> Slot:
    layer = None if kind is None else Layer(kind=kind, path=path.rpartition(".")[0])
    return Slot(path=path, dtype=BY_NAME["F32"], shape=(), layer=layer, containers=containers)


SLOTS = (
    slot("net.0.weight", "Struct:Net", "Vec", "Struct:Linear", kind="linear"),
    slot("net.1.gamma", "Struct:Net", "Vec", "Struct:LayerNorm", kind="layer_norm"),
    slot("scale", "Struct:Net"),
)


def test_whole_names_are_taken_by_exact():
    made = PathFilter.exact("norm.weight", "encoder.0.bias", "norm").select(NAMES)
    assert (made.kept, made.idle) == (("encoder.0.bias", "norm.weight"), ("norm",))
    assert PathFilter.exact().select(NAMES).kept == ()
    with pytest.raises(RuleError, match="exact: 3 is int"):
        PathFilter.exact(3)


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("*.weight", ("decoder.weight", "norm.weight")),
        ("**.weight", ("encoder.0.weight", "decoder.weight", "norm.weight")),
        ("encoder.?.*", NAMES[:2]),
        ("*", ()),
        ("**", NAMES),
        ("norm.weigh", ()),
        ("norm[.]weight", ()),
    ],
)
def test_wildcards_stay_between_two_dots_unless_doubled(pattern: str, kept):
    assert PathFilter.glob(pattern).select(NAMES).kept == kept


def test_a_predicate_of_one_value_is_asked_about_a_place():
    def is_linear(place: Place) -> bool:
        return place.kind == "linear" and place.owner == "Linear" and place.containers[1] == "Vec"

    chosen = PathFilter.where(is_linear)
    assert [chosen.accepts(each) for each in SLOTS] == [True, False, False]
    assert not chosen.accepts("net.0.weight")


def test_a_predicate_of_two_values_is_asked_about_path_and_containers():
    asked = []

    def is_norm(path: str, containers: str) -> bool:
        asked.append((path, containers))
        return containers.endswith("Struct:LayerNorm")

    assert PathFilter.of(exclude=is_norm).select(SLOTS).left_out == ("net.1.gamma",)
    assert asked[0] == ("net.0.weight", "Struct:Net.Vec.Struct:Linear")
    assert not PathFilter.of(include=[is_norm]).accepts("net.1.gamma")
    assert asked[-1] == ("net.1.gamma", "")


def test_predicates_with_defaults_and_partial_ones_are_told_by_what_they_need():
    assert PathFilter.where(lambda place, limit=3: len(place.path) > limit).accepts("abcd")
    assert PathFilter.where(partial(operator.contains, [Place(path="a")])).accepts("a")
    assert PathFilter.where(lambda *values: len(values) == 1).accepts("a")
    assert PathFilter.where(lambda path, containers, /: path == "a").accepts("a")


@pytest.mark.parametrize("function", [lambda: True, lambda a, b, c: True, lambda *, key: True])
def test_a_predicate_that_cannot_be_asked_is_refused(function):
    with pytest.raises(RuleError, match="A predicate takes one Place"):
        PathFilter.of(include=function)


def test_a_predicate_that_met_nothing_is_idle():
    def never(place: Place) -> bool:
        return False

    assert [each.rpartition(".")[2] for each in PathFilter.where(never).select(NAMES).idle] == ["never()"]
    with pytest.raises(RuleError, match="where: 3 is int, where a function is due"):
        PathFilter.where(3)


WEIGHTS, ENCODER, ALL = PathFilter.of(include="weight$"), PathFilter.of(include="^encoder"), PathFilter.of()


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [
        (WEIGHTS & ENCODER, NAMES[:1]),
        (WEIGHTS | ENCODER, NAMES),
        (~WEIGHTS, NAMES[1:2]),
        (~WEIGHTS | PathFilter.exact("norm.weight"), ("encoder.0.bias", "norm.weight")),
        (~(WEIGHTS & ENCODER), NAMES[1:]),
        (WEIGHTS & ~ENCODER & ~PathFilter.exact("norm.weight"), ("decoder.weight",)),
        (ALL & ENCODER, NAMES[:2]),
        (ALL | ENCODER, NAMES),
        (ENCODER | ALL, NAMES),
        (~ALL, ()),
        (~ALL | ENCODER, NAMES[:2]),
        (~~ENCODER, NAMES[:2]),
        (PathFilter.of(include=[ENCODER, "^norm"], exclude=PathFilter.exact("encoder.0.bias")), (NAMES[0], NAMES[3])),
        (PathFilter.of(include=WEIGHTS, exclude="^dec") | ENCODER, (*NAMES[:2], "norm.weight")),
    ],
)
def test_filters_are_joined_and_turned_round(chosen: PathFilter, kept):
    assert chosen.select(NAMES).kept == kept
    assert tuple(name for name in NAMES if chosen.accepts(name)) == kept


def test_idle_patterns_are_found_inside_joined_filters():
    chosen = (WEIGHTS | PathFilter.of(exclude="typo")) & ~PathFilter.of(include="absent")
    assert chosen.select(NAMES).idle == ("typo", "absent")


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        (ALL, "everything"),
        (~ALL, "all but (everything)"),
        (PathFilter.of(include=["^a", "b"], exclude="c$"), "/^a/ or /b/, but not /c$/"),
        (PathFilter.of(exclude=["c", "d"]), "all but /c/ or /d/"),
        (PathFilter.exact("b", "a"), "one of 'a', 'b'"),
        (PathFilter.exact("a") | WEIGHTS, "'a' or /weight$/"),
        (WEIGHTS & ~ENCODER, "(/weight$/) and (all but /^encoder/)"),
    ],
)
def test_a_filter_can_be_read(chosen: PathFilter, text: str):
    assert str(chosen) == text


filters = st.recursive(
    st.sampled_from([ALL, WEIGHTS, ENCODER, PathFilter.exact("a"), PathFilter.of(include="a", exclude="b")]),
    lambda inner: st.one_of(
        st.builds(operator.or_, inner, inner), st.builds(operator.and_, inner, inner), st.builds(operator.invert, inner)
    ),
)


@given(filters, filters, st.sampled_from(["a", "ab", "b", "encoder.weight", "weight", ""]))
def test_joined_filters_say_what_their_parts_say(one: PathFilter, other: PathFilter, name: str):
    assert (one | other).accepts(name) == (one.accepts(name) or other.accepts(name))
    assert (one & other).accepts(name) == (one.accepts(name) and other.accepts(name))
    assert (~one).accepts(name) != one.accepts(name)
    assert bool(one.select([name]).kept) == one.accepts(name)


def test_filters_are_joined_to_filters_only():
    with pytest.raises(TypeError):
        WEIGHTS | "bias"
    with pytest.raises(TypeError):
        WEIGHTS & "bias"
