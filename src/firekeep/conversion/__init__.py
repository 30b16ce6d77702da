"""From one file to another: filter, cast, rename, and write, one tensor at a time.

The order is always the same. `include` and `exclude` speak of names as they stand in the source; then floats are cast; then names are
changed; then the new file is planned and written.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from firekeep import digests
from firekeep.collecting import follow, lay_out
from firekeep.conversion._check import check_entries
from firekeep.conversion._counters import counters_of
from firekeep.conversion._metadata import Merged, merge
from firekeep.conversion._report import ConversionReport, Dropped
from firekeep.conversion._set import Target, parse_size, refuse_existing, write_set
from firekeep.conversion._source import other_values
from firekeep.disk import NO_FOLDER
from firekeep.dtypes import BY_NAME, DType
from firekeep.entry import TensorEntry, find_ties
from firekeep.errors import FirekeepError, RuleError, UnsupportedError
from firekeep.formats import FORMATS, Contents, Format, OpenOptions, Shards
from firekeep.formats._signatures import shell_name
from firekeep.garbage import collector_paused
from firekeep.layouts import CONVENTIONS, layout_of
from firekeep.likeness import likeness_of
from firekeep.limits import Limits
from firekeep.loading import choose, exclusion, refuse_without_bytes
from firekeep.opened import OpenedFile, Readable, open_file
from firekeep.parts import Part, take_part
from firekeep.rules import DTypeLike, KeyRemapper, Losses, PathFilter, Renaming, can_cast, cast, name_dtype
from firekeep.rules.layout import BIASES, read_biases, restore_biases
from firekeep.saving import Meter, Progress, choose_format, prepare, publish, tie
from firekeep.scalars import Scalar
from firekeep.slots import Convention, Outline
from firekeep.verification import read_digests
from firekeep.wording import count, quote, size, some

__all__ = ["ConversionReport", "DTypeLike", "Dropped", "Job", "convert", "name_dtype"]

_STAND_INS = {"FLEX32": "F32", "BOOL_U8": "BOOL", "BOOL_U32": "BOOL"}
"""Burn's own types, which a format without them holds as the plain ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be done to the tensors and how they are to be written, once it is known to make sense."""

    chosen: PathFilter
    remapper: KeyRemapper
    layout: Convention | None
    like: Any
    dtype: DType | None
    metadata: Mapping[str, str]
    digest: bool
    max_shard_size: int | str | None
    ties: str
    format: str | None
    overwrite: bool
    durable: bool
    dry_run: bool
    progress: Progress | None
    limits: Limits


@dataclass(slots=True, kw_only=True)
class _Plan:
    """The tensors on their way, and what is known about them so far."""

    part: Part
    row: Format
    entries: list[TensorEntry]
    merged: Merged
    excluded: tuple[str, ...]
    renaming: Renaming = Renaming({}, ())  # noqa: RUF009 - frozen
    scalars: dict[str, Scalar] = field(default_factory=dict)
    restored: frozenset[str] = frozenset()
    """Scalars that became tensors."""
    checked: int = 0
    losses: Losses = field(default_factory=Losses)
    casts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def contents(self) -> Contents:
        """Give what is to be written."""
        scalars = self.scalars if self.row.holds_scalars else {}
        return Contents(entries=self.entries, metadata=self.merged.metadata, scalars=scalars)


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
            raise error.at(path=opened.path)  # noqa: B904 - the same error, with its place
        try:
            written = _write_one(plan, Path(dst), job) if target is None else _write_several(plan, target, job)
        except FirekeepError as error:
            raise error.at(path=dst)  # noqa: B904 - the same error, with its place
        return _report(plan, opened, written, job)


def _destination(dst: str | os.PathLike[str], job: Job) -> tuple[Format, Target | None]:
    """Decide where the result goes, and refuse what cannot be written before anything is read."""
    path = Path(dst)
    if job.max_shard_size is None:
        if path.is_dir():
            raise RuleError(
                "this is a folder",
                path=dst,
                remedy="Name the file in it, or give max_shard_size to write a set of files into it.",
            )
        row = choose_format(dst, job.format)
        if not job.overwrite:
            refuse_existing([path])
        return row, None
    named = job.format or ("safetensors" if path.is_dir() or not path.suffix else None)
    row = choose_format(dst, named)
    row.sharder()
    return row, Target.of(dst, row)


