"""Any model, saved by any rules and loaded by the same, is the model it was; or the refusal is true."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

import firekeep
from firekeep import BurnpackStore, KeyRemapper, SafetensorsStore
from use import trees
from use.trees import build, drawings, forward, state_of

often = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
any_kind = st.sampled_from(trees.KINDS)
any_store = st.sampled_from((BurnpackStore, SafetensorsStore))
any_format = st.sampled_from(("burnpack", "safetensors"))
any_layout = st.sampled_from((None, "torch", "burn"))
_NAME = r"'([^']*)'"


def refusal_is_true(
    error: firekeep.FirekeepError, rules: list[trees.Rule], model: Any, options: dict[str, Any]
) -> None:
    """Check what a refusal of a save says by other means than the library's."""
    message = str(error)
    names = [entry.name for entry in firekeep.entries_of(model)]
    if "has no inverse" in message:
        event("no inverse")
        found = [rule for rule in rules if trees.told(rule) in message]
        assert found
        assert any(map(trees.one_way, found))
    elif "cannot be turned round for these names" in message:
        event("wrong inverse")
        shown = re.findall(rf"{_NAME} goes back to {_NAME}, which becomes {_NAME}", message)
        assert shown
        for new, old, end in shown:
            assert forward(rules, old) == end != new
    elif "several tensors one name" in message:
        event("two become one")
        (first, second, one) = re.findall(rf"{_NAME} and {_NAME} become {_NAME}", message)[0]
        assert first != second
        assert forward(rules, one) in (first, second) or forward(rules, one) not in names
    elif "is left after include and exclude" in message:
        event("nothing chosen")
        assert not [name for name in names if re.search(options["include"], name)]
    elif "what layers these" in message:
        event("layers not known")
        assert isinstance(model, dict)
        assert options["layout"] == "burn" or "layout 'torch'" in message
    else:
        raise AssertionError(message) from error


def counters_lost(names: Any, format: str, layout: str | None) -> set[str]:
    """Give the counters of batches that a file has no place for: Burn's layout has no such tensors, and safetensors no scalars."""
    lost = (format, layout) == ("safetensors", "burn")
    return {name for name in names if lost and name.endswith("num_batches_tracked")}


@often
@given(
    drawing=drawings(),
    kind=any_kind,
    store=any_store,
    layout=any_layout,
    rules=trees.rules(),
    include=st.one_of(st.none(), st.none(), st.sampled_from((*trees.WORDS, r"\d", "weight$"))),
    match=st.sampled_from(("auto", "exact")),
)
def test_a_store_gives_back_what_it_was_given(
    drawing: Any, kind: str, store: Any, layout: Any, rules: Any, include: str | None, match: str
):
    model, twin = build(drawing, kind, 1), build(drawing, kind, 2)
    assume(state_of(model))
    options: dict[str, Any] = {
        "durable": False,
        "layout": layout,
        "rename": rules,
        "match": match,
        "include": include or (),
    }
    made = store(**options)
    try:
        made.save(model)
    except firekeep.FirekeepError as error:
        refusal_is_true(error, rules, model, options)
        return
    event(f"saved with {len(rules)} rules")
    before, wanted = state_of(twin), state_of(model)
    report = made.load_into(twin)
    assert report.exact
    chosen = {name for name in wanted if include is None or re.search(include, name)}
    chosen -= counters_lost(wanted, store.format, layout)
    assert {*report.applied, *report.skipped, *report.no_counterpart} == set(wanted)
    assert chosen >= set(report.applied)
    assert state_of(twin) == {name: wanted[name] if name in chosen else before[name] for name in wanted}
    names = made.collect(model).keys()
    assert sorted(made.keys()) == sorted(forward(rules, name) for name in names)
    made.save(model)
    again = build(drawing, kind, 3)
    assert made.load_into(again).exact
    assert {name: bits for name, bits in state_of(again).items() if name in chosen} == {n: wanted[n] for n in chosen}


@often
@given(drawing=drawings(), kind=any_kind, format=any_format, layout=any_layout, rules=trees.rules(), data=st.data())
def test_a_save_by_rules_is_loaded_by_their_inverse(
    drawing: Any, kind: str, format: str, layout: Any, rules: Any, data: st.DataObject, tmp_path_factory: Any
):
    assume(kind != "plain" or layout is None)
    model, twin = build(drawing, kind, 1), build(drawing, kind, 2)
    wanted = state_of(model)
    assume(wanted)
    exclude = data.draw(st.sampled_from(((), *map(re.escape, wanted))))
    path = tmp_path_factory.getbasetemp() / "trip"
    path.unlink(missing_ok=True)
    exact = f"^{exclude}$" if exclude != () else ()
    names = [
        entry.name
        for entry in firekeep.collect(
            model, layout=layout or (None if kind == "plain" else {"burnpack": "burn", "safetensors": "torch"}[format])
        ).entries
    ]
    try:
        saved = firekeep.save(model, path, format=format, layout=layout, rename=rules, exclude=exact, durable=False)
    except firekeep.RuleError as error:
        if "is left after" in str(error):
            assert len(wanted) == 1
            return
        (first, second, one) = re.findall(rf"{_NAME} and {_NAME} become {_NAME}", str(error))[0]
        assert first != second
        assert forward(rules, first) == forward(rules, second) == one
        assert not path.exists()
        return
    assume(len({forward(rules, name) for name in names}) == len(names))
    back = KeyRemapper.of(rules).inverse_of(names)
    report = firekeep.load_into(twin, path, rename=back, exclude=exact)
    assert report.exact
    assert set(saved.left_out) <= set(report.skipped)
    before = state_of(build(drawing, kind, 2))
    left = set(saved.left_out)
    if lost := counters_lost(wanted.keys() - left, format, layout):
        assert any(f"{len(lost)} counter" in step and "left out" in step for step in saved.steps)
    assert state_of(twin) == {name: before[name] if name in left | lost else bits for name, bits in wanted.items()}


