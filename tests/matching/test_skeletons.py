"""A quick look at whether two sides have any names in common never misses what a plan would find."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firekeep.matching import may_meet, skeletons_of
from matching.sides import match, offer, offers, want, wants

WORDS = st.sampled_from(
    ["net", "0", "1", "7", "Linear", "Act", "module", "_orig_mod", "model", "fc", "weight", "gamma"]
)
NAMES = st.lists(WORDS, min_size=1, max_size=4).map(".".join)


@settings(max_examples=300, deadline=None)
@given(st.sets(NAMES, min_size=1, max_size=4), st.sets(NAMES, min_size=1, max_size=4))
def test_what_a_plan_finds_may_meet(model, file):
    if match(model, file).matched:
        assert may_meet(wants(model), skeletons_of(offers(file)))


@pytest.mark.parametrize(
    ("one", "name"),
    [
        (want("net.0.gamma", spellings=("net.0.weight",)), "net.2.weight"),
        (want("net.0.conv.weight", short="net.0.weight"), "net.0.weight"),
        (want("net.0.conv.gamma", short="net.0.gamma", spellings=("net.0.conv.weight",)), "net.0.weight"),
    ],
)
def test_other_names_of_a_want_count(one, name):
    assert may_meet([one], skeletons_of([offer(name)]))


def test_other_names_do_not_meet():
    assert not may_meet([want("net.0.fc.weight")], skeletons_of([offer("net.0.conv.weight"), offer("fc.0.weight")]))