def _prepare(part: Part, row: Format, job: Job) -> _Plan:
    source = part.opened
    entries = choose(source, job.chosen)
    _refuse_nothing(part, row, entries)
    refuse_without_bytes(entries.values())
    everything = source.filled() if job.chosen else entries
    plan = _Plan(
        part=part,
        row=row,
        entries=list(entries.values()),
        merged=merge(source, row, job.metadata, layout=job.layout),
        excluded=tuple(name for name in everything if name not in entries),
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


def _check(plan: _Plan, options: OpenOptions, job: Job) -> Job:
    """Compare what will be drawn with the source's digests, if it has any; the new file then has its own."""
    source = plan.part.opened
    known, faults = read_digests(source, options)
    plan.notes += [f"the digests of the source could not be used, and are not carried over: {each}" for each in faults]
    if not known:
        if digests.KEY in source.metadata and not faults:
            plan.notes.append("the source's table of digests names no tensor: none was compared")
        return job
    plan.entries, plan.checked = check_entries(plan.entries, known, source.filled(), path=source.path)
    if left := len(plan.entries) - plan.checked:
        plan.notes.append(f"the source has no digest of {count(left, 'tensor')}: copied as they are")
    return replace(job, digest=True)


def _rework(plan: _Plan, job: Job) -> None:
    """Lay out, then cast, then rename, then tie."""
    _lay_out(plan, job)
    plan.renaming = _rename(job.remapper, [entry.name for entry in plan.entries])
    plan.notes += _idle(plan.renaming)
    names = plan.renaming.names
    plan.scalars = follow(plan.scalars, names)
    _cast_all(plan, job.dtype)
    _require_dtypes(plan, job.limits)
    renamed = [entry if entry.name == names[entry.name] else entry.renamed(names[entry.name]) for entry in plan.entries]
    plan.entries = tie(renamed, job.ties)


def _lay_out(plan: _Plan, job: Job) -> None:
    opened = plan.part.opened
    source = layout_of(opened.format, opened.metadata, content=opened.container.layout).name
    if job.layout is None and source == "torch" and plan.row.layout == "burn" and _has_matrices(plan.entries):
        plan.notes.append(
            "the tensors keep PyTorch's layout, as the metadata say; Burn itself would misread the weights of Linear layers, "
            "unless written with layout='burn'"
        )
    if job.layout is None or job.layout == source:
        return
    held = plan.part.opened.container
    if source not in CONVENTIONS:
        raise UnsupportedError(f"the layout {source!r} of the source cannot be turned into {job.layout!r}")
    like = None if job.like is None else likeness_of(job.like, OpenOptions(limits=job.limits))
    if like is not None and job.remapper:  # whose names are those after the renames
        like = like.before(job.remapper.rename([entry.name for entry in plan.entries]).names)
    convention = next(known for known in CONVENTIONS if known == source)
    outline = Outline(slots=(), convention=convention, layers=held.layers, modules=held.submodules)
    holds = plan.row.holds_scalars
    laid = lay_out(plan.entries, outline, layout=job.layout, like=like, holds_scalars=holds)
    plan.entries = list(laid.entries)
    _keep_biases(plan, laid.biases, job)
    if job.layout == "torch":
        counters = dict(counters_of(plan.scalars, plan.entries, job.chosen))
        plan.entries += counters.values()
        plan.restored = frozenset(counters)
        plan.scalars = {key: scalar for key, scalar in plan.scalars.items() if key not in counters}
        plan.notes += [f"{count(len(counters), 'counter')} of batches made of scalars"] if counters else []
    plan.scalars.update(laid.scalars)
    plan.notes += laid.steps


def _keep_biases(plan: _Plan, biases: str | None, job: Job) -> None:
    """Keep beside the sums of recurrent biases what they are the sums of, or put what was kept in their place."""
    kept = read_biases(plan.merged.metadata)
    if job.layout == "torch" and kept:
        plan.entries, parted = restore_biases(plan.entries, kept)
        plan.notes += [f"{count(parted, 'sum')} of two biases taken apart as the metadata keep them"] if parted else []
    if BIASES not in job.metadata:
        plan.merged.metadata.pop(BIASES, None)
    if biases is not None:
        plan.merged.metadata.setdefault(BIASES, biases)


def _has_matrices(entries: Iterable[TensorEntry]) -> bool:
    return any(len(entry.shape) == 2 and entry.name.rpartition(".")[2] == "weight" for entry in entries)


def _idle(renaming: Renaming) -> list[str]:
    notes = [f"the rename {quote(rule)} was found in no name" for rule, hits in renaming.hits if not hits]
    if holed := [renaming.names[name] for name in renaming.holed]:
        notes.append(
            f"the renames leave {count(len(holed), 'name')} with nothing before, between or behind dots: {some(holed)}"
        )
    return notes


def _cast_all(plan: _Plan, target: DType | None) -> None:
    if target is None:
        return
    left = [entry.name for entry in plan.entries if _is_other_float(entry, target)]
    if left:
        plan.notes.append(f"packed floats and their scales are left as they are: {some(left)}")
    for place, entry in enumerate(plan.entries):
        if can_cast(entry, target):
            plan.casts[f"{entry.dtype} -> {target}"] += 1
            plan.entries[place] = cast(entry, target, plan.losses)


def _is_other_float(entry: TensorEntry, target: DType) -> bool:
    dtype = entry.require()
    return dtype.kind == "float" and dtype is not target and not can_cast(entry, target)


def _require_dtypes(plan: _Plan, limits: Limits) -> None:
    """Ask the format about each type that occurs, so that all tensors it cannot hold are named at once."""
    by_type: dict[DType, list[TensorEntry]] = {}
    for entry in plan.entries:
        by_type.setdefault(entry.require(), []).append(entry)
    refused = {dtype: group for dtype, group in by_type.items() if not _holds(plan.row, group[0], limits)}
    if refused:
        shown = "; ".join(f"{dtype} ({some([entry.name for entry in group])})" for dtype, group in refused.items())
        raise UnsupportedError(
            f"{plan.row.name} files cannot hold {count(sum(map(len, refused.values())), 'tensor')}: {shown}",
            remedy=_remedy(plan.row, refused, limits),
        )
    if plan.row.name == "safetensors":
        for dtype, group in by_type.items():
            if dtype.name in _STAND_INS:
                plan.notes.append(f"{count(len(group), 'tensor')} of {dtype} stored as {_STAND_INS[dtype.name]}")


def _holds(row: Format, entry: TensorEntry, limits: Limits) -> bool:
    try:
        row.writer()(Contents(entries=[entry.renamed("probe")]), limits)
    except UnsupportedError:
        return False
    except FirekeepError:
        return True  # the type is not what is wrong with it: the real plan will say what is
    return True


def _remedy(row: Format, refused: Mapping[DType, list[TensorEntry]], limits: Limits) -> str:
    """Say what would help, and nothing that would not."""
    ways = []
    if all(dtype.block is not None for dtype in refused):  # as GGUF has them
        ways.append("compute their float32 values with dequantize=True")
    if all(can_cast(group[0], BY_NAME["BF16"]) for group in refused.values()):
        ways.append("cast all floats with dtype='bf16'")
    others = [other for other in FORMATS.values() if other.writes and other is not row]
    ways += [
        f"write {other.suffixes[0]}"
        for other in others
        if all(_holds(other, group[0], limits) for group in refused.values())
    ]
    ways.append(f"leave them out with {exclusion([entry.name for group in refused.values() for entry in group])}")
    text = ", or ".join(ways)
    return f"{text[0].upper()}{text[1:]}."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The files that were, or would be, written."""

    paths: tuple[Path, ...]
    nbytes: int
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _keeps_empty_metadata(plan: _Plan) -> bool:
    """Say whether the source has a `__metadata__` with nothing in it, as the result can have."""
    source = plan.part.opened
    return plan.row.name == source.format == "safetensors" and source.details.get("metadata") == "empty"


def _write_one(plan: _Plan, dst: Path, job: Job) -> _Written:
    contents = plan.contents()
    prepared = prepare(
        contents, plan.row, digest=job.digest, limits=job.limits, empty_metadata=_keeps_empty_metadata(plan)
    )
    if job.dry_run:
        _require_folder(dst.parent)
    else:
        publish(dst, prepared, overwrite=job.overwrite, durable=job.durable, progress=job.progress)
    return _Written(paths=(dst,), nbytes=prepared[0].nbytes)


def _write_several(plan: _Plan, target: Target, job: Job) -> _Written:
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
    return _Written(paths=tuple(paths), nbytes=nbytes, removed=removed, notes=tuple(notes))


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


def _report(plan: _Plan, opened: OpenedFile, written: _Written, job: Job) -> ConversionReport:
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
        dropped=Dropped(
            scalars=() if row.holds_scalars else tuple(key for key in source.scalars if key not in plan.restored),
            param_ids=ids,
            metadata=plan.merged.dropped,
            values=tuple(values),
        ),
        removed=written.removed,
        notes=(*plan.notes, *([remark] if remark else []), *written.notes, *source.notes),
    )
