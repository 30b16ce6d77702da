"""A model into a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from firekeep.collecting import (
    KEPT,
    Collection,
    CollectJob,
    SaveReport,
    collect,
    contents_of,
    warn_of_layout,
    warn_of_others,
)
from firekeep.disk import to_bytes
from firekeep.errors import ExistsError, FirekeepError
from firekeep.formats import Contents, Format
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.saving import Progress, check_metadata, choose_format, gather_scalars, prepare, publish
from firekeep.sets import SetJob, Target, destination, write_several


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """How a model's file is to be written."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, Any] = field(default_factory=dict)
    format: str | None = None
    digest: bool = False
    overwrite: bool = True
    durable: bool = True
    max_shard_size: int | str | None = None
    progress: Progress | None = None
    limits: Limits = DEFAULT_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What stands on the disk: `path` is what opens it, an index where there are several files."""

    path: Path
    nbytes: int
    files: tuple[Path, ...] = ()
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def save(obj: Any, path: str | os.PathLike[str], collecting: CollectJob, job: WriteJob) -> SaveReport:
    """Write a model to a file, or to several; see `firekeep.save`."""
    row, target = destination(path, format=job.format, max_shard_size=job.max_shard_size)
    if target is None and not job.overwrite and os.path.lexists(path):
        raise ExistsError(
            "the file exists, and overwrite=False",
            path=path,
            remedy="Give overwrite=True to replace it, or another name (with the step in it, for one file a step).",
        )
    metadata = check_metadata(job.metadata)
    scalars = gather_scalars(job.scalars)
    collection = collect(obj, for_format(collecting, row))
    try:
        contents = contents_of(collection, row, metadata=metadata, scalars=scalars)
        writer = _writer(path, contents, row, target, job)
        warn_of_others(collection.others, {*metadata, *scalars}, path=path)
        if KEPT in collection.steps:
            warn_of_layout(path)
        written = writer()
    except FirekeepError as error:
        raise error.at(path=path)  # noqa: B904 - the same error, with its place
    return _report(collection, written, row)


def _writer(
    path: str | os.PathLike[str], contents: Contents, row: Format, target: Target | None, job: WriteJob
) -> Callable[[], _Written]:
    """Plan the file, or the files, so that what cannot be written is refused; what is given writes them."""
    if target is None:
        prepared = prepare(contents, row, digest=job.digest, limits=job.limits)

        def write_one() -> _Written:
            done = publish(path, prepared, overwrite=job.overwrite, durable=job.durable, progress=job.progress)
            return _Written(path=done, nbytes=prepared[0].nbytes)

        return write_one
    how = SetJob(
        max_shard_size=job.max_shard_size or 0,
        digest=job.digest,
        overwrite=job.overwrite,
        durable=job.durable,
        progress=job.progress,
        limits=job.limits,
    )
    write_several(contents, row, target, replace(how, dry_run=True))

    def write_all() -> _Written:
        done = write_several(contents, row, target, how)
        files = done.paths if len(done.paths) > 1 else ()
        return _Written(path=done.paths[-1], nbytes=done.nbytes, files=files, removed=done.removed, notes=done.notes)

    return write_all


def save_to_bytes(obj: Any, collecting: CollectJob, job: WriteJob) -> tuple[bytes, SaveReport]:
    """Make the file in memory; the report's path is empty."""
    row = choose_format("", job.format)
    collection = collect(obj, for_format(collecting, row))
    metadata, scalars = check_metadata(job.metadata), gather_scalars(job.scalars)
    contents = contents_of(collection, row, metadata=metadata, scalars=scalars)
    plan, observe, seal = prepare(contents, row, digest=job.digest, limits=job.limits)
    warn_of_others(collection.others, {*metadata, *scalars}, path="")
    if KEPT in collection.steps:
        warn_of_layout("")
    made = to_bytes(plan, observe=observe, seal=seal)
    return made, _report(collection, _Written(path=Path(), nbytes=len(made)), row)


def for_format(job: CollectJob, row: Format) -> CollectJob:
    """Give the suffix's promise where no layout was asked for: a file holds what the readers of its format expect."""
    return replace(job, holds_scalars=row.holds_scalars, promised=row.layout if job.layout is None else None)


def _report(collection: Collection, written: _Written, row: Format) -> SaveReport:
    return SaveReport(
        path=written.path,
        format=row.name,
        layout=collection.layout,
        tensors=len(collection),
        nbytes=written.nbytes,
        left_out=collection.left_out,
        steps=(*collection.steps, *written.notes),
        overflowed=dict(collection.losses.overflowed),
        others=tuple(one.name for one in collection.others),
        files=written.files,
        removed=written.removed,
    )