@often
@given(drawing=drawings(), format=any_format, layout=any_layout, first=st.sampled_from(("torch", "native")))
def test_one_net_goes_through_the_other_framework_and_back(
    drawing: Any, format: str, layout: Any, first: str, tmp_path_factory: Any
):
    other = "native" if first == "torch" else "torch"
    model, between, twin = build(drawing, first, 1), build(drawing, other, 2), build(drawing, first, 3)
    assume(state_of(model))
    folder = tmp_path_factory.getbasetemp()
    firekeep.save(model, folder / "one", format=format, layout=layout, durable=False)
    assert firekeep.load_into(between, folder / "one").complete
    firekeep.save(between, folder / "two", format=format, layout=layout, durable=False)
    assert firekeep.load_into(twin, folder / "two").complete
    counters = {name for name in state_of(model) if name.endswith("num_batches_tracked")}
    assert {name: bits for name, bits in state_of(twin).items() if name not in counters} == {
        name: bits for name, bits in state_of(model).items() if name not in counters
    }
    direct = build(drawing, first, 4)
    assert firekeep.apply(direct, between).complete
    assert {n: b for n, b in state_of(direct).items() if n not in counters} == {
        n: b for n, b in state_of(model).items() if n not in counters
    }


plain_trees = st.recursive(
    st.builds(
        lambda shape, dtype: (shape, dtype),
        st.sampled_from(((), (0,), (2,), (2, 3), (1, 0, 2))),
        st.sampled_from(("float32", "float16", "int64", "uint8", "bool", "float64")),
    ),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from(("a", "b", "a.b", "", "é", "0", "__metadata__")), st.integers(0, 2)),
            parts,
            max_size=3,
        ),
    ),
    max_leaves=8,
)


def _grow(drawn: Any, numbers: np.random.Generator) -> Any:
    if isinstance(drawn, tuple):
        shape, dtype = drawn
        return np.asarray(numbers.integers(0, 2, shape) * 1.0).astype(dtype)
    if isinstance(drawn, list):
        return [_grow(part, numbers) for part in drawn]
    return {key: _grow(part, numbers) for key, part in drawn.items()}


@often
@given(
    drawn=plain_trees.filter(lambda drawn: not isinstance(drawn, tuple)),
    format=any_format,
    ties=st.sampled_from(("keep", "expand")),
)
def test_any_tree_of_arrays_comes_back_or_its_names_are_at_fault(
    drawn: Any, format: str, ties: str, tmp_path_factory: Any
):
    path = tmp_path_factory.getbasetemp() / "tree"
    tree = _grow(drawn, np.random.default_rng(1))
    names = list(trees.leaves(tree))
    twins = {name for name in names if names.count(name) > 1}
    reserved = format == "safetensors" and "__metadata__" in names
    if twins or reserved:
        with pytest.raises((firekeep.UnsupportedError, firekeep.MetadataError)) as caught:
            firekeep.save(tree, path, format=format, ties=ties)
        assert caught.value.tensor in (twins or {"__metadata__"})
        assert ("two tensors come to one name" in str(caught.value)) == bool(twins)
        return
    firekeep.save(tree, path, format=format, ties=ties, durable=False)
    twin = _grow(drawn, np.random.default_rng(2))
    assert firekeep.load_into(twin, path).exact
    assert state_of(twin) == state_of(tree)
    assert set(firekeep.load_file(path)) == set(names)


@pytest.mark.parametrize("kind", trees.KINDS)
def test_drawings_become_models_of_each_kind(kind: str):
    drawing = {"a": ["linear", "relu", {"b": "norm"}], "model": {"Linear": "tensor"}}
    torch_names = {"a.0.weight", "a.0.bias", "a.2.b.weight", "a.2.b.bias", "model.Linear.value"}
    spelled = {name.replace("b.weight", "b.gamma").replace("b.bias", "b.beta") for name in torch_names}
    assert set(state_of(build(drawing, kind, 1))) == (spelled if kind == "native" else torch_names)
