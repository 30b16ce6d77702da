from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import firekeep
from firekeep import (
    ExistsError,
    FirekeepError,
    LimitError,
    Limits,
    MetadataError,
    ParamId,
    RuleError,
    Scalar,
    ScalarError,
    UnsupportedError,
)
from firekeep.blobs import DeferredBlob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry

ONE = {"w": np.ones(2, np.float32)}
SUFFIXES = pytest.mark.parametrize("suffix", [".safetensors", ".bpk"])
BASE = np.arange(24, dtype=np.float32).reshape(4, 6)


@SUFFIXES
@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(BASE),
        BASE.T,
        BASE[::2, 1::3],
        BASE[::-1, ::-1],
        np.broadcast_to(np.float32([1, 2]), (4, 2)),
        BASE.astype(">f4"),
        BASE.astype(">i8")[:, ::-1],
        np.array(3.5),
        np.float32(3.5),
        np.empty((0, 2**40), np.float32),
        np.zeros((), bool),
        BASE.astype(ml_dtypes.bfloat16).T,
        BASE.astype(np.uint16),
        np.lib.stride_tricks.sliding_window_view(BASE[0], 3),
    ],
    ids=str,
)
def test_arrays_of_any_layout_are_saved_as_what_they_hold(suffix: str, array: Any, tmp_path: Path):
    path = firekeep.save_file({"w": array}, tmp_path / f"m{suffix}")
    with firekeep.open(path) as file:
        loaded = file["w"]
    assert loaded.shape == array.shape
    assert loaded.dtype == np.asarray(array).dtype.newbyteorder("=")
    assert np.array_equal(loaded, array)


class WithArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.ones(3, np.float32)


class WithDlpack:
    def __init__(self) -> None:
        self.array = np.ones(3, np.float32)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("kind", [WithArray, WithDlpack])
def test_whatever_gives_an_array_is_saved(kind: type, tmp_path: Path):
    path = firekeep.save_file({"w": kind()}, tmp_path / "m.bpk")
    assert firekeep.load_file(path)["w"].tolist() == [1, 1, 1]


def test_entries_of_an_open_file_are_saved_under_the_names_given(tmp_path: Path):
    firekeep.save_file({"w": BASE}, tmp_path / "a.bpk", param_ids={"w": 7})
    with firekeep.open(tmp_path / "a.bpk") as file:
        firekeep.save_file({"v": file.entry("w")}, tmp_path / "b.bpk")
    with firekeep.open(tmp_path / "b.bpk") as file:
        assert np.array_equal(file["v"], BASE)
        assert file.entry("v").param_id == 7


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"weight": np.ones(2)}, r"tensor 'w': dict is not a tensor. Join nested names with dots, as in 'w\.weight'"),
        ([1.0, 2.0], r"list is not a tensor. Give numpy.asarray"),
        (3, r"int is not a tensor. Give numpy.asarray"),
        (True, "bool is not a tensor"),
        ("text", "str is not a tensor"),
        (None, "NoneType is not a tensor"),
        (np.array(["a"]), "not a tensor dtype"),
        (np.array([None]), "not a tensor dtype"),
        (np.zeros(1, [("x", "f4")]), "not a tensor dtype"),
        (np.datetime64("2020-01-01"), "not a tensor dtype"),
        (np.ma.masked_array([1.0], [True]), r"a masked array.*filled"),
    ],
    ids=repr,
)
def test_what_is_no_tensor_is_refused_by_name(value: Any, message: str, tmp_path: Path):
    with pytest.raises(UnsupportedError, match=message) as caught:
        firekeep.save_file({"fine": np.ones(1), "w": value}, tmp_path / "m.safetensors")
    assert caught.value.tensor == "w"
    assert not list(tmp_path.iterdir())


