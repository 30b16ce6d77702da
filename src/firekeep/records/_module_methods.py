"""Burn's six methods of modules: as functions for any model, and as methods of `firekeep.Module`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

from firekeep.bridges import bridge_of
from firekeep.dtypes import DType
from firekeep.errors import UnsupportedError
from firekeep.module import Module as Tree
from firekeep.module import ParamGroup, walk
from firekeep.opened import Readable
from firekeep.records._module_record import ModuleRecord
from firekeep.report import LoadError, LoadReport
from firekeep.rules import cast_target

T = TypeVar("T")


def into_record(obj: Any, *, layout: str | None = None) -> ModuleRecord:
    """Take a copy of the weights of a model; what becomes of the model afterwards does not change the record."""
    return ModuleRecord.of(obj, layout=layout)


def into_record_group(obj: Any, group: ParamGroup, *, layout: str | None = None) -> ModuleRecord:
    """Take a copy of the parameters in a group; the others are not read. Such a record is loaded with `allow_partial=True`."""
    return ModuleRecord.of(obj, group=group, layout=layout)


def load_record(obj: Any, record: ModuleRecord, **options: Any) -> LoadReport:
    """Put a record into a model, which stays as it is where that is refused; options are those of `ModuleRecord.apply`."""
    return record.apply(obj, **options)


def try_load_record(obj: Any, record: ModuleRecord, **options: Any) -> LoadReport:
    """Put a record into a model as `load_record` does; a refused load is told by the report (`ok`), and not raised."""
    try:
        return record.apply(obj, **options)
    except LoadError as error:
        return error.report


def save_file(obj: Any, path: str | os.PathLike[str], *, layout: str | None = None, **options: Any) -> Path:
    """Write a model's record to a file without copying it first, and give the path; options are those of `ModuleRecord.save`."""
    return ModuleRecord.of(obj, layout=layout, copy=False).save(path, **options)


def load_file(obj: Any, path: Readable, **options: Any) -> LoadReport:
    """Put a record from a file into a model; options are those of `ModuleRecord.apply`."""
    return ModuleRecord.load(path).apply(obj, **options)


def try_load_file(obj: Any, path: Readable, **options: Any) -> LoadReport:
    """Put a record from a file into a model as `load_file` does; a refused load is told by the report, and not raised.

    A file that cannot be read at all raises all the same.
    """
    return try_load_record(obj, ModuleRecord.load(path), **options)


def cast_module(obj: T, dtype: str) -> T:
    """Cast the floats of a model in place, and give it: what a file is to hold is what the model holds.

    Takes a `firekeep.Module`, whose parameters are made for it, and a `torch.nn.Module`.
    """
    target = cast_target(dtype)
    bridge = bridge_of(obj)
    if bridge.name == "native":
        _cast_params(obj, target)
    elif bridge.name == "torch":
        from firekeep.bridges import torch

        torch.cast(obj, target)  # type: ignore[arg-type]
    else:
        raise UnsupportedError(
            f"{type(obj).__name__} is no module that can be cast in place",
            remedy="Give dtype= to firekeep.save, which casts what it writes.",
        )
    return obj


def _cast_params(tree: Any, target: DType) -> None:
    import numpy as np

    from firekeep.arrays import numpy_dtype

    for visited in walk(tree):
        param = visited.param
        if param.kind == "float" and param.dtype != target:
            with np.errstate(all="ignore"):
                param.value = param.value.astype(numpy_dtype(target))


class RecordMethods:
    """The six methods, for a module to derive from beside its own base."""

    def into_record(self) -> ModuleRecord:
        """Take a copy of the weights."""
        return into_record(self)

    def into_record_group(self, group: ParamGroup) -> ModuleRecord:
        """Take a copy of the parameters in a group; the others are not read."""
        return into_record_group(self, group)

    def load_record(self, record: ModuleRecord, **options: Any) -> LoadReport:
        """Take over a record, or raise `LoadError` and stay unchanged; options are those of `ModuleRecord.apply`."""
        return load_record(self, record, **options)

    def try_load_record(self, record: ModuleRecord, **options: Any) -> LoadReport:
        """Take over a record; a refused load is told by the report, and not raised."""
        return try_load_record(self, record, **options)

    def save_file(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write the weights to a file, and give its path; options are those of `ModuleRecord.save`."""
        return save_file(self, path, **options)

    def load_file(self, path: Readable, **options: Any) -> LoadReport:
        """Take over the record in a file, or raise `LoadError` and stay unchanged."""
        return load_file(self, path, **options)

    def try_load_file(self, path: Readable, **options: Any) -> LoadReport:
        """Take over the record in a file; a refused load is told by the report, and not raised."""
        return try_load_file(self, path, **options)


class Module(RecordMethods, Tree):
    """A module tree that is saved and loaded by methods of its own, as in Burn; all else is `firekeep.module.Module`."""
