"""Views of storages: strides, offsets, sharing, byte order, dtypes, and the tensors of which no bytes can be given."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import firekeep
from firekeep.arrays import numpy_dtype
from firekeep.blobs import WindowBlob
from firekeep.dtypes import BY_NAME, DType
from firekeep.errors import LimitError, MetadataError, UnsupportedError
from firekeep.limits import DEFAULT_LIMITS
from firekeep.opened import OpenedFile
from pickles import (
    FALSE,
    NONE,
    REDUCE,
    TRUE,
    call,
    floats,
    group,
    legacy_file,
    mapping,
    name,
    number,
    numbers,
    ordered,
    pickled,
    raw_bytes,
    storage,
    tensor,
    text,
    zip_file,
)

HOOKS = name("collections", "OrderedDict") + b")" + REDUCE
SIX = floats(1, 2, 3, 4, 5, 6)


def opened(items: Mapping[str, bytes], storages: Mapping[str, bytes] | None = None, **layout: Any) -> OpenedFile:
    return firekeep.open(zip_file(pickled(ordered(items)), storages or {"0": SIX}, **layout))


def one(body: bytes, storages: Mapping[str, bytes] | None = None, **layout: Any) -> Any:
    return opened({"w": body}, storages, **layout).array("w").tolist()


def test_a_transposed_tensor_is_gathered_by_its_strides():
    assert one(tensor("FloatStorage", "0", 6, shape=(3, 2), strides=(1, 3))) == [[1, 4], [2, 5], [3, 6]]


def test_an_offset_counts_elements():
    assert one(tensor("FloatStorage", "0", 6, shape=(2,), offset=3)) == [4, 5]


def test_steps_and_expanded_axes_are_gathered():
    assert one(tensor("FloatStorage", "0", 6, shape=(3,), strides=(2,))) == [1, 3, 5]
    assert one(tensor("FloatStorage", "0", 6, shape=(2, 3), strides=(0, 1))) == [[1, 2, 3], [1, 2, 3]]
    assert one(tensor("FloatStorage", "0", 6, shape=(2, 2), strides=(0, 0), offset=5)) == [[6, 6], [6, 6]]


def test_overlapping_windows_are_gathered():
    assert one(tensor("FloatStorage", "0", 6, shape=(4, 3), strides=(1, 1))) == [
        [1, 2, 3],
        [2, 3, 4],
        [3, 4, 5],
        [4, 5, 6],
    ]


def test_channels_last_comes_out_in_rows():
    body = tensor("FloatStorage", "0", 6, shape=(1, 3, 1, 2), strides=(6, 1, 6, 3))
    assert one(body) == np.arange(1, 7).reshape(1, 1, 2, 3).transpose(0, 3, 1, 2).tolist()


@settings(deadline=None)
@given(st.data())
def test_any_view_inside_its_storage_is_what_numpy_gathers(data: st.DataObject):
    base = np.arange(60, dtype=np.float32)
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=4)))
    strides = tuple(data.draw(st.integers(0, 9)) for _ in shape)
    offset = data.draw(st.integers(0, 70))
    reach = offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    body = tensor("FloatStorage", "0", 60, shape=shape, strides=strides, offset=offset)
    if 0 not in shape and reach > 59:
        with pytest.raises(MetadataError, match=f"reach element {reach} of a storage of 60"):
            opened({"w": body}, {"0": base.tobytes()})
        return
    array = opened({"w": body}, {"0": base.tobytes()}).array("w")
    assert array.shape == shape
    if array.size:
        expected = np.lib.stride_tricks.as_strided(base[offset:], shape, [stride * 4 for stride in strides])
        assert array.tolist() == expected.tolist()


def test_scalars_and_empty_tensors_have_their_shapes():
    file = opened(
        {
            "scalar": tensor("FloatStorage", "0", 6, shape=(), offset=2),
            "empty": tensor("FloatStorage", "0", 6, shape=(0, 3)),
            "wide": tensor("FloatStorage", "0", 6, shape=(0, 1 << 40)),
            "none": tensor("FloatStorage", "1", 0),
        },
        {"0": SIX, "1": b""},
    )
    assert file.array("scalar") == np.float32(3)
    assert file.array("scalar").shape == ()
    assert file.array("empty").shape == (0, 3)
    assert file.array("wide").shape == (0, 1 << 40)
    assert file.array("none").shape == (0,)


def test_the_stride_of_one_element_may_be_anything():
    body = tensor("FloatStorage", "0", 6, shape=(1, 2, 1), strides=(1 << 70, 3, 1 << 62))
    assert one(body) == [[[1], [4]]]


def test_plain_tensors_are_windows_of_the_file():
    data = zip_file(pickled(ordered({"w": tensor("FloatStorage", "0", 6, shape=(2,), offset=1)})), {"0": SIX})
    entry = firekeep.open(data).entry("w")
    place = entry.blob.window()
    assert place is not None
    assert data[place[1] : place[1] + 8] == SIX[4:12]
    assert np.shares_memory(np.asarray(entry.read()), np.asarray(place[0].view(place[1], 8)))
    legacy = legacy_file(ordered({"w": tensor("FloatStorage", "0", 6)}), {"0": (6, SIX)})
    assert type(firekeep.open(legacy).entry("w").blob) is WindowBlob


def test_two_names_of_one_view_are_tied_and_other_views_are_not():
    file = opened(
        {
            "a": tensor("FloatStorage", "0", 6),
            "b": tensor("FloatStorage", "0", 6),
            "part": tensor("FloatStorage", "0", 6, shape=(3,)),
            "turned": tensor("FloatStorage", "0", 6, shape=(3, 2), strides=(1, 3)),
            "turned too": tensor("FloatStorage", "0", 6, shape=(3, 2), strides=(1, 3)),
        }
    )
    assert file.ties == {"b": "a", "turned too": "turned"}


def test_packed_archives_are_inflated_when_drawn():
    items = {"a": tensor("FloatStorage", "0", 6, shape=(2,), offset=4), "b": tensor("FloatStorage", "0", 6)}
    file = opened(items, packed=True)
    assert file.array("a").tolist() == [5, 6]
    assert file.array("b").tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("offset", [0, 1, 7])
def test_storages_may_lie_at_any_byte(offset: int):
    assert one(tensor("FloatStorage", "0", 6), root="r" * (offset + 1) + "/") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "row", [row for row in BY_NAME.values() if row.storage and row.numpy], ids=lambda row: str(row.name)
)
def test_big_endian_files_are_swapped(row: DType):
    raw = bytes(range(1, 1 + 4 * row.itemsize)) if row.kind != "bool" else b"\1\0\1\1"
    little = np.frombuffer(raw, numpy_dtype(row))
    width = row.itemsize // (2 if row.kind == "complex" else 1)
    big = b"".join(raw[at : at + width][::-1] for at in range(0, len(raw), width))
    items = {
        "w": tensor(str(row.storage), "0", 4),
        "turned": tensor(str(row.storage), "0", 4, shape=(2, 2), strides=(1, 2)),
    }
    file = opened(items, {"0": big}, byteorder=b"big")
    assert file.array("w").tobytes() == little.tobytes()
    assert file.array("turned").tobytes() == little.reshape(2, 2).T.tobytes()
    assert file.details["byte_order"] == "big"


def test_a_file_that_does_not_say_its_byte_order_is_little_endian():
    file = opened({"w": tensor("FloatStorage", "0", 6)}, byteorder=None)
    assert file.array("w").tolist() == [1, 2, 3, 4, 5, 6]
    assert "not said" in file.details["byte_order"]


def test_an_unknown_byte_order_is_refused():
    with pytest.raises(MetadataError, match="'middle', neither little nor big"):
        opened({"w": tensor("FloatStorage", "0", 6)}, byteorder=b"middle")


def test_bools_other_than_0_and_1_are_mended():
    file = opened(
        {"w": tensor("BoolStorage", "0", 4), "fine": tensor("BoolStorage", "1", 2)}, {"0": b"\0\1\2\xff", "1": b"\0\1"}
    )
    assert file.array("w").view(np.uint8).tolist() == [0, 1, 1, 1]
    assert file.array("fine").view(np.uint8).tolist() == [0, 1]


def test_storages_of_old_graphics_cards_are_read():
    body = call(
        "torch._utils",
        "_rebuild_tensor",
        storage("FloatStorage", "0", 6, module="torch.cuda"),
        number(0),
        numbers((6,)),
        numbers((1,)),
    )
    assert one(body) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("uint16", np.uint16), ("uint32", np.uint32), ("uint64", np.uint64), ("float8_e4m3fn", ml_dtypes.float8_e4m3fn)],
)
def test_tensors_of_untyped_storages_have_the_dtype_beside_them(dtype: str, expected: Any):
    values = np.arange(1, 5).astype(expected)
    body = call(
        "torch._utils",
        "_rebuild_tensor_v3",
        storage("UntypedStorage", "0", values.nbytes, module="torch.storage"),
        number(1),
        numbers((3,)),
        numbers((1,)),
        FALSE,
        HOOKS,
        name("torch", dtype),
    )
    file = opened({"w": body}, {"0": values.tobytes()})
    assert file.array("w").dtype == values.dtype
    assert file.array("w").tobytes() == values[1:].tobytes()


def test_a_view_beyond_an_untyped_storage_is_refused():
    body = call(
        "torch._utils",
        "_rebuild_tensor_v3",
        storage("UntypedStorage", "0", 7, module="torch.storage"),
        number(0),
        numbers((4,)),
        numbers((1,)),
        FALSE,
        HOOKS,
        name("torch", "uint16"),
    )
    with pytest.raises(MetadataError, match="reach element 3 of a storage of 3"):
        opened({"w": body}, {"0": bytes(7)})


def test_parameters_are_the_tensors_they_wrap():
    inner = tensor("FloatStorage", "0", 6)
    bodies = {
        "new": call("torch._utils", "_rebuild_parameter", inner, TRUE, HOOKS),
        "with_state": call(
            "torch._utils", "_rebuild_parameter_with_state", inner, TRUE, HOOKS, mapping({"x": number(1)})
        ),
        "old": call("torch.nn.parameter", "Parameter", inner),
        "subclass": call(
            "torch._tensor",
            "_rebuild_from_type_v2",
            name("torch._utils", "_rebuild_parameter"),
            name("my.project", "Special"),
            group(inner, TRUE, HOOKS),
            mapping({}),
        ),
    }
    file = opened(bodies)
    assert all(file.array(key).tolist() == [1, 2, 3, 4, 5, 6] for key in bodies)


def test_tensors_that_are_attributes_of_tensors_are_counted_and_not_listed():
    inner = tensor("FloatStorage", "0", 6)
    body = call("torch._utils", "_rebuild_parameter_with_state", inner, TRUE, HOOKS, mapping({"extra": inner}))
    file = opened({"w": body})
    assert file.keys() == ["w"]
    assert any("1 tensor is an attribute of another tensor" in note for note in file.notes)


def test_bare_storages_are_tensors_of_one_axis():
    assert one(storage("FloatStorage", "0", 6)) == [1, 2, 3, 4, 5, 6]


def test_lazily_conjugated_and_negated_views_are_computed():
    values = np.array([1 + 2j, 3 - 4j], np.complex64)
    held = {"0": values.tobytes(), "1": floats(1, -2)}
    conjugated = tensor("ComplexFloatStorage", "0", 2, metadata=mapping({"conj": TRUE, "neg": FALSE}))
    negated = tensor("FloatStorage", "1", 2, metadata=mapping({"neg": TRUE}))
    neither = tensor("FloatStorage", "1", 2, metadata=mapping({"conj": FALSE, "neg": FALSE}))
    file = opened({"c": conjugated, "n": negated, "plain": neither}, held)
    assert file.array("c").tolist() == [1 - 2j, 3 + 4j]
    assert file.array("n").tolist() == [-1, 2]
    assert file.array("plain").tolist() == [1, -2]


def lost(body: bytes, storages: Mapping[str, bytes] | None = None) -> tuple[str, Any]:
    """Open a file with a tensor that cannot be given beside one that can, and give the reason."""
    file = opened({"odd": body, "w": tensor("FloatStorage", "w", 1)}, {"w": floats(5), **(storages or {})})
    assert file.keys() == ["odd", "w"]
    assert file.array("w").tolist() == [5]
    with pytest.raises(UnsupportedError) as caught:
        file.array("odd")
    assert caught.value.tensor == "odd"
    assert any("'odd'" in note for note in file.notes)
    return caught.value.message, file.entry("odd")


def test_a_missing_storage_costs_only_its_tensors():
    message, entry = lost(tensor("FloatStorage", "gone", 6, shape=(2, 3)))
    assert message == "its storage 'archive/data/gone' is not in the file"
    assert (entry.shape, entry.nbytes) == ((2, 3), 24)


def test_meta_tensors_have_no_data_and_are_tied_to_nothing():
    body = call(
        "torch._utils",
        "_rebuild_meta_tensor_no_storage",
        name("torch", "float16"),
        numbers((2, 3)),
        numbers((3, 1)),
        FALSE,
    )
    message, entry = lost(body)
    assert "meta device" in message
    assert (entry.dtype, entry.shape) == (BY_NAME["F16"], (2, 3))
    assert opened({"a": body, "b": body}).ties == {}


def test_sparse_tensors_are_named_with_their_layout_and_shape():
    indices = tensor("LongStorage", "i", 2, shape=(2, 1))
    values = tensor("FloatStorage", "v", 1)
    held = {"i": bytes(16), "v": floats(3)}
    message, entry = lost(
        call(
            "torch._utils",
            "_rebuild_sparse_tensor",
            name("torch", "sparse_coo"),
            group(indices, values, numbers((4, 5))),
        ),
        held,
    )
    assert "sparse (sparse_coo)" in message
    assert (entry.dtype, entry.shape) == (BY_NAME["F32"], (4, 5))
    layout = call("torch.serialization", "_get_layout", text("torch.sparse_csr"))
    message, entry = lost(
        call("torch._utils", "_rebuild_sparse_tensor", layout, group(indices, indices, values, numbers((4, 5)))), held
    )
    assert "sparse (sparse_csr)" in message
    assert (entry.dtype, entry.shape) == (BY_NAME["F32"], (4, 5))


def quantized(kind: str = "QInt8Storage", numel: int = 6) -> bytes:
    scheme = group(name("torch", "per_tensor_affine"), b"G" + struct.pack(">d", 0.25), number(3))
    return call(
        "torch._utils",
        "_rebuild_qtensor",
        storage(kind, "q", numel),
        number(0),
        numbers((6,)),
        numbers((1,)),
        scheme,
        FALSE,
        HOOKS,
    )


def test_quantized_tensors_are_named_with_their_scheme():
    message, entry = lost(quantized(), {"q": bytes(6)})
    assert (
        message
        == "it is quantized (per_tensor_affine, scale 0.25, zero point 3): its integers alone are not its values"
    )
    assert (entry.dtype, entry.shape, entry.nbytes) == (BY_NAME["QINT8"], (6,), 6)


def test_packed_quantized_tensors_are_only_named():
    message, entry = lost(quantized("QUInt4x2Storage", 3), {"q": bytes(3)})
    assert "quantized (per_tensor_affine" in message
    assert entry.shape == (6,)


def test_nested_tensors_are_named():
    buffer = tensor("FloatStorage", "b", 3)
    message, entry = lost(
        call("torch._utils", "_rebuild_nested_tensor", buffer, NONE, NONE, NONE), {"b": floats(1, 2, 3)}
    )
    assert "nested" in message
    assert entry.dtype == BY_NAME["F32"]


def test_tensor_subclasses_without_plain_data_are_named():
    inner = group(
        name("torchao.dtypes", "Affine"),
        name("torch", "bfloat16"),
        numbers((2, 2)),
        numbers((2, 1)),
        number(0),
        NONE,
        NONE,
        FALSE,
    )
    body = call(
        "torch._tensor",
        "_rebuild_from_type_v2",
        name("torch._utils", "_rebuild_wrapper_subclass"),
        name("torchao.dtypes", "Affine"),
        inner,
        mapping({"inner": tensor("FloatStorage", "b", 3)}),
    )
    message, entry = lost(body, {"b": floats(1, 2, 3)})
    assert "torchao.dtypes.Affine" in message
    assert (entry.dtype, entry.shape) == (BY_NAME["BF16"], (2, 2))


def test_uninitialised_parameters_are_named():
    message, _ = lost(call("torch.nn.parameter", "UninitializedParameter", TRUE, NONE, NONE))
    assert "before it was initialised" in message


def test_unknown_storage_classes_cost_only_their_tensors():
    message, entry = lost(tensor("SomethingStorage", "0", 6), {"0": SIX})
    assert message == "its storage is a torch.SomethingStorage"
    assert entry.dtype is None


def test_too_many_axes_cost_only_their_tensor():
    message, _ = lost(tensor("FloatStorage", "0", 6, shape=(1,) * 40), {"0": SIX})
    assert "40 axes" in message


def test_tensors_of_numpy_data_are_read():
    dtype = call("numpy", "dtype", text("f4"), FALSE, TRUE)
    array = call("numpy.core.multiarray", "_reconstruct", name("numpy", "ndarray"), numbers((0,)), raw_bytes(b"b"))
    array += group(number(1), numbers((2,)), dtype, FALSE, raw_bytes(floats(1.5, 2.5))) + b"b"
    body = call(
        "torch._utils", "_rebuild_device_tensor_from_numpy", array, name("torch", "float32"), text("xla:0"), FALSE
    )
    assert one(body) == [1.5, 2.5]
    message, _ = lost(
        call(
            "torch._utils", "_rebuild_device_tensor_from_numpy", array, name("torch", "bfloat16"), text("xla:0"), FALSE
        )
    )
    assert "to be cast to BF16 on reading" in message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            tensor("FloatStorage", "0", 6, shape=(7,)),
            r"shape \[7\] and strides \[1\] reach element 6 of a storage of 6",
        ),
        (tensor("FloatStorage", "0", 6, shape=(1,), offset=6), "offset 6, .* reach element 6 of a storage of 6"),
        (tensor("FloatStorage", "0", 6, shape=(2, 2), strides=(5, 1)), "reach element 6 of a storage of 6"),
        (tensor("FloatStorage", "0", 6, shape=(1 << 62, 1 << 62), strides=(1 << 62, 1)), "of a storage of 6"),
        (tensor("FloatStorage", "0", 6, shape=(2,), strides=(-1,), offset=3), r"strides \[-1\] hold what is no extent"),
        (tensor("FloatStorage", "0", 6, shape=(-1,)), r"its shape \[-1\] .* hold what is no extent"),
        (tensor("FloatStorage", "0", 6, offset=-1), "its offset -1 is negative"),
        (tensor("FloatStorage", "0", 6, shape=(2, 3), strides=(1,)), "2 extents and 1 strides"),
        (tensor("FloatStorage", "0", 6, shape=(0, 1 << 62)), "larger than any array's"),
        (tensor("FloatStorage", "0", 7), "'archive/data/0' has 24 bytes, the pickle says 28"),
        (tensor("FloatStorage", "0", 5), "'archive/data/0' has 24 bytes, the pickle says 20"),
        (call("torch._utils", "_rebuild_tensor_v2", storage("FloatStorage", "0", 6)), "are not what PyTorch writes"),
        (
            call("torch._utils", "_rebuild_tensor_v2", number(1), number(0), numbers(()), numbers(())),
            "its storage is a int",
        ),
    ],
)
def test_views_that_contradict_their_storage_are_refused_by_name(body: bytes, message: str):
    with pytest.raises(MetadataError, match=message) as caught:
        opened({"w": body})
    assert caught.value.tensor == "w"


def test_a_storage_cannot_have_two_sizes():
    with pytest.raises(MetadataError, match="the pickle says 20"):
        opened({"a": tensor("FloatStorage", "0", 6), "b": tensor("FloatStorage", "0", 5)})


def test_one_storage_may_be_seen_as_two_types():
    file = opened({"a": tensor("FloatStorage", "0", 6), "b": tensor("IntStorage", "0", 6)})
    assert file.array("b").tobytes() == SIX


def test_parameters_in_parameters_end_somewhere():
    body = tensor("FloatStorage", "0", 6)
    for _ in range(100):
        body = call("torch.nn.parameter", "Parameter", body)
    with pytest.raises(MetadataError, match="wrapped more than 16 times"):
        opened({"w": body})


def test_expanded_views_count_at_their_full_size():
    shape = (1 << 30, 1 << 12)
    data = zip_file(pickled(ordered({"w": tensor("FloatStorage", "0", 6, shape=shape, strides=(0, 0))})), {"0": SIX})
    with pytest.raises(LimitError, match=r"it takes 17,592,186,044,416 bytes .*Limits\(tensor_bytes") as caught:
        firekeep.open(data)
    assert caught.value.tensor == "w"
    larger = replace(DEFAULT_LIMITS, tensor_bytes=1 << 45)
    assert firekeep.open(data, limits=larger).entry("w").nbytes == math.prod(shape) * 4


def test_a_slice_saved_with_all_of_its_storage_is_noted():
    held = {"0": bytes(4000), "1": bytes(4000)}
    file = opened(
        {"slice": tensor("FloatStorage", "0", 1000, shape=(10,)), "whole": tensor("FloatStorage", "1", 1000)}, held
    )
    (note,) = file.notes
    assert note.startswith("3,960 bytes belong to no tensor")
    assert "storage '0' has 4,000 bytes, 40 used" in note


def test_shapes_as_lists_and_sizes_are_read():
    size = call("torch", "Size", numbers((2, 3)))
    body = call(
        "torch._utils",
        "_rebuild_tensor_v2",
        storage("FloatStorage", "0", 6),
        number(0),
        size,
        numbers((3, 1)),
        FALSE,
        HOOKS,
    )
    assert one(body) == [[1, 2, 3], [4, 5, 6]]
