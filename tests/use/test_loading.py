from __future__ import annotations

import gc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import firekeep
from firekeep import LimitError, Limits, RuleError, UnsupportedError
from firekeep.blobs import MemoryBlob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from use.checkpoints import Checkpoint, state_dict, training

CASES = Path(__file__).parents[1] / "data" / "cases" / "files"
ARRAYS = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.array([1, -2], ml_dtypes.bfloat16),
    "c": np.array(7, np.int64),
    "d": np.zeros((0, 3), np.float16),
    "e": np.array([[True, False]]),
    "f": np.array([0.5, 448], ml_dtypes.float8_e4m3fn),
}
BOTH = pytest.mark.parametrize("copy", [False, True], ids=["mapped", "copied"])
SUFFIXES = pytest.mark.parametrize("suffix", [".safetensors", ".bpk"])


def equal(loaded: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    return loaded.keys() == wanted.keys() and all(
        loaded[name].dtype == wanted[name].dtype
        and loaded[name].shape == wanted[name].shape
        and loaded[name].tobytes() == wanted[name].tobytes()
        for name in wanted
    )


@BOTH
@SUFFIXES
def test_what_was_saved_is_loaded(suffix: str, copy: bool, tmp_path: Path):
    held = {name: array for name, array in ARRAYS.items() if suffix != ".bpk" or name != "f"}
    path = firekeep.save_file(held, tmp_path / f"m{suffix}")
    assert equal(firekeep.load_file(path, copy=copy), held)


@BOTH
def test_arrays_are_writable_and_the_file_stays_as_it_is(copy: bool, tmp_path: Path):
    path = firekeep.save_file(ARRAYS, tmp_path / "m.safetensors")
    before = path.read_bytes()
    for source in (path, before, path.open("rb")):
        loaded = firekeep.load_file(source, copy=copy)
        for array in loaded.values():
            assert array.flags.writeable
            array[...] = 0
        assert not loaded["a"].any()
        if hasattr(source, "close"):
            source.close()
    assert path.read_bytes() == before
    assert equal(firekeep.load_file(path), ARRAYS)


@BOTH
def test_arrays_stay_what_they_are_when_the_file_is_replaced(copy: bool, tmp_path: Path):
    path = firekeep.save_file(ARRAYS, tmp_path / "m.safetensors")
    loaded = firekeep.load_file(path, copy=copy)
    firekeep.save_file({"a": np.zeros(3)}, path)
    gc.collect()
    assert equal(loaded, ARRAYS)


@BOTH
def test_names_come_in_the_order_of_the_file(copy: bool, tmp_path: Path):
    arrays = {name: np.ones(size, np.float32) for name, size in zip("zyxw", (1, 0, 2, 3), strict=True)}
    path = firekeep.save_file(arrays, tmp_path / "m.bpk")
    assert list(firekeep.load_file(path, copy=copy)) == list("zyxw")


@BOTH
@SUFFIXES
def test_tied_names_give_memory_that_is_shared(suffix: str, copy: bool, tmp_path: Path):
    shared = np.arange(4, dtype=np.float32)
    path = firekeep.save_file({"head.w": shared, "embed.w": shared, "own": shared.copy()}, tmp_path / f"m{suffix}")
    loaded = firekeep.load_file(path, copy=copy)
    assert sorted(loaded) == ["embed.w", "head.w", "own"]
    loaded["head.w"][0] = 9
    assert loaded["embed.w"][0] == 9
    assert loaded["own"][0] == 0
    if suffix == ".safetensors":
        assert loaded["head.w"] is loaded["embed.w"]


def test_a_tied_name_is_loaded_without_the_one_it_is_tied_to(tmp_path: Path):
    shared = np.arange(4, dtype=np.float32)
    path = firekeep.save_file({"head.w": shared, "embed.w": shared}, tmp_path / "m.safetensors")
    assert equal(firekeep.load_file(path, include="^head"), {"head.w": shared})
    assert equal(firekeep.load_file(path, include="^head", copy=True), {"head.w": shared})


def test_tensors_of_a_checkpoint_keep_their_full_names():
    arrays = {"w": np.ones(2, np.float32)}
    data = training(arrays)
    assert sorted(firekeep.load_file(data)) == ["optimizer.state.0.exp_avg", "state_dict.w"]
    assert sorted(firekeep.load_file(data, top_level_key="state_dict")) == ["w"]


@BOTH
def test_views_of_storages_are_gathered_and_tied_ones_shared(copy: bool, tmp_path: Path):
    import pickles

    made = Checkpoint()
    base = made.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    turned = pickles.tensor("FloatStorage", "0", 6, shape=(3, 2), strides=(1, 3))
    path = tmp_path / "m.pt"
    path.write_bytes(made.file(pickles.ordered({"w": base, "t": turned, "u": turned})))
    loaded = firekeep.load_file(path, copy=copy)
    assert loaded["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert loaded["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    loaded["t"][0, 0] = 9
    assert loaded["u"][0, 0] == 9


@BOTH
def test_sharded_sets_are_loaded_writable(copy: bool):
    folder = CASES / "safetensors" / "fluxml_shard"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    loaded = firekeep.load_file(folder, copy=copy)
    with firekeep.open(folder) as file:
        assert list(loaded) == file.keys()
        assert all(np.array_equal(loaded[name], file[name]) for name in file)
    for array in loaded.values():
        array[...] = 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@BOTH
def test_packed_halves_are_unpacked(copy: bool, tmp_path: Path):
    entry = TensorEntry("x", BY_NAME["F4"], (4,), MemoryBlob(bytes([0x21, 0x43])))
    path = firekeep.save_file({"x": entry}, tmp_path / "m.safetensors")
    loaded = firekeep.load_file(path, copy=copy)["x"]
    assert loaded.astype(np.float32).tolist() == [0.5, 1.0, 1.5, 2.0]
    assert loaded.flags.writeable


def test_only_some_tensors_are_loaded_on_request(tmp_path: Path):
    path = firekeep.save_file(ARRAYS, tmp_path / "m.safetensors")
    assert sorted(firekeep.load_file(path, include="[ab]")) == ["a", "b"]
    assert sorted(firekeep.load_file(path, exclude=["[ab]", "f"])) == ["c", "d", "e"]
    with pytest.raises(RuleError, match="none of the 6 tensors is left") as caught:
        firekeep.load_file(path, include="nothing")
    assert "'a'" in str(caught.value)
    assert caught.value.path == str(path)
    with pytest.raises(RuleError, match="is not a regular expression"):
        firekeep.load_file(path, include="(")


def strided() -> bytes:
    import pickles

    made = Checkpoint()
    made.tensor(np.arange(6, dtype=np.float32))
    return made.file(pickles.ordered({"t": pickles.tensor("FloatStorage", "0", 6, shape=(3, 2), strides=(1, 3))}))


def with_problems() -> bytes:
    import pickles

    made = Checkpoint()
    fine = made.tensor(np.ones(2, np.float32))
    lost = pickles.tensor("FloatStorage", "7", 4)
    return made.file(pickles.ordered({"fine": fine, "lost.a[0]": lost, "lost.b": lost}))


@BOTH
def test_tensors_without_bytes_are_refused_all_by_name_and_the_remedy_works(copy: bool):
    with pytest.raises(
        UnsupportedError, match=r"2 of the tensors cannot be given: 'lost.a\[0\]': .*; 'lost.b': "
    ) as caught:
        firekeep.load_file(with_problems(), copy=copy)
    remedy = caught.value.remedy or ""
    options = eval(f"dict({remedy[remedy.index('exclude=') :].rstrip('.')})")  # what a user would paste
    assert list(firekeep.load_file(with_problems(), copy=copy, **options)) == ["fine"]


def test_types_numpy_has_not_are_refused_by_name(tmp_path: Path):
    odd = TensorEntry("odd", BY_NAME["F6_E2M3"], (4,), MemoryBlob(b"abc"))
    path = firekeep.save_file({"odd": odd, "fine": np.ones(2)}, tmp_path / "m.safetensors")
    with pytest.raises(UnsupportedError, match=r"tensor 'odd': .*NumPy has no type for F6_E2M3"):
        firekeep.load_file(path)
    assert list(firekeep.load_file(path, exclude="odd")) == ["fine"]


def test_a_tensor_larger_than_memory_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch):
    def full(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("firekeep.arrays.as_array", full)
    with pytest.raises(LimitError, match=r"tensor 't': 24 bytes of memory are needed"):
        firekeep.load_file(strided())


def test_limits_are_passed_on(tmp_path: Path):
    path = firekeep.save_file(ARRAYS, tmp_path / "m.safetensors")
    with pytest.raises(LimitError):
        firekeep.load_file(path, limits=Limits(safetensors_tensors=2))


def test_a_file_without_tensors_gives_nothing(tmp_path: Path):
    path = firekeep.save_file({}, tmp_path / "m.safetensors")
    assert firekeep.load_file(path) == {}
    assert firekeep.load_file(path, copy=True, include="x") == {}


def test_many_small_tensors_are_loaded(tmp_path: Path):
    arrays = {f"layers.{index}.w": np.full((2, 2), index, np.float32) for index in range(3000)}
    path = firekeep.save_file(arrays, tmp_path / "m.safetensors")
    assert equal(dict(sorted(firekeep.load_file(path).items())), dict(sorted(arrays.items())))


def test_a_state_dict_is_loaded_whole():
    arrays = {"w": np.ones((2, 2), np.float64), "n": np.array(3)}
    assert equal(firekeep.load_file(state_dict(arrays)), arrays)
