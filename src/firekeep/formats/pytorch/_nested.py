"""Storages inside a pickle: `pickle.dump` of a tensor keeps each storage as the bytes of a whole legacy file."""

from __future__ import annotations

from typing import Any

from firekeep.errors import MetadataError
from firekeep.formats.pytorch._inert import Call, Global, StorageRef
from firekeep.formats.pytorch._legacy import read_legacy
from firekeep.formats.pytorch._storages import Storage
from firekeep.limits import Limits
from firekeep.sources import MemorySource


def is_nested(value: Any) -> bool:
    """Tell a storage that is held as bytes."""
    return (
        type(value) is Call
        and type(value.func) is Global
        and (value.func.module, value.func.name) == ("torch.storage", "_load_from_bytes")
    )


def load_nested(call: Call, limits: Limits) -> Storage:
    """Read the storage; raises `FormatError` for bytes that are none."""
    if len(call.args) != 1 or type(call.args[0]) is not bytes:
        raise MetadataError("its storage is not held as bytes")
    file = read_legacy(MemorySource(call.args[0]), limits)
    if type(file.root) is not StorageRef:
        raise MetadataError("the bytes of its storage hold another object")
    return file.storages.resolve(file.root)
