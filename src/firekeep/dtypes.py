"""One table of element types for all formats.

A row says how a dtype is called in burnpack, in safetensors, in PyTorch (the dtype and the storage class) and in NumPy
(names with a dot are ml_dtypes'). Sub-byte types state their bits; their shapes always count elements, never bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from firekeep.errors import MetadataError, UnsupportedError

Kind = Literal["float", "int", "uint", "bool", "complex", "quantized"]

VALUE_BITS = {"Q8F": 8, "Q8S": 8, "E4M3": 8, "E5M2": 8, "Q4F": 4, "Q4S": 4, "E2M1": 4, "Q2F": 2, "Q2S": 2}
SCALE_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "UE8M0": 1, "UE4M3": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantScheme:
    """Burn's quantization scheme: how values are packed and where their scales are.

    `store` is "Native", "PackedU32" or "PackedNative"; `packed_dim` counts from the innermost axis. `tensor` is the dtype of
    a per-tensor scale, `block` the extents of a block aligned to the trailing axes and `block_dtype` the dtype of its scale.
    With neither, there is one F32 scale for the tensor.
    """

    value: str
    store: str = "Native"
    packed_dim: int = 0
    mode: str = "Symmetric"
    tensor: str | None = None
    block: tuple[int, ...] | None = None
    block_dtype: str | None = None

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of values and scales, without padding between them."""
        return self._value_bytes(shape) + self._scale_bytes(shape)

    def _value_bytes(self, shape: Sequence[int]) -> int:
        if self.store == "Native":
            return math.prod(shape)
        unit_bits = 32 if self.store == "PackedU32" else 8
        per_unit = unit_bits // VALUE_BITS[self.value]
        extents = list(shape)
        if not extents:
            return unit_bits // 8
        axis = len(extents) - 1 - self.packed_dim
        if axis < 0:
            raise MetadataError(f"packed dimension {self.packed_dim} is outside shape {list(shape)}")
        extents[axis] = -(-extents[axis] // per_unit)
        return math.prod(extents) * (unit_bits // 8)

    def _scale_bytes(self, shape: Sequence[int]) -> int:
        if self.block is None:
            return SCALE_BYTES[self.tensor or "F32"]
        if len(self.block) > len(shape):
            raise MetadataError(f"blocks {list(self.block)} have more axes than shape {list(shape)}")
        leading = len(shape) - len(self.block)
        blocks = math.prod(shape[:leading])
        for extent, size in zip(shape[leading:], self.block, strict=True):
            blocks *= -(-extent // size)
        total = blocks * SCALE_BYTES[self.block_dtype or "F32"]
        return total + (4 if self.tensor is not None else 0)

    def __str__(self) -> str:
        parts = [self.value]
        parts.append(self.store if self.store == "Native" else f"{self.store}({self.packed_dim})")
        if self.block is not None:
            parts.append(f"block {'x'.join(map(str, self.block))} {self.block_dtype}")
        if self.tensor is not None:
            parts.append(f"tensor {self.tensor}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class DType:
    """The type of a tensor's elements. Rows of `TABLE` are the only instances, but for QFloat, which has a scheme, and GGUF's blocks."""

    name: str
    kind: Kind
    bits: int
    numpy: str | None = None
    burn: str | None = None
    safetensors: str | None = None
    torch: str | None = None
    storage: str | None = None
    scheme: QuantScheme | None = None
    block: tuple[int, int] | None = None
    """Elements and bytes of a block, for the kinds of GGUF that are quantized in blocks; `bits` is then only about right."""

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a dense tensor of this shape. A sub-byte tensor must fill whole bytes, else `MetadataError`."""
        if self.scheme is not None:
            return self.scheme.nbytes(shape)
        if self.block is not None:
            elements, size = self.block
            if math.prod(shape) % elements:
                raise MetadataError(f"{math.prod(shape)} elements of {self.name} do not fill blocks of {elements}")
            return math.prod(shape) // elements * size
        bits = math.prod(shape) * self.bits
        if bits % 8:
            raise MetadataError(
                f"{math.prod(shape)} elements of {self.name} ({self.bits} bits) do not fill whole bytes"
            )
        return bits // 8

    @property
    def itemsize(self) -> int:
        """Bytes of one element; raises `UnsupportedError` for sub-byte and quantized types."""
        if self.bits % 8 or self.scheme is not None or self.block is not None:
            raise UnsupportedError(f"an element of {self} is not a whole number of bytes")
        return self.bits // 8

    def __str__(self) -> str:
        return self.name if self.scheme is None else f"{self.name}({self.scheme})"


def _row(
    name: str,
    kind: Kind,
    bits: int,
    numpy: str | None,
    burn: str | None,
    safetensors: str | None,
    torch: str | None,
    storage: str | None = None,
) -> DType:
    return DType(name, kind, bits, numpy, burn, safetensors, torch, storage)


# fmt: off
TABLE: tuple[DType, ...] = (
    #    name        kind        bits numpy                        burn     safetensors torch            storage class
    _row("F64",      "float",     64, "float64",                   "F64",    "F64",     "float64",       "DoubleStorage"),
    _row("F32",      "float",     32, "float32",                   "F32",    "F32",     "float32",       "FloatStorage"),
    _row("FLEX32",   "float",     32, "float32",                   "Flex32", None,      None),
    _row("F16",      "float",     16, "float16",                   "F16",    "F16",     "float16",       "HalfStorage"),
    _row("BF16",     "float",     16, "ml_dtypes.bfloat16",        "BF16",   "BF16",    "bfloat16",      "BFloat16Storage"),
    _row("F8_E4M3",  "float",      8, "ml_dtypes.float8_e4m3fn",   None,     "F8_E4M3", "float8_e4m3fn", "Float8_e4m3fnStorage"),
    _row("F8_E5M2",  "float",      8, "ml_dtypes.float8_e5m2",     None,     "F8_E5M2", "float8_e5m2",   "Float8_e5m2Storage"),
    _row("F8_E8M0",  "float",      8, "ml_dtypes.float8_e8m0fnu",  None,     "F8_E8M0", "float8_e8m0fnu", "Float8_e8m0fnuStorage"),
    _row("F8_E4M3FNUZ", "float",   8, "ml_dtypes.float8_e4m3fnuz", None,     "F8_E4M3FNUZ", "float8_e4m3fnuz", "Float8_e4m3fnuzStorage"),
    _row("F8_E5M2FNUZ", "float",   8, "ml_dtypes.float8_e5m2fnuz", None,     "F8_E5M2FNUZ", "float8_e5m2fnuz", "Float8_e5m2fnuzStorage"),
    _row("F6_E2M3",  "float",      6, None,                        None,     "F6_E2M3", None),
    _row("F6_E3M2",  "float",      6, None,                        None,     "F6_E3M2", None),
    _row("F4",       "float",      4, "ml_dtypes.float4_e2m1fn",   None,     "F4",      "float4_e2m1fn_x2"),
    _row("I64",      "int",       64, "int64",                     "I64",    "I64",     "int64",         "LongStorage"),
    _row("I32",      "int",       32, "int32",                     "I32",    "I32",     "int32",         "IntStorage"),
    _row("I16",      "int",       16, "int16",                     "I16",    "I16",     "int16",         "ShortStorage"),
    _row("I8",       "int",        8, "int8",                      "I8",     "I8",      "int8",          "CharStorage"),
    _row("U64",      "uint",      64, "uint64",                    "U64",    "U64",     "uint64",        "UInt64Storage"),
    _row("U32",      "uint",      32, "uint32",                    "U32",    "U32",     "uint32",        "UInt32Storage"),
    _row("U16",      "uint",      16, "uint16",                    "U16",    "U16",     "uint16",        "UInt16Storage"),
    _row("U8",       "uint",       8, "uint8",                     "U8",     "U8",      "uint8",         "ByteStorage"),
    _row("BOOL",     "bool",       8, "bool",                      "Native", "BOOL",    "bool",          "BoolStorage"),
    _row("BOOL_U8",  "bool",       8, "uint8",                     "U8",     None,      None),
    _row("BOOL_U32", "bool",      32, "uint32",                    "U32",    None,      None),
    _row("C64",      "complex",   64, "complex64",                 None,     "C64",     "complex64",     "ComplexFloatStorage"),
    _row("C128",     "complex",  128, "complex128",                None,     None,      "complex128",    "ComplexDoubleStorage"),
    _row("C32",      "complex",   32, None,                        None,     None,      "complex32",     "ComplexHalfStorage"),
    _row("QINT8",    "quantized",  8, None,                        None,     None,      "qint8",         "QInt8Storage"),
    _row("QUINT8",   "quantized",  8, None,                        None,     None,      "quint8",        "QUInt8Storage"),
    _row("QINT32",   "quantized", 32, None,                        None,     None,      "qint32",        "QInt32Storage"),
    _row("QUINT4X2", "quantized",  8, None,                        None,     None,      "quint4x2",      "QUInt4x2Storage"),
    _row("QUINT2X4", "quantized",  8, None,                        None,     None,      "quint2x4",      "QUInt2x4Storage"),
)
# fmt: on

BY_NAME = {row.name: row for row in TABLE}
BY_SAFETENSORS = {row.safetensors: row for row in TABLE if row.safetensors}
BY_TORCH = {row.torch: row for row in TABLE if row.torch}
BY_STORAGE = {row.storage: row for row in TABLE if row.storage}
BY_BURN = {row.burn: row for row in TABLE if row.burn and row.kind != "bool"}
BY_BURN_BOOL = {row.burn: row for row in TABLE if row.burn and row.kind == "bool"}

QFLOAT = DType("QFLOAT", "quantized", 8, burn="QFloat")


def qfloat(scheme: QuantScheme) -> DType:
    """Give Burn's QFloat of this scheme."""
    return replace(QFLOAT, scheme=scheme)


def dtype(name: str) -> DType:
    """Look up a row by firekeep's, NumPy's or PyTorch's name, in any case ("bf16", "bfloat16", "F32", "float32")."""
    upper, lower = name.upper(), name.lower().removeprefix("torch.")
    if upper in BY_NAME:
        return BY_NAME[upper]
    if lower in BY_TORCH:
        return BY_TORCH[lower]
    raise UnsupportedError(f"no dtype {name!r}: one of {', '.join(BY_NAME)}")
