"""The record of a learning rate schedule: scalars, and no tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from firekeep.errors import FirekeepError, ScalarError, WrongFormatError
from firekeep.formats import Contents
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.opened import OpenedFile, Readable
from firekeep.records._files import open_record, record_bytes, write_record
from firekeep.records._kinds import kind_of
from firekeep.records._state import FlatState, StateError, flatten, unflatten
from firekeep.saving import check_metadata, gather_scalars
from firekeep.scalars import Scalar
from firekeep.schedulers import SchedulerError, SchedulerReport, find_level
from firekeep.wording import count, some

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class LrSchedulerRecord:
    """What a schedule keeps between runs, in Burn's file form: a burnpack file of scalars alone.

    Numbers given as `scalars` get their kinds: Python integers are signed, `Scalar("uint", n)` is what Burn counts with. Burn reads
    the scalars and nothing else; values they cannot hold stand in `metadata`. Records are not changed: methods give new ones.
    A record taken apart by `record(prefix)` and put together by `with_record` is the same: both prefix scalars and metadata.
    """

    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scalars", MappingProxyType(gather_scalars(self.scalars)))
        object.__setattr__(self, "metadata", MappingProxyType(check_metadata(self.metadata)))

    def scalar(self, key: str) -> Scalar:
        """Give a scalar; raises `ScalarError` naming those there are."""
        try:
            return self.scalars[key]
        except KeyError:
            there = f"there are {some(list(self.scalars))}" if self.scalars else "there are none"
            raise ScalarError(f"the record has no scalar {key!r}: {there}") from None

    def with_scalar(self, key: str, value: Any) -> Self:
        """Give the record with one scalar more, or another value of one."""
        return type(self)({**self.scalars, key: value}, self.metadata)

    def record(self, prefix: str) -> Self:
        """Give the record that lies under a prefix, which is empty where nothing does."""
        start = f"{prefix}."
        return type(self)(_below(self.scalars, start), _below(self.metadata, start))

    def with_record(self, prefix: str, record: LrSchedulerRecord) -> Self:
        """Give the record with another one under a prefix, in place of what was there."""
        start = f"{prefix}."
        scalars = {key: value for key, value in self.scalars.items() if not key.startswith(start)}
        metadata = {key: value for key, value in self.metadata.items() if not key.startswith(start)}
        scalars |= {f"{start}{key}": value for key, value in record.scalars.items()}
        metadata |= {f"{start}{key}": value for key, value in record.metadata.items()}
        return type(self)(scalars, metadata)

    @classmethod
    def of(cls, scheduler: Any) -> Self:
        """Take the state of a schedule: one of `firekeep.schedulers`, one of PyTorch's, a GradScaler, or an AveragedModel's count.

        Burn's scalars are written where Burn has such a schedule. The whole state of one of PyTorch's stands in the metadata beside them.
        """
        if hasattr(scheduler, "to_record_scalars"):
            return cls(scheduler.to_record_scalars())
        from firekeep.bridges import torch as bridge

        if not bridge.schedules(scheduler):
            raise SchedulerError(
                f"{type(scheduler).__module__}.{type(scheduler).__qualname__} is no schedule that is known",
                remedy="Describe its state by a dataclass, and give that to LrSchedulerRecord.from_state.",
            )
        state = bridge.scheduler_state(scheduler)
        return cls(state.scalars, state.metadata)

    def restore(self, scheduler: Any) -> SchedulerReport:
        """Give the state to a schedule of the kind and settings it was taken of, and say what became of it.

        What does not fit is in the report, and the schedule is as it was then; `restore(...).require()` raises `SchedulerError` for it.
        """
        if hasattr(scheduler, "load_scalars"):
            scalars, note = find_level(self.scalars, scheduler.to_record_scalars())
            report: SchedulerReport = scheduler.load_scalars(scalars)
            return replace(report, notes=(*report.notes, note)) if note else report
        from firekeep.bridges import torch as bridge

        if not bridge.schedules(scheduler):
            raise SchedulerError(
                f"{type(scheduler).__module__}.{type(scheduler).__qualname__} is no schedule that is known",
                remedy="Take the state out with into_state, and give it to the schedule.",
            )
        return bridge.restore_scheduler(scheduler, self.scalars, self.metadata)

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Take the scalars of a state (see `flatten`); raises `StateError` naming the tensors of one that has some."""
        flat = flatten(state)
        if flat.tensors:
            raise StateError(
                f"the record of a schedule holds no tensors, and the state has {some(list(flat.tensors))}",
                remedy="Keep them in a record of their own, or as numbers.",
            )
        return cls(flat.scalars)

    def into_state(self, template: type[State] | State) -> State:
        """Make a state of a dataclass; raises `StateError` naming the field that is missing or of another kind."""
        return unflatten(FlatState({}, self.scalars), template)

    def contents(self) -> Contents:
        """Give what a file of it holds."""
        return Contents(entries=[], metadata=dict(self.metadata), scalars=dict(self.scalars))

    def to_bytes(self) -> bytes:
        """Make the file in memory."""
        return record_bytes(self.contents())

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True, durable: bool = True) -> Path:
        """Write the file, and give its path: `.bpk` is put after any that does not end in it."""
        return write_record(self.contents(), path, overwrite=overwrite, durable=durable)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Read a file; raises `WrongFormatError` for one of tensors, saying which record it is."""
        return cls._read(path, limits)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, *, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Read a file in memory."""
        return cls._read(data, limits)

    @classmethod
    def _read(cls, source: Readable, limits: Limits) -> Self:
        with open_record(source, limits=limits) as opened:
            return cls.of_opened(opened)

    @classmethod
    def of_opened(cls, opened: OpenedFile) -> Self:
        """Take the record out of an open file."""
        try:
            _require_scalars_only(opened)
            return cls(opened.scalars, opened.metadata)
        except FirekeepError as error:
            raise error.at(path=opened.path)  # noqa: B904 - the same error, with its place


def _below(held: Mapping[str, Any], start: str) -> dict[str, Any]:
    return {key.removeprefix(start): value for key, value in held.items() if key.startswith(start)}


def _require_scalars_only(opened: OpenedFile) -> None:
    if opened.format != "burnpack":
        raise WrongFormatError(
            f"a record is a burnpack file, and this is a {opened.format} file",
            kind=opened.format,
            remedy="firekeep.load_into loads models from it.",
        )
    kind = kind_of(opened.keys(), opened.metadata, opened.scalars)
    if kind in ("scheduler", "nothing") and not len(opened):
        return
    owner = "an optimizer" if kind == "optimizer" else "a model"
    raise WrongFormatError(
        f"the file is the record of {owner}, with {count(len(opened), 'tensor')}, and not that of a schedule",
        kind="burnpack",
        remedy="Burn's own names are model-N.bpk, optim-N.bpk and scheduler-N.bpk.",
    )
