"""Which way round tensors lie, told from the shapes of two files of one model; or not told."""

from __future__ import annotations

import pytest
import torch

from firekeep.arrays import as_array
from firekeep.dtypes import BY_NAME
from firekeep.errors import RuleError
from firekeep.rules.layout import layers_from_like, translate
from firekeep.slots import Layer
from firekeep.views import ghost
from rules.layout.samples import state


def shaped(**shapes):
    return [ghost(name.replace("__", "."), BY_NAME["F32"], shape) for name, shape in shapes.items()]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(7, 4)
        self.conv = torch.nn.Conv2d(3, 4, 2)
        self.bn = torch.nn.BatchNorm2d(4)
        self.act = torch.nn.PReLU()
        self.norm = torch.nn.LayerNorm(4)
        self.fc = torch.nn.Linear(4, 5)


KINDS = {
    "emb": "embedding",
    "conv": "conv2d",
    "bn": "batch_norm",
    "act": "prelu",
    "norm": "layer_norm",
    "fc": "linear",
}


def test_a_bare_state_dict_takes_its_layers_from_a_burn_file_of_the_same_model():
    entries = state(Net())
    known = [Layer(kind=kind, path=path) for path, kind in KINDS.items()]
    burn = translate(entries, known, source="torch", target="burn").entries
    found = layers_from_like(entries, burn)
    assert {layer.path: layer.kind for layer in found} == {path: kind for path, kind in KINDS.items() if path != "conv"}
    again = translate(entries, found, source="torch", target="burn")
    assert [(entry.name, as_array(entry).tolist()) for entry in again.entries] == [
        (entry.name, as_array(entry).tolist()) for entry in burn
    ]
    assert list(again.no_counterpart) == ["bn.num_batches_tracked"]


@pytest.mark.parametrize(
    ("torch_shapes", "burn_shapes", "reason"),
    [
        ({"fc__weight": (4, 4)}, {"fc__weight": (4, 4)}, r"'fc\.weight': its shape \[4, 4\] is square"),
        ({"fc__weight": (4, 5)}, {}, r"'fc\.weight': the Burn file has no tensor of its name"),
        (
            {"fc__weight": (4, 5)},
            {"fc__weight": (4, 6)},
            r"'fc\.weight': its shape is \[4, 5\], and \[4, 6\] in the Burn",
        ),
        ({"table": (4, 5)}, {"table": (5, 4)}, r"'table': its shape is \[4, 5\], and \[5, 4\]"),
        ({"n__weight": (4,)}, {"n__gamma": (5,)}, r"'n\.weight': its shape is \[4\], and \[5\]"),
        ({"fc__bias": (4,)}, {"fc__bias": (5,)}, r"'fc\.bias': its shape is \[4\], and \[5\]"),
    ],
)
def test_what_shapes_do_not_tell_is_refused_by_name(torch_shapes, burn_shapes, reason):
    with pytest.raises(RuleError, match=reason):
        layers_from_like(shaped(**torch_shapes), shaped(**burn_shapes))


def test_many_refusals_are_counted():
    square = {f"fc{n}__weight": (4, 4) for n in range(8)}
    with pytest.raises(RuleError, match=r"'fc4\.weight'.*; and 3 more"):
        layers_from_like(shaped(**square), shaped(**square))


def test_tensors_without_two_axes_that_the_burn_file_has_not_tell_nothing():
    entries = shaped(scale=(4,), bn__num_batches_tracked=())
    assert layers_from_like(entries, []) == ()


def test_both_forms_of_one_tensor_are_told_apart():
    (linear,) = layers_from_like(shaped(fc__weight=(4, 5)), shaped(fc__weight=(5, 4)))
    (same,) = layers_from_like(shaped(fc__weight=(4, 5)), shaped(fc__weight=(4, 5)))
    entries = shaped(fc__weight=(4, 5))
    shapes = [translate(entries, [one], source="torch", target="burn").entries[0].shape for one in (linear, same)]
    assert shapes == [(5, 4), (4, 5)]
