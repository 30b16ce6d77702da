"""Sharded sets written: which files one has, where they go, and what of an older one goes."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from firekeep.disk import NO_FOLDER, SCRATCH_SUFFIX, remove_stale, write_file
from firekeep.entry import TensorEntry, tie_key
from firekeep.errors import ExistsError, RuleError
from firekeep.formats import Contents, Format, Shards
from firekeep.limits import Limits
from firekeep.opened import require_name
from firekeep.saving import Meter, Prepared, Progress, choose_format, prepare
from firekeep.sets._swap import Place, remove, swap_in
from firekeep.wording import size, some

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {f"{unit}i": 1 << 10 * power for power, unit in enumerate("kmgt", 1)}
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The files that were, or would be, written; the index of a set comes last."""

    paths: tuple[Path, ...]
    nbytes: int
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetJob:
    """How a set is to be written. `source` is the file that the tensors come from, which stays."""

    max_shard_size: int | str
    digest: bool
    overwrite: bool
    durable: bool
    progress: Progress | None
    limits: Limits
    dry_run: bool = False
    empty_metadata: bool = False
    source: str | None = None


def parse_size(size: int | str) -> int:
    """Read "5GB" (5,000,000,000 bytes, as Hugging Face counts), "500MB", "4GiB" or a number of bytes; `RuleError` for another text."""
    if isinstance(size, int) and not isinstance(size, bool):
        nbytes = size
    else:
        match = _SIZE.fullmatch(size) if isinstance(size, str) else None
        if match is None:
            raise RuleError(
                f"max_shard_size={size!r} is no size",
                remedy="Give a number of bytes, or a text such as '5GB' or '500MB'.",
            )
        nbytes = int(float(match[1]) * _UNITS[(match[2] or "").lower()])
    if nbytes < 1:
        raise RuleError(f"max_shard_size={size!r}: a shard holds at least one byte")
    return nbytes


@dataclass(frozen=True, slots=True)
class Target:
    """Where a set goes: a folder, and the stem of its files' names. A folder that is its `own` is made where there is none."""

    folder: Path
    stem: str
    own: bool = False

    @classmethod
    def of(cls, dst: str | os.PathLike[str], row: Format) -> Target:
        """A path with the format's suffix gives folder and stem; another is the folder of `model...`."""
        path = Path(dst)
        if path.suffix.lower() in row.suffixes and not path.is_dir():
            return cls(path.parent, path.stem)
        return cls(path, "model", own=True)


def destination(
    dst: str | os.PathLike[str], *, format: str | None, max_shard_size: int | str | None
) -> tuple[Format, Target | None]:
    """Decide in which format, and where, files are to be written: None for one file, at the path itself."""
    name = require_name(dst)
    path = Path(name)
    if max_shard_size is None:
        if name and path.is_dir():
            raise RuleError(
                "this is a folder",
                path=dst,
                remedy="Name the file in it, or give max_shard_size to write a set of files into it.",
            )
        return choose_format(dst, format), None
    row = choose_format(dst, format or ("safetensors" if path.is_dir() or not path.suffix else None))
    row.sharder()
    parse_size(max_shard_size)
    return row, Target.of(dst, row)


