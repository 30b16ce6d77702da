"""Policies are functions of what is on disk, and some steps are spared whatever they say."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.checkpoint import AllOf, AnyOf, KeepAll, KeepBest, KeepEvery, KeepLast, KeepYounger, StepInfo, doomed
from firekeep.errors import RuleError

NOW = 1000.0


def infos(*values, metric="loss", start=1):
    """Steps from `start` on with these values of a metric, or without it, saved ten seconds apart, the last one now."""
    return [
        StepInfo(
            step=start + index,
            folder=Path("nowhere"),
            time=NOW - 10 * (len(values) - 1 - index),
            metrics={} if value is None else {metric: value},
        )
        for index, value in enumerate(values)
    ]


def kept(policy, steps):
    return sorted(policy.kept(steps, now=NOW))


NAN = math.nan


@pytest.mark.parametrize(
    ("policy", "values", "expected"),
    [
        (KeepLast(2), [5, 4, 3, 2], [3, 4]),
        (KeepLast(9), [5, 4], [1, 2]),
        (KeepAll(), [5, 4], [1, 2]),
        (KeepBest("loss"), [5, 3, 4], [2]),
        (KeepBest("loss", "max"), [5, 3, 4], [1]),
        (KeepBest("loss", n=2), [5, 3, 4], [2, 3]),
        (KeepBest("loss"), [3, 3, 4], [1]),
        (KeepBest("loss", tie="last"), [3, 3, 4], [2]),
        (KeepBest("loss"), [NAN, 9, NAN], [2]),
        (KeepBest("loss", "max"), [NAN, -9, NAN], [2]),
        (KeepBest("loss", n=2), [NAN, 9, NAN], [1, 2]),
        (KeepBest("loss"), [math.inf, NAN, -math.inf], [3]),
        (KeepBest("loss"), [None, 7, None], [2]),
        (KeepBest("accuracy", "max"), [1, 2], []),
        (KeepEvery(3), [0] * 7, [3, 6]),
        (KeepYounger(20), [0] * 5, [4, 5]),
        (KeepYounger(timedelta(seconds=21)), [0] * 5, [3, 4, 5]),
        (KeepLast(1) | KeepEvery(2), [0] * 5, [2, 4, 5]),
        (KeepLast(3) & KeepEvery(2), [0] * 6, [4, 6]),
        (AnyOf(KeepLast(1), KeepBest("loss"), KeepEvery(2)), [1, 2, 3], [1, 2, 3]),
        (AllOf(KeepLast(2), KeepBest("loss", n=2), KeepAll()), [1, 9, 3], [3]),
    ],
    ids=str,
)
def test_what_each_policy_keeps(policy, values, expected):
    assert kept(policy, infos(*values)) == expected


def test_the_order_of_the_steps_does_not_matter():
    steps = infos(3, 1, 1, 2)
    for policy in (KeepLast(2), KeepBest("loss"), KeepBest("loss", tie="last")):
        assert kept(policy, steps[::-1]) == kept(policy, steps)


def test_the_example_of_burn():
    left = []
    for step, loss in enumerate([0.9, 0.5, 0.7, 0.8, 0.6], 1):
        left += infos(loss, start=step)
        gone = doomed(left, KeepLast(2) | KeepBest("loss"), now=NOW)
        left = [info for info in left if info not in gone]
    assert [info.step for info in left] == [2, 4, 5]


@given(
    values=st.lists(st.one_of(st.none(), st.floats(), st.just(1.0)), min_size=1, max_size=12),
    policy=st.sampled_from(
        [KeepLast(1), KeepEvery(5), KeepBest("loss", "max"), KeepYounger(1), KeepLast(1) & KeepEvery(4)]
    ),
    data=st.data(),
)
def test_the_newest_the_best_and_the_one_just_written_are_never_deleted(values, policy, data):
    steps = infos(*values)
    best = KeepBest("loss")
    written = data.draw(st.sampled_from(steps))
    gone = {info.step for info in doomed(steps, policy, now=NOW, best=best, spared=(written.step,))}
    assert max(info.step for info in steps) not in gone
    assert written.step not in gone
    assert gone.isdisjoint(policy.kept(steps, now=NOW))
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    if numbers:
        assert 1 + values.index(min(numbers)) not in gone


def test_a_step_without_a_number_is_not_the_best():
    assert KeepBest("loss").best(infos(NAN, None)) is None
    assert KeepBest("loss").best(infos(NAN, 4)).step == 2
    assert doomed([], KeepLast(1), now=NOW, best=KeepBest("loss")) == ()


@pytest.mark.parametrize("make", [KeepLast, KeepEvery, lambda n: KeepBest("loss", n=n)])
@pytest.mark.parametrize("n", [0, -1])
def test_to_keep_none_is_refused(make, n):
    with pytest.raises(RuleError, match="at least 1"):
        make(n)


@pytest.mark.parametrize("n", [True, 2.0, "2"])
def test_a_number_of_steps_is_a_whole_number(n):
    with pytest.raises(TypeError, match="a whole number is needed"):
        KeepLast(n)


def test_other_nonsense_is_refused():
    with pytest.raises(RuleError, match="'min' or 'max'"):
        KeepBest("loss", "least")
    with pytest.raises(RuleError, match="above 0"):
        KeepYounger(0)
    with pytest.raises(RuleError, match="none is given"):
        AnyOf()
    with pytest.raises(TypeError, match="joins policies, not int"):
        KeepLast(1) | 3


def test_joined_policies_say_what_they_are():
    joined = KeepLast(2) | KeepBest("loss") & KeepEvery(3)
    assert joined == KeepLast(2) | KeepBest("loss") & KeepEvery(3)
    assert joined != KeepLast(2) & KeepEvery(3)
    assert repr(joined).startswith("AnyOf(KeepLast(n=2), AllOf(KeepBest(")
    assert hash(joined) == hash(KeepLast(2) | KeepBest("loss") & KeepEvery(3))
