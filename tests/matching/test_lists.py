from __future__ import annotations

import pytest

from matching.sides import match, names, offer, paired, want


def linear(*paths):
    return [f"{path}.{end}" for path in paths for end in ("weight", "bias")]


def variant(*paths):
    return [want(f"{path}.Linear.{end}", short=f"{path}.{end}") for path in paths for end in ("weight", "bias")]


def elements(made, parent="net"):
    """Which element of the file each of the model's got: {0: 0, 1: 2}."""
    depth = parent.count(".") + 1
    return {
        int(mine.split(".")[depth]): int(theirs.split(".")[depth])
        for mine, theirs in paired(made).items()
        if mine.startswith(f"{parent}.")
    }


GAPPED = linear("net.0", "net.2")


def test_a_list_of_layers_takes_a_sequential_with_gaps():
    made = match(linear("net.0", "net.1"), GAPPED)
    assert elements(made) == {0: 0, 1: 2}
    assert made.ok
    assert made.steps == ("net.0, net.2 of the file are net.0, net.1 of the model",)


def test_a_mirror_list_keeps_the_gap():
    made = match(variant("net.0", "net.2"), GAPPED)
    assert elements(made) == {0: 0, 2: 2}
    assert made.ok


def test_a_list_of_variants_without_gaps_takes_a_file_with_gaps():
    made = match(variant("net.0", "net.1"), GAPPED)
    assert elements(made) == {0: 0, 1: 2}
    assert {pair.via for pair in made.pairs} == {("variant",), ("variant", "index")}


def test_a_sequential_with_gaps_takes_a_list_of_layers():
    made = match(GAPPED, linear("net.0", "net.1"), modules=frozenset({"", "net", "net.0", "net.1", "net.2"}))
    assert elements(made) == {0: 0, 2: 1}
    assert made.ok


def test_equal_numbers_do_not_pair_before_the_list_is_decided_as_a_whole():
    made = match(linear("net.0", "net.1", "net.2"), linear("net.0", "net.2", "net.4"))
    assert elements(made) == {0: 0, 1: 2, 2: 4}


def test_gaps_that_both_sides_have_stand():
    made = match(linear("flows.0", "flows.2", "flows.4"), linear("flows.0", "flows.2", "flows.4"))
    assert elements(made, "flows") == {0: 0, 2: 2, 4: 4}
    assert made.steps == ()


def test_a_shard_of_a_longer_model_is_not_renumbered():
    made = match(linear(*(f"layers.{n}" for n in range(12))), linear(*(f"layers.{n}" for n in range(6, 12))))
    assert elements(made, "layers") == {n: n for n in range(6, 12)}
    assert len(made.missing) == 12


def test_a_longer_file_is_not_renumbered():
    made = match(linear("layers.0", "layers.1"), linear(*(f"layers.{n}" for n in range(12))))
    assert elements(made, "layers") == {0: 0, 1: 1}
    assert len(made.unused) == 20


def test_the_second_half_of_a_model_is_not_taken_for_the_first():
    made = match(linear(*(f"layers.{n}" for n in range(6))), linear(*(f"layers.{n}" for n in range(6, 12))))
    assert not made.pairs
    assert str(made.ambiguities[0]) == (
        "'layers.{0…5}': the file may hold a part of a longer list; its numbers in the file are 6 higher than in the model: "
        "'layers.{6…11}'"
    )


def test_the_files_own_modules_tell_a_gap_from_a_missing_part():
    model, file = linear(*(f"layers.{n}" for n in range(3))), linear(*(f"layers.{n}" for n in range(3, 6)))
    known = frozenset({"", "layers", *(f"layers.{n}" for n in range(6))})
    assert elements(match(model, file, submodules=known), "layers") == {0: 3, 1: 4, 2: 5}
    assert not match(model, file, submodules=known - {"layers.1"}).pairs


def test_numbers_that_are_names_are_not_renumbered():
    made = match(linear("head.0", "head.1"), linear("head.10", "head.100"))
    assert not made.pairs
    assert "too far apart" in made.ambiguities[0].reason
    known = frozenset({"", "head", "head.0", "head.2"})
    assert elements(match(linear("head.0", "head.1"), linear("head.0", "head.2"), submodules=known), "head") == {0: 0}


