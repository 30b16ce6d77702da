from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.errors import RuleError
from firekeep.rules import close_gaps, open_gaps


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fc.0.weight fc.0.bias fc.2.weight fc.4.bias", "fc.0.weight fc.0.bias fc.1.weight fc.2.bias"),
        ("fc.0 fc.1 fc.2", "fc.0 fc.1 fc.2"),
        ("encoder.0 encoder.2 decoder.1 decoder.5", "encoder.0 encoder.1 decoder.0 decoder.1"),
        (
            "f.layers.0.block.0 f.layers.0.block.2 f.layers.2.block.0 f.layers.2.block.2",
            "f.layers.0.block.0 f.layers.0.block.1 f.layers.1.block.0 f.layers.1.block.1",
        ),
        (
            "a.0.b.0.c.0.w a.0.b.0.c.2.w a.0.b.2.c.0.w a.2.b.0.c.0.w",
            "a.0.b.0.c.0.w a.0.b.0.c.1.w a.0.b.1.c.0.w a.1.b.0.c.0.w",
        ),
        ("fc.0.w fc.2.w fc.4.w fc.6.w fc.8.w", "fc.0.w fc.1.w fc.2.w fc.3.w fc.4.w"),
        ("0.weight 3.weight", "0.weight 1.weight"),
        ("layers.6 layers.7 layers.11", "layers.0 layers.1 layers.2"),
        ("head.10.w head.100.w head.9.w", "head.1.w head.2.w head.0.w"),
        ("b.01.w b.2.w", "b.0.w b.1.w"),
        ("b.+3.w b.2.w", "b.1.w b.0.w"),
        ("b.-3.w b.2x.w b.x2.w b.2_0.w", "b.-3.w b.2x.w b.x2.w b.2_0.w"),
        ("w.18446744073709551615", "w.0"),
        ("w.18446744073709551616", "w.18446744073709551616"),
        ("w.000000000000000000000000000007", "w.0"),
        ("w.٣ w.²", "w.٣ w.²"),
        ("w.+ w.++1", "w.+ w.++1"),
    ],
)
def test_lists_are_numbered_from_0(old: str, new: str):
    assert list(close_gaps(old.split()).items()) == list(zip(old.split(), new.split(), strict=True))


def test_two_spellings_of_one_index_are_refused_with_both_names():
    with pytest.raises(RuleError, match=r"'b\.01\.w' and 'b\.1\.w' become 'b\.0\.w'"):
        close_gaps(["b.01.w", "b.1.w"])


def test_two_spellings_with_different_tensors_are_one_list():
    assert close_gaps(["b.01.w", "b.1.v"]) == {"b.01.w": "b.0.w", "b.1.v": "b.0.v"}


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r"^m\.flows$", "m.flows.0.net.0 m.flows.2.net.0 m.flows.2.net.1 m.other.0"),
        (r"flows", "m.flows.0.net.0 m.flows.2.net.0 m.flows.2.net.3 m.other.0"),
        (r"^flows$", "m.flows.0.net.0 m.flows.1.net.0 m.flows.1.net.1 m.other.0"),
        (r"", "m.flows.0.net.0 m.flows.2.net.0 m.flows.2.net.3 m.other.4"),
    ],
)
def test_a_list_that_is_excepted_keeps_its_numbers_and_those_inside_it_do_not(pattern: str, new: str):
    old = ["m.flows.0.net.0", "m.flows.2.net.0", "m.flows.2.net.3", "m.other.4"]
    assert list(close_gaps(old, except_=pattern).values()) == new.split()


def test_the_name_of_an_excepted_list_has_the_old_numbers():
    assert close_gaps(["a.3.b.5.w"], except_=r"^a\.3\.b$")["a.3.b.5.w"] == "a.0.b.5.w"


def test_an_exception_that_is_no_pattern_is_refused():
    with pytest.raises(RuleError, match="except '\\(' is not a regular expression"):
        close_gaps(["a"], except_="(")


parts = st.sampled_from(["a", "b", "0", "1", "2", "7", "12"])
lists_of_names = st.lists(st.lists(parts, min_size=1, max_size=5).map(".".join), unique=True, max_size=30)


@given(lists_of_names)
def test_closing_twice_changes_nothing(names: list[str]):
    closed = close_gaps(names)
    again = close_gaps(closed.values())
    assert list(again) == list(again.values())


@given(lists_of_names)
def test_gaps_that_were_closed_open_again(names: list[str]):
    closed = close_gaps(names)
    opened = open_gaps(closed.values(), like=names)
    assert [opened.names[closed[name]] for name in names] == names
    assert opened.left == ()


@given(lists_of_names)
def test_names_that_are_alike_stay(names: list[str]):
    opened = open_gaps(names, like=reversed(names))
    assert (list(opened.names), opened.opened, opened.left) == (list(opened.names.values()), (), ())


def test_what_was_opened_and_what_was_left_is_told_list_by_list():
    made = open_gaps(
        ["net.0.w", "net.1.w", "head.0.w", "head.1.w", "own.0"], like=["net.0.w", "net.2.w", "head.0.w", "other.5"]
    )
    assert made.names == {
        "net.0.w": "net.0.w",
        "net.1.w": "net.2.w",
        "head.0.w": "head.0.w",
        "head.1.w": "head.1.w",
        "own.0": "own.0",
    }
    assert [str(gap) for gap in made.opened] == ["net: 0, 1 -> 0, 2"]
    assert [str(gap) for gap in made.left] == ["head: 0, 1 -> 0"]


def test_lists_inside_lists_are_looked_up_where_their_parents_come_to_stand():
    made = open_gaps(["a.0.b.0", "a.1.b.0", "a.1.b.1"], like=["a.1.b.5", "a.3.b.0", "a.3.b.2"])
    assert list(made.names.values()) == ["a.1.b.5", "a.3.b.0", "a.3.b.2"]


def test_indices_are_written_as_in_the_names_to_be_like():
    assert list(open_gaps(["l.0", "l.1"], like=["l.03", "l.07"]).names.values()) == ["l.03", "l.07"]


def test_opening_that_makes_one_name_of_two_is_refused():
    with pytest.raises(RuleError, match=r"'l\.0\.w' and 'l\.00\.w' become 'l\.5\.w'"):
        open_gaps(["l.0.w", "l.00.w"], like=["l.5.w"])


def test_names_of_thousands_of_parts_are_no_trouble():
    deep = ".".join(["x", "3"] * 3000)
    flat = close_gaps([deep])[deep]
    assert open_gaps([flat], like=[deep]).names == {flat: deep}