def test_an_object_that_fails_to_give_an_array_is_named(tmp_path: Path):
    class Key:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            raise TypeError("a typed key has no array")

    with pytest.raises(UnsupportedError, match=r"tensor 'rng': Key gives no array: a typed key has no array"):
        firekeep.save_file({"rng": Key()}, tmp_path / "m.bpk")


def test_what_is_no_mapping_is_refused(tmp_path: Path):
    with pytest.raises(TypeError, match="a mapping of names to tensors is needed, not list"):
        firekeep.save_file([np.ones(1)], tmp_path / "m.bpk")  # type: ignore[arg-type]
    with pytest.raises(MetadataError, match=r"the tensor name 3 is int"):
        firekeep.save_file({3: np.ones(1)}, tmp_path / "m.bpk")  # type: ignore[dict-item]


@SUFFIXES
@pytest.mark.parametrize("name", ["", "a.b", "/etc/passwd", "../x", "é\0", "层.权重", "a b", "🔥"])
def test_names_are_kept_as_they_are(name: str, suffix: str, tmp_path: Path):
    path = firekeep.save_file({name: np.ones(1)}, tmp_path / f"m{suffix}")
    assert list(firekeep.load_file(path)) == [name]
    assert list(tmp_path.iterdir()) == [path]


@SUFFIXES
def test_metadata_is_kept_and_checked(suffix: str, tmp_path: Path):
    path = firekeep.save_file(ONE, tmp_path / f"m{suffix}", metadata={"run": "a1", "": "é"})
    with firekeep.open(path) as file:
        assert file.metadata == {"run": "a1", "": "é"}
    for wrong, message in (({"n": 3}, r"value of 'n' is int"), ({3: "n"}, r"key 3 is int"), ({"n": None}, "NoneType")):
        with pytest.raises(MetadataError, match=message):
            firekeep.save_file(ONE, path, metadata=wrong)


def test_scalars_are_kept_with_their_kinds(tmp_path: Path):
    given = {"step": 3, "loss": 0.5, "done": True, "seed": np.uint32(9), "big": 2**63, "x": Scalar("uint", 1)}
    path = firekeep.save_file(ONE, tmp_path / "m.bpk", scalars=given)
    with firekeep.open(path) as file:
        assert file.scalars == {
            "step": Scalar("int", 3),
            "loss": Scalar("float", 0.5),
            "done": Scalar("bool", True),
            "seed": Scalar("uint", 9),
            "big": Scalar("uint", 2**63),
            "x": Scalar("uint", 1),
        }


def test_what_is_no_scalar_is_refused_by_name(tmp_path: Path):
    for wrong in ("text", None, 2**64, [1]):
        with pytest.raises(ScalarError, match="scalar 'step': "):
            firekeep.save_file(ONE, tmp_path / "m.bpk", scalars={"step": wrong})
    with pytest.raises(MetadataError, match="scalar name 3 is int"):
        firekeep.save_file(ONE, tmp_path / "m.bpk", scalars={3: 1})  # type: ignore[dict-item]


def test_scalars_and_ids_are_for_formats_that_hold_them(tmp_path: Path):
    path = tmp_path / "m.safetensors"
    with pytest.raises(UnsupportedError, match=r"step.*Write \.bpk, which keeps them"):
        firekeep.save_file(ONE, path, scalars={"step": 3})
    with pytest.raises(UnsupportedError, match=r"hold no parameter ids. Write \.bpk, which keeps them"):
        firekeep.save_file(ONE, path, param_ids={"w": 3})
    assert not path.exists()


def test_parameter_ids_are_taken_in_every_form(tmp_path: Path):
    number = ParamId(14101554053607715927)
    for given in (number, int(number), str(number)):
        path = firekeep.save_file(ONE | {"x": np.ones(1)}, tmp_path / "m.bpk", param_ids={"w": given})
        with firekeep.open(path) as file:
            assert file.entry("w").param_id == number
            assert file.entry("x").param_id is None


