"""The reader of PyTorch files keeps the contract of the formats, in each of its containers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from contracts.format_contract import ReadContract
from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.scalars import Scalar
from pickles import (
    BINPERSID,
    NONE,
    STORED_DTYPES,
    legacy_file,
    number,
    old_tar,
    ordered,
    pickled,
    row_major,
    tensor,
    zip_file,
)

LIMITS = {
    "pickle_bytes": 10,
    "pickle_opcodes": 20,
    "pickle_depth": 0,
    "pickle_nodes": 3,
    "text_bytes": 2,
    "tensor_bytes": 32,
}


def numel(entry: TensorEntry) -> int:
    return entry.numel


def kind(entry: TensorEntry) -> str:
    assert entry.dtype is not None
    assert entry.dtype.storage is not None
    return entry.dtype.storage


class PytorchContract(ReadContract):
    format: ClassVar[str] = "pytorch"
    dtypes: ClassVar[Sequence[DType]] = STORED_DTYPES
    read_limits: ClassVar[Mapping[str, int]] = LIMITS


class TestZip(PytorchContract):
    read_limits: ClassVar[Mapping[str, int]] = {**LIMITS, "archive_members": 3}

    def make(
        self,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, str] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
    ) -> bytes:
        body = ordered(
            {
                entry.name: tensor(kind(entry), str(index), numel(entry), shape=entry.shape)
                for index, entry in enumerate(entries)
            }
        )
        return zip_file(pickled(body), {str(index): bytes(entry.read()) for index, entry in enumerate(entries)})


class TestLegacy(PytorchContract):
    def make(
        self,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, str] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
    ) -> bytes:
        body = ordered(
            {
                entry.name: tensor(kind(entry), str(index), numel(entry), shape=entry.shape, view=NONE)
                for index, entry in enumerate(entries)
            }
        )
        return legacy_file(
            body, {str(index): (numel(entry), bytes(entry.read())) for index, entry in enumerate(entries)}
        )


class TestTar(PytorchContract):
    read_limits: ClassVar[Mapping[str, int]] = {**LIMITS, "pickle_opcodes": 5}

    def make(
        self,
        entries: Sequence[TensorEntry],
        metadata: Mapping[str, str] | None = None,
        scalars: Mapping[str, Scalar] | None = None,
    ) -> bytes:
        return old_tar(
            ordered({entry.name: number(index + 100) + BINPERSID for index, entry in enumerate(entries)}),
            {index: (kind(entry), bytes(entry.read())) for index, entry in enumerate(entries)},
            {index + 100: (index, entry.shape, row_major(entry.shape), 0) for index, entry in enumerate(entries)},
        )
