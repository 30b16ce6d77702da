"""The reader of GGUF keeps the contract of the formats, in both byte orders and in the old version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from contracts.format_contract import ReadContract, tensor
from firekeep.dtypes import BY_NAME, DType
from firekeep.entry import TensorEntry
from firekeep.scalars import Scalar
from formats.gguf.made import CODES, Tensor, gguf, tensor_of


class TestLittle(ReadContract):
    format: ClassVar[str] = "gguf"
    dtypes: ClassVar[Sequence[DType]] = [BY_NAME[name] for name in CODES]
    read_limits: ClassVar[Mapping[str, int]] = {"safetensors_tensors": 2, "text_bytes": 2, "tensor_bytes": 32}
    version: ClassVar[int] = 3

    def make(
        self,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, str] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
    ) -> bytes:
        return gguf([tensor_of(entry) for entry in entries], version=self.version)


class TestVersion1(TestLittle):
    version: ClassVar[int] = 1


class TestBig(TestLittle):
    def make(
        self,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, str] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
    ) -> bytes:
        return gguf([turned(entry) for entry in entries], order=">")

    def test_bytes_are_drawn_when_asked_and_not_when_opened(self) -> None:
        data = bytearray(self.make([tensor("w", shape=(1000,))]))
        container = self.open(data)
        data[-4:] = b"\x3f\x80\0\0"
        assert bytes(container.entries["w"].read()[-4:]) == b"\0\0\x80\x3f"


def turned(entry: TensorEntry) -> Tensor:
    made = tensor_of(entry)
    made.data = np.frombuffer(made.data, f"<u{entry.dtype.itemsize}").byteswap().tobytes()
    return made
