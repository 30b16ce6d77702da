from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.ids import ParamId
from firekeep.module import Linear, ModuleError, ParamGroup, _group, walk

PATHS = ["fc.weight", "fc.bias", "norm.weight", "head.0.weight"]
CASES = [(ParamId(number), path) for number, path in enumerate(PATHS)] + [
    (ParamId(9), None),
    (None, "fc.bias"),
    (None, None),
]


def chosen(group: ParamGroup) -> list[str]:
    return [path for path in PATHS if group.matches(path=path)]


def test_the_example_of_the_docstring_runs():
    assert doctest.testmod(_group).failed == 0


def test_one_by_one():
    assert chosen(ParamGroup.all()) == PATHS
    assert chosen(ParamGroup.none()) == []
    assert chosen(ParamGroup.paths(["fc.weight", "fc"])) == ["fc.weight"]
    assert chosen(ParamGroup.paths("fc.weight")) == ["fc.weight"]
    assert chosen(ParamGroup.regex(r"weight$")) == ["fc.weight", "norm.weight", "head.0.weight"]
    assert chosen(ParamGroup.regex("^norm", r"\.0\.")) == ["norm.weight", "head.0.weight"]
    assert chosen(ParamGroup.containing("norm", "bias")) == ["fc.bias", "norm.weight"]
    assert chosen(ParamGroup.predicate(lambda path: path.count(".") == 2)) == ["head.0.weight"]


def test_ids_and_modules():
    layer, other = Linear(2, 2), Linear(2, 2)
    group = ParamGroup.of(layer)
    assert all(group.matches(param_id=visited.param.id) for visited in walk(layer))
    assert not any(group.matches(param_id=visited.param.id) for visited in walk(other))
    assert ParamGroup.ids([ParamId(3)]).matches(param_id=ParamId(3), path="x")
    assert not ParamGroup.ids([ParamId(3)]).matches(path="x")


@pytest.mark.parametrize(
    "empty", [ParamGroup.ids([]), ParamGroup.paths([]), ParamGroup.regex(), ParamGroup.containing()]
)
def test_an_empty_list_has_nothing_in_it(empty):
    assert not any(empty.matches(param_id=param_id, path=path) for param_id, path in CASES)


def test_exclusions_survive_being_combined():
    weights = ParamGroup.regex("weight") - ParamGroup.containing("norm")
    assert chosen(weights | ParamGroup.paths(["fc.bias"])) == ["fc.weight", "fc.bias", "head.0.weight"]
    assert chosen(ParamGroup.all() - weights) == ["fc.bias", "norm.weight"]
    assert chosen(~weights & ParamGroup.containing("fc")) == ["fc.bias"]


def test_a_wrong_pattern_is_named():
    with pytest.raises(ModuleError, match=r"'\(' is not a regular expression"):
        ParamGroup.regex("(")


def test_a_group_says_what_it_is():
    assert str((ParamGroup.all() - ParamGroup.paths(["b", "a"])) | ~ParamGroup.regex("x")) == (
        "((all - paths(a, b)) | ~regex('x'))"
    )


leaves = st.sampled_from(
    [
        (ParamGroup.all(), lambda i, p: True),
        (ParamGroup.none(), lambda i, p: False),
        (ParamGroup.ids([ParamId(0), ParamId(9)]), lambda i, p: i in (0, 9)),
        (ParamGroup.paths(["fc.bias"]), lambda i, p: p == "fc.bias"),
        (ParamGroup.regex("weight"), lambda i, p: p is not None and "weight" in p),
    ]
)


def combine(children):
    pairs = st.tuples(children, children)
    return st.one_of(
        pairs.map(lambda ab: (ab[0][0] | ab[1][0], lambda i, p: ab[0][1](i, p) or ab[1][1](i, p))),
        pairs.map(lambda ab: (ab[0][0] & ab[1][0], lambda i, p: ab[0][1](i, p) and ab[1][1](i, p))),
        pairs.map(lambda ab: (ab[0][0] - ab[1][0], lambda i, p: ab[0][1](i, p) and not ab[1][1](i, p))),
        children.map(lambda a: (~a[0], lambda i, p: not a[1](i, p))),
    )


@given(st.recursive(leaves, combine, max_leaves=8))
def test_groups_are_a_boolean_algebra(made):
    group, truth = made
    for param_id, path in CASES:
        assert group.matches(param_id=param_id, path=path) == truth(param_id, path)