def test_a_list_may_begin_with_a_layer_without_tensors():
    assert elements(match(linear("net.0", "net.1"), linear("net.1", "net.3"))) == {0: 1, 1: 3}
    assert elements(match(linear("net.0"), linear("net.1"))) == {0: 1}


def test_elements_must_agree_in_shape_in_order():
    model = [want("net.0.w", (2, 3)), want("net.1.w", (3, 4))]
    assert elements(match(model, [offer("net.0.w", (2, 3)), offer("net.2.w", (3, 4))])) == {0: 0, 1: 2}
    swapped = match(model, [offer("net.0.w", (3, 4)), offer("net.2.w", (2, 3))])
    assert not swapped.pairs
    assert names(swapped.missing) == ["net.1.w"]


def test_one_layer_of_another_shape_does_not_shift_the_others():
    model = [want("net.0.w", (4, 4)), want("net.1.w", (4, 4)), want("net.2.w", (7, 4))]
    made = match(model, [offer("net.0.w", (4, 4)), offer("net.2.w", (4, 4)), offer("net.4.w", (10, 4))])
    assert elements(made) == {0: 0, 1: 2}
    assert [(pair.want.name, pair.offer.name) for pair in made.mismatched] == [("net.2.w", "net.4.w")]


def test_elements_must_agree_in_names():
    made = match(["net.0.kernel", "net.1.scale"], ["net.0.scale", "net.2.kernel"])
    assert not made.pairs


def test_a_file_may_have_more_in_an_element_than_the_model_asks_for():
    made = match(linear("net.0", "net.1"), [*GAPPED, "net.2.num_batches_tracked"])
    assert elements(made) == {0: 0, 1: 2}
    assert names(made.unused) == ["net.2.num_batches_tracked"]


def test_lists_within_lists_are_decided_each_by_itself():
    made = match(linear("l.0.n.0", "l.0.n.1", "l.1.n.0", "l.1.n.1"), linear("l.0.n.0", "l.0.n.2", "l.2.n.1", "l.2.n.3"))
    assert paired(made)["l.1.n.0.weight"] == "l.2.n.1.weight"
    assert paired(made)["l.1.n.1.bias"] == "l.2.n.3.bias"
    assert made.ok


def test_an_inner_list_without_gaps_stays_as_it_is_in_a_list_with_gaps():
    made = match(linear("l.0.n.0", "l.0.n.1", "l.1.n.0", "l.1.n.1"), linear("l.0.n.0", "l.0.n.1", "l.2.n.0", "l.2.n.1"))
    assert paired(made)["l.1.n.1.bias"] == "l.2.n.1.bias"
    assert made.ok


def test_alike_lists_are_told_together():
    model = linear(*(f"layers.{n}.mlp.{m}" for n in range(12) for m in (0, 1)))
    file = linear(*(f"layers.{n}.mlp.{m}" for n in range(12) for m in (0, 2)))
    assert match(model, file).steps == (
        "layers.{0…11}.mlp.0, layers.{0…11}.mlp.2 of the file are layers.{0…11}.mlp.0, layers.{0…11}.mlp.1 of the model",
    )


def test_a_list_at_the_root():
    made = match(linear("0", "1"), linear("0", "3"))
    assert paired(made)["1.weight"] == "3.weight"
    assert made.steps == ("0, 3 of the file are 0, 1 of the model",)


def test_a_list_of_bare_tensors():
    assert paired(match(["w.0", "w.1"], ["w.0", "w.2"])) == {"w.0": "w.0", "w.1": "w.2"}


def test_other_spellings_count_when_elements_are_compared():
    model = [want(f"net.{n}.gamma", (4,), spellings=(f"net.{n}.weight",)) for n in (0, 1)]
    made = match(model, [offer(f"net.{n}.weight", (4,)) for n in (0, 2)])
    assert elements(made) == {0: 0, 1: 2}


@pytest.mark.parametrize("number", ["01", "1e0", "٢", "9999999999"])
def test_what_only_looks_like_a_number_is_a_name(number):
    made = match(["net.0.w", f"net.{number}.w"], ["net.0.w", "net.2.w"])
    assert paired(made) == {"net.0.w": "net.0.w"}
