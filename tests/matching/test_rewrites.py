"""Renames within names, proposed where they were tried and where nothing else could have been meant."""

from __future__ import annotations

import ast
import shlex

import pytest

from firekeep.matching import find_remedies, plan
from firekeep.rules import KeyRemapper
from matching.sides import match, offer, offers, want, wants

QKV = ("q", "k", "v")


def names(template, inner=QKV, layers=3):
    return [template.format(layer, name) for layer in range(layers) for name in inner]


def rules(model, file):
    """The rules of the one remedy, or none; they must do what it says, by either spelling."""
    made = match(model, file)
    found = find_remedies(made, wants(model), offers(file))
    if not found:
        return []
    (remedy,) = found
    given = ast.literal_eval(remedy.python.removeprefix("rename="))
    assert shlex.split(remedy.cli) == [word for rule in given for word in ("--rename", rule)]
    renamed = KeyRemapper.of(given).rename(offer.name for offer in offers(file)).names
    followed = plan(wants(model), [offer.renamed(renamed[offer.name]) for offer in offers(file)])
    assert len(followed.pairs) - len(made.pairs) == remedy.gain > 0
    return given


@pytest.mark.parametrize(
    ("model", "file", "rule"),
    [
        ("layers.{}.attn.{}.weight", "layers.{}.self_attn.{}.weight", r"\.self_attn\.=>.attn."),
        ("layers.{}.attn.{}.weight", "layers.{}.self.attention.{}.weight", r"\.self\.attention\.=>.attn."),
        ("layers.{}.{}.weight", "layers.{}.attn.{}.weight", r"\.attn\.=>."),
        ("layers.{}.attn.{}.weight", "layers.{}.{}.weight", r"\.(\d+)\.(q|k|v)\.=>.${1}.attn.$2."),
        ("layers.{}.attn.{}.w", "layers.{}.attn.{}.weight", r"\.weight$=>.w"),
        ("net.layers.{}.a.{}.w", "net.h.{}.b.{}.w", r"\.h\.(\d+)\.b\.=>.layers.${1}.a."),
        ("layers.{}.$a.{}.w", "layers.{}.b+.{}.w", r"\.b\+\.=>.$$a."),
    ],
)
def test_what_differs_within_all_names(model, file, rule):
    assert rules(names(model), names(file)) == [rule]


def test_what_is_wanted_behind_the_names_of_the_file():
    assert rules(names("layers.{}.{}.w", ("q",)), names("layers.{}.{}", ("q",))) == [r"\.q$=>.q.w"]
    assert rules(["h.0.w", "h.1.w"], ["h.0", "h.1"]) == [r"\.(\d+)$=>.${1}.w"]


def test_several_renames_at_once_and_names_that_are_right_as_they_are():
    model = [*names("layers.{}.attn.{}.w"), *names("layers.{}.ffn.{}.w", ("up", "down")), "norm.w"]
    file = [*names("layers.{}.self_attn.{}.w"), *names("layers.{}.mlp.{}.w", ("up", "down")), "norm.w"]
    assert rules(model, file) == [r"\.self_attn\.=>.attn.", r"\.mlp\.=>.ffn."]


def test_shapes_tell_what_names_do_not():
    model = [want("net.a.w", (2,)), want("net.b.w", (3,)), want("net.a.b", (4,)), want("net.b.b", (5,))]
    file = [offer("net.x.w", (3,)), offer("net.y.w", (2,)), offer("net.x.b", (5,)), offer("net.y.b", (4,))]
    assert rules(model, file) == [r"\.y\.=>.a.", r"\.x\.=>.b."]


@pytest.mark.parametrize(
    ("model", "file"),
    [
        (names("h.{}.mlp.{}.w", ("w1", "w2")), names("h.{}.mlp.{}.w", ("gate", "up"))),
        (names("h.{}.mlp.{}.w", ("w1", "w2")), names("h.{}.mlp.{}.w", ("gate",))),
        (names("h.{}.mlp.{}.w", ("w1",)), names("h.{}.mlp.{}.w", ("gate", "up"))),
        ([want(name, (3,)) for name in names("h.{}.a.{}.w")], names("h.{}.b.{}.w")),
        (["net.a.x.weight"], ["net.b.x.weight"]),
        (names("stages.{}.mixer.{}.w", "01"), names("blocks.{}.layer.{}.w", "01")),
    ],
    ids=["two for two", "one for two", "two for one", "other shapes", "one name", "nothing but the last word"],
)
def test_what_is_not_certain_is_not_proposed(model, file):
    assert rules(model, file) == []
