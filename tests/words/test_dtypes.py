"""The table of element types, and the sizes of quantized tensors."""

from __future__ import annotations

import math

import pytest

from firekeep.arrays import dtype_of, numpy_dtype
from firekeep.dtypes import (
    BY_BURN,
    BY_BURN_BOOL,
    BY_NAME,
    BY_SAFETENSORS,
    BY_STORAGE,
    BY_TORCH,
    QFLOAT,
    TABLE,
    QuantScheme,
    dtype,
    qfloat,
)
from firekeep.errors import MetadataError, UnsupportedError


def test_names_are_unique_in_every_column() -> None:
    assert len(BY_NAME) == len(TABLE)
    for column in ("safetensors", "torch", "storage"):
        named = [getattr(row, column) for row in TABLE if getattr(row, column)]
        assert len(named) == len(set(named)), column
    assert len(BY_BURN) + len(BY_BURN_BOOL) == sum(row.burn is not None for row in TABLE)


def test_burns_dtypes_have_the_sizes_of_burn() -> None:
    sizes = {name: row.itemsize for name, row in BY_BURN.items()}
    assert sizes == {
        "F64": 8, "F32": 4, "Flex32": 4, "F16": 2, "BF16": 2,
        "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
    }  # fmt: skip
    assert {name: row.itemsize for name, row in BY_BURN_BOOL.items()} == {"Native": 1, "U8": 1, "U32": 4}


def test_safetensors_names_are_those_of_its_format() -> None:
    assert set(BY_SAFETENSORS) == {
        "BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
        "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64",
    }  # fmt: skip


def test_every_numpy_type_has_the_size_of_its_row() -> None:
    for row in TABLE:
        if row.numpy is None:
            with pytest.raises(UnsupportedError, match=row.name):
                numpy_dtype(row)
        elif row.bits >= 8:
            assert numpy_dtype(row).itemsize * 8 == row.bits, row.name


def test_every_numpy_type_finds_a_row_of_its_own_kind() -> None:
    import numpy as np

    for row in TABLE:
        if row.numpy is not None:
            found = dtype_of(np.empty(0, numpy_dtype(row)))
            assert found.numpy == row.numpy
            assert found.bits == row.bits


def test_torch_names_are_dtypes_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for name, row in BY_TORCH.items():
        found = getattr(torch, name)
        assert isinstance(found, torch.dtype)
        if row.bits >= 8:
            assert found.itemsize * 8 == row.bits, name
    for name in BY_STORAGE:
        # The newest storages exist in files only: torch itself has no class for them.
        assert name.endswith("Storage")


@pytest.mark.parametrize(
    ("name", "row"),
    [("F32", "F32"), ("f32", "F32"), ("float32", "F32"), ("torch.bfloat16", "BF16"), ("bf16", "BF16"), ("long", None)],
)
def test_a_dtype_is_found_by_several_names(name: str, row: str | None) -> None:
    if row is None:
        with pytest.raises(UnsupportedError, match="no dtype 'long': one of F64, F32"):
            dtype(name)
    else:
        assert dtype(name) is BY_NAME[row]


def test_sizes_follow_from_the_shape() -> None:
    assert BY_NAME["F32"].nbytes((2, 3)) == 24
    assert BY_NAME["F32"].nbytes(()) == 4
    assert BY_NAME["F64"].nbytes((5, 0)) == 0
    assert BY_NAME["C128"].nbytes((2,)) == 32


def test_elements_below_a_byte_must_fill_whole_bytes() -> None:
    assert BY_NAME["F4"].nbytes((3, 2)) == 3
    assert BY_NAME["F6_E2M3"].nbytes((4,)) == 3
    with pytest.raises(MetadataError, match=r"3 elements of F4 \(4 bits\) do not fill whole bytes"):
        BY_NAME["F4"].nbytes((3,))
    with pytest.raises(UnsupportedError, match="not a whole number of bytes"):
        _ = BY_NAME["F4"].itemsize
    with pytest.raises(UnsupportedError, match="not a whole number of bytes"):
        _ = qfloat(QuantScheme(value="Q8S")).itemsize


