from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import firekeep
import pickles
from firekeep import RuleError
from firekeep.blobs import MemoryBlob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from use.checkpoints import Checkpoint, state_dict, training

CASES = Path(__file__).parents[1] / "data" / "cases" / "files"
ARRAYS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array([1, 2])}


@pytest.fixture
def pair(tmp_path: Path):
    """Save two mappings and compare the files."""

    def compare(a: dict[str, Any], b: dict[str, Any], **options: Any):
        first = firekeep.save_file(a, tmp_path / "a.safetensors")
        second = firekeep.save_file(b, tmp_path / "b.safetensors")
        found = firekeep.diff(first, second, **options)
        document = found.to_dict()
        assert json.loads(json.dumps(document, allow_nan=False)) == document
        assert document["equal"] is found.equal
        assert str(found)
        return found

    return compare


@pytest.mark.parametrize("first", [".bpk", ".safetensors", ".pt"])
@pytest.mark.parametrize("second", [".bpk", ".safetensors", ".pt"])
def test_the_same_tensors_are_equal_whatever_the_format(first: str, second: str, tmp_path: Path):
    paths = [tmp_path / f"a{first}", tmp_path / f"b{second}"]
    for path in paths:
        if path.suffix == ".pt":
            path.write_bytes(state_dict(ARRAYS))
        else:
            firekeep.save_file(ARRAYS, path)
    found = firekeep.diff(*paths)
    assert found.equal
    assert found.identical == 2
    assert found.equal_bytes == 40
    assert str(found).startswith("equal: ")


def test_tensors_of_one_side_are_named(pair):
    found = pair(ARRAYS, {"w": ARRAYS["w"], "x": ARRAYS["n"]})
    assert (found.only_a, found.only_b) == (("n",), ("x",))
    assert not found.equal
    assert "only in the first: 1 tensor ('n')" in str(found)


def test_changed_numbers_are_measured(pair):
    changed = ARRAYS["w"].copy()
    changed[0, 0] += 0.5
    changed[1, 2] -= 2
    found = pair(ARRAYS, ARRAYS | {"w": changed})
    (change,) = found.changed
    assert change.name == "w"
    assert change.differing == 2
    assert change.max_abs == 2
    dot = float((ARRAYS["w"] * changed).sum())
    assert change.cosine == pytest.approx(dot / math.sqrt(float((ARRAYS["w"] ** 2).sum()) * float((changed**2).sum())))
    assert found.identical == 1
    assert found.equal_bytes == 16
    assert "2 of 6 differ, max |difference| 2" in str(found)


def test_another_shape_is_no_comparison_of_numbers(pair):
    (change,) = pair(ARRAYS, ARRAYS | {"w": ARRAYS["w"].reshape(3, 2)}).changed
    assert change.shapes == ((2, 3), (3, 2))
    assert change.differing is change.max_abs is change.cosine is None


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64, ml_dtypes.float8_e5m2])
def test_another_dtype_is_a_change_with_its_distance(dtype: Any, pair):
    (change,) = pair(ARRAYS, ARRAYS | {"w": ARRAYS["w"].astype(dtype)}).changed
    assert change.dtypes[0] == "F32"
    assert change.differing == 0
    assert change.max_abs == 0
    assert change.cosine == pytest.approx(1)
    assert "equal values" in str(change)


def test_nan_equals_nan_at_the_same_place_only(pair):
    a = np.array([np.nan, 1, np.inf, -np.inf, 5], np.float32)
    assert pair({"w": a}, {"w": a.copy()}).equal
    other = np.array([np.uint32(0x7FC00001)], np.uint32).view(np.float32)
    assert pair({"w": np.array([np.nan], np.float32)}, {"w": other}).equal
    (change,) = pair({"w": a}, {"w": np.array([0, np.nan, np.inf, np.inf, 5.5], np.float32)}).changed
    assert change.differing == 4
    assert change.only_nan == 2
    assert change.max_abs == 0.5


def test_minus_zero_is_zero(pair):
    assert pair({"w": np.array([0.0])}, {"w": np.array([-0.0])}).equal


def test_long_integers_are_compared_exactly(pair):
    a = np.array([2**63 - 1, -(2**63), 5], np.int64)
    (change,) = pair({"n": a}, {"n": a - np.array([1, 0, 0])}).changed
    assert (change.differing, change.max_abs) == (1, 1.0)
    b = np.array([2**64 - 1], np.uint64)
    (change,) = pair({"n": b}, {"n": b - np.uint64(1)}).changed
    assert (change.differing, change.max_abs) == (1, 1.0)


