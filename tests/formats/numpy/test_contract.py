"""The reader of `.npz` keeps the contract of the formats, with stored and with deflated members."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import pytest

from contracts.format_contract import ReadContract, tensor
from firekeep.arrays import numpy_dtype
from firekeep.dtypes import BY_NAME, DType
from firekeep.entry import TensorEntry
from firekeep.errors import FormatError
from firekeep.scalars import Scalar
from zip_builder import DEFLATED, STORED, Part, build

UTF8 = 0x800
DTYPES = [
    *("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL", "C64", "C128"),
]


def npy(entry: TensorEntry, *, order: str = "C", swap: bool = False) -> bytes:
    """Let NumPy write one array."""
    dtype = numpy_dtype(entry.dtype)
    array = np.frombuffer(bytes(entry.read()), dtype).reshape(entry.shape)
    out = io.BytesIO()
    np.save(out, np.asarray(array, dtype.newbyteorder(">") if swap else dtype, order=order))
    return out.getvalue()


class NpzContract(ReadContract):
    format: ClassVar[str] = "numpy"
    dtypes: ClassVar[Sequence[DType]] = [BY_NAME[name] for name in DTYPES]
    read_limits: ClassVar[Mapping[str, int]] = {"archive_members": 2, "tensor_bytes": 32}
    method: ClassVar[int] = STORED
    order: ClassVar[str] = "C"
    swap: ClassVar[bool] = False

    def make(
        self,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, str] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
    ) -> bytes:
        return build(
            Part(
                name=f"{entry.name}.npy",
                data=npy(entry, order=self.order, swap=self.swap),
                method=self.method,
                flags=UTF8,
            )
            for entry in entries
        )


class TestStored(NpzContract):
    pass


class TestDeflated(NpzContract):
    method: ClassVar[int] = DEFLATED

    def test_bytes_are_drawn_when_asked_and_not_when_opened(self) -> None:
        data = bytearray(self.make([tensor("w", shape=(1000,))]))
        container = self.open(data)
        data[500:600] = bytes(100)
        with pytest.raises(FormatError):
            container.entries["w"].read()


class TestTurnedRound(NpzContract):
    order: ClassVar[str] = "F"
    swap: ClassVar[bool] = True

    def test_bytes_are_drawn_when_asked_and_not_when_opened(self) -> None:
        entry = tensor("w", shape=(1000,))
        data = bytearray(self.make([entry]))
        place = data.find(np.frombuffer(bytes(entry.read()), "<u4").byteswap().tobytes())
        assert place > 0
        container = self.open(data)
        data[place : place + 4] = b"\x3f\x80\0\0"
        assert bytes(container.entries["w"].read()[:4]) == b"\0\0\x80\x3f"
