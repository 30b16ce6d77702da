"""The table of layouts, read in both directions: names, ties, ids, order, and every refusal."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firekeep.arrays import as_array, entry_of
from firekeep.blobs import MemoryBlob
from firekeep.dtypes import BY_NAME, QuantScheme, qfloat
from firekeep.entry import TensorEntry, find_ties
from firekeep.errors import EntryError, RuleError
from firekeep.ids import ParamId
from firekeep.rules.layout import CONVENTIONS, KINDS, rename_paths, spellings, translate, translate_layers
from firekeep.slots import Layer
from firekeep.views import ghost
from rules.layout.samples import GATES, entries_of, layers_of_transformer, state, there_and_back

TRANSFORMERS = ("transformer_encoder_layer", "transformer_decoder_layer")
ATTENTION = Layer(kind="multi_head_attention", path="a")


def array(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def burned(entries, *layers):
    return translate(entries, layers, source="torch", target="burn")


def torched(entries, *layers):
    return translate(entries, layers, source="burn", target="torch")


def equal(before, after):
    assert [entry.name for entry in before] == [entry.name for entry in after]
    for old, new in zip(before, after, strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
        assert as_array(old).tobytes() == as_array(new).tobytes()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in TRANSFORMERS])
@given(data=st.data())
def test_there_and_back_is_what_was(kind, data):
    facts = {}
    if kind in GATES:
        facts = {"num_layers": data.draw(st.integers(1, 3)), "bidirectional": data.draw(st.booleans())}
    path = data.draw(st.sampled_from(("", "layer", "model.blocks.3.layer")))
    layer = Layer(kind=kind, path=path, facts=facts)
    entries = entries_of(kind, path, data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)), facts)
    there, back = there_and_back(entries, [layer])
    assert not there.problems
    assert not back.problems
    equal(entries, back.entries)


@pytest.mark.parametrize("kind", TRANSFORMERS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_layers_there_and_back(kind, norm_first):
    make = torch.nn.TransformerEncoderLayer if "encoder" in kind else torch.nn.TransformerDecoderLayer
    layers = layers_of_transformer(kind, "net.layers.0", norm_first)
    entries = state(make(8, 2, 12), "net.layers.0")
    there, back = there_and_back(entries, layers)
    assert all(not entry.name.startswith("net.layers.0.linear") for entry in there.entries)
    equal(entries, back.entries)
    moved = translate_layers(layers, source="torch", target="burn")
    assert translate_layers(moved, source="burn", target="torch") == tuple(layers)


def test_the_names_of_a_burn_encoder_layer():
    layers = layers_of_transformer("transformer_encoder_layer", "e", True)
    found = burned(state(torch.nn.TransformerEncoderLayer(4, 2, 6), "e"), *layers)
    assert {name: origins for name, origins in found.origins.items() if "weight" in name or "gamma" in name} == {
        "e.mha.query.weight": ("e.self_attn.in_proj_weight",),
        "e.mha.key.weight": ("e.self_attn.in_proj_weight",),
        "e.mha.value.weight": ("e.self_attn.in_proj_weight",),
        "e.mha.output.weight": ("e.self_attn.out_proj.weight",),
        "e.pwff.linear_inner.weight": ("e.linear1.weight",),
        "e.pwff.linear_outer.weight": ("e.linear2.weight",),
        "e.norm_2.gamma": ("e.norm1.weight",),
        "e.norm_1.gamma": ("e.norm2.weight",),
    }


def test_the_layers_of_a_burn_module_that_pytorch_has_not_are_left_out():
    whole = Layer(kind="transformer_encoder_layer", path="e", facts={"norm_first": False})
    mha = Layer(kind="multi_head_attention", path="e.mha", parent=whole)
    pwff = Layer(kind="feed_forward", path="e.pwff", parent=whole)
    query = Layer(kind="linear", path="e.mha.query", parent=mha)
    inner = Layer(kind="linear", path="e.pwff.linear_inner", parent=pwff)
    found = translate_layers([whole, mha, pwff, query, inner], source="burn", target="torch")
    assert [(layer.path, layer.parent and layer.parent.path) for layer in found] == [
        ("e", None),
        ("e.self_attn", "e"),
        ("e.linear1", "e"),
    ]
    entries = [entry_of("e.mha.query.weight", array(2, 2)), entry_of("e.pwff.linear_inner.weight", array(2, 3))]
    found = torched(entries, whole, mha, pwff, query, inner)
    assert [entry.name for entry in found.entries] == ["e.linear1.weight"]
    assert "there is no k_weight" in found.problems["e.mha.query.weight"]


def test_a_position_wise_feed_forward_of_its_own_keeps_its_names():
    layers = [Layer(kind="feed_forward", path="ff"), Layer(kind="linear", path="ff.linear_inner")]
    found = torched([entry_of("ff.linear_inner.weight", array(2, 3))], *layers)
    assert [(entry.name, entry.shape) for entry in found.entries] == [("ff.linear_inner.weight", (3, 2))]


def test_steps_say_what_was_done_and_to_what():
    entries = [
        entry_of("fc.weight", array(2, 3)),
        entry_of("fc.bias", array(2)),
        entry_of("n.weight", array(3)),
        entry_of("a.in_proj_weight", array(6, 2)),
        entry_of("other", array(2)),
    ]
    layers = [Layer(kind="linear", path="fc"), Layer(kind="layer_norm", path="n"), ATTENTION]
    found = burned(entries, *layers)
    assert found.steps == {
        "fc.weight": "transposed",
        "n.gamma": "renamed",
        **{f"a.{name}.weight": "split from in_proj_weight, transposed" for name in ("query", "key", "value")},
    }
    assert [entry.name for entry in found.entries] == [
        *("fc.weight", "fc.bias", "n.gamma", "a.query.weight", "a.key.weight", "a.value.weight", "other")
    ]
    back = torched(found.entries, *layers)
    assert back.steps["a.in_proj_weight"] == "joined from query.weight, key.weight and value.weight, transposed"
    assert back.origins["a.in_proj_weight"] == ("a.query.weight", "a.key.weight", "a.value.weight")


def test_gates_are_put_in_the_order_that_burn_declares_them():
    layer = Layer(kind="lstm", path="r")
    weight = array(8, 1)
    found = burned([entry_of("r.weight_ih_l0", weight)], layer)
    assert [(entry.name.split(".")[1], as_array(entry).tolist()) for entry in found.entries] == [
        ("input_gate", [[0, 1]]),
        ("forget_gate", [[2, 3]]),
        ("output_gate", [[6, 7]]),
        ("cell_gate", [[4, 5]]),
    ]


def test_parameter_ids_stay_one_to_one_and_are_dropped_with_a_word_where_not():
    fc, qkv = entry_of("fc.weight", array(2, 3)), entry_of("a.in_proj_weight", array(6, 2))
    fc.param_id, qkv.param_id = ParamId(1), ParamId(2)
    found = burned([fc, qkv], Layer(kind="linear", path="fc"), ATTENTION)
    assert [entry.param_id for entry in found.entries] == [ParamId(1), None, None, None]
    assert found.without_id == ("a.query.weight", "a.key.weight", "a.value.weight")


def test_tied_tensors_stay_tied_where_both_have_one_form():
    weight = array(3, 3)
    entries = [entry_of(f"{name}.weight", weight) for name in ("emb", "head", "copy")]
    layers = [Layer(kind="embedding", path="emb")] + [Layer(kind="linear", path=name) for name in ("head", "copy")]
    assert find_ties(entries) == {"head.weight": "emb.weight", "copy.weight": "emb.weight"}
    found = burned(entries, *layers)
    assert find_ties(list(found.entries)) == {"copy.weight": "head.weight"}
    emb, head, _ = map(as_array, found.entries)
    assert (emb == weight).all()
    assert (head == weight.T).all()
    assert find_ties(list(torched(found.entries, *layers).entries)) == find_ties(entries)


def test_ghosts_tell_names_and_shapes():
    entries = [ghost("fc.weight", BY_NAME["BF16"], (2, 3)), ghost("r.weight_hh_l0", BY_NAME["F32"], (6, 2))]
    found = burned(entries, Layer(kind="linear", path="fc"), Layer(kind="gru", path="r"))
    assert [(entry.name, entry.shape) for entry in found.entries] == [
        ("fc.weight", (3, 2)),
        ("r.update_gate.hidden_transform.weight", (2, 2)),
        ("r.reset_gate.hidden_transform.weight", (2, 2)),
        ("r.new_gate.hidden_transform.weight", (2, 2)),
    ]
    with pytest.raises(EntryError, match="no values"):
        found.entries[1].read()


def test_the_counter_of_a_batch_norm_has_no_counterpart():
    found = burned(state(torch.nn.BatchNorm2d(3), "bn"), Layer(kind="batch_norm", path="bn"))
    assert [entry.name for entry in found.entries] == ["bn.gamma", "bn.beta", "bn.running_mean", "bn.running_var"]
    assert found.no_counterpart == {"bn.num_batches_tracked": "Burn's norms count no batches"}
    assert not found.problems


@pytest.mark.parametrize(
    ("name", "shape", "layer", "reason"),
    [
        ("x.weight", (2, 3), Layer(kind="layer_norm", path="x"), r"its shape is \[2, 3\]: .* the last axis only"),
        ("x.weight", (2, 3), Layer(kind="rms_norm", path="x"), "the last axis only"),
        ("x.running_mean", (2,), Layer(kind="instance_norm", path="x"), "no running statistics"),
        ("x.weight_hr_l0", (2, 2), Layer(kind="lstm", path="x", facts={"proj_size": 2}), "proj_size"),
        ("x.bias_k", (1, 1, 2), Layer(kind="multi_head_attention", path="x"), "add_bias_kv"),
        ("x.q_proj_weight", (2, 2), Layer(kind="multi_head_attention", path="x"), "kdim, vdim"),
        ("x.k_proj_weight", (2, 3), Layer(kind="multi_head_attention", path="x"), "kdim, vdim"),
        (
            "x.in_proj_weight",
            (7, 2),
            Layer(kind="multi_head_attention", path="x"),
            r"\[7, 2\] cannot be cut into 3 equal",
        ),
        ("x.running_mean", (2,), Layer(kind="batch_norm", path="x", facts={"affine": False}), "always has gamma"),
        ("x.weight", (2, 3, 4), Layer(kind="linear", path="x"), "has not the two axes of a linear map"),
    ],
)
def test_what_burn_cannot_hold_is_refused_by_name(name, shape, layer, reason):
    found = burned([entry_of(name, array(*shape))], layer)
    assert not found.entries
    assert list(found.problems) == [name]
    assert re.search(reason, found.problems[name])


def test_a_gru_that_resets_before_cannot_be_pytorchs():
    layer = Layer(kind="gru", path="x", facts={"reset_after": False})
    found = torched([entry_of("x.new_gate.input_transform.bias", array(2))], layer)
    assert "reset_after=false" in found.problems["x.new_gate.input_transform.bias"]


@pytest.mark.parametrize("role", ["weight_g", "weight_v", "parametrizations.weight.original0", "weight_orig"])
def test_parts_of_reparametrised_weights_are_refused_and_other_unknown_tensors_pass(role):
    entries = [entry_of(f"fc.{role}", array(2, 3)), entry_of("fc.lora_a", array(2, 3))]
    found = burned(entries, Layer(kind="linear", path="fc"))
    assert [entry.name for entry in found.entries] == ["fc.lora_a"]
    assert "reparametrised" in found.problems[f"fc.{role}"]


def test_joints_of_different_dtypes_or_with_a_part_missing_are_refused_by_name_field_by_field():
    entries = [entry_of(f"a.{name}.weight", array(2, 2)) for name in ("query", "key", "value")]
    entries[1] = entry_of("a.key.weight", array(2, 2).astype(np.float16))
    entries.append(entry_of("a.key.bias", array(2)))
    entries.append(entry_of("a.output.bias", array(2)))
    found = torched(entries, ATTENTION)
    assert [entry.name for entry in found.entries] == ["a.out_proj.bias"]
    assert list(found.problems) == ["a.query.weight", "a.key.weight", "a.value.weight", "a.key.bias"]
    assert "F16" in found.problems["a.query.weight"]
    assert found.problems["a.key.bias"] == "in_proj_bias is joined of 3 parts, and there is no q_bias and no v_bias"


def test_quantized_weights_are_refused_only_where_they_would_be_turned():
    dtype = qfloat(QuantScheme(value="Q8S"))
    entries = [TensorEntry(f"{n}.weight", dtype, (2, 4), MemoryBlob(bytes(12))) for n in ("fc", "emb")]
    found = torched(entries, Layer(kind="linear", path="fc"), Layer(kind="embedding", path="emb"))
    assert [entry.name for entry in found.entries] == ["emb.weight"]
    assert "packed or quantized" in found.problems["fc.weight"]


def test_a_tensor_with_a_problem_goes_along_under_its_new_name():
    entry = TensorEntry("n.weight", None, (3,), MemoryBlob(b""), problem="it is sparse")
    (found,) = burned([entry], Layer(kind="layer_norm", path="n")).entries
    assert (found.name, found.problem) == ("n.gamma", "it is sparse")


def test_old_spellings_are_understood_and_two_of_one_tensor_refused():
    layer = Layer(kind="layer_norm", path="n")
    old = [entry_of("n.gamma", array(3)), entry_of("n.beta", array(3))]
    assert [entry.name for entry in burned(old, layer).entries] == ["n.gamma", "n.beta"]
    with pytest.raises(RuleError, match=r"'n\.gamma' and 'n\.weight' are both the weight of 'n'"):
        burned([old[0], entry_of("n.weight", array(3))], layer)


def test_two_tensors_of_one_new_name_are_refused():
    layers = [Layer(kind="transformer_encoder_layer", path="e", facts={"norm_first": False})]
    with pytest.raises(RuleError, match=r"e\.linear1\.x and e\.pwff\.linear_inner\.x one name"):
        burned([entry_of("e.linear1.x", array(1)), entry_of("e.pwff.linear_inner.x", array(1))], *layers)


def test_a_transformer_layer_without_its_fact_is_refused():
    with pytest.raises(RuleError, match=r"the layer 'e': .*norms come first.*norm_first=True"):
        burned([], Layer(kind="transformer_encoder_layer", path="e"))


def test_an_unknown_kind_is_refused_with_those_there_are():
    with pytest.raises(RuleError, match=r"the layer 'x' is of kind 'bilinear'.*linear_col"):
        burned([], Layer(kind="bilinear", path="x"))


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_one_convention_changes_nothing(convention):
    entries = [entry_of("fc.weight", array(2, 3))]
    layers = [Layer(kind="linear", path="fc")]
    found = translate(entries, layers, source=convention, target=convention)
    assert found.entries[0] is entries[0]
    assert not found.steps
    assert translate_layers(layers, source=convention, target=convention) == tuple(layers)


def test_paths_of_modules_without_tensors():
    layers = layers_of_transformer("transformer_decoder_layer", "d.0", False)
    for torch_path, burn_path in (
        ("d.0.linear1", "d.0.pwff.linear_inner"),
        ("d.0.multihead_attn.out_proj", "d.0.cross_attn.output"),
        ("d.0.dropout", "d.0.dropout"),
        ("d", "d"),
    ):
        assert rename_paths([torch_path], layers, source="torch", target="burn") == {torch_path: burn_path}
        moved = translate_layers(layers, source="torch", target="burn")
        assert rename_paths([burn_path], moved, source="burn", target="torch") == {burn_path: torch_path}


@pytest.mark.parametrize(
    ("kind", "role", "convention", "expected"),
    [
        ("batch_norm", "weight", "torch", ("gamma",)),
        ("layer_norm", "gamma", "torch", ("weight",)),
        ("layer_norm", "beta", "burn", ("bias",)),
        ("batch_norm", "running_mean", "burn", ()),
        ("prelu", "alpha", "burn", ("weight",)),
        ("rms_norm", "gamma", "burn", ("weight",)),
        ("linear", "weight", "burn", ()),
    ],
)
def test_spellings(kind, role, convention, expected):
    assert spellings(Layer(kind=kind, path="x"), role, convention) == expected