@pytest.mark.parametrize(
    ("a", "b", "max_abs"),
    [
        (np.array([True, False]), np.array([True, True]), 1),
        (np.array([1, 255], np.uint8), np.array([1, 0], np.uint8), 255),
        (np.array([-128], np.int8), np.array([127], np.int8), 255),
        (np.array([1 + 1j], np.complex64), np.array([1 - 1j], np.complex64), 2),
        (np.array(2.0), np.array(5.0), 3),
    ],
)
def test_numbers_of_all_kinds_are_compared(a: np.ndarray, b: np.ndarray, max_abs: float, pair):
    (change,) = pair({"x": a}, {"x": b}).changed
    assert change.differing == 1
    assert change.max_abs == max_abs


def test_a_cosine_of_zeros_is_none(pair):
    (change,) = pair({"x": np.zeros(2)}, {"x": np.ones(2)}).changed
    assert change.cosine is None


def test_numbers_across_pieces_add_up(pair):
    a = np.ones((1 << 21) + 5, np.float32)
    b = a.copy()
    b[[0, 1 << 20, -1]] = [2, 3, -4]
    (change,) = pair({"x": a}, {"x": b}).changed
    assert (change.differing, change.max_abs) == (3, 5)
    assert change.cosine == pytest.approx(float(np.dot(a, b)) / math.sqrt(float(np.dot(a, a)) * float(np.dot(b, b))))


def test_types_without_arithmetic_are_compared_by_their_bytes(pair):
    def entry(data: bytes) -> TensorEntry:
        return TensorEntry("q", BY_NAME["F6_E2M3"], (4,), MemoryBlob(data))

    assert pair({"q": entry(b"abc")}, {"q": entry(b"abc")}).equal
    (change,) = pair({"q": entry(b"abc")}, {"q": entry(b"abd")}).changed
    assert "bytes differ" in str(change)
    half = TensorEntry("h", BY_NAME["F4"], (2,), MemoryBlob(b"\x21"))
    other = TensorEntry("h", BY_NAME["F4"], (2,), MemoryBlob(b"\x31"))
    (change,) = pair({"h": half}, {"h": other}).changed
    assert (change.differing, change.max_abs) == (1, 0.5)


def test_filters_choose_on_both_sides(pair):
    changed = ARRAYS | {"n": np.array([3, 4])}
    assert pair(ARRAYS, changed, include="w").equal
    assert pair(ARRAYS, changed, exclude=["^n$"]).equal
    with pytest.raises(RuleError, match="exclude"):
        pair(ARRAYS, ARRAYS, exclude="(")


def test_numbers_are_left_alone_on_request(pair):
    found = pair(ARRAYS, ARRAYS | {"w": ARRAYS["w"] + 1}, values=False)
    assert found.equal
    assert not found.values
    assert "values were not compared" in str(found)
    assert not pair(ARRAYS, ARRAYS | {"w": ARRAYS["w"].astype(np.float64)}, values=False).equal


def test_metadata_is_listed_and_does_not_count(tmp_path: Path):
    a = firekeep.save_file(ARRAYS, tmp_path / "a.bpk", metadata={"same": "x", "k": "1", "only": "y"})
    b = firekeep.save_file(ARRAYS, tmp_path / "b.bpk", metadata={"same": "x", "k": "2"})
    found = firekeep.diff(a, b)
    assert found.equal
    assert found.metadata == {"k": ("1", "2"), "only": ("y", None)}
    assert "metadata 'k': '1' -> '2'" in str(found)


def test_digests_are_no_difference_of_metadata(tmp_path: Path):
    a = firekeep.save_file(ARRAYS, tmp_path / "a.bpk", digest=True)
    b = firekeep.save_file(ARRAYS, tmp_path / "b.bpk")
    assert firekeep.diff(a, b).metadata == {}


def test_scalars_count_where_both_formats_hold_them(tmp_path: Path):
    a = firekeep.save_file(ARRAYS, tmp_path / "a.bpk", scalars={"step": 1})
    b = firekeep.save_file(ARRAYS, tmp_path / "b.bpk", scalars={"step": 2})
    c = firekeep.save_file(ARRAYS, tmp_path / "c.safetensors")
    found = firekeep.diff(a, b)
    assert not found.equal
    assert found.scalars == {"step": ("Int(1)", "Int(2)")}
    found = firekeep.diff(a, c)
    assert found.equal
    assert found.scalars == {"step": ("Int(1)", None)}


def test_ties_are_listed_and_do_not_count(pair):
    shared = np.ones(3, np.float32)
    found = pair({"x.a": shared, "x.b": shared}, {"x.a": shared, "x.b": shared.copy()})
    assert found.equal
    assert found.identical == 2
    assert found.ties == {"x.b": ("x.a", None)}