@pytest.mark.parametrize("value", [-1, 2**64, "not an id!", 1.5, True, None])
def test_what_is_no_parameter_id_is_refused(value: Any, tmp_path: Path):
    with pytest.raises(FirekeepError, match="parameter id") as caught:
        firekeep.save_file(ONE, tmp_path / "m.bpk", param_ids={"w": value})
    assert caught.value.tensor == "w"


def test_a_parameter_id_of_no_tensor_is_refused(tmp_path: Path):
    with pytest.raises(RuleError, match="'typo', which no tensor is called"):
        firekeep.save_file(ONE, tmp_path / "m.bpk", param_ids={"typo": 1})


def test_the_suffix_decides_and_format_overrides_it(tmp_path: Path):
    for name, format, expected in (
        ("a.bpk", None, "burnpack"),
        ("a.BPK", None, "burnpack"),
        ("a.safetensors", None, "safetensors"),
        ("a.bin", "safetensors", "safetensors"),
        ("a", "burnpack", "burnpack"),
    ):
        with firekeep.open(firekeep.save_file(ONE, tmp_path / name, format=format)) as file:
            assert file.format == expected


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        ("a.pt", None, r"read, not written: they are pickles.*Write \.bpk or \.safetensors"),
        ("a.ckpt", None, "they are pickles"),
        ("a.onnx", None, r"no format is known by the suffix '\.onnx'. Use one of \.bpk, \.safetensors"),
        ("a.h5", None, r"hdf5 files are read, not written: Keras writes its own. Write \.bpk or \.safetensors instead"),
        ("a.npz", None, r"numpy files are read, not written"),
        ("a.gguf", None, r"gguf files are read, not written"),
        ("a.msgpack", None, r"flax files are read, not written"),
        ("a", None, r"Use one of \.bpk, \.safetensors"),
        ("a.bpk", "pytorch", "they are pickles"),
        ("a.bpk", "onnx", "there is no format 'onnx' to write: one of burnpack, safetensors"),
    ],
)
def test_formats_that_are_not_written_are_refused_with_those_that_are(
    name: str, format: str | None, message: str, tmp_path: Path
):
    with pytest.raises(UnsupportedError, match=message):
        firekeep.save_file(ONE, tmp_path / name, format=format)
    assert not list(tmp_path.iterdir())


@SUFFIXES
def test_one_array_under_two_names_is_stored_once_or_twice(suffix: str, tmp_path: Path):
    array = np.zeros((100, 100), np.float32)
    tensors = {"head.weight": array, "embed.weight": array, "copy.weight": array.copy()}
    kept = firekeep.save_file(tensors, tmp_path / f"kept{suffix}")
    full = firekeep.save_file(tensors, tmp_path / f"full{suffix}", ties="expand")
    assert 80_000 < kept.stat().st_size < 90_000
    assert 120_000 < full.stat().st_size < 130_000
    for path in (kept, full):
        assert firekeep.load_file(path).keys() == tensors.keys()
    with firekeep.open(kept) as file:
        assert len(file.ties) == 1
    with firekeep.open(full) as file:
        assert file.ties == {}
        assert len(file) == 3


def test_another_word_for_ties_is_refused(tmp_path: Path):
    with pytest.raises(RuleError, match="'keep' stores tied tensors once"):
        firekeep.save_file(ONE, tmp_path / "m.bpk", ties="both")


@SUFFIXES
def test_different_views_of_one_array_are_no_ties(suffix: str, tmp_path: Path):
    array = np.arange(6, dtype=np.float32)
    tensors = {"all": array, "half": array[:3], "other": array[3:], "turned": array.reshape(2, 3)}
    path = firekeep.save_file(tensors, tmp_path / f"m{suffix}")
    loaded = firekeep.load_file(path)
    assert all(np.array_equal(loaded[name], tensors[name]) for name in tensors)
    with firekeep.open(path) as file:
        assert file.ties == {}


