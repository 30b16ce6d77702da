from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.errors import RuleError
from firekeep.rules import KeyRemapper


def renamed(rule, name: str) -> str:
    return KeyRemapper.of([rule]).rename([name]).names[name]


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        (r"^model\.=>", "model.norm.weight", "norm.weight"),
        (r"^=>model.", "norm.weight", "model.norm.weight"),
        (r"a=>b", "aXa", "bXb"),
        (r"layers\.(\d+)=>blocks.\1", "layers.12.bias", "blocks.12.bias"),
        (r"layers\.(\d+)=>blocks.$1", "layers.12.bias", "blocks.12.bias"),
        (r"(\w)(\w)=>${2}${1}", "ab", "ba"),
        (r"(\w)(\w)=>\g<2>\g<1>", "ab", "ba"),
        (r"(?P<x>\d+)=>${x}_bn", "7", "7_bn"),
        (r"(?<x>\d+)=>$x.bn", "7", "7.bn"),
        (r"(?P<x>\d+)=>\g<x>0", "7", "70"),
        (r"b+=>[$0]", "abba", "a[bb]a"),
        (r"b+=>[\0]", "abba", "a[bb]a"),
        (r"b+=>[\g<0>]", "abba", "a[bb]a"),
        (r"b=>$$1", "abc", "a$1c"),
        (r"b=>$", "abc", "a$c"),
        (r"b=>$.", "abc", "a$.c"),
        (r"b=>\\", "abc", "a\\c"),
        (r"(x)?b=><$1>", "ab", "a<>"),
        ("(a)" * 11 + "=>$11$10", "a" * 11, "aa"),
        (("a=>b", "c"), "xa=>bx", "xcx"),
        ((re.compile("A", re.IGNORECASE), "b"), "a", "b"),
        (r"\.self_attn\.=>.attn.", "layers.0.self_attn.k_proj.weight", "layers.0.attn.k_proj.weight"),
        (r"ü=>ue", "grün.ü", "gruen.ue"),
        (r"^$=>root", "", "root"),
        (r".*=>", "anything", ""),
    ],
)
def test_replacements_mean_the_same_in_both_spellings(rule, old: str, new: str):
    assert renamed(rule, old) == new


def test_rules_are_tried_in_order_and_each_sees_what_the_last_one_made():
    made = KeyRemapper.of(["a=>b", "b=>c", "a=>never"]).rename(["a", "b2", "z"])
    assert dict(made.names) == {"a": "c", "b2": "c2", "z": "z"}
    assert made.hits == (("a=>b", 1), ("b=>c", 2), ("a=>never", 0))
    assert made.changed == 2


def test_a_hit_is_a_name_in_which_the_pattern_was_found_changed_or_not():
    made = KeyRemapper.of([r"(x)=>\1"]).rename(["xx", "y"])
    assert made.hits == ((r"(x)=>\1", 1),)
    assert made.changed == 0


def test_a_mapping_and_a_single_rule_are_taken():
    assert KeyRemapper.of({"a": "b", "b": "c"}).rename(["a"]).names["a"] == "c"
    assert KeyRemapper.of("a=>b").rename(["a"]).names["a"] == "b"
    assert not KeyRemapper.of()


def test_two_names_that_become_one_are_refused_with_both_sources():
    with pytest.raises(RuleError, match=r"'a\.w' and 'b\.w' become 'x\.w'") as caught:
        KeyRemapper.of(["^[ab]=>x"]).rename(["a.w", "c.w", "b.w"])
    assert "exclude" in str(caught.value)


def test_a_name_that_becomes_one_that_stays_is_refused():
    with pytest.raises(RuleError, match="'a' and 'b' become 'b'"):
        KeyRemapper.of(["a=>b"]).rename(["a", "b"])


def test_many_collisions_are_counted():
    with pytest.raises(RuleError, match="and 3 more"):
        KeyRemapper.of([r"^.=>"]).rename([f"{letter}{number}" for letter in "ab" for number in range(8)])


def test_names_may_trade_places():
    made = KeyRemapper.of(["^a$=>tmp", "^b$=>a", "^tmp$=>b"]).rename(["a", "b"])
    assert dict(made.names) == {"a": "b", "b": "a"}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("plain", "no '=>'"),
        ("a=>b=>c", "'=>' 2 times"),
        ("(=>x", "is not a regular expression"),
        (r"a=>\1", "speaks of group '1', which the pattern 'a' has not"),
        (r"(\d)=>$2", "speaks of group '2'"),
        (r"(\d)=>$1_bn", r"Write \$\{1\}_bn for group '1' and then '_bn'"),
        (r"(?P<x>\d)=>$xy", r"Write \$\{x\}y"),
        (r"(\d)=>${}", "speaks of group ''"),
        (r"(\d)=>${99999999999999999999}", "speaks of group '9"),
        (r"(\d)=>\g<name>", "speaks of group 'name'"),
        (r"a=>\.b", r"has '\\\\.', which stands for nothing. Write '.' by itself"),
        ("a=>b\\", "Write two backslashes"),
        (("a",), "neither 'PATTERN=>REPLACEMENT' nor a pair"),
        (("a", "b", "c"), "nor a pair"),
        (7, "nor a pair"),
        (("a", None), "the replacement of 'a' is NoneType"),
        ((None, "a"), "None is NoneType, where a regular expression is due"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rule, message: str):
    with pytest.raises(RuleError, match=message):
        KeyRemapper.of([rule])


def test_what_is_no_list_of_rules_is_refused():
    with pytest.raises(RuleError, match="3 is int, where rules are due"):
        KeyRemapper.of(3)


def test_the_remedy_for_a_group_that_ran_into_text_works():
    assert renamed(r"(\d)=>${1}_bn", "4") == "4_bn"


@given(st.lists(st.text(max_size=8), unique=True))
def test_without_rules_every_name_is_itself(names: list[str]):
    made = KeyRemapper.of().rename(names)
    assert dict(made.names) == {name: name for name in names}


@given(st.text(min_size=1, max_size=8), st.text(max_size=8).filter(lambda text: "\\" not in text and "$" not in text))
def test_literal_rules_do_what_replace_does(part: str, new: str):
    name = f"one.{part}.two.{part}"
    assert renamed((re.escape(part), new), name) == name.replace(part, new)
