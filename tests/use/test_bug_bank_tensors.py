"""What went wrong for people with the memory, sharing and dtypes of weights: each kind through the doors of models."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import firekeep
import pickles
from contracts.nets import arrays_of, file_arrays
from firekeep.module import Embedding, Linear, Module, Param
from reports.files import described, raw_safetensors

both = pytest.mark.parametrize("suffix", [".bpk", ".safetensors"])
every_kind = pytest.mark.parametrize("kind", ["torch", "native", "plain"])


class Native(Module):
    w: Param


class Torch(nn.Module):
    def __init__(self, array: np.ndarray) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(array.copy()), requires_grad=array.dtype.kind == "f")

    @classmethod
    def holding(cls, tensor: torch.Tensor) -> Torch:
        model = cls(np.zeros(1))
        model.w = nn.Parameter(tensor)
        return model


def model_of(kind: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """Make a model of one tensor, of zeros."""
    zeros = np.zeros(shape, dtype)
    if kind == "torch" and not zeros.size:
        return Torch.holding(torch.zeros(shape))
    return {"torch": Torch, "native": lambda array: Native(w=Param(array)), "plain": lambda array: {"w": array}}[kind](
        zeros
    )


def value_of(model: Any) -> np.ndarray:
    if isinstance(model, nn.Module):
        return model.w.detach().numpy()
    return np.asarray(model.w.value if isinstance(model, Native) else model["w"])


# Strides were dropped, and weights came out scrambled.
@every_kind
@pytest.mark.parametrize("container", ["zip", "legacy"])
@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((4, 3), (1, 4), 0),
        ((3, 2, 2), (4, 1, 2), 0),
        ((2, 3), (1, 2), 3),
        ((2, 2), (0, 1), 5),
        ((6,), (2,), 1),
        ((), (), 7),
    ],
)
def test_a_strided_view_of_a_file_fills_a_model_element_by_element(
    shape: Any, strides: Any, offset: int, container: str, kind: str
):
    raw = np.arange(12, dtype=np.float32).tobytes()
    body = pickles.ordered({"w": pickles.tensor("FloatStorage", "0", 12, shape=shape, strides=strides, offset=offset)})
    file = (
        pickles.zip_file(pickles.pickled(body), {"0": raw})
        if container == "zip"
        else pickles.legacy_file(body, {"0": (12, raw)})
    )
    model = model_of(kind, shape)
    assert firekeep.load_into(model, file).exact
    expected = np.empty(shape, np.float32)
    for index in np.ndindex(shape):
        expected[index] = offset + sum(place * stride for place, stride in zip(index, strides, strict=True))
    np.testing.assert_array_equal(value_of(model), expected)


# Arrays were written in the order of their memory, broadcast ones with garbage, slices with all they were cut from.
TABLE = np.arange(24, dtype=np.float32).reshape(4, 6)
VIEWS = {
    "fortran": np.asfortranarray(TABLE),
    "transposed": TABLE.T,
    "every_second": TABLE[::2],
    "backwards": TABLE[::-1],
    "both_backwards": TABLE[::-1, ::-2],
    "broadcast": np.broadcast_to(np.float32([1, 2]), (4, 2)),
    "broadcast_inside": np.broadcast_to(np.float32([[1], [2]]), (2, 3)),
    "slice": np.arange(100_000, dtype=np.float32)[500:510],
    "scalar": np.float32(3),
    "swapped": TABLE.astype(">f4"),
    "swapped_half": TABLE.astype(">f2"),
    "swapped_whole": np.arange(5, dtype=">i8"),
}


@both
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("kind", ["native", "plain"])
def test_an_array_of_any_memory_is_saved_by_its_values(kind: str, name: str, suffix: str, tmp_path: Path):
    array = VIEWS[name]
    model: Any = {"w": array} if kind == "plain" else Native(w=Param(np.asarray(array)))
    report = firekeep.save(model, tmp_path / f"m{suffix}")
    assert report.nbytes < 2000
    found = firekeep.load_file(tmp_path / f"m{suffix}")["w"]
    np.testing.assert_array_equal(found, array)
    assert found.dtype == np.asarray(array).dtype.newbyteorder("=")
    twin = model_of("torch", np.shape(array), found.dtype)
    assert firekeep.load_into(twin, tmp_path / f"m{suffix}", layout="burn").exact
    np.testing.assert_array_equal(value_of(twin), array)


@every_kind
@pytest.mark.parametrize(
    ("storage", "code", "dtype", "values"),
    [
        ("FloatStorage", "3f", np.float32, (1.5, -2, 3e-5)),
        ("DoubleStorage", "3d", np.float64, (1.5, -2, 1e300)),
        ("LongStorage", "3q", np.int64, (1, -2, 1 << 40)),
        ("HalfStorage", "3e", np.float16, (1.5, -2, 0.25)),
    ],
)
def test_the_byte_order_that_a_file_states_is_honoured(storage: str, code: str, dtype: Any, values: Any, kind: str):
    body = pickles.pickled(pickles.ordered({"w": pickles.tensor(storage, "0", 3)}))
    for order, mark in (("big", ">"), ("little", "<")):
        file = pickles.zip_file(body, {"0": struct.pack(mark + code, *values)}, byteorder=order.encode())
        model = model_of(kind, (3,), dtype)
        assert firekeep.load_into(model, file).exact
        np.testing.assert_array_equal(value_of(model), np.array(values, dtype))


class Tied(nn.Module):
    """A head that is the embedding, or one of its own."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.emb = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        if tied:
            self.head.weight = self.emb.weight


