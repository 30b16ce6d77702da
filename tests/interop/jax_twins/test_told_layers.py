"""Files in any layout tell of their layers what no tensor does, and are read rightly by whoever has the same weights in other layers."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import optax
import pytest
import torch
from flax import nnx

import firekeep
from firekeep.checkpoint import CheckpointManager
from firekeep.errors import MetadataError, UnsupportedError
from firekeep.records import ModuleRecord
from firekeep.training import TrainingState
from interop.jax_twins.told_nets import NETS, TorchUp, in_torch, learned, load

KEY = "firekeep.layers"
EVERY = [(net, way) for net, ways in NETS.items() for way in ways]
PAIRS = [(net, one, other) for net, own in NETS.items() for one, other in product(own, own)]
TIED = ("tied", "square")
LAYOUTS = ("burn", "flax", "linen", "equinox", "keras")
NO_GROUPS = {("groups", layout) for layout in ("flax", "linen", "keras")}
SUFFIXES = ("safetensors", "bpk")

every_suffix = pytest.mark.parametrize("suffix", SUFFIXES)


def told(path):
    return {
        layer: one["facts"]
        for one in json.loads(firekeep.saved_metadata(path).get(KEY, "[]"))
        for layer in one["paths"]
    }


@pytest.mark.parametrize(("net", "way"), [(net, way) for net, way in EVERY if net != "square"])
def test_whatever_the_layout_every_twin_gets_what_was_saved(net, way, tmp_path):
    model = learned(net, way)
    wanted = in_torch(net, model, tmp_path)
    for turn, layout in enumerate(LAYOUTS):
        path = tmp_path / f"{layout}.{SUFFIXES[turn % 2]}"
        if (net, layout) in NO_GROUPS:
            with pytest.raises(UnsupportedError, match="has no groups"):
                firekeep.save(model, path, layout=layout, durable=False)
            continue
        firekeep.save(model, path, layout=layout, durable=False)
        for other, make in NETS[net].items():
            found = in_torch(net, load(other, make(), path), tmp_path)
            assert found.keys() == wanted.keys()
            for name in wanted:
                np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, err_msg=f"{layout}, {other}: {name}")


@every_suffix
def test_kernels_that_fit_either_way_compute_the_same(suffix, tmp_path):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    model = learned("up", "nnx turned")
    firekeep.save(model, tmp_path / f"up.{suffix}", layout="flax", durable=False)
    assert told(tmp_path / f"up.{suffix}") == {"up": {"transpose_kernel": True}, "line": {"transpose_kernel": False}}
    twin, other = TorchUp(), NETS["up"]["nnx"]()
    firekeep.load_into(twin, tmp_path / f"up.{suffix}")
    report = firekeep.load_into(other, tmp_path / f"up.{suffix}")
    assert report.notes == ("from the layout 'flax' to 'flax': 2 renamed, 1 flipped, 1 reordered",)
    with torch.no_grad():
        wanted = twin(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(model(x), wanted, atol=1e-5)
    np.testing.assert_allclose(other(x), wanted, atol=1e-5)


@pytest.mark.parametrize("net", ["tied", "square"])
def test_a_head_that_is_the_embedding_is_a_linear_head_elsewhere(net, tmp_path):
    model, ids = learned(net, "nnx"), np.array([0, 2, 1])
    firekeep.save(model, tmp_path / "tied.bpk", durable=False)
    assert told(tmp_path / "tied.bpk") == {"embed": {"tied": True}, "head": {"tied": True}}
    made, _ = load("equinox", NETS[net]["equinox"](), tmp_path / "tied.bpk")
    assert made.head.weight is made.embed.weight
    wanted = model(ids)
    np.testing.assert_allclose(made(ids), wanted, atol=1e-5)
    twin = NETS[net]["torch"]()
    firekeep.load_into(twin, tmp_path / "tied.bpk")
    with torch.no_grad():
        np.testing.assert_allclose(twin(torch.from_numpy(ids)).numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize(("net", "way"), EVERY)
def test_files_in_the_layout_of_their_suffix_are_as_ever(net, way, tmp_path):
    model = learned(net, way)
    for suffix in SUFFIXES:
        firekeep.save(model, tmp_path / f"plain.{suffix}", durable=False)
        tells = net in TIED and way == "nnx" and suffix == "bpk"  # where Burn has a linear head
        assert (KEY in firekeep.saved_metadata(tmp_path / f"plain.{suffix}")) == tells


# A head of another kind is told by files alone, and a model of Equinox is made anew.
@pytest.mark.parametrize(
    ("net", "one", "other"), [pair for pair in PAIRS if pair[0] not in TIED and not pair[2].startswith("equinox")]
)
def test_models_at_hand_need_no_file(net, one, other, tmp_path):
    model, twin = learned(net, one), NETS[net][other]()
    firekeep.apply(twin, model)
    wanted, found = in_torch(net, model, tmp_path), in_torch(net, twin, tmp_path)
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, err_msg=name)


def test_what_is_told_follows_renames_wrappers_and_conversions(tmp_path):
    model = learned("up", "nnx turned")
    wanted = in_torch("up", model, tmp_path)

    def check(path, **options):
        for way in ("torch", "nnx"):
            found = in_torch("up", load(way, NETS["up"][way](), path, **options), tmp_path)
            assert all(np.array_equal(found[name], wanted[name]) for name in wanted)

    firekeep.save(model, tmp_path / "net.bpk", layout="flax", rename=r"^=>net.", durable=False)
    check(tmp_path / "net.bpk", rename=r"^net\.=>")
    firekeep.save(model, tmp_path / "wrapped.bpk", layout="flax", rename=r"^=>module.", durable=False)
    check(tmp_path / "wrapped.bpk")
    firekeep.convert(tmp_path / "net.bpk", tmp_path / "top.safetensors", rename=[r"^net\.up=>top"], durable=False)
    assert told(tmp_path / "top.safetensors").keys() == {"top", "net.line"}
    check(tmp_path / "top.safetensors", rename=[r"^top=>up", r"^net\.=>"])
    firekeep.save(model, tmp_path / "plain.bpk", layout="flax", durable=False)
    for layout in ("torch", "linen"):
        firekeep.convert(tmp_path / "plain.bpk", tmp_path / "laid.bpk", layout=layout, like=TorchUp(), durable=False)
        assert bool(told(tmp_path / "laid.bpk")) == (layout == "linen")
        check(tmp_path / "laid.bpk")


def test_collections_and_records_tell_it_too(tmp_path):
    model = learned("up", "nnx turned")
    wanted = in_torch("up", model, tmp_path)
    ways = [
        lambda twin: firekeep.apply(twin, firekeep.collect(model, layout="linen")),
        lambda twin: ModuleRecord.of(model, layout="flax").apply(twin),
        lambda twin: ModuleRecord.from_bytes(ModuleRecord.of(model, layout="linen").to_bytes()).apply(twin),
    ]
    for put, way in product(ways, ("torch", "nnx")):
        twin = NETS["up"][way]()
        put(twin)
        found = in_torch("up", twin, tmp_path)
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_a_run_moves_with_the_moments_of_kernels_that_fit_either_way(tmp_path):
    def step(model, optimizer):
        """Step by gradients that are the weights, which need no forward."""
        if isinstance(model, TorchUp):
            for value in model.parameters():
                value.grad = value.detach().clone()
            optimizer.step()
        else:
            optimizer.update(model, nnx.state(model, nnx.Param))

    def begin(way):
        model = learned("up", way)
        if way == "torch":
            return model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        return model, nnx.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=nnx.Param)

    model, optimizer = begin("nnx turned")
    step(model, optimizer)
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save(TrainingState(model=model, optimizer=optimizer, rng=False), step=1)
    step(model, optimizer)
    wanted = in_torch("up", model, tmp_path)
    for way in ("torch", "nnx"):
        twin, own = begin(way)
        with CheckpointManager(tmp_path / "run") as manager:
            manager.restore(TrainingState(model=twin, optimizer=own, rng=False))
        step(twin, own)
        found = in_torch("up", twin, tmp_path)
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], atol=1e-6, err_msg=f"{way}: {name}")


def test_a_file_that_tells_nothing_is_read_as_flax_usually_has_it_and_the_report_says_so(tmp_path):
    model = learned("up", "nnx")
    firekeep.save(model, tmp_path / "said.bpk", layout="flax", durable=False)
    firekeep.convert(tmp_path / "said.bpk", tmp_path / "unsaid.bpk", metadata={KEY: ""}, exclude="^line", durable=False)
    twin = TorchUp()
    report = firekeep.load_into(twin, tmp_path / "unsaid.bpk", include="^up")
    assert report.notes[0] == (
        "whether transpose_kernel turned a kernel the file does not say, and these are taken as without it: 'up.kernel'"
    )
    assert "transpose_kernel" not in str(firekeep.load_into(TorchUp(), tmp_path / "said.bpk"))


def test_what_is_told_wrongly_is_refused_and_the_remedy_works(tmp_path):
    model = learned("up", "nnx")
    firekeep.save(model, tmp_path / "bad.bpk", layout="flax", metadata={KEY: '[{"kind":"linear"}]'}, durable=False)
    twin = TorchUp()
    before = {name: value.clone() for name, value in twin.state_dict().items()}
    with pytest.raises(MetadataError, match="kind, facts and paths") as caught:
        firekeep.load_into(twin, tmp_path / "bad.bpk")
    assert str(tmp_path / "bad.bpk") in str(caught.value)
    assert f"--metadata {KEY}=" in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in twin.state_dict().items())
    firekeep.convert(tmp_path / "bad.bpk", tmp_path / "good.bpk", metadata={KEY: ""}, durable=False)
    assert firekeep.load_into(NETS["up"]["nnx"](), tmp_path / "good.bpk").exact
