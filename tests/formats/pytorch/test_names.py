"""Names of tensors in nested objects, whole models and TorchScript; what lies under a key; which subtree is the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import firekeep
from firekeep.errors import LimitError, MetadataError, TensorNotFoundError
from firekeep.limits import DEFAULT_LIMITS
from firekeep.opened import OpenedFile
from pickles import (
    BUILD,
    EMPTY_DICT,
    EMPTY_LIST,
    FALSE,
    MARK,
    NONE,
    REDUCE,
    SETITEM,
    SETITEMS,
    TRUE,
    call,
    floats,
    group,
    mapping,
    module,
    name,
    new,
    number,
    ordered,
    pairs,
    pickled,
    raw_bytes,
    sequence,
    storage,
    tensor,
    text,
    zip_file,
)


def t(key: str = "0") -> bytes:
    """A tensor of one element; the files below have storages 0 to 3 with the values 0 to 3."""
    return tensor("FloatStorage", key, 1)


def opened(body: bytes, **options: Any) -> OpenedFile:
    return firekeep.open(zip_file(pickled(body), {str(index): floats(index) for index in range(4)}), **options)


def names(body: bytes, **options: Any) -> list[str]:
    return opened(body, **options).keys()


def values(body: bytes, **options: Any) -> dict[str, float]:
    file = opened(body, **options)
    return {key: float(file.array(key)[0]) for key in file}


def test_nested_dicts_join_their_keys_with_dots():
    body = mapping({"model": mapping({"fc.weight": t("0"), "fc": mapping({"bias": t("1")})}), "step": number(3)})
    assert values(body) == {"model.fc.weight": 0, "model.fc.bias": 1}


def test_lists_tuples_and_sets_give_indices():
    body = mapping(
        {"w": sequence(t("0"), group(t("1"), number(5)), t("2")), "s": call("builtins", "set", sequence(t("3")))}
    )
    assert values(body) == {"w.0": 0, "w.1.0": 1, "w.2": 2, "s.0": 3}


def test_keys_of_any_kind_are_spelled():
    keys = {
        number(7): "7",
        number(-1): "-1",
        TRUE: "True",
        NONE: "None",
        b"G" + b"\x3f\xf8" + bytes(6): "1.5",
        raw_bytes(b"raw"): "raw",
        group(number(10), text("x")): "(10, 'x')",
        group(number(1)): "(1,)",
        name("my.project", "Class"): "my.project.Class",
    }
    assert names(pairs((key, t()) for key in keys)) == list(keys.values())


def test_keys_with_dots_slashes_and_nothing_are_kept_as_they_are():
    odd = ["", ".", "a.b", "../x", "é/\0", "\ud800"]
    assert names(mapping({key: t() for key in odd})) == odd


def test_a_bare_tensor_has_the_empty_name():
    assert values(t("2")) == {"": 2}
    assert values(storage("FloatStorage", "1", 1)) == {"": 1}


def test_two_routes_to_one_name_are_refused_with_it():
    with pytest.raises(MetadataError, match=r"two values of the file come to one name, 'a\.b'") as caught:
        names(mapping({"a.b": t(), "a": mapping({"b": t()})}))
    assert caught.value.tensor == "a.b"
    with pytest.raises(MetadataError, match="one name, '1'"):
        names(pairs([(number(1), t()), (text("1"), t())]))


def test_one_object_under_two_names_has_both():
    body = mapping({"a": mapping({"w": t("1")}) + b"r\xe8\3\0\0", "b": b"j\xe8\3\0\0"})
    file = opened(body)
    assert file.keys() == ["a.w", "b.w"]
    assert file.ties == {"b.w": "a.w"}


def test_objects_that_contain_themselves_are_walked_once():
    body = EMPTY_DICT + b"q\1" + MARK + text("self") + b"h\1" + text("w") + t("3") + SETITEMS
    assert values(body) == {"w": 3}
    assert opened(EMPTY_LIST + b"q\1h\1a").values()[0] is not None


def laughs(seed: bytes) -> bytes:
    """A list of ten references to a list of ten references ..., 60 levels over a seed."""
    levels = b"".join(
        EMPTY_LIST + b"q" + bytes([level + 1]) + MARK + (b"h" + bytes([level])) * 10 + b"e0" for level in range(60)
    )
    return seed + b"q\x000" + levels + b"h\74"


def test_objects_without_tensors_cost_nothing_however_shared():
    file = opened(mapping({"laughs": laughs(EMPTY_LIST), "w": t()}))
    assert file.keys() == ["w"]
    made = file.values()["laughs"]
    assert len(made) == 10
    assert made[0] is made[9]


def test_tensors_that_multiply_by_sharing_are_refused():
    with pytest.raises(LimitError, match="bytes of names"):
        opened(laughs(sequence(t())), limits=replace(DEFAULT_LIMITS, pickle_nodes=50_000))


def test_names_that_multiply_by_nesting_are_refused():
    key = text("k" * 60_000) + b"q\0"
    deep = (
        key
        + b"0"
        + EMPTY_DICT
        + b"q\1"
        + b"".join(
            EMPTY_DICT + b"q" + bytes([level + 2]) + b"h\0" + b"h" + bytes([level + 1]) + SETITEM
            for level in range(100)
        )
    )
    with pytest.raises(LimitError, match="bytes of names"):
        names(deep)


def test_deep_objects_are_refused():
    body = t() + b"\x85" * 1500
    with pytest.raises(LimitError, match=r"more than 1,000 levels.*Limits\(pickle_depth"):
        names(body)
    assert names(body, limits=replace(DEFAULT_LIMITS, pickle_depth=2000)) == [".".join(["0"] * 1500)]


def whole_model() -> bytes:
    linear = module({"_parameters": {"weight": t("0"), "bias": NONE}}, cls="Linear")
    norm = module(
        {"_buffers": {"running": t("1"), "mask": t("2")}},
        {"_non_persistent_buffers_set": call("builtins", "set", sequence(text("mask")))},
    )
    return module(
        {
            "_modules": {"fc": linear, "nothing": NONE, "norm": norm},
            "_parameters": {"scale": t("3")},
            "_buffers": {"step": t("1")},
        },
        {"plain": t("2"), "_forward_hooks": mapping({"x": t("2")}), "listed": sequence(t("2"))},
    )


def test_modules_are_their_state_dict():
    file = opened(whole_model())
    assert {key: float(file.array(key)[0]) for key in file} == {
        "scale": 3,
        "step": 1,
        "fc.weight": 0,
        "norm.running": 1,
    }
    assert file.keys() == ["scale", "step", "fc.weight", "norm.running"]
    assert any("2 tensors are plain attributes of modules" in note for note in file.notes)


def test_modules_inside_dicts_and_lists_are_prefixed():
    assert names(mapping({"model": whole_model(), "epoch": number(3)})) == [
        "model.scale",
        "model.step",
        "model.fc.weight",
        "model.norm.running",
    ]
    assert names(sequence(whole_model()))[0] == "0.scale"


def test_a_module_under_two_names_is_listed_under_both():
    shared = module({"_parameters": {"weight": t("1")}}) + b"r\xe8\3\0\0"
    file = opened(module({"_modules": {"a": shared, "b": b"j\xe8\3\0\0"}}))
    assert file.keys() == ["a.weight", "b.weight"]
    assert file.ties == {"b.weight": "a.weight"}


def test_one_name_in_two_tables_is_refused():
    with pytest.raises(MetadataError, match="one name, 'weight'"):
        names(module({"_parameters": {"weight": t()}, "_buffers": {"weight": t()}}))


def test_tensors_inside_foreign_objects_are_listed_last_under_names_of_our_own():
    foreign = new("filters", "Norm", mapping({"mean": t("1"), "inner": sequence(t("2"))}))
    body = module({"_parameters": {"w": t("0")}}, {"obs": foreign, "plain": t("3")})
    assert values(body) == {"w": 0, "obs.mean": 1, "obs.inner.0": 2}
    body = mapping({"obj": new("a", "B", group(t("1"), text("x")), t("2")), "w": t("0")})
    assert values(body) == {"w": 0, "obj.0": 2, "obj.state.0": 1}
    assert values(new("a", "B", mapping({"w": t("3")}))) == {"w": 3}


def test_tensors_a_foreign_object_shares_with_the_model_are_not_listed_twice():
    shared = t("1") + b"r\xe8\3\0\0"
    trainer = new("trainers", "Trainer", mapping({"params": sequence(b"j\xe8\3\0\0"), "lr": t("2")}))
    assert values(mapping({"model": ordered({"w": shared}), "trainer": trainer})) == {"model.w": 1, "trainer.lr": 2}


def test_names_inside_foreign_objects_that_meet_are_numbered():
    foreign = new("a", "B", mapping({"0": t("1")}), t("2"))
    assert values(mapping({"x": foreign})) == {"x.0": 2, "x.0#2": 1}


def test_the_integers_of_quantized_tensors_in_foreign_objects_are_listed():
    scheme = group(name("torch", "per_tensor_affine"), number(1), number(0))
    hooks = name("collections", "OrderedDict") + b")" + REDUCE
    quantized = call(
        "torch._utils",
        "_rebuild_qtensor",
        storage("QInt8Storage", "q", 2),
        number(0),
        group(number(2)),
        group(number(1)),
        scheme,
        FALSE,
        hooks,
    )
    data = zip_file(
        pickled(mapping({"packed": new("torch._C", "ScriptObject", group(quantized, NONE))})), {"q": b"\5\xfb"}
    )
    file = firekeep.open(data)
    assert file.keys() == ["packed.state.0", "packed.state.0.int_repr"]
    assert file.array("packed.state.0.int_repr").tolist() == [5, -5]


def test_foreign_dicts_and_lists_are_walked():
    flat = new("haiku", "FlatMapping") + MARK + text("linear") + mapping({"w": t("1")}) + SETITEMS
    rows = new("mine", "Rows") + MARK + t("2") + b"e"
    assert values(mapping({"params": flat, "rows": rows})) == {"params.linear.w": 1, "rows.0": 2}


CODE = b"""class Net(Module):
  __parameters__ = ["weight", ]
  __buffers__ = ["running", ]
  weight : Tensor
  def forward(self: __torch__.Net) -> Tensor:
    return torch.mul(self.weight, 2)
