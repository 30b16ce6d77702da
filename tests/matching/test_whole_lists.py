"""A list whose numbers differ as a whole is renamed as a whole, in its order, or not at all; no single element is moved."""

from __future__ import annotations

import ast

import pytest

import firekeep
from firekeep.matching import MatchOptions, find_remedies, plan
from firekeep.matching._order import exchanges_alike
from firekeep.rules import KeyRemapper
from matching.sides import match, offers, paired, wants


def layers(numbers, base="layers.", inner=("q.w", "k.w")):
    return [f"{base}{number}.{end}" for number in numbers for end in inner]


def followed(model, file, **options):
    """What each remedy makes of the file's own names: their rules, and the model's name of each."""
    chosen = MatchOptions(**options)
    made = plan(wants(model), offers(file), options=chosen)
    outcomes = []
    for remedy in find_remedies(made, wants(model), offers(file), options=chosen):
        rules = ast.literal_eval(remedy.python.removeprefix("rename="))
        names = KeyRemapper.of(rules).rename(file).names
        before = {new: old for old, new in names.items()}
        again = match(model, list(names.values()), **options)
        assert len(again.pairs) - len(made.pairs) == remedy.gain > 0
        outcomes.append((rules, {before[theirs]: mine for mine, theirs in paired(again).items()}, again.ok))
    return outcomes


@pytest.mark.parametrize("by", [2, 3, 6, 20])
@pytest.mark.parametrize("base", ["layers.", "module.layers.", "a.b.", ""])
def test_a_list_with_higher_numbers_is_renamed_as_a_whole_and_in_order(by, base):
    model, file = layers(range(4), base), layers(range(by, by + 4), base)
    ((rules, places, ok),) = followed(model, file)
    assert len(rules) == 4
    assert ok
    assert places == dict(zip(file, model, strict=True))


def test_the_rules_of_a_list_do_not_run_into_one_another():
    ((rules, places, _),) = followed(layers(range(3)), layers(range(2, 5)))
    assert rules == [r"^layers\.2\.=>layers.0.", r"^layers\.3\.=>layers.1.", r"^layers\.4\.=>layers.2."]
    ((rules, places, ok),) = followed(layers(range(2, 5)), layers(range(3)))
    assert rules == [r"^layers\.2\.=>layers.4.", r"^layers\.1\.=>layers.3.", r"^layers\.0\.=>layers.2."]
    assert ok
    assert places["layers.0.q.w"] == "layers.2.q.w"


def test_a_list_of_tensors_and_a_wrapper_on_one_side():
    ((rules, _, ok),) = followed(["w.0", "w.1"], ["w.3", "w.4"])
    assert (rules, ok) == ([r"^w\.3$=>w.0", r"^w\.4$=>w.1"], True)
    model, file = layers(range(3)), layers(range(2, 5), "module.layers.")
    ((rules, places, ok),) = followed(model, file)
    assert rules[0] == r"^module\.layers\.2\.=>module.layers.0."
    assert ok
    assert places == dict(zip(file, model, strict=True))


def test_the_doubt_says_by_how_much_the_numbers_differ():
    doubt = match(layers(range(4)), layers(range(2, 6))).ambiguities[0]
    assert doubt.reason == (
        "the file may hold a part of a longer list; its numbers in the file are 2 higher than in the model"
    )


@pytest.mark.parametrize(
    ("model", "file"),
    [
        (layers(range(4)), layers([2, 3, 4, 5], inner=("q.w", "v.w"))),  # the elements do not agree
        (layers(range(40)), layers(range(2, 42))),  # too many rules to read
        (layers([0, 1]), layers([10_000_000, 20_000_000])),  # no places of a list
        (["block.0.a.w", "block.0.b.w", "block.1.a.w", "block.1.b.w"], ["x1.a.w", "x1.b.w", "x2.a.w", "x2.b.w"]),
        (layers([0]), [*layers([0], "g.layers."), *layers([0], "d.layers.")]),  # which of the two?
    ],
)
def test_where_nothing_tells_the_order_no_single_element_is_moved(model, file):
    assert followed(model, file) == []


def test_alike_tensors_keep_their_order():
    assert not exchanges_alike([("h.2.w", "h.0.w"), ("h.3.w", "h.1.w"), ("h.2.b", "x.5.b"), ("a", "b")])
    assert exchanges_alike([("h.4.w", "h.0.w"), ("h.2.w", "h.1.w")])
    assert exchanges_alike([("h.0.1.w", "h.1.0.w"), ("h.1.0.w", "h.0.1.w")])
    assert not exchanges_alike([("h.9.w", "h.1.w"), ("h.10.w", "h.2.w")])


def as_model(count):
    import numpy as np

    return {"layers": [{end: {"w": np.full((2, 2), -1, "f4")} for end in "qk"} for _ in range(count)]}


def as_file(numbers):
    import numpy as np

    arrays = {f"layers.{number}.{end}.w": np.full((2, 2), number, "f4") for number in numbers for end in "qk"}
    return firekeep.save_bytes(arrays, format="safetensors")


def values(model):
    return [int(layer["q"]["w"][0, 0]) for layer in model["layers"]]


def test_one_element_that_a_rename_moves_does_not_set_the_others_moving():
    model, data = as_model(4), as_file([2, 3, 4, 5])
    moved = [r"^layers\.4\.=>layers.0."]
    with pytest.raises(firekeep.LoadError, match="the renames gave the elements of the file another order"):
        firekeep.load_into(model, data, rename=moved)
    assert values(model) == [-1] * 4
    report = firekeep.load_into(model, data, rename=moved, strict=False)
    assert not report.exact
    assert values(model) == [4, -1, -1, -1]  # what was asked for, and nothing by an equal number


def test_renames_that_place_every_element_are_followed_whatever_the_order():
    model = as_model(3)
    swap = [r"^layers\.0\.=>layers.9.", r"^layers\.2\.=>layers.0.", r"^layers\.9\.=>layers.2."]
    assert firekeep.load_into(model, as_file([0, 1, 2]), rename=swap).exact
    assert values(model) == [2, 1, 0]


def test_a_gap_is_closed_after_renames_that_keep_the_order():
    for rename in ([r"^layers=>layers"], [r"^layers\.2\.=>layers.1."], [r"^layers\.(\d+)\.=>layers.1$1."]):
        model = as_model(3)
        if rename[0].endswith("1$1."):
            with pytest.raises(firekeep.LoadError):  # 10, 12, 14 begin too late to be all of a list
                firekeep.load_into(model, as_file([0, 2, 4]), rename=rename)
        else:
            assert firekeep.load_into(model, as_file([0, 2, 4]), rename=rename).exact
            assert values(model) == [0, 2, 4]


def test_a_list_put_into_another_by_renames_keeps_an_order():
    import numpy as np

    names = [f"experts.{expert}.blocks.{block}.w" for block in (0, 2) for expert in (0, 1)]
    data = firekeep.save_bytes(
        {name: np.full((2, 2), place, "f4") for place, name in enumerate(names)}, format="safetensors"
    )
    model = {"blocks": [{"experts": [{"w": np.zeros((2, 2), "f4")} for _ in range(2)]} for _ in range(2)]}
    turned = [r"^experts\.(\d+)\.blocks\.(\d+)=>blocks.$2.experts.$1"]
    assert firekeep.load_into(model, data, rename=turned).exact
    assert [int(one["w"][0, 0]) for block in model["blocks"] for one in block["experts"]] == [0, 1, 2, 3]
