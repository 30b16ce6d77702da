from __future__ import annotations

import pytest

from matching.sides import match, names, paired, want

MODEL = ["fc.weight", "block.0.conv.bias"]


@pytest.mark.parametrize(
    "prefix",
    [
        "module.",
        "_orig_mod.",
        "model.",
        "base_model.model.",
        "state_dict.",
        "_forward_module.",
        "module._orig_mod.",
        "_orig_mod.module.model.",
    ],
)
def test_known_wrappers_are_taken_off_and_put_on(prefix):
    wrapped = [prefix + name for name in MODEL]
    off = match(MODEL, wrapped)
    assert paired(off) == dict(zip(MODEL, wrapped, strict=True))
    assert off.steps == (f"prefix {prefix!r} was taken off 2 names of the file",)
    on = match(wrapped, MODEL)
    assert paired(on) == dict(zip(wrapped, MODEL, strict=True))
    assert on.steps == (f"prefix {prefix!r} was put before 2 names of the file",)


def test_wrappers_in_the_middle_of_names():
    made = match(["a.b"], ["module._orig_mod.a._orig_mod.b"])
    assert made.pairs[0].via == ("wrapper",)
    assert made.steps == (
        "prefix 'module._orig_mod.' was taken off 1 name of the file",
        "'_orig_mod' was left out within 1 name of the file",
    )


def test_one_wrapper_for_another():
    assert match(["_orig_mod.fc.w"], ["module.fc.w"]).steps == (
        "prefix 'module.' became '_orig_mod.' in 1 name of the file",
    )


def test_an_adapters_default_name_is_left_out_or_put_in():
    model, file = "base_model.model.q_proj.lora_A.default.weight", "base_model.model.q_proj.lora_A.weight"
    assert paired(match([model], [file])) == {model: file}
    assert paired(match([file], [model])) == {file: model}


def test_a_wrapper_around_a_list_with_gaps():
    made = match(["net.0.w", "net.1.w"], ["module.net.0.w", "module.net.2.w"])
    assert paired(made) == {"net.0.w": "module.net.0.w", "net.1.w": "module.net.2.w"}
    assert made.pairs[1].via == ("wrapper", "index")


def test_a_wrapper_around_other_spellings_and_variants():
    made = match([want("x.N.gamma", spellings=("x.N.weight",), short="x.gamma")], ["model.x.weight"])
    assert made.pairs[0].via == ("wrapper", "variant", "spelling")


def test_a_part_of_the_model_with_the_wrappers_name():
    made = match(["fc.w", "module.fc.w"], ["module.fc.w", "module.module.fc.w"])
    assert paired(made) == {"fc.w": "module.fc.w", "module.fc.w": "module.module.fc.w"}


def test_a_bare_model_out_of_a_file_with_a_head():
    made = match(["layers.0.w", "norm.w"], ["model.layers.0.w", "model.norm.w", "lm_head.w"])
    assert len(made.pairs) == 2
    assert names(made.unused) == ["lm_head.w"]


def test_the_same_tensor_under_two_wrappers_is_refused_for_the_whole_step():
    made = match(["fc.w", "gc.w"], ["model.fc.w", "module.fc.w", "model.gc.w"])
    assert not made.pairs
    assert made.ambiguities[0].want == "fc.w"
    assert made.ambiguities[0].candidates == ("model.fc.w", "module.fc.w")


def test_the_exact_name_comes_before_a_wrapped_one():
    made = match(["fc.w"], ["fc.w", "module.fc.w"])
    assert paired(made) == {"fc.w": "fc.w"}
    assert names(made.unused) == ["module.fc.w"]


def test_one_wrapped_tensor_of_another_shape_is_shown_as_such():
    made = match(["fc.w", want("head.w", (7, 2))], ["module.fc.w", "module.head.w"])
    assert paired(made) == {"fc.w": "module.fc.w"}
    assert [(pair.want.name, pair.offer.name) for pair in made.mismatched] == [("head.w", "module.head.w")]


def test_a_wrapper_is_not_believed_where_no_tensor_fits():
    made = match([want("fc.w", (7, 2)), "a.w"], ["a.w", "model.fc.w"])
    assert names(made.missing) == ["fc.w"]
    assert made.mismatched == ()


def test_the_last_segment_is_never_a_wrapper():
    assert paired(match(["module"], ["module.module"])) == {"module": "module.module"}
    assert match(["weight"], ["module"]).pairs == ()


@pytest.mark.parametrize(
    ("model", "file"),
    [
        (["layers.0.w", "layers.2.w"], ["0.w", "2.w"]),
        (["net.layers.0.w", "net.layers.2.w", "head.w"], ["net.0.w", "net.2.w", "head.w"]),
        (["a.layers.0.layers.1.w", "a.layers.0.layers.2.w"], ["a.0.1.w", "a.0.2.w"]),
        (["net.layers.0.w"], ["module.net.0.w"]),
    ],
)
def test_the_list_of_a_sequential_goes_and_comes(model, file):
    listed = sum("layers" in name for name in model)
    for wanted, offered, did in ((model, file, "put before"), (file, model, "left out before")):
        made = match(wanted, offered)
        assert paired(made) == dict(zip(wanted, offered, strict=True))
        assert made.ok
        told = f"'layers', as the list of a Sequential is called, was {did} numbers in {listed} name{'s' * (listed > 1)} of the file"
        assert told in made.steps


def test_the_list_of_a_sequential_is_not_taken_by_force():
    assert not match(["layers.0.w"], ["0.w"], match="exact").pairs
    assert not match([want("layers.0.w", shape=(3, 3))], ["0.w"]).pairs
    both = match(["0.w"], ["layers.0.w", "0.layers.w", "0.w"])
    assert paired(both) == {"0.w": "0.w"}
    doubt = match(["net.layers.0.w", "net.0.w"], ["net.0.layers.w", "net.0.w"])
    assert paired(doubt) == {"net.0.w": "net.0.w"}


def test_layers_on_both_sides_are_no_list_to_tell_of():
    made = match(["layers.0.w", "layers.1.w"], ["module.layers.0.w", "module.layers.1.w"])
    assert made.steps == ("prefix 'module.' was taken off 2 names of the file",)