class Record(NamedTuple):
  x : Tensor
"""


def script(code: bytes | None = CODE) -> OpenedFile:
    inner = new("__torch__.lib", "Inner", mapping({"bias": t("2")}))
    record = new("__torch__", "Record", mapping({"x": t("3")}))
    state = {
        "training": TRUE,
        "running": t("1"),
        "constant": t("3"),
        "inner": inner,
        "weight": t("0"),
        "record": record,
    }
    extra = {"archive/constants.pkl": pickled(b")")}
    if code is not None:
        extra["archive/code/__torch__.py"] = code
        extra["archive/code/__torch__/lib.py"] = (
            b'class Inner(Module):\n  __parameters__ = ["bias", ]\n  __buffers__ = []\n'
        )
    data = zip_file(
        pickled(new("__torch__", "Net", mapping(state))), {str(index): floats(index) for index in range(4)}, extra=extra
    )
    return firekeep.open(data)


def test_script_modules_are_what_their_code_says():
    file = script()
    assert file.variant == "torchscript"
    assert {key: float(file.array(key)[0]) for key in file} == {
        "weight": 0,
        "running": 1,
        "inner.bias": 2,
        "record.x": 3,
    }
    assert list(file.container.check()) == []


def test_script_modules_without_code_are_their_attributes():
    assert sorted(script(None).keys()) == ["constant", "inner.bias", "record.x", "running", "weight"]


def test_a_state_dict_in_an_archive_with_code_is_read():
    extra = {"archive/constants.pkl": b"", "archive/code/__torch__.py": b""}
    file = firekeep.open(zip_file(pickled(ordered({"w": t()})), {"0": floats(7)}, extra=extra))
    assert file.array("w").tolist() == [7]


def lightning() -> bytes:
    optimizer = mapping(
        {
            "state": pairs([(number(0), mapping({"exp_avg": t("3")}))]),
            "param_groups": sequence(mapping({"lr": number(1)})),
        }
    )
    metadata = ordered({"": mapping({"version": number(1)}), "fc": mapping({"version": number(2)}), "act": mapping({})})
    return mapping(
        {
            "epoch": number(3),
            "state_dict": ordered({"fc.weight": t("0"), "fc.bias": t("1")}, metadata),
            "optimizer_states": sequence(optimizer),
            "callbacks": pairs([(name("lightning", "Checkpoint"), mapping({"best": t("2")}))]),
        }
    )


def test_the_models_subtree_is_named():
    file = opened(lightning())
    assert file.subtrees == ("state_dict",)
    assert "the model's tensors lie under 'state_dict' (2 of 4)" in file.notes
    assert file.details["top_level_keys"] == ["epoch", "state_dict", "optimizer_states", "callbacks"]


def test_two_candidates_are_both_named():
    file = opened(mapping({"model": ordered({"w": t("0")}), "ema": ordered({"w": t("1")}), "loss": number(1)}))
    assert file.subtrees == ("model", "ema")
    assert any("2 subtrees look like a model's tensors: 'model' (1), 'ema' (1)" in note for note in file.notes)


def test_subtrees_may_lie_deeper_and_in_lists():
    nested = mapping(
        {
            "state": mapping({"generator": ordered({"w": t("0")}), "step": number(1)}),
            "models": sequence(ordered({"w": t("1")})),
            "x": number(1),
        }
    )
    assert opened(nested).subtrees == ("state.generator", "models")


@pytest.mark.parametrize(
    "body",
    [
        ordered({"a": t(), "b": t()}),
        mapping({"a": mapping({"w": t()}), "b": sequence(t())}),
        ordered({"a": t(), "dtype": name("torch", "float16"), "scale": number(1)}),
        whole_model(),
        mapping({"optimizer": mapping({"state": mapping({}), "param_groups": sequence(t())})}),
        mapping({"epoch": number(1)}),
        t(),
    ],
)
def test_a_file_that_is_the_model_or_holds_none_has_no_subtrees(body: bytes):
    assert opened(body).subtrees == ()


def test_a_whole_model_in_a_checkpoint_is_a_subtree():
    file = opened(mapping({"model": whole_model(), "epoch": number(1), "optimizer": mapping({"m": t("1")})}))
    assert file.subtrees == ("model",)


def test_versions_of_modules_are_kept_with_their_paths():
    assert opened(lightning()).details["state_dict_metadata"] == {
        "state_dict": {"version": 1},
        "state_dict.fc": {"version": 2},
        "state_dict.act": {},
    }
    chosen = opened(lightning(), top_level_key="state_dict")
    assert chosen.details["state_dict_metadata"] == {"": {"version": 1}, "fc": {"version": 2}, "act": {}}


def test_a_top_level_key_shows_what_lies_under_it_without_the_prefix():
    assert values(lightning(), top_level_key="state_dict") == {"fc.weight": 0, "fc.bias": 1}
    assert opened(lightning(), top_level_key="state_dict").subtrees == ()
    assert opened(lightning(), top_level_key="state_dict").values().keys() == {"fc.weight", "fc.bias"}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("optimizer_states.0.state.0", {"exp_avg": 3}),
        ("optimizer_states.0", {"state.0.exp_avg": 3}),
        ("optimizer_states", {"0.state.0.exp_avg": 3}),
        ("state_dict.fc.bias", {"": 1}),
        ("callbacks.lightning.Checkpoint", {"best": 2}),
        ("epoch", {}),
    ],
)
def test_a_path_goes_through_dicts_and_lists(key: str, expected: dict[str, float]):
    assert values(lightning(), top_level_key=key) == expected


def test_keys_with_dots_are_tried_longest_first_and_shorter_ones_after():
    body = mapping(
        {"a": mapping({"b": mapping({"x": t("0")}), "c": mapping({"z": t("2")})}), "a.b": mapping({"y": t("1")})}
    )
    assert values(body, top_level_key="a.b") == {"y": 1}
    assert values(body, top_level_key="a.c") == {"z": 2}


def test_a_path_goes_into_modules_and_objects():
    body = mapping({"model": whole_model(), "obj": new("a", "B", mapping({"inner": mapping({"w": t("2")})}))})
    assert values(body, top_level_key="model.norm") == {"running": 1}
    assert values(body, top_level_key="obj.inner") == {"w": 2}


def test_a_key_that_is_not_there_lists_those_that_are():
    with pytest.raises(TensorNotFoundError) as caught:
        opened(lightning(), top_level_key="state_dicts")
    assert str(caught.value) == (
        "there is no key 'state_dicts': it has 'epoch', 'state_dict', 'optimizer_states', 'callbacks'. Near: 'state_dict'."
    )
    with pytest.raises(
        TensorNotFoundError,
        match=r"no key 'fc.weigh' under 'state_dict': it has 'fc.weight', 'fc.bias'. Near: 'state_dict.fc.weight'",
    ):
        opened(lightning(), top_level_key="state_dict.fc.weigh")
    with pytest.raises(TensorNotFoundError, match=r"no key '5' under 'optimizer_states': it has '0'"):
        opened(lightning(), top_level_key="optimizer_states.5")
    with pytest.raises(TensorNotFoundError, match="it has none"):
        opened(t(), top_level_key="x")


def test_unknown_objects_are_named_in_notes_and_details():
    file = opened(mapping({"args": new("my.config", "Config", mapping({"lr": number(1)})), "w": t()}))
    assert file.details["globals"] == ["my.config.Config"]
    assert any("my.config.Config" in note for note in file.notes)


def test_a_call_that_would_run_code_is_told_and_its_neighbours_are_read():
    file = opened(mapping({"evil": call("os", "system", text("true")), "w": t("3")}))
    assert file.array("w").tolist() == [3]
    assert any("os.system (called); here nothing was imported or called" in note for note in file.notes)


def test_a_second_state_of_a_module_is_no_module():
    body = module({"_parameters": {"w": t("1")}}) + mapping({"extra": number(1)}) + BUILD
    assert list(values(body).values()) == [1]


COMPILED = ("torch._dynamo.eval_frame", "OptimizedModule")


def layer(key: str) -> bytes:
    state = {
        "_parameters": ordered({"weight": tensor("FloatStorage", key, 1)}),
        "_buffers": ordered({}),
        "_modules": ordered({}),
    }
    return new("torch.nn.modules.linear", "Linear", mapping(state))


def compiled(model: bytes) -> bytes:
    """A model of torch.compile, as its pickle keeps it."""
    return call(*COMPILED, model, call("torch._dynamo.eval_frame", "OptimizeContext"))


def compiled_once(model: bytes) -> bytes:
    """The same, as it was pickled by its state."""
    tables = {"_parameters": ordered({}), "_buffers": ordered({}), "_modules": ordered({"_orig_mod": model})}
    return new(*COMPILED, mapping({"training": TRUE, **tables}))


@pytest.mark.parametrize("wrap", [compiled, compiled_once, lambda model: compiled(compiled(model))])
def test_a_compiled_model_has_the_names_and_layers_of_the_model_in_it(wrap: Any):
    model = module({"_modules": {"fc": layer("0")}})
    for body, prefix in ((wrap(model), ""), (mapping({"net": wrap(model), "epoch": number(3)}), "net.")):
        with opened(body) as file:
            assert list(file) == [f"{prefix}fc.weight"]
            assert [(one.path, one.kind) for one in file.container.layers] == [(f"{prefix}fc", "linear")]
            assert file.subtrees == ((prefix.rstrip("."),) if prefix else ())
            assert sum("torch.compile" in note for note in file.notes) == 1
    with opened(mapping({"net": wrap(model)}), top_level_key="net") as file:
        assert list(file) == ["fc.weight"]


def test_a_compiled_part_of_a_model_has_its_names_too():
    with opened(module({"_modules": {"inner": compiled(layer("0")), "head": layer("1")}})) as file:
        assert list(file) == ["inner.weight", "head.weight"]
        assert {"inner", "head"} <= file.container.submodules


def test_what_is_only_called_compiled_is_no_model():
    with opened(mapping({"a": call(*COMPILED), "b": call(*COMPILED, number(3)), "w": t("0")})) as file:
        assert list(file) == ["w"]
        assert not any("torch.compile" in note for note in file.notes)