SIZES = [
    # The examples of the format: one F32 scale of four bytes follows the values.
    (QuantScheme(value="Q8S"), (2, 2), 4 + 4),
    (QuantScheme(value="Q4S", store="PackedU32"), (4,), 4 + 4),
    (QuantScheme(value="Q4F", store="PackedU32"), (3, 3), 12 + 4),
    (QuantScheme(value="Q8F", store="PackedU32"), (5,), 8 + 4),
    # The packed axis is rounded up line by line, whichever it is.
    (QuantScheme(value="Q4F", store="PackedU32", packed_dim=1), (9, 3), 2 * 3 * 4 + 4),
    (QuantScheme(value="Q2S", store="PackedU32"), (2, 17), 2 * 2 * 4 + 4),
    (QuantScheme(value="E2M1", store="PackedNative"), (3, 5), 9 + 4),
    # Native stores take a byte a value, whatever its bits.
    (QuantScheme(value="Q2F"), (3, 5), 15 + 4),
    (QuantScheme(value="E4M3", tensor="BF16"), (3,), 3 + 2),
    (QuantScheme(value="Q8S", tensor="UE8M0"), (3,), 3 + 1),
    # One scale a block, rounded up on every axis.
    (QuantScheme(value="Q8S", block=(32,), block_dtype="F16"), (4, 64), 256 + 8 * 2),
    (QuantScheme(value="Q8S", block=(32,), block_dtype="F32"), (4, 65), 260 + 12 * 4),
    (QuantScheme(value="Q8S", block=(4, 8), block_dtype="F16"), (2, 5, 9), 90 + 2 * 2 * 2 * 2),
    # Two levels: a global F32 scale stands behind those of the blocks.
    (
        QuantScheme(value="E2M1", store="PackedNative", tensor="F32", block=(16,), block_dtype="UE4M3"),
        (4, 64),
        128 + 16 + 4,
    ),
    # Nothing and one element.
    (QuantScheme(value="Q8S"), (0,), 4),
    (QuantScheme(value="Q8S", block=(4,), block_dtype="F32"), (0,), 0),
    (QuantScheme(value="Q8S"), (), 1 + 4),
    (QuantScheme(value="Q4S", store="PackedU32"), (), 4 + 4),
]


@pytest.mark.parametrize(("scheme", "shape", "nbytes"), SIZES, ids=lambda value: str(value))
def test_a_quantized_tensor_takes_its_values_and_its_scales(
    scheme: QuantScheme, shape: tuple[int, ...], nbytes: int
) -> None:
    assert scheme.nbytes(shape) == nbytes
    assert qfloat(scheme).nbytes(shape) == nbytes


def test_a_scheme_that_does_not_suit_the_shape_is_refused() -> None:
    with pytest.raises(MetadataError, match=r"packed dimension 2 is outside shape \[3, 3\]"):
        QuantScheme(value="Q4F", store="PackedU32", packed_dim=2).nbytes((3, 3))
    with pytest.raises(MetadataError, match=r"blocks \[4, 8\] have more axes than shape \[8\]"):
        QuantScheme(value="Q8S", block=(4, 8), block_dtype="F16").nbytes((8,))


def test_a_scheme_reads_as_words() -> None:
    scheme = QuantScheme(value="Q4S", store="PackedU32", block=(4, 8), block_dtype="F16", tensor="F32")
    assert str(qfloat(scheme)) == "QFLOAT(Q4S PackedU32(0) block 4x8 F16 tensor F32)"
    assert str(qfloat(QuantScheme(value="Q8F"))) == "QFLOAT(Q8F Native)"
    assert str(BY_NAME["BF16"]) == "BF16"


def test_equal_schemes_are_equal_dtypes() -> None:
    assert qfloat(QuantScheme(value="Q8S")) == qfloat(QuantScheme(value="Q8S"))
    assert len({qfloat(QuantScheme(value="Q8S")), qfloat(QuantScheme(value="Q8S")), QFLOAT}) == 2


def test_shapes_may_be_huge_without_overflow() -> None:
    assert BY_NAME["F32"].nbytes((1 << 40, 1 << 40)) == 4 << 80
    assert math.prod((1 << 40, 0)) == BY_NAME["F32"].nbytes((1 << 40, 0))
