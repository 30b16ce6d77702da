from __future__ import annotations

import re
import shlex

import pytest

from firekeep.matching import MatchOptions, find_remedies, plan
from firekeep.rules import KeyRemapper
from matching.sides import match, offer, offers, want, wants


def remedies(model, file, **options):
    chosen = MatchOptions(**options)
    made = plan(wants(model), offers(file), options=chosen)
    return find_remedies(made, wants(model), offers(file), options=chosen)


def made_wants(shapes):
    return [want(name, shape) for name, shape in shapes.items()]


def made_offers(shapes):
    return [offer(name, shape) for name, shape in shapes.items()]


def follow(remedy, model, file):
    """Do what the remedy says, both ways it is spelled."""
    rules = eval(remedy.python.removeprefix("rename="))
    assert [shlex.split(remedy.cli)[1]] == rules
    renamed = KeyRemapper.of(rules).rename(file).names
    return match(model, [renamed[name] for name in file])


@pytest.mark.parametrize(
    ("model", "file", "rule"),
    [
        (["a.w", "b.w"], ["encoder.a.w", "encoder.b.w"], r"^encoder\.=>"),
        (["a.w", "b.w"], ["x.y.a.w", "x.y.b.w"], r"^x\.y\.=>"),
        (["enc.a.w", "enc.b.w"], ["a.w", "b.w"], r"^=>enc."),
        (["h.0.w", "h.1.w"], ["blocks.0.w", "blocks.1.w"], r"^blocks\.=>h."),
        (["a.w", "b.w", "own.q"], ["encoder.a.w", "encoder.b.w", "other.v"], r"^encoder\.=>"),
        (["a.w", "b.w"], ["we'rd+.a.w", "we'rd+.b.w"], r"^we'rd\+\.=>"),
        (["$1.a.w", "$1.b.w"], ["x.a.w", "x.b.w"], r"^x\.=>$$1."),
    ],
)
def test_a_beginning_that_all_names_share(model, file, rule):
    (remedy,) = remedies(model, file)
    assert remedy.python == f'rename=[r"{rule}"]'
    assert remedy.gain == len(follow(remedy, model, file).pairs) == 2


def test_a_gap_in_a_list_behind_a_beginning():
    (remedy,) = remedies(["net.0.w", "net.1.w"], ["encoder.net.0.w", "encoder.net.2.w"])
    assert (remedy.python, remedy.gain) == (r'rename=[r"^encoder\.=>"]', 2)


def test_what_exact_matching_left_out():
    (remedy,) = remedies(["net.0.w", "net.1.w"], ["net.0.w", "net.2.w"], match="exact")
    assert (remedy.python, remedy.cli, remedy.gain) == ("match='auto'", "without --exact", 1)
    assert remedy.reason == (
        "net.0, net.2 of the file are net.0, net.1 of the model; 1 more tensor would be loaded with"
    )


@pytest.mark.parametrize(
    ("model", "file"),
    [
        (["a.w"], ["a.w"]),
        (["a.w", "b.w"], ["a.w"]),
        (["conv.weight"], ["head.weight"]),
        (["a.one", "b.two"], ["c.three", "d.four"]),
        ([want("a.w", (3,)), want("b.w", (3,))], [offer("x.a.w", (4,)), offer("x.b.w", (4,))]),
    ],
)
def test_no_remedy_is_given_that_would_change_nothing_or_by_chance(model, file):
    assert remedies(model, file) == ()


def test_a_rename_that_would_make_two_tensors_one_is_not_given():
    assert remedies(["a.w", "b.w", "c.w"], ["a.w", "x.a.w", "x.b.w", "x.c.w"]) == ()


def test_a_remedy_reads_as_a_sentence():
    (remedy,) = remedies(["a.w", "b.w"], ["encoder.a.w", "encoder.b.w"])
    assert re.fullmatch(
        r"names of the file begin with 'encoder\.'.*: rename=.*, or on the command line --rename .*", str(remedy)
    )


@pytest.mark.parametrize(
    ("model", "file", "rules"),
    [
        (["a.w", "b.w"], ["a/w", "b/w"], ["/=>."]),
        (["a.w", "b.w", "c.w"], ["params/a/w", "params/b/w", "stats/c/w"], ["/=>.", r"^params\.=>"]),
        (["a.w", "own.q"], ["a/w", "other/v"], ["/=>."]),
    ],
)
def test_slashes_become_dots(model, file, rules):
    (remedy,) = remedies(model, file)
    assert eval(remedy.python.removeprefix("rename=")) == rules
    assert shlex.split(remedy.cli) == [word for rule in rules for word in ("--rename", rule)]
    renamed = KeyRemapper.of(rules).rename(file).names
    assert len(match(model, [renamed[name] for name in file]).pairs) == remedy.gain


def test_slashes_that_would_change_nothing_or_that_the_model_has_too_are_left():
    assert remedies(["conv.weight"], ["head/weight"]) == ()
    assert not any("/=>" in one.python for one in remedies(["x/a.w", "x/b.w"], ["y/a.w", "y/b.w"]))


def test_a_single_vector_of_another_name_in_its_part():
    model = {"fc.weight": (3, 4), "norm.weight": (3,)}
    file = {"fc.weight": (3, 4), "norm.scale": (3,)}
    made = plan(made_wants(model), made_offers(file))
    (remedy,) = find_remedies(made, made_wants(model), made_offers(file))
    assert (remedy.python, remedy.gain) == (r'rename=[r"\.scale$=>.weight"]', 1)


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ({"norm.weight": (3, 3)}, {"norm.scale": (3, 3)}),  # a matrix may have to be turned round
        ({"norm.weight": (3,)}, {"norm.scale": (4,)}),
        ({"norm.weight": (3,)}, {"other.scale": (3,)}),
        ({"norm.weight": (3,)}, {"norm.scale": (3,), "norm.offset": (3,)}),  # nothing tells which
        ({"norm.a": (3,), "norm.b": (3,)}, {"norm.c": (3,), "norm.d": (3,)}),
        ({"norm.weight": (3,), "more": (2,)}, {"norm.scale": (3,)}),  # not all that is wrong
    ],
)
def test_single_vectors_that_nothing_tells(model, file):
    model, file = {"fc.weight": (3, 4), **model}, {"fc.weight": (3, 4), **file}
    made = plan(made_wants(model), made_offers(file))
    assert find_remedies(made, made_wants(model), made_offers(file)) == ()


@pytest.mark.parametrize(
    ("theirs", "mine"), [(("gamma", "beta"), ("weight", "bias")), (("weight", "bias"), ("gamma", "beta"))]
)
def test_scale_and_shift_of_norms_by_their_other_names(theirs, mine):
    model, file = ({"fc.kernel": (3, 4), **{f"norm.{name}": (3,) for name in side}} for side in (mine, theirs))
    made = plan(made_wants(model), made_offers(file))
    (remedy,) = find_remedies(made, made_wants(model), made_offers(file))
    rules = ", ".join(rf'r"\.{old}$=>.{new}"' for old, new in zip(theirs, mine, strict=True))
    assert (remedy.python, remedy.gain) == (f"rename=[{rules}]", 2)