class TestTies:
    """A head that is the embedding: absent, redundant, or left out although it was another one."""

    @both
    @pytest.mark.parametrize("ties", ["keep", "expand"])
    def test_both_names_load_into_tied_and_untied_models(self, ties: str, suffix: str, tmp_path: Path):
        model = Tied(tied=True)
        firekeep.save(model, tmp_path / f"m{suffix}", ties=ties)
        for tied in (True, False):
            twin = Tied(tied=tied)
            assert firekeep.load_into(twin, tmp_path / f"m{suffix}").exact
            assert torch.equal(twin.head.weight, model.emb.weight)
            assert torch.equal(twin.emb.weight, model.emb.weight)
            assert (twin.head.weight is twin.emb.weight) == tied

    @pytest.mark.parametrize("kept", ["emb.weight", "head.weight"])
    def test_a_name_that_the_file_lacks_is_filled_where_the_model_ties_it_and_only_there(self, kept: str):
        array = np.arange(15, dtype=np.float32).reshape(5, 3)
        file = firekeep.save_bytes({kept: array}, format="safetensors", metadata={"format": "pt"})
        model = Tied(tied=True)
        report = firekeep.load_into(model, file)
        assert report.complete
        assert any("holds it once" in note for note in report.notes)
        assert np.array_equal(model.emb.weight.detach().numpy(), array)
        (lacking,) = {"emb.weight", "head.weight"} - {kept}
        with pytest.raises(firekeep.LoadError) as caught:
            firekeep.load_into(Tied(tied=False), file)
        assert caught.value.report.missing == (lacking,)

    @both
    def test_heads_that_are_not_tied_are_both_written_be_they_equal_or_not(self, suffix: str, tmp_path: Path):
        for equal in (True, False):
            model = Tied(tied=False)
            if equal:
                with torch.no_grad():
                    model.head.weight.copy_(model.emb.weight)
            firekeep.save(model, tmp_path / f"m{suffix}", layout="torch")
            assert file_arrays(tmp_path / f"m{suffix}") == {
                name: array.tobytes() for name, array in arrays_of(model).items()
            }
            twin = Tied(tied=False)
            assert firekeep.load_into(twin, tmp_path / f"m{suffix}").exact
            assert torch.equal(twin.head.weight, model.head.weight)
            assert torch.equal(twin.emb.weight, model.emb.weight)

    @both
    def test_two_numbers_for_one_tensor_are_refused_and_equal_ones_taken(self, suffix: str, tmp_path: Path):
        apart, tied = Tied(tied=False), Tied(tied=True)
        firekeep.save(apart, tmp_path / f"m{suffix}")
        before = tied.emb.weight.detach().clone()
        with pytest.raises(firekeep.LoadError) as caught:
            firekeep.load_into(tied, tmp_path / f"m{suffix}")
        assert [error.kind for error in caught.value.report.errors] == ["tie"]
        assert torch.equal(tied.emb.weight, before)
        with torch.no_grad():
            apart.head.weight.copy_(apart.emb.weight)
        firekeep.save(apart, tmp_path / f"m{suffix}")
        assert firekeep.load_into(tied, tmp_path / f"m{suffix}").exact
        assert torch.equal(tied.emb.weight, apart.emb.weight)

    def test_native_ties_keep_too(self, tmp_path: Path):
        class Two(Module):
            a: Linear
            b: Linear

        shared = Linear(4, 3)
        firekeep.save(Two(a=shared, b=shared), tmp_path / "m.bpk")
        twin = Two(a=Linear(4, 3), b=Linear(4, 3))
        assert firekeep.load_into(twin, tmp_path / "m.bpk").exact
        assert np.array_equal(twin.a.weight.value, shared.weight.value)
        assert np.array_equal(twin.b.weight.value, shared.weight.value)


