"""Translated weights give the same numbers: PyTorch's layers against those of Keras, which runs in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from firekeep.arrays import as_array, entry_of
from firekeep.rules.layout import tell_facts, translate, translate_layers
from firekeep.slots import Layer
from rules.layout.samples import state

if importlib.util.find_spec("keras") is None or importlib.util.find_spec("jax") is None:
    pytest.skip("Keras and JAX are not installed", allow_module_level=True)

nn = torch.nn
MHA = {"batch_first": True}
# kind, facts, PyTorch's layer, inputs as Keras has them, and whether PyTorch has channels elsewhere
CASES = {
    "linear": ("linear", {}, lambda: nn.Linear(5, 3), [(4, 5)]),
    "general": ("linear", {"in_shape": "2,3", "out_shape": "4,2"}, lambda: nn.Linear(6, 8), [(4, 2, 3)]),
    "embedding": ("embedding", {}, lambda: nn.Embedding(7, 3), [(4, 2)]),
    "conv1d": ("conv1d", {}, lambda: nn.Conv1d(4, 6, 2, stride=2, groups=2), [(2, 6, 4)]),
    "conv2d": ("conv2d", {}, lambda: nn.Conv2d(4, 6, (2, 3), dilation=(2, 1)), [(2, 6, 5, 4)]),
    "conv3d": ("conv3d", {}, lambda: nn.Conv3d(3, 4, (2, 1, 2)), [(2, 3, 4, 3, 3)]),
    "depthwise1d": ("conv1d", {"depthwise": True, "groups": 3}, lambda: nn.Conv1d(3, 6, 2, groups=3), [(2, 5, 3)]),
    "depthwise2d": (
        "conv2d",
        {"depthwise": True, "groups": 3},
        lambda: nn.Conv2d(3, 6, (2, 3), groups=3),
        [(2, 5, 6, 3)],
    ),
    "conv_transpose1d": ("conv_transpose1d", {}, lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), [(2, 5, 4)]),
    "conv_transpose2d": (
        "conv_transpose2d",
        {},
        lambda: nn.ConvTranspose2d(4, 6, (2, 3), stride=(2, 1)),
        [(2, 4, 3, 4)],
    ),
    "conv_transpose3d": (
        "conv_transpose3d",
        {},
        lambda: nn.ConvTranspose3d(2, 3, (2, 3, 2), stride=(2, 1, 2)),
        [(1, 3, 2, 3, 2)],
    ),
    "batch_norm": ("batch_norm", {}, lambda: nn.BatchNorm1d(6), [(4, 6)]),
    "layer_norm": ("layer_norm", {}, lambda: nn.LayerNorm(6), [(4, 6)]),
    "group_norm": ("group_norm", {}, lambda: nn.GroupNorm(3, 6), [(2, 5, 6)]),
    "instance_norm": ("instance_norm", {}, lambda: nn.InstanceNorm1d(6, affine=True), [(2, 5, 6)]),
    "rms_norm": ("rms_norm", {}, lambda: nn.RMSNorm(6, eps=1e-5), [(4, 6)]),
    "prelu": ("prelu", {"alpha_shape": "1,1,6"}, lambda: nn.PReLU(6), [(2, 3, 4, 6)]),
    "attention": (
        "multi_head_attention",
        {"num_heads": 2},
        lambda: nn.MultiheadAttention(8, 2, **MHA),
        [(2, 3, 8), (2, 4, 8)],
    ),
    "attention_other": (
        "multi_head_attention",
        {"num_heads": 2},
        lambda: nn.MultiheadAttention(8, 2, kdim=5, vdim=5, **MHA),
        [(2, 3, 8), (2, 4, 5)],
    ),
    "lstm": ("lstm", {"wrapped": False}, lambda: nn.LSTM(3, 4, batch_first=True), [(2, 5, 3)]),
    "gru": ("gru", {"wrapped": False}, lambda: nn.GRU(3, 4, batch_first=True), [(2, 5, 3)]),
    "rnn": ("rnn", {"wrapped": False}, lambda: nn.RNN(3, 4, batch_first=True), [(2, 5, 3)]),
    "both_lstm": (
        "lstm",
        {"bidirectional": True},
        lambda: nn.LSTM(3, 4, batch_first=True, bidirectional=True),
        [(2, 5, 3)],
    ),
    "both_gru": (
        "gru",
        {"bidirectional": True},
        lambda: nn.GRU(3, 4, batch_first=True, bidirectional=True),
        [(2, 5, 3)],
    ),
}
CHANNELS = ("conv", "depthwise", "group_norm", "instance_norm", "prelu")
LOSSY = ("lstm", "rnn", "both_lstm")


def module_of(case):
    torch.manual_seed(sorted(CASES).index(case))
    module = CASES[case][2]()
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) + 0.5 if "var" in name else torch.randn_like(value) * 0.4)
    return module.eval()


def inputs_of(case):
    rng = np.random.default_rng(1)
    if case == "embedding":
        return [rng.integers(0, 7, (4, 2))]
    return [rng.standard_normal(shape).astype(np.float32) for shape in CASES[case][3]]


def expected_of(case, inputs):
    module, given = module_of(case), [torch.from_numpy(one) for one in inputs]
    if case == "general":
        return module(given[0].reshape(4, 6)).reshape(4, 4, 2).detach().numpy()
    if case.startswith("attention"):
        return module(given[0], given[1], given[1], need_weights=False)[0].detach().numpy()
    if case.startswith(CHANNELS):
        return module(given[0].movedim(-1, 1)).movedim(1, -1).detach().numpy()
    found = module(given[0])
    return (found[0] if isinstance(found, tuple) else found).detach().numpy()


def translated(case):
    kind, facts = CASES[case][:2]
    layer = Layer(kind=kind, path="", facts=facts)
    found = translate(state(module_of(case)), [layer], source="torch", target="keras")
    assert not found.problems
    return layer, found.entries


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """Let Keras compute all cases at once."""
    folder = tmp_path_factory.mktemp("keras")
    given = {}
    for case in CASES:
        for entry in translated(case)[1]:
            given[f"{case}/weights/{entry.name}"] = as_array(entry)
        for place, one in enumerate(inputs_of(case)):
            given[f"{case}/inputs/{place}"] = one
    np.savez(folder / "given.npz", **given)
    script = Path(__file__).with_name("keras_forwards.py")
    command = [
        sys.executable,
        str(script),
        str(folder / "given.npz"),
        str(folder / "made.npz"),
        json.dumps(list(CASES)),
    ]
    environ = {**os.environ, "KERAS_BACKEND": "jax", "HOME": str(folder), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return np.load(folder / "made.npz")


@pytest.mark.parametrize("case", CASES)
def test_keras_computes_the_same(case, computed):
    np.testing.assert_allclose(computed[case], expected_of(case, inputs_of(case)), rtol=0, atol=3e-6)


@pytest.mark.parametrize("case", [case for case in CASES if case not in LOSSY])
def test_there_and_back_is_what_was(case):
    layer, entries = translated(case)
    (again,) = tell_facts(translate_layers([layer], source="torch", target="keras"), entries, "keras")
    fresh = [entry_of(entry.name, as_array(entry)) for entry in entries]
    back = translate(fresh, [again], source="keras", target="torch")
    assert not back.problems
    before = {entry.name: as_array(entry) for entry in state(module_of(case)) if "num_batches" not in entry.name}
    after = {entry.name: as_array(entry) for entry in back.entries}
    assert {name: (a.shape, a.tobytes()) for name, a in after.items()} == {
        name: (a.shape, a.tobytes()) for name, a in before.items()
    }


def test_what_its_own_shapes_tell_of_a_layer():
    slope = Layer(kind="prelu", path="p")
    (told,) = tell_facts([slope], [entry_of("p.alpha", np.ones((1, 1, 3), "f4"))], "keras")
    assert told.facts == {"alpha_shape": "1,1,3"}
    many = translate([entry_of("p.alpha", np.ones((2, 3), "f4"))], [slope], source="keras", target="torch")
    assert "only one number for each of the last axis" in many.problems["p.alpha"]
    depthwise = Layer(kind="conv2d", path="d", facts={"depthwise": True})
    (told,) = tell_facts([depthwise], [entry_of("d.kernel", np.ones((2, 3, 4, 1), "f4"))], "keras")
    assert told.facts["groups"] == 4
    bare = translate([entry_of("d.weight", np.ones((4, 1, 2, 3), "f4"))], [depthwise], source="torch", target="keras")
    assert "how many channels" in bare.problems["d.weight"]


@pytest.mark.parametrize("target", ["torch", "flax", "linen", "equinox", "burn"])
def test_a_gru_that_resets_before_is_refused(target):
    layer = Layer(kind="gru", path="", facts={"reset_after": False, "wrapped": False})
    found = translate([entry_of("kernel", np.ones((3, 12), "f4"))], [layer], source="keras", target=target)
    assert "resets after" in found.problems["kernel"]