def test_a_model_is_compared_with_the_checkpoint_it_is_from(tmp_path: Path):
    checkpoint = tmp_path / "run.ckpt"
    checkpoint.write_bytes(training(ARRAYS))
    model = firekeep.save_file(ARRAYS, tmp_path / "m.safetensors")
    for pair in ((checkpoint, model), (model, checkpoint)):
        found = firekeep.diff(*pair)
        assert found.equal
        assert any("'state_dict'" in note for note in found.notes)
    whole = firekeep.diff(checkpoint, checkpoint)
    assert whole.identical == 3
    assert whole.notes == ()


def test_tensors_without_bytes_are_never_equal(tmp_path: Path):
    made = Checkpoint()
    data = made.file(pickles.ordered({"lost": pickles.tensor("FloatStorage", "7", 4)}))
    found = firekeep.diff(data, data)
    assert not found.equal
    assert "cannot be compared" in str(found)


def test_progress_counts_both_sides(tmp_path: Path):
    told: list[tuple[int, int]] = []
    a = firekeep.save_file(ARRAYS, tmp_path / "a.bpk")
    firekeep.diff(a, a, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (80, 80)


def test_real_files_differ_where_they_do():
    folder = CASES / "safetensors"
    found = firekeep.diff(
        folder / "checkpoint-studio_diff_old.safetensors", folder / "checkpoint-studio_diff_new.safetensors"
    )
    assert not found.equal
    with (
        firekeep.open(folder / "checkpoint-studio_diff_old.safetensors") as old,
        firekeep.open(folder / "checkpoint-studio_diff_new.safetensors") as new,
    ):
        assert set(found.only_a) == set(old) - set(new)
        assert set(found.only_b) == set(new) - set(old)


def test_a_selection_that_leaves_no_tensor_is_refused(tmp_path):
    path = firekeep.save_file({"a": np.zeros(2, np.float32)}, tmp_path / "a.bpk")
    with pytest.raises(firekeep.RuleError, match="none of the 1 and 1 tensors is left"):
        firekeep.diff(path, path, include=["nosuch"])


def test_a_comparison_is_true_when_nothing_differs(tmp_path):
    path = firekeep.save_file({"a": np.zeros(2, np.float32)}, tmp_path / "a.bpk")
    other = firekeep.save_file({"a": np.ones(2, np.float32)}, tmp_path / "b.bpk")
    assert firekeep.diff(path, path)
    assert not firekeep.diff(path, other)


def test_two_layouts_are_told_with_what_compares_across_them(tmp_path: Path):
    net = firekeep.module.Linear(3, 2)
    firekeep.save(net, tmp_path / "burn.bpk")
    firekeep.save(net, tmp_path / "torch.safetensors")
    for names, layouts in (
        (("torch.safetensors", "burn.bpk"), ("torch", "burn")),
        (("burn.bpk", "torch.safetensors"), ("burn", "torch")),
    ):
        found = firekeep.diff(*(tmp_path / name for name in names))
        assert found.layouts == layouts
        assert found.to_dict()["layouts"] == list(layouts)
        text = " ".join(str(found).split())
        assert text.startswith("DIFFERENT")
        assert 0 < text.index("the layouts differ") < text.index("1 tensor the same")
        burn, torch = tmp_path / "burn.bpk", tmp_path / "torch.safetensors"
        assert f"`firekeep convert {burn} OUT.safetensors --layout torch --like {torch}`" in text
    out = tmp_path / "OUT.safetensors"  # as it says
    firekeep.convert(tmp_path / "burn.bpk", out, layout="torch", like=tmp_path / "torch.safetensors")
    assert firekeep.diff(tmp_path / "torch.safetensors", out).equal


def test_layouts_that_explain_nothing_are_not_told(tmp_path: Path):
    for name, bias in (("a.bpk", 0.0), ("b.safetensors", 0.0), ("c.safetensors", 1.0)):
        firekeep.save_file({"bias": np.full(3, bias, np.float32)}, tmp_path / name)
    assert firekeep.diff(tmp_path / "a.bpk", tmp_path / "b.safetensors").layouts is None
    assert firekeep.diff(tmp_path / "a.bpk", tmp_path / "c.safetensors").layouts is None
    firekeep.save_file({"weight": np.zeros((2, 2), np.float32)}, tmp_path / "d.safetensors")
    firekeep.save_file({"weight": np.ones((2, 2), np.float32)}, tmp_path / "e.safetensors")
    assert firekeep.diff(tmp_path / "d.safetensors", tmp_path / "e.safetensors").layouts is None
