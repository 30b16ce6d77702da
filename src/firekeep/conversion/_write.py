"""Write what a conversion has made: one file, or a set of them."""

from __future__ import annotations

from pathlib import Path

from firekeep import sets
from firekeep.conversion._job import Job, Plan
from firekeep.saving import prepare, publish
from firekeep.sets import SetJob, Target, Written, require_folder


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
        require_folder(dst.parent)
    else:
        publish(dst, prepared, overwrite=job.overwrite, durable=job.durable, progress=job.progress)
    return Written(paths=(dst,), nbytes=prepared[0].nbytes)


def write_several(plan: Plan, target: Target, job: Job) -> Written:
    """Write a set of files, or find out which would be written."""
    how = SetJob(
        max_shard_size=job.max_shard_size or 0,
        digest=job.digest,
        overwrite=job.overwrite,
        durable=job.durable,
        progress=job.progress,
        limits=job.limits,
        dry_run=job.dry_run,
        empty_metadata=_keeps_empty_metadata(plan),
        source=plan.part.opened.path,
    )
    return sets.write_several(plan.contents(), plan.row, target, how)