SMALL = {
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F16": np.float16,
}


@every_kind
@pytest.mark.parametrize("code", SMALL)
@pytest.mark.parametrize("dtype", ["module", "file", "bf16"])
def test_small_floats_go_into_models_of_any_float_by_their_values(dtype: str, code: str, kind: str):
    numbers = np.array([0, 1, -1.5, 2, 0.25]).astype(SMALL[code])
    file = raw_safetensors({"w": described(code, (5,), 0, numbers.nbytes)}, numbers.tobytes())
    model = model_of(kind, (5,))
    report = firekeep.load_into(model, file, dtype=dtype)
    assert report.exact
    (entry,) = firekeep.entries_of(model)
    assert str(entry.dtype) == {"module": "F32", "file": code, "bf16": "BF16"}[dtype]
    held = model.w.detach().float().numpy() if kind == "torch" else value_of(model).astype(np.float32)
    np.testing.assert_array_equal(held, numbers.astype(np.float32))
    assert dict(report.casts) == ({} if str(entry.dtype) == code else {"w": (code, str(entry.dtype))})


@every_kind
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (np.complex64, np.float32),
        (np.float32, np.int64),
        (np.int64, np.float32),
        (np.float32, np.bool_),
        (np.bool_, np.float32),
    ],
)
def test_another_kind_of_numbers_is_refused_by_name_and_never_converted(given: Any, wanted: Any, kind: str):
    model = model_of(kind, (2,), wanted)
    file = firekeep.save_bytes({"w": np.ones(2, given)}, format="safetensors")
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(model, file, strict=False)
    (error,) = caught.value.report.errors
    assert (error.name, error.kind) == ("w", "kind")
    assert value_of(model).tolist() == np.zeros(2, wanted).tolist()


@every_kind
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0)])
def test_shapes_without_axes_or_elements_fill_models_exactly(shape: Any, kind: str):
    file = firekeep.save_bytes({"w": np.ones(shape, np.float32)}, format="safetensors")
    model = model_of(kind, shape)
    assert firekeep.load_into(model, file).exact
    assert value_of(model).shape == shape
    for other in ((1,), (0, 0, 0)):
        with pytest.raises(firekeep.LoadError) as caught:
            firekeep.load_into(model_of(kind, other), file)
        assert [error.kind for error in caught.value.report.errors] == ["shape"]


# A shape that is another one was skipped, and the parameter left as no initialiser had made it.
@every_kind
def test_the_turned_shape_is_another_shape(kind: str):
    file = firekeep.save_bytes({"w": np.ones((4, 3), np.float32)}, format="safetensors")
    model = model_of(kind, (3, 4))
    with pytest.raises(firekeep.LoadError) as caught:
        firekeep.load_into(model, file)
    (error,) = caught.value.report.errors
    assert (error.expected, error.found) == ("[3, 4]", "[4, 3]")
    assert not value_of(model).any()
    with pytest.raises(firekeep.LoadError):  # where nothing fits nothing is loaded, whatever is allowed
        firekeep.load_into(model, file, strict=False)


