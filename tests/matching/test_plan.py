from __future__ import annotations

import pytest

from firekeep.errors import RuleError
from firekeep.matching import IMPORT, LENIENT, STRICT, Policy, plan
from matching.sides import match, names, offer, paired, want


def gamma(path):
    return want(f"{path}.gamma", spellings=(f"{path}.weight", f"{path}.scale"))


def test_equal_names_pair_in_the_order_of_the_model():
    made = match(["a.w", "b.w"], ["b.w", "a.w"])
    assert [(pair.want.name, pair.offer.name, pair.via) for pair in made.pairs] == [
        ("a.w", "a.w", ("exact",)),
        ("b.w", "b.w", ("exact",)),
    ]
    assert made.ok
    assert made.steps == ()


def test_what_has_no_partner_is_missing_or_unused():
    made = match(["a.w", "b.w"], ["a.w", "zz.q"])
    assert names(made.missing) == ["b.w"]
    assert names(made.unused) == ["zz.q"]
    assert not made.ok


def test_equal_names_of_other_shapes_are_one_pair_that_does_not_fit():
    made = match([want("a", (3, 4))], [offer("a", (4, 3))])
    assert (made.pairs, made.missing, made.unused) == ((), (), ())
    assert [(pair.want.shape, pair.offer.shape) for pair in made.mismatched] == [((3, 4), (4, 3))]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("F16", "F32"),
        ("F64", "BF16"),
        ("I64", "I32"),
        ("U8", "I64"),
        ("BOOL_U8", "BOOL"),
        ("BOOL_U32", "BOOL"),
        ("U8", "BOOL"),
    ],
)
def test_numbers_of_one_kind_fit(given, wanted):
    assert match([want("a", dtype=wanted)], [offer("a", dtype=given)]).ok


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("F32", "I64"),
        ("I64", "F32"),
        ("F32", "BOOL"),
        ("BOOL", "F32"),
        ("C64", "F32"),
        ("F32", "C64"),
        ("I64", "BOOL"),
        ("QINT8", "F32"),
    ],
)
def test_numbers_of_another_kind_clash(given, wanted):
    made = match([want("a", dtype=wanted)], [offer("a", dtype=given)])
    assert names(pair.want for pair in made.clashes) == ["a"]
    assert not made.pairs


def test_a_tensor_with_a_problem_is_found_and_cannot_be_read():
    made = match(["a", "b"], [offer("a", problem="it is sparse"), offer("b", dtype=None)])
    assert names(pair.offer for pair in made.unreadable) == ["a", "b"]
    assert made.refusals(LENIENT) == ("2 unreadable",)


def test_the_layers_other_spelling_is_taken():
    made = match([gamma("norm")], ["norm.weight"])
    assert made.pairs[0].via == ("spelling",)
    assert made.steps == ("1 name found under the layer's other spelling (norm.weight of the file is norm.gamma)",)


def test_the_exact_name_comes_before_a_spelling():
    made = match([gamma("norm")], ["norm.weight", "norm.gamma"])
    assert paired(made) == {"norm.gamma": "norm.gamma"}
    assert names(made.unused) == ["norm.weight"]


def test_two_spellings_in_one_file_are_refused_with_both():
    made = match([gamma("norm")], ["norm.weight", "norm.scale"])
    assert names(made.missing) == ["norm.gamma"]
    assert made.ambiguities[0].candidates == ("norm.weight", "norm.scale")


def test_one_tensor_that_two_wants_spell_alike_goes_to_neither():
    made = match([want("a.x", spellings=("c",)), want("b.x", spellings=("c",))], ["c"])
    assert names(made.missing) == ["a.x", "b.x"]
    assert [one.candidates for one in made.ambiguities] == [("c",), ("c",)]
    assert "'b.x'" in made.ambiguities[0].reason


def test_a_spelling_of_another_shape_is_shown_as_such_and_never_loaded():
    made = match([want("norm.gamma", (3,), spellings=("norm.weight",))], [offer("norm.weight", (4,))])
    assert not made.pairs
    assert names(pair.offer for pair in made.mismatched) == ["norm.weight"]


def test_variants_of_enums_are_left_out_together_with_the_other_spelling():
    one = want("feature.BaseConv.gamma", spellings=("feature.BaseConv.weight",), short="feature.gamma")
    made = match([one], ["feature.weight"])
    assert made.pairs[0].via == ("variant", "spelling")


def test_variants_in_the_file_are_left_out_for_a_model_without_them():
    made = match(["net.0.weight", "net.2.weight"], ["net.0.Linear.weight", "net.2.Linear.weight"])
    assert paired(made) == {"net.0.weight": "net.0.Linear.weight", "net.2.weight": "net.2.Linear.weight"}


def test_exact_matching_takes_equal_names_and_nothing_else():
    made = match(
        [gamma("norm"), "net.0.w", "net.1.w", "fc.w"],
        ["norm.weight", "net.0.w", "net.2.w", "module.fc.w"],
        match="exact",
    )
    assert paired(made) == {"net.0.w": "net.0.w"}
    assert made.steps == ()


def test_a_name_twice_is_refused():
    with pytest.raises(RuleError, match="the model has 1 name more than once: 'a'"):
        plan([want("a"), want("a")], [])
    with pytest.raises(RuleError, match="the file has 1 name more than once: 'b'"):
        plan([], [offer("b"), offer("b")])


def test_every_policy_says_what_it_does_not_allow():
    made = match(["a", "b", want("c", (3,))], ["a", "c", "qqq"])
    assert made.refusals(STRICT) == ("1 missing", "1 unused", "1 of another shape")
    assert made.refusals(IMPORT) == ("1 missing", "1 of another shape")
    assert made.refusals(Policy(missing="allow")) == ("1 unused", "1 of another shape")
    assert made.refusals(LENIENT) == ()


def test_nothing_matched_is_refused_whatever_the_policy():
    made = match(["base.q.w"], ["unrelated.v"])
    assert made.nothing
    assert made.refusals(LENIENT) == ("no name matched",)


def test_nothing_wanted_and_nothing_offered_is_no_fault():
    assert plan([], []).refusals(STRICT) == ()


def test_wants_left_out_after_planning_take_their_tensors_with_them():
    made = match(["net.0.w", "net.1.w", "gone.w"], ["net.0.w", "net.2.w", "more.q"]).narrowed(
        lambda one: one.name == "net.1.w"
    )
    assert paired(made) == {"net.1.w": "net.2.w"}
    assert names(made.unused) == ["more.q"]
    assert made.missing == ()


def test_a_tensor_of_another_shape_counts_for_each_place_it_would_fill():
    made = match([want("in_proj", (6, 2), slots=("query", "key", "value"))], [offer("in_proj", (3, 1))])
    assert made.misfits == 3
    assert made.refusals(STRICT) == ("3 of another shape",)