def write_several(contents: Contents, row: Format, target: Target, job: SetJob) -> Written:
    """Write a set of files, or the one file that is enough, or find out which would be written."""
    most = parse_size(job.max_shard_size)
    empty = {"empty_metadata": True} if job.empty_metadata else {}
    shards = row.sharder()(contents, max_shard_bytes=most, limits=job.limits, stem=target.stem, **empty)
    place = Place(folder=target.folder, index_name=shards.index_name, stem=target.stem)
    single = target.folder / f"{target.stem}{row.suffixes[0]}"
    is_source = shards.index is not None and _is_same(single, job.source)
    if not job.overwrite:
        alone = [single] if not is_source else []
        refuse_existing([target.folder / name for name in shards.files] + [place.index] + alone)
    if not target.folder.is_dir():
        require_folder(target.folder.parent if target.own else target.folder)
    names, removed = list(shards.files), tuple[str, ...]()
    prepared = {
        name: prepare(part, row, digest=job.digest, limits=job.limits, empty_metadata=job.empty_metadata)
        for name, part in _parts(shards, contents).items()
    }
    nbytes = sum(plan.nbytes for plan, _, _ in prepared.values())
    if not job.dry_run:
        meter = Meter(nbytes, job.progress)
        names, removed = _write(prepared, shards.index, place, durable=job.durable, step=meter.step)
        if shards.index is not None and not is_source:
            removed += remove(target.folder, [single.name])
        meter.finish()
    notes = [*_oversized(shards, most)]
    if is_source:
        told = "stands beside the set, and readers of the folder open it instead: remove it once it is not needed"
        notes.append(f"the source, {str(single)!r}, {told}")
    return Written(
        paths=(*(target.folder / name for name in names), *([place.index] if shards.index is not None else [])),
        nbytes=nbytes + len(shards.index or b""),
        removed=removed,
        notes=tuple(notes),
    )


def _write(
    prepared: Mapping[str, Prepared],
    index: bytes | None,
    place: Place,
    *,
    durable: bool,
    step: Callable[[int], None],
) -> tuple[list[str], tuple[str, ...]]:
    """Write the shards and their index, and remove the files of an older set; give the names of the shards, and what was removed.

    Shards are written beside the old ones under names that no reader looks at, and take others when all are complete.
    """
    folder = place.folder
    folder.mkdir(exist_ok=True)
    for name in prepared:
        remove_stale(folder, name)
    old = place.old_files()
    if index is None:
        for name, (plan, observe, seal) in prepared.items():
            write_file(folder / name, plan, durable=durable, progress=step, observe=observe, seal=seal)
        return list(prepared), remove(folder, [place.index_name, *old])
    staged: dict[Path, str] = {}
    try:
        for number, (name, (plan, observe, seal)) in enumerate(prepared.items()):
            path = folder / f"{name}.{os.getpid()}-{number}{SCRATCH_SUFFIX}"
            staged[path] = name
            write_file(path, plan, durable=durable, progress=step, observe=observe, seal=seal)
            if (folder / name).is_file():
                path.chmod((folder / name).stat().st_mode & 0o7777)
        names = swap_in(staged, index, place, durable=durable)
    finally:
        for path in staged:
            path.unlink(missing_ok=True)
    return names, remove(folder, [name for name in old if name not in names])


def _is_same(path: Path, other: str | None) -> bool:
    try:
        return other is not None and path.samefile(other)
    except OSError:
        return False


def refuse_existing(paths: list[Path]) -> None:
    """Raise `ExistsError` for the first of these paths at which something is, a dangling link included."""
    for path in paths:
        if os.path.lexists(path):
            raise ExistsError("it exists already", path=path, remedy="Pass overwrite=True to replace it.")


def _parts(shards: Shards, contents: Contents) -> Mapping[str, Contents]:
    """Give the contents of each file: the tensors planned for it, and the further names tied to them."""
    homes = {part.tensor: file for file, plan in shards.files.items() for part in plan.parts if part.tensor is not None}
    entries = list(contents.entries)
    ties = {key: homes[entry.name] for entry in entries if entry.name in homes and (key := tie_key(entry)) is not None}
    found: dict[str, list[TensorEntry]] = {file: [] for file in shards.files}
    for entry in entries:
        found[homes[entry.name] if entry.name in homes else ties[tie_key(entry) or ()]].append(entry)
    return {file: replace(contents, entries=part) for file, part in found.items()}


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


def require_folder(folder: Path) -> None:
    """Raise the error of a real run for a folder that is not there."""
    if not folder.exists():
        raise FileNotFoundError(errno.ENOENT, NO_FOLDER, str(folder))
    folder.stat()
