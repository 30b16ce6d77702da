"""What stands in the pickles of real training runs beside the tensors."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

import firekeep
import pickles as made
from firekeep import FormatError, LimitError, TruncatedError, UnsafePickleError, UnsupportedError
from reports.files import FOUR, described, raw_safetensors

TENSOR = made.tensor("FloatStorage", "0", 4)
NO_HOOKS = made.name("collections", "OrderedDict") + made.EMPTY_TUPLE + made.REDUCE


def double(value: float) -> bytes:
    return b"G" + struct.pack(">d", value)


def numpy_dtype(code: str) -> bytes:
    made_dtype = made.call("numpy", "dtype", made.text(code), made.FALSE, made.TRUE)
    state = [made.number(3), made.text("<"), made.NONE, made.NONE, made.NONE]
    return made_dtype + made.group(*state, *([made.number(-1)] * 2), made.number(0)) + made.BUILD


def numpy_scalar(code: str, raw: bytes, module: str = "numpy.core.multiarray") -> bytes:
    return made.call(module, "scalar", numpy_dtype(code), made.raw_bytes(raw))


def checkpoint(**values: bytes) -> bytes:
    body = made.mapping({"state_dict": made.ordered({"w": TENSOR}), **values})
    return made.zip_file(made.pickled(body), {"0": FOUR})


def values_of(file: bytes) -> Any:
    with firekeep.open(file) as opened:
        assert opened["state_dict.w"].tolist() == [1, 2, 3, 4]
        return opened.values()


# nerfstudio#3702, bark#653, deepmd-kit#4147: a NumPy scalar among the values stops the whole load.
@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
@pytest.mark.parametrize(
    ("code", "raw", "value"),
    [
        ("f8", struct.pack("<d", 0.75), 0.75),
        ("f4", struct.pack("<f", -2.5), -2.5),
        ("i8", struct.pack("<q", -7), -7),
        ("u2", struct.pack("<H", 65_535), 65_535),
        ("b1", b"\x01", True),
    ],
)
def test_numpy_scalars_are_plain_values(module: str, code: str, raw: bytes, value: object):
    assert values_of(checkpoint(best=numpy_scalar(code, raw, module)))["best"] == value


def test_numpy_arrays_among_the_values_are_arrays():
    array = made.call(
        "numpy.core.multiarray", "_reconstruct", made.name("numpy", "ndarray"), made.numbers((0,)), made.raw_bytes(b"b")
    )
    state = made.group(
        made.number(1),
        made.numbers((2, 2)),
        numpy_dtype("i4"),
        made.FALSE,
        made.raw_bytes(struct.pack("<4i", 1, 2, 3, 4)),
    )
    assert values_of(checkpoint(confusion=array + state + made.BUILD))["confusion"].tolist() == [[1, 2], [3, 4]]


# ROCm/Megatron-LM#56, mlperf-automations#465: an argparse.Namespace; POSTER_V2#18, pytorch#2762, InferSent#11: classes of
# a script that nobody has.
@pytest.mark.parametrize(
    "place",
    [
        "argparse.Namespace",
        "__main__.RecorderMeter1",
        "models.resnet.Net",
        "omegaconf.dictconfig.DictConfig",
        "no.such.Class",
    ],
)
def test_an_object_of_a_foreign_class_is_shown_by_name_and_never_made(place: str):
    module, _, name = place.rpartition(".")
    state = made.mapping({"lr": double(0.1), "epochs": made.number(3)})
    found = values_of(checkpoint(args=made.new(module, name, state)))["args"]
    assert found.name == place
    assert found.state == {"lr": 0.1, "epochs": 3}


def test_foreign_classes_are_listed_with_the_file():
    with firekeep.open(checkpoint(recorder=made.new("__main__", "RecorderMeter1", made.mapping({})))) as file:
        assert any("__main__.RecorderMeter1" in note for note in file.notes)
        assert file.keys() == ["state_dict.w"]


# fastai#3921, voila#819: a path of the other system cannot be built.
@pytest.mark.parametrize(
    ("name", "parts", "value"),
    [
        ("PosixPath", ("/", "data", "train"), "/data/train"),
        ("PosixPath", ("runs", "1"), "runs/1"),
        ("WindowsPath", ("C:\\", "data"), "C:\\data"),
        ("PurePosixPath", ("a",), "a"),
        ("PureWindowsPath", ("a", "b"), "a\\b"),
    ],
)
def test_a_path_of_any_system_is_text(name: str, parts: tuple[str, ...], value: str):
    assert values_of(checkpoint(path=made.call("pathlib", name, *map(made.text, parts))))["path"] == value


# burn#5595: tensors in lists and tuples were dropped.
@pytest.mark.parametrize("shape", ["list", "tuple", "nested"])
def test_tensors_in_sequences_are_named_by_their_index(shape: str):
    halves = [made.tensor("FloatStorage", "0", 4, shape=(2,), offset=offset) for offset in (0, 2)]
    held = {"list": made.sequence(*halves), "tuple": made.group(*halves), "nested": made.sequence(made.group(*halves))}
    file = made.zip_file(made.pickled(made.mapping({"weights": held[shape]})), {"0": FOUR})
    prefix = "weights.0." if shape == "nested" else "weights."
    with firekeep.open(file) as opened:
        assert {name: opened[name].tolist() for name in opened} == {f"{prefix}0": [1, 2], f"{prefix}1": [3, 4]}


# flowtyone#8, pytorch-lightning#20058: a Lightning checkpoint, with callbacks keyed by class.
def test_a_lightning_checkpoint_shows_where_its_model_is_and_what_else_it_holds():
    callbacks = made.pairs(
        [(made.name("pytorch_lightning.callbacks", "ModelCheckpoint"), made.mapping({"best": made.number(1)}))]
    )
    file = checkpoint(
        callbacks=callbacks,
        epoch=made.number(3),
        hyper_parameters=made.new("omegaconf", "DictConfig", made.mapping({"lr": double(0.1)})),
        optimizer_states=made.sequence(made.mapping({"state": made.mapping({}), "param_groups": made.sequence()})),
    )
    values = values_of(file)
    assert list(values) == ["state_dict", "callbacks", "epoch", "hyper_parameters", "optimizer_states"]
    assert values["callbacks"] == {"pytorch_lightning.callbacks.ModelCheckpoint": {"best": 1}}
    with firekeep.open(file) as opened:
        assert opened.subtrees == ("state_dict",)
        assert any("'state_dict'" in note for note in opened.notes)
    with firekeep.open(file, top_level_key="state_dict") as opened:
        assert opened.keys() == ["w"]


# git-theta#18, and Burn's with_top_level_key: the model lies under a key, or two of them.
@pytest.mark.parametrize("key", ["state_dict", "model", "net", "model_state_dict", "generator", "weights"])
def test_the_one_model_of_a_checkpoint_is_found_under_any_key(key: str):
    body = made.mapping({key: made.ordered({"fc.w": TENSOR, "fc.b": TENSOR}), "epoch": made.number(2)})
    with firekeep.open(made.zip_file(made.pickled(body), {"0": FOUR})) as file:
        assert file.subtrees == (key,)
        assert file.keys() == [f"{key}.fc.w", f"{key}.fc.b"]


def test_two_models_of_a_checkpoint_are_both_offered():
    weights = made.ordered({"fc.w": TENSOR, "fc.b": TENSOR})
    file = made.zip_file(
        made.pickled(made.mapping({"model": weights, "ema": weights, "step": made.number(9)})), {"0": FOUR}
    )
    with firekeep.open(file) as opened:
        assert opened.subtrees == ("model", "ema")
        assert any("choose one as top_level_key" in note for note in opened.notes)
        assert len(opened) == 4
    with firekeep.open(file, top_level_key="ema") as opened:
        assert opened.keys() == ["fc.w", "fc.b"]
    with pytest.raises(firekeep.TensorNotFoundError, match="'model'"):
        firekeep.open(file, top_level_key="modle")


def untyped(numel: int) -> bytes:
    parts = (
        made.text("storage"),
        made.name("torch", "UntypedStorage"),
        made.text("0"),
        made.text("cpu"),
        made.number(numel),
    )
    return made.group(*parts) + made.BINPERSID


# pytorch#131470, pytorch#114634, hub#4901: newer dtypes come by another rebuild function and an untyped storage.
@pytest.mark.parametrize(
    ("name", "row", "shape"),
    [
        ("uint16", "U16", (4,)),
        ("uint32", "U32", (2,)),
        ("uint64", "U64", (1,)),
        ("float8_e4m3fn", "F8_E4M3", (2, 4)),
        ("float8_e5m2", "F8_E5M2", (8,)),
        ("float8_e4m3fnuz", "F8_E4M3FNUZ", (8,)),
        ("float8_e5m2fnuz", "F8_E5M2FNUZ", (8,)),
        ("float8_e8m0fnu", "F8_E8M0", (8,)),
        ("bfloat16", "BF16", (4,)),
        ("complex64", "C64", (1,)),
    ],
)
def test_dtypes_of_untyped_storages_are_read(name: str, row: str, shape: tuple[int, ...]):
    raw = bytes(range(56, 64))
    rebuilt = made.call(
        "torch._utils", "_rebuild_tensor_v3", untyped(8), made.number(0), made.numbers(shape),
        made.numbers(made.row_major(shape)), made.FALSE, NO_HOOKS, made.name("torch", name),
    )  # fmt: skip
    with firekeep.open(made.zip_file(made.pickled(made.ordered({"w": rebuilt})), {"0": raw})) as file:
        entry = file.entry("w")
        assert entry.dtype is not None
        assert (entry.dtype.name, entry.shape, bytes(entry.read())) == (row, shape, raw)
        assert file["w"].tobytes() == raw


QUANTIZED = made.call(
    "torch._utils", "_rebuild_qtensor", made.storage("QInt8Storage", "1", 4), made.number(0), made.numbers((4,)),
    made.numbers((1,)), made.group(made.name("torch", "per_tensor_affine"), double(0.5), made.number(0)), made.FALSE, NO_HOOKS,
)  # fmt: skip
SPARSE = made.call(
    "torch._utils", "_rebuild_sparse_tensor",
    made.call("torch.serialization", "_get_layout", made.text("torch.sparse_coo")),
    made.group(
        made.tensor("LongStorage", "1", 2, shape=(1, 2)), made.tensor("FloatStorage", "0", 4, shape=(2,)),
        made.numbers((4,)), made.TRUE,
    ),
)  # fmt: skip
SUBCLASS = made.call(
    "torch._utils", "_rebuild_wrapper_subclass", made.name("torchao.dtypes", "AffineQuantizedTensor"),
    made.name("torch", "bfloat16"), made.numbers((4,)), made.numbers((1,)), made.number(0), made.name("torch", "strided"),
    made.call("torch", "device", made.text("cpu")), made.FALSE,
)  # fmt: skip
SUBCLASS_BY_TYPE = made.call(
    "torch._tensor", "_rebuild_from_type_v2", made.name("torch._utils", "_rebuild_wrapper_subclass"),
    made.name("torchao.dtypes", "AffineQuantizedTensor"),
    made.group(
        made.name("torchao.dtypes", "AffineQuantizedTensor"), made.name("torch", "bfloat16"), made.numbers((4,)),
        made.numbers((1,)), made.number(0), made.name("torch", "strided"),
        made.call("torch", "device", made.text("cpu")), made.FALSE,
    ),
    made.mapping({}),
)  # fmt: skip
META = made.call(
    "torch._utils", "_rebuild_meta_tensor_no_storage", made.name("torch", "float32"), made.numbers((4,)),
    made.numbers((1,)), made.FALSE,
)  # fmt: skip


# ao#2478, ao#3800, ao#630: a quantized subclass; diffusers#11018: quantized, sparse and nested tensors;
# pytorch#112213, pytorch#105963, safetensors#300: meta tensors, which have no data.
@pytest.mark.parametrize(
    ("tensor", "cause"),
    [
        (QUANTIZED, "it is quantized"),
        (SPARSE, "it is sparse"),
        (made.call("torch._utils", "_rebuild_nested_tensor", TENSOR, TENSOR, TENSOR, TENSOR), "it is nested"),
        (SUBCLASS, r"it is a torchao\.dtypes\.AffineQuantizedTensor"),
        (SUBCLASS_BY_TYPE, r"it is a torchao\.dtypes\.AffineQuantizedTensor"),
        (META, "it is on the meta device: it was saved without data"),
    ],
    ids=["quantized", "sparse", "nested", "wrapper subclass", "subclass by type", "meta"],
)
def test_a_tensor_without_plain_bytes_is_refused_by_name_and_the_rest_is_read(tensor: bytes, cause: str):
    body = made.ordered({"odd": tensor, "w": TENSOR})
    with firekeep.open(
        made.zip_file(made.pickled(body), {"0": FOUR, "1": bytes(4 if tensor is QUANTIZED else 16)})
    ) as file:
        assert file.keys() == ["odd", "w"]
        with pytest.raises(UnsupportedError, match=f"tensor 'odd': {cause}"):
            file.array("odd")
        assert file["w"].tolist() == [1, 2, 3, 4]
        assert any("'odd'" in note for note in file.notes)


def test_meta_tensors_are_never_tied():
    with firekeep.open(made.zip_file(made.pickled(made.ordered({"a": META, "b": META})))) as file:
        assert file.ties == {}
    with firekeep.open(made.zip_file(made.pickled(made.ordered({"a": TENSOR, "b": TENSOR})), {"0": FOUR})) as file:
        assert file.ties == {"b": "a"}


# modelaudit#624: pickles of protocol 0 and 1.
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol_are_read(protocol: int):
    value = {"a": 1, "b": [1.5, "text"], "c": (None, True, False), "d": -(1 << 70), "e": {"f": b"bytes", 3: "int key"}}
    with firekeep.open(pickle.dumps(value, protocol)) as file:
        assert len(file) == 0
        found = file.values()
    assert found["a"] == 1
    assert found["b"] == [1.5, "text"]
    assert found["c"] == (None, True, False)
    assert found["d"] == -(1 << 70)
    assert found["e"]["f"] == b"bytes"


# aisbom#82: bombs of nesting and memo, and a payload before the cut.
BOMBS = {
    "a million marks": (b"\x80\x02" + b"(" * 1_000_000 + b".", LimitError, "open marks"),
    "a million nested lists": (b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".", LimitError, "more than"),
    "a million nested tuples": (b"\x80\x02)" + b"\x85" * 1_000_000 + b".", LimitError, "deep|more than"),
    "no STOP": (b"\x80\x02}X\x01\x00\x00\x00aK\x01s", TruncatedError, "before its STOP"),
    "a length past the end": (b"\x80\x02X\xff\xff\xff\x7fabc.", TruncatedError, "cut short"),
    "a long integer past the end": (b"\x80\x02\x8b\xff\xff\xff\x7f\x01.", TruncatedError, "cut short"),
    "an empty stack": (b"\x80\x02}0000.", UnsafePickleError, "stack"),
}


@pytest.mark.parametrize(("file", "error", "words"), BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("layout", ["bare", "zip"])
def test_a_pickle_bomb_is_refused(file: bytes, error: type[FormatError], words: str, layout: str):
    with pytest.raises(error, match=words):
        firekeep.open(file if layout == "bare" else made.zip_file(file))


def test_values_shared_a_billion_times_take_no_memory_of_their_size():
    body = b"\x80\x02" + made.mapping({"w": TENSOR}) + b"0]q\x000"
    for level in range(60):
        body += b"](h" + bytes([level]) + b"h" + bytes([level]) + b"eq" + bytes([level + 1]) + b"0"
    body += b"h\x3c."
    with firekeep.open(made.zip_file(body, {"0": FOUR})) as file:
        assert file.keys() == []
        level = file.values()
    depth = 0
    while level:
        assert level[0] is level[1]  # one list in two places, as in the file, and not two of them
        level, depth = level[0], depth + 1
    assert depth == 60


def test_a_memo_index_takes_no_memory_of_its_size():
    with firekeep.open(b"\x80\x02Nr" + struct.pack("<I", 1 << 31) + b".") as file:
        assert file.values() is None


def test_a_payload_before_the_cut_is_seen_by_the_scan(tmp_path: Path):
    marker = tmp_path / "ran"
    payload = b"\x80\x02" + made.call("os", "system", made.text(f"touch {marker}")) + b"X\xff"
    with pytest.raises(TruncatedError):
        firekeep.open(payload)
    report = firekeep.scan(payload)
    assert "os.system" in str(report)
    assert not marker.exists()


# Cutie#37, ray_lightning#38: a file saved on another device.
@pytest.mark.parametrize("device", ["cuda:0", "cuda:7", "mps", "xla:1", "privateuseone"])
def test_the_device_a_tensor_was_saved_on_does_not_matter(device: str):
    placed = TENSOR.replace(made.text("cpu"), made.text(device))
    with firekeep.open(made.zip_file(made.pickled(made.ordered({"w": placed})), {"0": FOUR})) as file:
        assert file["w"].tolist() == [1, 2, 3, 4]


def test_a_safetensors_file_has_no_values():
    with firekeep.open(raw_safetensors({"w": described("F32", [4], 0, 16)}, FOUR)) as file:
        assert file.values() == {}
