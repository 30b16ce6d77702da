from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.errors import RuleError
from firekeep.rules import PRESETS, KeyRemapper, RenameRule


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


@pytest.mark.parametrize("rule", ["x*=>y", "=>y", r"\d*=>n", "(foo)?=>x", "(?!x)=>y"])
def test_a_pattern_that_finds_nothing_at_all_everywhere_is_refused(rule: str):
    with pytest.raises(RuleError, match="is found between every two letters"):
        KeyRemapper.of(rule)


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        (".*=>all", "a.b", "all"),
        ("(.*)=>model.$1", "a.b", "model.a.b"),
        ("[^.]*=>x", "a.b", "x.x"),
        ("$=>.end", "a.b", "a.b.end"),
        (r"(?<=\.)(?=\d)=>n", "a.1.b.2", "a.n1.b.n2"),
        (r"\b=>|", "a.b", "|a|.|b|"),
    ],
)
def test_a_match_of_nothing_right_after_another_is_none(rule: str, old: str, new: str):
    assert renamed(rule, old) == new


def test_names_with_nothing_in_them_or_between_two_dots_are_told():
    made = KeyRemapper.of(["^a$=>", r"^b\.=>x..", r"c\.=>z."]).rename(["a", "b.w", "c.w", "d..w"])
    assert made.holed == ("a", "b.w")


@pytest.mark.parametrize(
    ("rule", "inverse"),
    [
        (r"^model\.=>", "^=>model."),
        (r"^=>model.", r"^model\.=>"),
        (r"$=>.w", r"\.w$=>"),
        (r"\.gamma$=>.weight", r"\.weight$=>.gamma"),
        (r"\.self_attn\.=>.attn.", r"\.attn\.=>.self_attn."),
        (r"\Anet\.1\.=>net.2.", r"^net\.2\.=>net.1."),
        (r"layers\.(\d+)\.=>blocks.$1.", r"blocks\.(\d+)\.=>layers.${1}."),
        (r"layers\.(\d+)=>blocks.$1", r"blocks\.(\d+)=>layers.${1}"),
        (r"^h\.(?<i>\d+)\.(.*)$=>b.$i.$2", r"^b\.(\d+)\.(.*)$=>h.${1}.${2}"),
        (r"^([^.]+)\.([^.]+)\.w$=>$2.$1.w", r"^([^.]+)\.([^.]+)\.w$=>${2}.${1}.w"),
        (r"^(.*)\.qkv\.(weight|bias)$=>$1.q.$2", r"^(.*)\.q\.(weight|bias)$=>${1}.qkv.${2}"),
        (r"^(\d)(\d)$=>$2$1", r"^(\d)(\d)$=>${2}${1}"),
        (r"^a$=>$$\\", r"^\$\\$=>a"),
        (r"^\$\\$=>a", r"^a$=>$$\\"),
        (r"\[x\]=>y", r"y=>[x]"),
    ],
)
def test_text_and_simple_groups_are_turned_round(rule: str, inverse: str):
    assert str(RenameRule.of(rule).inverse()) == inverse


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("a=>", "nothing of its own is left"),
        (r"(\d+)x=>$1", "nothing of its own is left"),
        ("x+=>y", r"its pattern has '\+' outside a group"),
        (r"layers\.\d+\.=>blocks.", r"its pattern has '\\d' outside a group"),
        ("[ab]=>c", r"its pattern has '\['"),
        ("a|b=>c", r"its pattern has '\|'"),
        ("b=>[$0]", "the whole match"),
        (r"(\d+)\.(\d+)=>$1", "not every group of the pattern once"),
        (r"(\d+)=>x$1.$1", "not every group of the pattern once"),
        (r"^(\d+)\.(\d+)$=>$1$2", r"in several ways at the group \(\\d\+\)"),
        (r"^(.*)-(.*)$=>$1.$2", r"in several ways at the group \(\.\*\)"),
        (r"(\d+)\.=>x$1", "in several ways"),
        (r"(a|ab)\.=>${1}b.", "in several ways"),
        (r"(\d+?)\.x=>$1.y", "takes as little as it can"),
        (r"(?:a)b=>c", "no simple group"),
        (r"(a(b))c=>$1$2", "no simple group"),
        (r"(a)+c=>${1}x", "no simple group"),
        (r"(a|)c=>${1}x", "may be empty"),
        ((re.compile("A", re.IGNORECASE), "b"), "flags"),
        ("(?i)a=>b", "flags"),
    ],
)
def test_a_rule_that_could_be_turned_round_wrongly_is_refused(rule, why: str):
    with pytest.raises(RuleError, match=f"has no inverse that its form tells: .*{why}") as caught:
        KeyRemapper.of([rule]).inverse()
    assert "inverse_of()" in str(caught.value)


segments = st.sampled_from(["layers", "0", "1", "12", "attn", "w", "weight", "bias", "mlp"])
model_names = st.lists(st.lists(segments, min_size=1, max_size=5).map(".".join), unique=True, max_size=12)
reversible = st.sampled_from(
    [
        r"^=>model.",
        r"$=>.data",
        r"layers\.(\d+)\.=>blocks.$1.",
        r"\.attn\.=>.self_attention.",
        r"weight$=>gamma",
        r"^([^.]+)\.(\d+)$=>list.$2.of.$1",
        r"^(.*)\.(weight|bias)$=>${2}_of.$1",
        r"(\d)(\d)=><$2/$1>",
        r"mlp=>ffn$$",
    ]
)