def test_an_allowed_mismatch_leaves_a_parameter_to_its_own_initialiser():
    class Net(Module):
        a: Linear
        b: Linear

    net, twin = (Net(a=Linear(2, 2, rng=0), b=Linear(3, 4, rng=1)) for _ in range(2))
    arrays = {
        "a.weight": np.eye(2, dtype=np.float32),
        "a.bias": np.ones(2),
        "b.weight": np.ones((4, 9)),
        "b.bias": np.ones(4),
    }
    file = firekeep.save_bytes(arrays, format="safetensors", metadata={"format": "pt"})
    report = firekeep.load_into(net, file, allow_mismatched=True)
    assert report.applied == ("a.bias", "a.weight", "b.bias")
    assert not net.b.weight.is_initialized
    assert np.array_equal(net.b.weight.value, twin.b.weight.value)


class TestSquareWeights:
    """Turned twice or not at all, a square weight loads without a word and is wrong."""

    @both
    @pytest.mark.parametrize("layout", ["torch", "burn", None])
    def test_it_is_turned_once_each_way(self, layout: str | None, suffix: str, tmp_path: Path):
        weight = np.arange(9, dtype=np.float32).reshape(3, 3)
        source = nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            source.weight.copy_(torch.from_numpy(weight))
        firekeep.save(source, tmp_path / f"m{suffix}", layout=layout)
        x = np.float32([[1, 2, 3], [0, -1, 4]])
        for native in (Linear(3, 3, bias=False), Linear(3, 3, bias=False, layout="col")):
            assert firekeep.load_into(native, tmp_path / f"m{suffix}").exact
            np.testing.assert_array_equal(native(x), x @ weight.T)
            firekeep.save(native, tmp_path / f"n{suffix}", layout=layout)
            back = nn.Linear(3, 3, bias=False)
            assert firekeep.load_into(back, tmp_path / f"n{suffix}").exact
            np.testing.assert_array_equal(back.weight.detach().numpy(), weight)
            used = Linear(3, 3, bias=False)
            used(x)
            assert firekeep.load_into(used, tmp_path / f"n{suffix}").exact
            np.testing.assert_array_equal(used(x), x @ weight.T)

    def test_an_embedding_is_never_turned(self, tmp_path: Path):
        source = nn.Embedding(3, 3)
        firekeep.save(source, tmp_path / "m.bpk")
        native = Embedding(3, 3)
        assert firekeep.load_into(native, tmp_path / "m.bpk").exact
        np.testing.assert_array_equal(native.weight.value, source.weight.detach().numpy())

    def test_a_turn_is_told(self, tmp_path: Path):
        report = firekeep.save(nn.Linear(3, 3), tmp_path / "m.bpk")
        assert any("1 transposed" in step for step in report.steps)
        loaded = firekeep.load_into(nn.Linear(3, 3), tmp_path / "m.bpk")
        assert any("1 transposed" in note for note in loaded.notes)
        assert not firekeep.load_into(Linear(3, 3), tmp_path / "m.bpk").notes


def test_a_gguf_file_is_put_into_a_model_as_its_writer_saw_the_shapes():
    rows = ((b"weight", (3, 2), 0), (b"bias", (2,), 32))
    table = b"".join(
        struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, offset)
        for name, dims, offset in rows
    )
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + table
    data = head + bytes(-len(head) % 32) + struct.pack("<6f8x2f", *range(6), 7, 8)
    model = nn.Linear(3, 2)
    with pytest.raises(firekeep.RuleError, match="nobody said how their layers lie"):
        firekeep.load_into(model, data)
    firekeep.load_into(model, data, layout="torch")
    assert model.weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert model.bias.tolist() == [7, 8]


@every_kind
def test_overlapping_ranges_are_refused_with_both_names_and_nothing_is_filled(kind: str):
    header = {"w": described("F32", (2,), 0, 8), "v": described("F32", (2,), 4, 12)}
    model = model_of(kind, (2,))
    with pytest.raises(firekeep.FirekeepError, match=r"'[vw]'.*'[vw]'"):
        firekeep.load_into(model, raw_safetensors(header, bytes(range(12))), strict=False)
    assert not value_of(model).any()
