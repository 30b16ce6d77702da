"""What a save leaves out, an object where a file is due, and layers that nobody told: each is said at the door, with what helps."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import firekeep

W = np.arange(6, dtype=np.float32).reshape(2, 3)


@dataclass
class Run:
    w: Any
    step: int = 3
    act: Any = len


class Opaque:
    pass


def said(obj, path, **options):
    with pytest.warns(firekeep.LeftOutWarning) as caught:
        firekeep.save(obj, path, **options)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    return str(caught[0].message)


@pytest.mark.parametrize("suffix", ["safetensors", "bpk"])
@pytest.mark.parametrize(
    ("obj", "told"),
    [
        ({"w": W, "epoch": 3}, "1 value is no tensor and is not in {}: 'epoch' (int). metadata={{'epoch': str(...)}}"),
        ({"w": W, "f": len, "n": None}, "'f' (function). A file of tensors keeps no code"),
        ({"w": W, "e": 3, "f": len, "s": "x", "o": Opaque(), "c": Run}, "5 values are no tensors"),
        (
            {"w": W, "e": 3, "f": len, "s": "x", "o": Opaque(), "c": Run},
            "(int), 'f' (function), 's' (str), 'o' (Opaque) and 1 more",
        ),
        ({"w": W, "names": np.array(["a"])}, "'names' (ndarray of str32)"),
        ({"w": W, "kind": Run}, "'kind' (class Run)"),
        (Run(W), "'step' (int), 'act' (function)"),
        ({"a": [{"w": W}, 2.5]}, "'a.1' (float)"),
        (
            {"w": W, "options": {"lr": 0.1, "betas": (0.9, 0.99)}},
            "'options' (3 values). metadata={{'options': json.dumps(...)}}",
        ),
        ({"w": W, "run": Run(None)}, "'run' (Run)"),
        ({"w": W, ("a", 1): 3}, "\"('a', 1)\" (int)"),
        ({"epoch": 3}, "'epoch' (int)"),
    ],
)
def test_a_save_warns_of_what_it_leaves_out(obj, told, suffix, tmp_path):
    path = tmp_path / f"a.{suffix}"
    assert told.format(path) in said(obj, path)
    assert path.exists()


def test_stores_warn_at_the_line_of_the_caller(tmp_path):
    for store in (firekeep.SafetensorsStore(tmp_path / "a.safetensors"), firekeep.BurnpackStore()):
        with pytest.warns(firekeep.LeftOutWarning, match=r"'epoch' \(int\)") as caught:
            report = store.save({"w": W, "epoch": 3})
        assert caught[0].filename == __file__
        assert report.others == ("epoch",)
        assert report.to_dict()["others"] == ["epoch"]


@pytest.mark.parametrize(
    "options",
    [
        {"metadata": {"epoch": "3", "config": "{}"}},
        {"exclude": [r"^epoch$", r"^config\."]},
        {"exclude": firekeep.PathFilter.exact("epoch", "config.lr", "config.bias")},
        {"include": "^w$"},
    ],
)
def test_nothing_is_said_of_what_is_kept_otherwise_or_is_not_meant(options, tmp_path):
    firekeep.save({"w": W, "epoch": 3, "config": {"lr": 0.1, "bias": True}}, tmp_path / "a.safetensors", **options)
    assert list(firekeep.load_file(tmp_path / "a.safetensors")) == ["w"]


def test_what_the_warning_proposes_works(tmp_path):
    path, tree = tmp_path / "a.safetensors", {"w": W, "epoch": 3}
    assert "metadata={'epoch': str(...)}" in said(tree, path)
    assert "exclude=r'^epoch$'" in said(tree, path)
    firekeep.save(tree, path, metadata={"epoch": str(3)})
    assert firekeep.saved_metadata(path)["epoch"] == "3"
    firekeep.save(tree, path, exclude=r"^epoch$")


def test_a_predicate_for_tensors_is_no_hindrance(tmp_path):
    told = said(
        {"w": W, "epoch": 3}, tmp_path / "a.bpk", include=lambda place: bool(place.path == "w" or place.containers[0])
    )
    assert "'epoch' (int)" in told


def test_as_an_error_it_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.safetensors"
    firekeep.save({"w": W}, path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(firekeep.LeftOutWarning):
            firekeep.save({"v": W, "epoch": 3}, path)
    assert list(firekeep.load_file(path)) == ["w"]


def test_between_objects_nothing_is_lost_and_the_report_says_what_stays():
    mine, theirs = {"w": np.zeros_like(W), "epoch": 1, "act": len}, {"w": W, "epoch": 3}
    assert firekeep.collect(theirs).keys() == ["w"]
    report = firekeep.apply(mine, theirs)
    assert "2 values that are no tensors stay as they are in the object: 'epoch', 'act'" in report.notes
    assert mine["epoch"] == 1
    np.testing.assert_array_equal(mine["w"], W)


def test_a_load_keeps_the_values_of_the_tree_and_says_so(tmp_path):
    path = tmp_path / "a.bpk"
    firekeep.save({"w": W, "step": 7}, path, scalars={"step": 7})
    tree = Run(np.zeros_like(W))
    report = firekeep.load_into(tree, path)
    assert (tree.step, tree.act) == (3, len)
    assert report.exact
    assert "2 values that are no tensors stay as they are in the object: 'step', 'act'" in report.notes
    other, report = firekeep.load_as({"w": np.zeros_like(W), "step": 5}, path)
    assert other["step"] == 5
    assert "1 value that is no tensor stays as it is in the object: 'step'" in report.notes


def test_a_tensor_where_the_tree_has_a_number_is_refused(tmp_path):
    path = tmp_path / "a.bpk"
    firekeep.save({"w": W, "step": np.int64(7)}, path)
    tree = {"w": np.zeros_like(W), "step": 3}
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(tree, path)
    assert caught.value.report.unused == ("step",)
    assert tree["step"] == 3


def test_a_training_state_does_not_lose_numbers_of_a_plain_tree_either():
    state = firekeep.TrainingState(model={"net": {"w": W.copy(), "epoch": 3}}, rng=False)
    with pytest.raises(firekeep.UnsupportedError, match=r"'(net\.)?epoch' is a number of Python among arrays"):
        state.sections()
    state = firekeep.TrainingState(model={"net": {"w": W.copy(), "note": "x", "run": Run(W.copy())}}, rng=False)
    with pytest.warns(firekeep.LeftOutWarning, match=r"'model\.net\.note' \(str\), 'model\.net\.run\.step' \(int\)\. "):
        state.sections()
    state.sections()  # which tells it once


def test_of_jax_what_is_declared_static_is_quiet_and_what_is_data_is_not(tmp_path):
    jax = pytest.importorskip("jax")
    fl, nnx, eqx = (pytest.importorskip(name) for name in ("flax.linen", "flax.nnx", "equinox"))
    optax = pytest.importorskip("optax")
    from flax.training.train_state import TrainState

    dense, w = fl.Dense(2), jax.numpy.asarray(W)
    tx = optax.adam(1e-3)
    state = TrainState.create(apply_fn=dense.apply, params={"w": w}, tx=tx)

    class Counting(nnx.Module):
        def __init__(self):
            self.w, self.seen, self.act, self.size = nnx.Param(w), nnx.Variable(0), jax.nn.relu, 3

    class Mine(eqx.Module):
        w: jax.Array
        act: Any
        size: int = 3

    module = Mine(w, jax.nn.relu)
    quiet = [state, {"state": state}, module, {"m": module, "none": None}, tx.init({"w": w}), nnx.split(Counting())[0]]
    for obj in quiet[:-1]:
        firekeep.save(obj, tmp_path / "a.safetensors")
    loud = [
        ({"w": w, "net": dense, "f": len, "s": "x"}, "'net' (Dense), 'f' (function), 's' (str)"),
        ({"w": W, "net": dense}, "1 value is no tensor and is not in"),
        ({"w": w, "tx": tx}, "'tx' (GradientTransformationExtraArgs)"),
        ({"m": module, "epoch": 3}, "'epoch' (int)"),
        ({"w": w, ("a", 1.5): 3}, "\"('a', 1.5)\" (int)"),
        (Run(w), "'step' (int), 'act' (function)"),
        (Counting(), "1 value is no tensor and is not in"),
        (Counting(), "'seen' (int)"),
    ]
    for obj, told in loud:
        assert told in said(obj, tmp_path / "a.safetensors")
    with pytest.raises(firekeep.UnsupportedError, match="'seen' is a number of Python"):
        firekeep.TrainingState(model=Counting(), rng=False).sections()


OBJECTS = [{"w": W}, W, None, 3, object(), [W], iter(())]


@pytest.mark.parametrize("given", OBJECTS, ids=lambda given: type(given).__name__)
@pytest.mark.parametrize(
    "door",
    [
        firekeep.open,
        firekeep.load_file,
        firekeep.verify,
        firekeep.saved_metadata,
        firekeep.ModuleRecord.load,
        firekeep.OptimizerRecord.load,
        firekeep.LrSchedulerRecord.load,
        lambda given: firekeep.load_into({"w": W.copy()}, given),
        lambda given: firekeep.load_as({"w": W.copy()}, given),
        lambda given: firekeep.preview(given, given),
    ],
)
def test_an_object_where_a_file_is_due_is_refused(door, given):
    with pytest.raises(firekeep.WrongTypeError, match="a path, bytes, a binary file or a resource is needed") as caught:
        door(given)
    assert isinstance(caught.value, firekeep.RuleError)
    assert isinstance(caught.value, TypeError)


def test_apply_is_proposed_where_it_works():
    tree = {"w": np.zeros_like(W)}
    for given in ({"w": W}, firekeep.collect({"w": W})):
        with pytest.raises(firekeep.WrongTypeError) as caught:
            firekeep.load_into(tree, given)
        assert caught.value.remedy == "firekeep.apply(obj, other) puts the tensors of one object into another."
    assert not tree["w"].any()
    firekeep.apply(tree, {"w": W})
    np.testing.assert_array_equal(tree["w"], W)
    with pytest.raises(firekeep.WrongTypeError) as caught:
        firekeep.load_as(tree, {"w": W})
    assert caught.value.remedy.endswith("changing it in place.")
    with pytest.raises(firekeep.WrongTypeError) as caught:
        firekeep.load_as(({"w": W.astype(np.float64)}, 1), {"v": W})
    assert "firekeep.save(other, path)" in caught.value.remedy


@pytest.mark.parametrize(("given", "why"), [({"v": W}, "no name matched"), ({"w": W[:1]}, "1 of another shape")])
def test_where_apply_would_refuse_it_is_said_why(given, why):
    with pytest.raises(firekeep.WrongTypeError) as caught:
        firekeep.load_into({"w": W.copy()}, given)
    assert "firekeep.apply(obj, other), which would refuse these: " in caught.value.remedy
    assert why in caught.value.remedy


def test_an_open_file_and_a_list_of_files_are_told_what_to_give(tmp_path):
    path = tmp_path / "a.safetensors"
    firekeep.save({"w": W}, path)
    with firekeep.open(path) as opened:
        for door in (lambda given: firekeep.load_into({"w": W.copy()}, given), firekeep.load_file):
            with pytest.raises(firekeep.WrongTypeError, match="path"):
                door(opened)
    with pytest.raises(firekeep.WrongTypeError, match="opened by its folder or its index"):
        firekeep.load_into({"w": W.copy()}, [path])


@pytest.mark.parametrize("given", OBJECTS, ids=lambda given: type(given).__name__)
@pytest.mark.parametrize(
    "door",
    [
        lambda given: firekeep.save({"w": W}, given),
        lambda given: firekeep.save_file({"w": W}, given),
        lambda given: firekeep.ModuleRecord.of({"w": W}).save(given),
        lambda given: firekeep.save({"w": W}, given) if given is None else firekeep.BurnpackStore(given),
    ],
)
def test_an_object_where_a_path_is_due_is_refused(door, given):
    with pytest.raises(firekeep.WrongTypeError, match="a path is due"):
        door(given)


def test_a_file_in_memory_is_made_by_a_store():
    with pytest.raises(firekeep.WrongTypeError) as caught:
        firekeep.save({"w": W}, io.BytesIO())
    assert "store.data" in caught.value.remedy
    store = firekeep.SafetensorsStore()
    store.save({"w": W})
    np.testing.assert_array_equal(firekeep.load_file(store.data)["w"], W)


def torch_file(path):
    tensors = {"0.weight": W2, "0.bias": W2[:, 0].copy(), "1.weight": W2[:, 1].copy(), "1.bias": W2[:, 2].copy()}
    return firekeep.save_file(tensors, path)


def zeros(*shape):
    return np.zeros(shape, np.float32)


def flax_tree(first="0", zeros=zeros):
    return {first: {"kernel": zeros(4, 3), "bias": zeros(3)}, "1": {"scale": zeros(3), "bias": zeros(3)}}


W2 = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("within", [False, True])
def test_a_tree_with_names_of_flax_is_told_of_like(within, tmp_path):
    path = torch_file(tmp_path / "net.safetensors")
    layers = flax_tree()
    tree = {"params": layers} if within else layers
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(tree, path)
    (remedy,) = caught.value.report.remedies
    assert remedy.python == f"like={str(path)!r}"
    assert remedy.gain == (4 if within else 2)
    assert firekeep.load_into(tree, path, like=str(path)).exact
    np.testing.assert_array_equal(layers["0"]["kernel"], W2.T)


def test_where_the_file_does_not_tell_it_is_said_what_like_takes(tmp_path):
    path, tree = torch_file(tmp_path / "net.safetensors"), flax_tree("Dense_0")
    report = firekeep.load_into(tree, path, dry_run=True)
    assert "like= tells which tensors are turned round" in report.notes[-1]
    assert not any("like=" in remedy.python for remedy in report.remedies)
    assert firekeep.load_into(tree, path, like=path, rename=r"^0\.=>Dense_0.").exact
    np.testing.assert_array_equal(tree["Dense_0"]["kernel"], W2.T)


def test_a_file_in_another_layout_needs_a_file_of_pytorch_beside_it(tmp_path):
    path, tree = torch_file(tmp_path / "net.safetensors"), flax_tree()
    metadata = {"firekeep.layout": "burn"}
    names = {"0.weight": W2.T, "0.bias": W2[:, 0], "1.gamma": W2[:, 1], "1.beta": W2[:, 2]}
    firekeep.save_file({name: value.copy() for name, value in names.items()}, tmp_path / "net.bpk", metadata=metadata)
    report = firekeep.load_into(tree, tmp_path / "net.bpk", dry_run=True)
    assert "the file's layers lie as 'burn' has them: like= tells" in report.notes[-1]
    assert firekeep.load_into(tree, tmp_path / "net.bpk", like=path).exact
    np.testing.assert_array_equal(tree["0"]["kernel"], W2.T)


def test_nothing_is_said_of_like_where_it_would_change_nothing(tmp_path):
    path = torch_file(tmp_path / "net.safetensors")
    report = firekeep.load_into({"0": {"weight": zeros(3, 4), "other": zeros(3)}}, path, dry_run=True)
    assert not report.ok
    assert "like=" not in str(report)
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.SafetensorsStore(path, allow_unused=False).load_into(flax_tree())
    assert "like=" not in str(caught.value), "a store has no like= for loads"


def test_variables_of_linen_are_refused_with_the_same_remedy(tmp_path):
    jnp = pytest.importorskip("jax.numpy")
    path = torch_file(tmp_path / "net.safetensors")
    tree = {"params": flax_tree(zeros=lambda *shape: jnp.zeros(shape))}
    with pytest.raises(firekeep.RuleError) as caught:
        firekeep.load_into(tree, path)
    assert caught.value.remedy.startswith(f"Give like={str(path)!r}: the names and shapes of the file itself")
    assert "give like= a model with the same layers or a PyTorch file of one" in caught.value.remedy
    assert firekeep.load_into(tree, path, like=str(path)).exact
    np.testing.assert_array_equal(tree["params"]["0"]["kernel"], W2.T)
    other = {"params": flax_tree("Dense_0", zeros=lambda *shape: jnp.zeros(shape))}
    with pytest.raises(firekeep.RuleError) as caught:
        firekeep.load_into(other, path)
    assert "of the file itself" not in caught.value.remedy