@SUFFIXES
def test_bytes_are_those_of_the_file(suffix: str, tmp_path: Path):
    tensors = {"b": BASE, "a": BASE.T, "c": BASE}
    options: dict[str, Any] = {"metadata": {"k": "v"}, "digest": True}
    path = firekeep.save_file(tensors, tmp_path / f"m{suffix}", **options)
    format = {".bpk": "burnpack", ".safetensors": "safetensors"}[suffix]
    assert firekeep.save_bytes(tensors, format=format, **options) == path.read_bytes()


def test_a_format_that_is_not_written_gives_no_bytes():
    with pytest.raises(UnsupportedError, match="they are pickles"):
        firekeep.save_bytes(ONE, format="pytorch")


@SUFFIXES
def test_an_existing_file_is_replaced_unless_told_otherwise(suffix: str, tmp_path: Path):
    path = firekeep.save_file(ONE, tmp_path / f"m{suffix}")
    before = path.read_bytes()
    drawn: list[int] = []
    entry = TensorEntry("w", BY_NAME["U8"], (1,), DeferredBlob(1, lambda: drawn.append(1) or b"x"))
    with pytest.raises(ExistsError, match="overwrite=True"):
        firekeep.save_file({"w": entry}, path, overwrite=False)
    assert drawn == []
    assert path.read_bytes() == before
    firekeep.save_file({"w": entry}, path)
    assert firekeep.load_file(path)["w"].tolist() == [ord("x")]


@SUFFIXES
def test_progress_ends_at_the_total(suffix: str, tmp_path: Path):
    told: list[tuple[int, int]] = []
    firekeep.save_file(
        {f"t{index}": np.ones(1000, np.float32) for index in range(5)},
        tmp_path / f"m{suffix}",
        progress=lambda done, total: told.append((done, total)),
    )
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len({total for _, total in told}) == 1
    assert told[-1][0] == told[-1][1] >= 20_000


def test_limits_are_obeyed(tmp_path: Path):
    with pytest.raises(LimitError) as caught:
        firekeep.save_file({"a": BASE, "b": BASE.copy()}, tmp_path / "m.bpk", limits=Limits(burnpack_tensors=1))
    assert caught.value.path == str(tmp_path / "m.bpk")
    assert not list(tmp_path.iterdir())


def test_a_tensor_the_format_cannot_hold_is_refused_by_name(tmp_path: Path):
    with pytest.raises(UnsupportedError, match="C64") as caught:
        firekeep.save_file({"fine": BASE, "odd": BASE.astype(np.complex64)}, tmp_path / "m.bpk")
    assert caught.value.tensor == "odd"
    with pytest.raises(UnsupportedError, match="C128"):
        firekeep.save_file({"odd": BASE.astype(np.complex128)}, tmp_path / "m.safetensors")


def test_durable_false_writes_the_same_file(tmp_path: Path):
    first = firekeep.save_file(ONE, tmp_path / "a.bpk")
    second = firekeep.save_file(ONE, tmp_path / "b.bpk", durable=False)
    assert first.read_bytes() == second.read_bytes()


def test_metadata_that_is_no_mapping_is_refused(tmp_path: Path):
    with pytest.raises(MetadataError, match="not list"):
        firekeep.save_file({}, tmp_path / "a.bpk", metadata=["a"])


@pytest.mark.parametrize(
    "act", [lambda path: firekeep.save_file({}, path), firekeep.open, firekeep.doctor, firekeep.scan]
)
def test_a_nul_in_a_path_is_refused(act: Any):
    with pytest.raises(RuleError, match="NUL character"):
        act("a\0b.bpk")


def test_bytes_that_no_memory_holds_are_refused():
    huge = TensorEntry("w", BY_NAME["U8"], (1 << 45,), DeferredBlob(1 << 45, lambda: b""))
    with pytest.raises(LimitError, match="bytes of memory are needed for the file"):
        firekeep.save_bytes({"w": huge}, format="safetensors")
