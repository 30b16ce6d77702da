"""From one file to another: filter, cast, rename, and write, one tensor at a time.

The order is always the same. `include` and `exclude` speak of names as they stand in the source; then floats are cast; then names are
changed; then the new file is planned and written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from firekeep import digests
from firekeep.collecting import follow, lay_out
from firekeep.conversion._casts import cast_all, require_dtypes
from firekeep.conversion._check import Attester, check_entries
from firekeep.conversion._counters import counters_of
from firekeep.conversion._idle import idle_notes
from firekeep.conversion._job import Job, Plan
from firekeep.conversion._metadata import merge
from firekeep.conversion._report import ConversionReport, Dropped
from firekeep.conversion._source import other_values
from firekeep.conversion._turning import turn_as_told
from firekeep.conversion._write import write_one, write_several
from firekeep.entry import TensorEntry, find_ties
from firekeep.errors import FirekeepError, RuleError, UnsupportedError
from firekeep.formats import Format, OpenOptions
from firekeep.formats._signatures import shell_name
from firekeep.garbage import collector_paused
from firekeep.layouts import (
    COLUMNS,
    CONVENTIONS,
    UNTURNED,
    columns_said,
    layout_of,
    move_columns,
    seen_by,
    unturned_said,
    write_columns,
    write_unturned,
)
from firekeep.likeness import Likeness, behind, likeness_of
from firekeep.loading import choose, refuse_without_bytes
from firekeep.opened import OpenedFile, Readable, open_file
from firekeep.parts import Part, take_part
from firekeep.rules import DTypeLike, KeyRemapper, Renaming, name_dtype
from firekeep.rules.layout import (
    BIASES,
    LAYERS,
    moved,
    read_biases,
    read_layers,
    restore_biases,
    without_collections,
    write_layers,
)
from firekeep.saving import tie
from firekeep.sets import Target, Written, destination, refuse_existing
from firekeep.slots import Convention, Outline
from firekeep.verification import read_digests
from firekeep.wording import count, quote, some

__all__ = ["ConversionReport", "DTypeLike", "Dropped", "Job", "convert", "name_dtype"]


def convert(src: Readable, dst: str | os.PathLike[str], options: OpenOptions, job: Job) -> ConversionReport:
    """Convert a file; see `firekeep.convert`."""
    row, target = _destination(dst, job)
    key = options.top_level_key
    with open_file(src, replace(options, top_level_key=key or None)) as opened, collector_paused():
        try:
            plan = _prepare(take_part(opened, options, key), row, job)
            job = _check(plan, options, job)
            _rework(plan, job)
        except FirekeepError as error:
            raise _placed(error, opened.path)  # noqa: B904 - the same error, with its place
        try:
            written = write_one(plan, Path(dst), job) if target is None else write_several(plan, target, job)
        except FirekeepError as error:
            raise error.at(path=dst)  # noqa: B904 - the same error, with its place
        return _report(plan, opened, written, job)


def _placed(error: FirekeepError, path: str | None) -> FirekeepError:
    """Give an error its file, which is not named twice where it is its own like=."""
    if path is not None and error.message.startswith(f"{path} "):
        error.message = f"the file itself, given as like=, {error.message[len(path) + 1 :]}"
    return error.at(path=path)


def _destination(dst: str | os.PathLike[str], job: Job) -> tuple[Format, Target | None]:
    """Decide where the result goes, and refuse what cannot be written before anything is read."""
    row, target = destination(dst, format=job.format, max_shard_size=job.max_shard_size)
    if target is None and not job.overwrite:
        refuse_existing([Path(dst)])
    return row, target


def _prepare(part: Part, row: Format, job: Job) -> Plan:
    source = part.opened
    entries = choose(source, job.chosen)
    _refuse_nothing(part, row, entries)
    refuse_without_bytes(entries.values())
    everything = source.filled() if job.chosen else entries
    plan = Plan(
        part=part,
        row=row,
        entries=list(entries.values()),
        merged=merge(source, row, job.metadata, layout=job.layout),
        excluded=tuple(name for name in everything if name not in entries),
        remapper=job.remapper,
        scalars=dict(source.container.scalars),
    )
    plan.notes += [
        f"the pattern {quote(pattern)} was found in no name" for pattern in job.chosen.select(everything).idle
    ]
    return plan


def _rename(remapper: KeyRemapper, names: Iterable[str]) -> Renaming:
    """Find the new names, and refuse the rules that leave nothing of one."""
    renaming = remapper.rename(names)
    for old, new in renaming.names.items():
        if old and not new:
            raise RuleError(
                f"the renames leave nothing of the name {old!r}",
                remedy="Make the pattern narrower, or give a replacement that is not empty.",
            )
    return renaming


def _refuse_nothing(part: Part, row: Format, entries: Mapping[str, TensorEntry]) -> None:
    """Refuse to make an empty file of one that holds something; a file of metadata or scalars alone stays one."""
    source = part.opened
    if entries or (source.format != "pytorch" and (row.holds_scalars or not source.scalars)):
        return
    look = f"See what it holds: `firekeep inspect --values {shell_name(source.source)}`."
    raise UnsupportedError(
        f"there is no tensor {f'under {part.key!r}' if part.key else 'in it'}, so there is nothing to write",
        remedy=look if source.format == "pytorch" else "Write .bpk, which keeps its scalars.",
    )


def _check(plan: Plan, options: OpenOptions, job: Job) -> Job:
    """Compare what will be drawn with the source's digests, if it has any; the new file then has its own.

    Where it is to have digests, what the source has no digest of is compared with the checksums of its archive: they would certify damage.
    """
    source = plan.part.opened
    known, faults = read_digests(source, options)
    plan.notes += [f"the digests of the source could not be used, and are not carried over: {each}" for each in faults]
    if not known and digests.KEY in source.metadata and not faults:
        plan.notes.append("the source's table of digests names no tensor: none was compared")
    if known:
        job = replace(job, digest=True)
    if job.digest:
        plan.attester = Attester(source.container.attest, path=source.path)
        plan.entries, plan.checked = check_entries(plan.entries, known, source, plan.attester)
    if known and (left := len(plan.entries) - plan.checked):
        plan.notes.append(f"the source has no digest of {count(left, 'tensor')}: copied as they are")
    return job


def _rework(plan: Plan, job: Job) -> None:
    """Lay out, then cast, then rename, then tie."""
    if LAYERS not in job.metadata:
        plan.told = read_layers(plan.part.opened.metadata)
    plan.unturned = unturned_said(plan.part.opened.metadata)
    plan.columns = columns_said(plan.part.opened.metadata) if COLUMNS in plan.part.opened.metadata else None
    _lay_out(plan, job)
    plan.renaming = _rename(plan.remapper, [entry.name for entry in plan.entries])
    plan.notes += idle_notes(plan.renaming, plan.remapper)
    names = plan.renaming.names
    plan.scalars = follow(plan.scalars, names)
    _keep_told(plan, job)
    cast_all(plan, job.dtype)
    require_dtypes(plan, job.limits)
    renamed = [entry if entry.name == names[entry.name] else entry.renamed(names[entry.name]) for entry in plan.entries]
    plan.entries = tie(renamed, job.ties)


def _lay_out(plan: Plan, job: Job) -> None:
    opened = plan.part.opened
    source = layout_of(opened.format, opened.metadata, content=opened.container.layout).name
    if job.layout is None and source == "torch" and plan.row.layout == "burn" and _has_matrices(plan.entries):
        plan.notes.append(
            "the tensors keep PyTorch's layout, as the metadata say; Burn itself would misread the weights of Linear layers, "
            "unless written with layout='burn'"
        )
    if job.layout is None or job.layout == source:
        if job.like is not None and source in CONVENTIONS:
            _like_of(plan, job).require(plan.entries, source)
        return
    held = plan.part.opened.container
    if source not in CONVENTIONS:
        raise UnsupportedError(
            f"nothing says how the layers of the source lie, so they cannot be turned into {job.layout!r}",
            remedy=_say_layout(opened),
        )
    if source == "linen":
        _leave_collections(plan)
    like = None if job.like is None else _like_of(plan, job, layout=job.layout)
    if source == "burn" and like is not None:
        like = _turn(plan, like)
    convention = next(known for known in CONVENTIONS if known == source)
    outline = Outline(slots=(), convention=convention, layers=held.layers, modules=held.submodules)
    holds = plan.row.holds_scalars
    laid = lay_out(plan.entries, outline, layout=job.layout, like=like, facts=plan.told, holds_scalars=holds)
    plan.entries = list(laid.entries)
    plan.told, plan.unturned, plan.columns = laid.told, laid.unturned, laid.columns
    _keep_biases(plan, laid.biases, job)
    if job.layout == "torch":
        counters = dict(counters_of(plan.scalars, plan.entries, job.chosen))
        plan.entries += counters.values()
        plan.restored = frozenset(counters)
        plan.scalars = {key: scalar for key, scalar in plan.scalars.items() if key not in counters}
        plan.notes += [f"{count(len(counters), 'counter')} of batches made of scalars"] if counters else []
    plan.scalars.update(laid.scalars)
    plan.notes += laid.steps


def _turn(plan: Plan, like: Likeness) -> Likeness:
    """Lay matrices of a file in Burn's layout as the reader's layers have them there, and give that reader."""
    before = plan.entries
    plan.entries, like = turn_as_told(before, like, plan.part.opened.metadata, facts=plan.told)
    if turned := sum(one is not old for one, old in zip(plan.entries, before, strict=True)):
        plan.notes.append(
            f"{count(turned, 'tensor')} turned round first, since the metadata tell how the file's matrices lie"
        )
    return like


def _like_of(plan: Plan, job: Job, *, layout: Convention | None = None) -> Likeness:
    """Give what the reader looks for under the names of the source: its own are those after the renames, which come after a new layout."""
    like = likeness_of(job.like, OpenOptions(limits=job.limits))
    names = [entry.name for entry in plan.entries]
    if not plan.remapper:
        return like
    if layout is not None:
        return behind(like, names, plan.remapper, layout=layout)
    return like.before(plan.remapper.rename(names).names)


def _say_layout(opened: OpenedFile) -> str:
    """Say how a file whose layout nobody told is made one that says it."""
    copy = f"`firekeep convert {shell_name(opened.source)} said.safetensors --metadata firekeep.layout=LAYOUT`"
    return f"Say it in a copy, and convert that: {copy}, where LAYOUT is one of {', '.join(CONVENTIONS)}."


def _leave_collections(plan: Plan) -> None:
    """Take Linen's collections off the names, as layers of other layouts have none; renames that are found by them see them still."""
    old = [entry.name for entry in plan.entries]
    names = without_collections(old)
    if all(name == new for name, new in names.items()):
        return
    plan.remapper = seen_by(plan.remapper, old)
    plan.entries = [entry.renamed(names[entry.name]) for entry in plan.entries]
    plan.notes.append("the collections 'params' and 'batch_stats' were taken off the names")


