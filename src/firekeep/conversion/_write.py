"""Write what a conversion has made: one file, or a set of them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from firekeep.conversion._job import Job, Plan
from firekeep.conversion._set import Target, parse_size, refuse_existing, write_set
from firekeep.disk import NO_FOLDER
from firekeep.formats import Shards
from firekeep.saving import Meter, prepare, publish
from firekeep.wording import size, some


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The files that were, or would be, written."""

    paths: tuple[Path, ...]
    nbytes: int
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _keeps_empty_metadata(plan: Plan) -> bool:
    """Say whether the source has a `__metadata__` with nothing in it, as the result can have."""
    source = plan.part.opened
    return plan.row.name == source.format == "safetensors" and source.details.get("metadata") == "empty"


def write_one(plan: Plan, dst: Path, job: Job) -> Written:
    """Write one file, or find out what would be written."""
    contents = plan.contents()
    prepared = prepare(
        contents, plan.row, digest=job.digest, limits=job.limits, empty_metadata=_keeps_empty_metadata(plan)
    )
    if job.dry_run:
        _require_folder(dst.parent)
    else:
        publish(dst, prepared, overwrite=job.overwrite, durable=job.durable, progress=job.progress)
    return Written(paths=(dst,), nbytes=prepared[0].nbytes)


def write_several(plan: Plan, target: Target, job: Job) -> Written:
    """Write a set of files, or find out which would be written."""
    contents = plan.contents()
    most = parse_size(job.max_shard_size or 0)
    empty = {"empty_metadata": True} if _keeps_empty_metadata(plan) else {}
    shards = plan.row.sharder()(contents, max_shard_bytes=most, limits=job.limits, stem=target.stem, **empty)
    index = [target.folder / shards.index_name]
    paths = [target.folder / name for name in shards.files]
    if not job.overwrite:
        refuse_existing([*paths, *index])
    removed: tuple[str, ...] = ()
    if not target.folder.is_dir():
        _require_folder(target.folder.parent)
    if not job.dry_run:
        meter = Meter(sum(file.nbytes for file in shards.files.values()), job.progress)
        removed = write_set(
            shards,
            contents,
            plan.row,
            target,
            digest=job.digest,
            durable=job.durable,
            step=meter.step,
            limits=job.limits,
            **empty,
        )
        meter.finish()
    nbytes = sum(file.nbytes for file in shards.files.values()) + len(shards.index or b"")
    single = target.folder / f"{target.stem}{plan.row.suffixes[0]}"
    notes = [*_oversized(shards, most)]
    notes += (
        (f"{str(single)!r} stands beside the set, and many readers open it instead: remove it if it is old",)
        if shards.index is not None and single.exists()
        else ()
    )
    paths += index if shards.index is not None else []
    return Written(paths=tuple(paths), nbytes=nbytes, removed=removed, notes=tuple(notes))


def _oversized(shards: Shards, most: int) -> Iterator[str]:
    """A tensor is never split, so that one alone may be more than a shard should have."""
    large = [
        part.tensor
        for plan in shards.files.values()
        for part in plan.parts
        if part.tensor is not None and part.blob.nbytes > most
    ]
    if large:
        shards_are = "1 shard is" if len(large) == 1 else f"{len(large):,} shards are"
        yield f"{shards_are} larger than {size(most)}, since a tensor is never split: {some(large)}"


def _require_folder(folder: Path) -> None:
    """Raise the error of a real run for a folder that is not there."""
    if not folder.exists():
        raise FileNotFoundError(errno.ENOENT, NO_FOLDER, str(folder))
    folder.stat()
