"""The reader of HDF5 keeps the contract of the formats: plain files, big-endian ones, and the archives of Keras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest
from hypothesis import strategies as st

from contracts.format_contract import ReadContract, tensor
from firekeep.dtypes import BY_NAME, DType
from firekeep.entry import TensorEntry
from firekeep.errors import FormatError
from firekeep.scalars import Scalar
from formats.hdf5.made import Group, data_of, hdf5
from zip_builder import DEFLATED, STORED, Part, build

DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")


class TestPlain(ReadContract):
    format: ClassVar[str] = "hdf5"
    dtypes: ClassVar[Sequence[DType]] = [BY_NAME[name] for name in DTYPES]
    read_limits: ClassVar[Mapping[str, int]] = {
        "archive_members": 2,
        "text_bytes": 2,
        "tensor_bytes": 32,
        "pickle_depth": 0,
    }
    big: ClassVar[bool] = False

    def make(
        self,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, str] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
    ) -> bytes:
        return hdf5(Group({entry.name: data_of(entry, big=self.big) for entry in entries}))

    def names(self) -> st.SearchStrategy[str]:
        """A name ends with a zero."""
        return super().names().filter(lambda name: "\0" not in name)

    def test_a_name_is_only_a_name(self) -> None:
        names = ["../x", "/etc/passwd", "a/../../b", "C:\\x", "con", "file:///x", ".", ""]
        assert sorted(self.open(self.make([tensor(name) for name in names])).entries) == sorted(names)


class TestBig(TestPlain):
    big: ClassVar[bool] = True

    def test_bytes_are_drawn_when_asked_and_not_when_opened(self) -> None:
        entry = tensor("w", shape=(1000,))
        data = bytearray(self.make([entry]))
        place = data.find(data_of(entry, big=True).raw)
        assert place > 0
        container = self.open(data)
        data[place : place + 4] = b"\x3f\x80\0\0"
        assert bytes(container.entries["w"].read()[:4]) == b"\0\0\x80\x3f"


class TestArchive(TestPlain):
    read_limits: ClassVar[Mapping[str, int]] = {"archive_members": 2, "text_bytes": 2, "tensor_bytes": 32}
    method: ClassVar[int] = STORED

    def make(
        self,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, str] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
    ) -> bytes:
        weights = Part(name="model.weights.h5", data=super().make(entries), method=self.method)
        return build([Part(name="metadata.json", data=b"{}"), Part(name="config.json", data=b"{}"), weights])


class TestDeflatedArchive(TestArchive):
    method: ClassVar[int] = DEFLATED

    def test_bytes_are_drawn_when_asked_and_not_when_opened(self) -> None:
        data = bytearray(self.make([tensor("w", shape=(1000,))]))
        data[700:800] = bytes(100)
        with pytest.raises(FormatError):
            self.open(data)

    def test_opening_takes_no_memory_for_the_data(self) -> None:
        container = self.open(self.make([tensor("w", shape=(1 << 16,))]))
        assert container.entries["w"].nbytes == 1 << 18