def _keep_biases(plan: Plan, biases: str | None, job: Job) -> None:
    """Keep beside the sums of recurrent biases what they are the sums of, or put what was kept in their place."""
    kept = read_biases(plan.merged.metadata)
    if job.layout == "torch" and kept:
        plan.entries, parted = restore_biases(plan.entries, kept)
        plan.notes += [f"{count(parted, 'sum')} of two biases taken apart as the metadata keep them"] if parted else []
    if BIASES not in job.metadata:
        plan.merged.metadata.pop(BIASES, None)
    if biases is not None:
        plan.merged.metadata.setdefault(BIASES, biases)


def _keep_told(plan: Plan, job: Job) -> None:
    """Write what the metadata tell of layers and matrices under the new names, as far as it is still true."""
    names = plan.renaming.names
    if UNTURNED not in job.metadata:
        plan.merged.metadata.pop(UNTURNED, None)
        told_names = None if plan.unturned is None else {names[one] for one in plan.unturned if one in names}
        if (unturned := write_unturned(told_names)) is not None:
            plan.merged.metadata[UNTURNED] = unturned
    if COLUMNS not in job.metadata:
        _keep_columns(plan)
    if LAYERS in job.metadata:
        return
    told = write_layers(moved(plan.told, names))
    plan.merged.metadata.pop(LAYERS, None)
    if told is not None:
        plan.merged.metadata[LAYERS] = told


