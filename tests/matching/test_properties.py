from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from firekeep.matching import MatchOptions, find_remedies, plan, suggest
from matching.sides import match, offer, paired, want

SEGMENT = st.sampled_from(
    ["a", "b", "fc", "weight", "bias", "gamma", "Linear", "module", "model", "_orig_mod", "", "01", *"0123456"]
)
NAME = st.lists(SEGMENT, min_size=1, max_size=5).map(".".join)
SHAPE = st.sampled_from([(), (2,), (2, 3), (3, 2)])
TREE = st.dictionaries(NAME, SHAPE, max_size=12)


@st.composite
def models(draw):
    made = []
    for name, shape in draw(TREE).items():
        spellings = (name.removesuffix("gamma") + "weight",) if name.endswith("gamma") else ()
        short = ".".join(part for part in name.split(".") if part != "Linear")
        made.append(want(name, shape, spellings=spellings, short=short if short and short != name else None))
    return made


def files(tree):
    return [offer(name, shape) for name, shape in tree.items()]


@settings(deadline=None)
@given(TREE)
def test_equal_names_and_shapes_are_paired_with_themselves(tree):
    made = match([want(name, shape) for name, shape in tree.items()], files(tree))
    assert paired(made) == {name: name for name in tree}
    assert made.steps == ()


@settings(max_examples=300, deadline=None)
@given(models(), TREE, st.sampled_from(["auto", "exact"]))
def test_every_name_has_one_place_in_the_plan(model, tree, how):
    file = files(tree)
    made = plan(model, file, options=MatchOptions(match=how))
    assert sorted(one.name for one in [*made.missing, *(pair.want for pair in made.found)]) == sorted(
        one.name for one in model
    )
    assert sorted(one.name for one in [*made.unused, *(pair.offer for pair in made.found)]) == sorted(tree)
    assert all(pair.want.shape == pair.offer.shape for pair in made.pairs)
    assert all(pair.want.shape != pair.offer.shape for pair in made.mismatched)
    assert bool(made.steps) == any(pair.via != ("exact",) for pair in made.found)


@settings(deadline=None)
@given(models(), TREE)
def test_a_plan_does_not_depend_on_the_order_of_the_file(model, tree):
    forward, backward = plan(model, files(tree)), plan(model, files(tree)[::-1])
    assert paired(forward) == paired(backward)


@settings(deadline=None)
@given(models(), TREE)
def test_taking_steps_never_loads_fewer_tensors_than_equal_names(model, tree):
    exact = plan(model, files(tree), options=MatchOptions(match="exact"))
    assert len(plan(model, files(tree)).pairs) >= len(exact.pairs)


@settings(deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True))
def test_gaps_close_and_open(numbers):
    elements = [(f"x.y.{place}", (2,)) for place in range(len(numbers))]
    gapped = [(f"x.y.{number}", (2,)) for number in sorted(numbers)]
    known = frozenset({"", "x", "x.y", *(f"x.y.{number}" for number in range(8))})
    closing = match([want(*one) for one in elements], [offer(*one) for one in gapped], submodules=known)
    opening = match([want(*one) for one in gapped], [offer(*one) for one in elements], modules=known)
    assert list(paired(closing).items()) == list(zip([n for n, _ in elements], [n for n, _ in gapped], strict=True))
    assert paired(opening) == {file: model for model, file in paired(closing).items()}


@settings(deadline=None)
@given(models(), TREE)
def test_suggestions_are_of_unused_names_each_once(model, tree):
    made = plan(model, files(tree), options=MatchOptions(match="exact"))
    found = suggest(made.missing, made.unused)
    names = [one.name for one in found.values()]
    assert len(set(names)) == len(names)
    assert set(names) <= {offer.name for offer in made.unused}
    assert set(found) <= {one.name for one in made.missing}


@settings(max_examples=50, deadline=None)
@given(models(), TREE)
def test_remedies_gain(model, tree):
    made = plan(model, files(tree))
    assert all(remedy.gain > 0 for remedy in find_remedies(made, model, files(tree)))