@given(model_names, st.lists(reversible, unique=True, max_size=5))
def test_inverse_rules_give_the_names_back(names: list[str], rules: list[str]):
    remapper = KeyRemapper.of(rules)
    new = remapper.rename(names).names
    assert list(remapper.inverse().rename(new.values()).names.values()) == names
    assert remapper.undo(new.values()).names == {new[name]: name for name in names}


anything = st.text(st.sampled_from("ab.1x"), min_size=1, max_size=6)


@given(
    st.lists(anything, unique=True, max_size=10),
    st.lists(st.sampled_from(["a=>b", "[ab]+=>$0$0", r"(\d)=>", "^=>x", r"x(.)=>$1", "b$=>"]), max_size=4),
)
def test_a_table_of_names_gives_them_back_whatever_the_rules(names: list[str], rules: list[str]):
    remapper = KeyRemapper.of(rules)
    try:
        new = remapper.rename(names).names
    except RuleError:
        return
    assert list(remapper.inverse_of(names).rename(new.values()).names.values()) == names


@given(
    st.lists(anything, unique=True, max_size=8),
    st.lists(
        st.sampled_from([r"^a\.=>", "a=>b", "1$=>x", r"^(.)\.(.)$=>$2.$1", r"(\d)=>x$1", r"b(\d+)=>a$1"]), max_size=3
    ),
)
def test_what_is_undone_becomes_what_it_was_or_is_refused(names: list[str], rules: list[str]):
    remapper = KeyRemapper.of(rules)
    try:
        undone = remapper.undo(names)
    except RuleError:
        return
    again = remapper.rename(undone.names.values()).names
    assert [again[undone.names[name]] for name in names] == names


def test_a_name_that_would_not_come_back_is_refused():
    with pytest.raises(RuleError, match="'a' goes back to 'a', which becomes 'b'"):
        KeyRemapper.of(["a=>b"]).undo(["a"])


def test_a_prefix_taken_away_is_given_to_every_name():
    made = KeyRemapper.of([r"^model\.=>"]).inverse().rename(["norm.w", "lm_head.w"])
    assert dict(made.names) == {"norm.w": "model.norm.w", "lm_head.w": "model.lm_head.w"}


def test_a_name_in_the_table_takes_its_new_one_and_no_rule_is_tried_on_it():
    made = KeyRemapper.of(["a=>b"], names={"aa": "ac", "gone": "x"}).rename(["aa", "a"])
    assert dict(made.names) == {"aa": "ac", "a": "b"}
    assert made.hits == (("a=>b", 1),)
    assert made.unmet == ("gone",)


def test_a_table_is_turned_round_with_the_rules():
    remapper = KeyRemapper.of([r"^x\.=>y."], names={"head": "tail"})
    assert dict(remapper.inverse().rename(["tail", "y.w"]).names) == {"tail": "head", "y.w": "x.w"}
    with pytest.raises(RuleError, match="the table of names gives several tensors one name: 'a' and 'b' become 'c'"):
        KeyRemapper.of(names={"a": "c", "b": "c"}).inverse()


def test_a_table_that_is_none_is_refused():
    for table in ([("a", "b")], {"a": 1}, {1: "a"}):
        with pytest.raises(RuleError, match="a mapping of names to names"):
            KeyRemapper.of(names=table)


def test_rules_that_were_read_already_are_taken():
    rule = RenameRule.of("a=>b")
    assert KeyRemapper.of([rule, "c=>d"]).rules[0] == rule
    assert KeyRemapper.of(rule).rules == (rule,)
    assert hash(KeyRemapper.of(rule)) == hash(KeyRemapper.of("a=>b"))


def test_every_preset_can_be_had_by_name_and_turned_round():
    for name, preset in PRESETS.items():
        remapper = KeyRemapper.preset(name)
        assert len(remapper.rules) == len(preset.rules)
        assert preset.about
        assert remapper.inverse()
    with pytest.raises(RuleError, match=r"by the name of 'modul'. There are 'module\.', '_orig_mod\.'"):
        KeyRemapper.preset("modul")


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "base_model.model."])
def test_a_prefix_is_taken_from_the_front_only(prefix: str):
    made = KeyRemapper.preset(prefix).rename([f"{prefix}a.{prefix}w", f"x.{prefix}w"])
    assert list(made.names.values()) == [f"a.{prefix}w", f"x.{prefix}w"]


def llama_names(layers: int) -> list[str]:
    parts = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    parts += ["input_layernorm", "post_attention_layernorm"]
    blocks = [f"model.layers.{layer}.{part}.weight" for layer in range(layers) for part in parts]
    return ["model.embed_tokens.weight", *blocks, "model.norm.weight"]


def test_the_names_of_a_llama_become_those_of_a_burn_model_and_back():
    names = llama_names(30)
    assert len(names) == 272
    remapper = KeyRemapper.preset("hf-llama-to-burn")
    made = remapper.rename(names)
    assert [count for _, count in made.hits] == [272, 120, 60]
    assert made.names["model.layers.0.self_attn.k_proj.weight"] == "layers.0.attn.k_proj.weight"
    assert made.names["model.layers.29.post_attention_layernorm.weight"] == "layers.29.post_attention_norm.gamma"
    assert made.names["model.norm.weight"] == "norm.weight"
    assert list(remapper.undo(made.names.values()).names.values()) == names