def _keep_columns(plan: Plan) -> None:
    """Name the linear layers that lie as [out, in] in Burn's layout, wherever renames put them."""
    plan.merged.metadata.pop(COLUMNS, None)
    if plan.columns is None:
        return
    found, lost = move_columns(plan.columns, plan.renaming.names)
    plan.merged.metadata[COLUMNS] = write_columns(found)
    if lost:
        plan.notes.append(
            "nothing in the new file says that these lie as [out, in] (LinearLayout::Col), since they are no longer called 'weight': "
            f"{some(lost)}"
        )


def _has_matrices(entries: Iterable[TensorEntry]) -> bool:
    return any(len(entry.shape) == 2 and entry.name.rpartition(".")[2] == "weight" for entry in entries)


def _report(plan: Plan, opened: OpenedFile, written: Written, job: Job) -> ConversionReport:
    source, row = plan.part.opened, plan.row
    values, remark = other_values(opened)
    ids = sum(entry.param_id is not None for entry in plan.entries) if not row.holds_param_ids else 0
    return ConversionReport(
        source=opened.path,
        source_format=" ".join(filter(None, (opened.format, opened.variant))),
        destinations=tuple(map(str, written.paths)),
        format=row.name,
        layout=plan.merged.layout,
        tensors=len(plan.entries),
        nbytes=written.nbytes,
        dry_run=job.dry_run,
        part=plan.part.key,
        left_out=plan.part.left_out,
        excluded=plan.excluded,
        renamed=plan.renaming.changed,
        renames=plan.renaming.hits,
        casts=dict(plan.casts),
        overflowed=dict(plan.losses.overflowed),
        vanished=dict(plan.losses.vanished),
        ties=find_ties(plan.entries),
        digests=job.digest,
        checked=0 if job.dry_run else plan.checked,
        attested=0 if plan.attester is None else plan.attester.count,
        dropped=Dropped(
            scalars=() if row.holds_scalars else tuple(key for key in source.scalars if key not in plan.restored),
            param_ids=ids,
            metadata=plan.merged.dropped,
            values=tuple(values),
        ),
        removed=written.removed,
        notes=(*plan.notes, *([remark] if remark else []), *written.notes, *source.notes),
    )
