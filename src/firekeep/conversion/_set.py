"""Writing a sharded set so that no reader ever sees shards of two sets under one index."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from firekeep.blobs import MemoryBlob
from firekeep.disk import SCRATCH_SUFFIX, Part, WritePlan, remove_stale, write_file
from firekeep.entry import TensorEntry, tie_key
from firekeep.errors import ExistsError, RuleError
from firekeep.formats import Contents, Format, Shards
from firekeep.limits import Limits
from firekeep.saving import prepare

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {f"{unit}i": 1 << 10 * power for power, unit in enumerate("kmgt", 1)}
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE | re.ASCII)
_MOST_INDEX_BYTES = 100_000_000


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
    """Where a set goes: a folder, and the stem of its files' names."""

    folder: Path
    stem: str

    @classmethod
    def of(cls, dst: str | os.PathLike[str], row: Format) -> Target:
        """A path with the format's suffix gives folder and stem; another is the folder of `model...`."""
        path = Path(dst)
        if path.suffix.lower() in row.suffixes and not path.is_dir():
            return cls(path.parent, path.stem)
        return cls(path, "model")


def write_set(
    shards: Shards,
    contents: Contents,
    row: Format,
    target: Target,
    *,
    digest: bool,
    durable: bool,
    step: Callable[[int], None] | None,
    limits: Limits,
    empty_metadata: bool = False,
) -> tuple[str, ...]:
    """Write the shards, then the index, and remove the files of an older set that the new one does not use; give their paths.

    Shards are written beside the old ones under names no reader looks at. Only when all are complete the old index goes, the new
    shards take their names, and the new index comes last: whenever this ends, the folder holds the old set, the new one, or none.
    """
    plan_of = partial(prepare, row=row, digest=digest, limits=limits, empty_metadata=empty_metadata)
    folder = target.folder
    folder.mkdir(exist_ok=True)
    for name in shards.files:
        remove_stale(folder, name)
    old = _old_set(folder / shards.index_name, target.stem)
    if shards.index is None:
        for name, part in _parts(shards, contents).items():
            plan, observe, seal = plan_of(part)
            write_file(folder / name, plan, durable=durable, progress=step, observe=observe, seal=seal)
        return _remove(folder, [shards.index_name, *old])
    staged: dict[Path, Path] = {}
    try:
        for number, (name, part) in enumerate(_parts(shards, contents).items()):
            place = folder / f"{name}.{os.getpid()}-{number}{SCRATCH_SUFFIX}"
            staged[place] = folder / name
            plan, observe, seal = plan_of(part)
            write_file(place, plan, durable=durable, progress=step, observe=observe, seal=seal)
            if staged[place].is_file():
                place.chmod(staged[place].stat().st_mode & 0o7777)
        (folder / shards.index_name).unlink(missing_ok=True)
        for place, final in staged.items():
            place.replace(final)
    finally:
        for place in staged:
            place.unlink(missing_ok=True)
    index = WritePlan(nbytes=len(shards.index), parts=[Part(0, MemoryBlob(shards.index))])
    write_file(folder / shards.index_name, index, durable=durable)
    return _remove(folder, [name for name in old if name not in shards.files])


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


def _old_set(index: Path, stem: str) -> list[str]:
    """Name the shards of the set that stands there, as far as they are called as sets of this stem are."""
    with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError, LookupError, TypeError):
        if index.stat().st_size <= _MOST_INDEX_BYTES:
            named = json.loads(index.read_bytes())["weight_map"].values()
            shape = re.compile(rf"{re.escape(stem)}-\d{{5}}-of-\d{{5}}\.safetensors", re.ASCII)
            return sorted({name for name in named if isinstance(name, str) and shape.fullmatch(name)})
    return []


def _remove(folder: Path, names: list[str]) -> tuple[str, ...]:
    removed = []
    for name in names:
        with contextlib.suppress(OSError):
            (folder / name).unlink()
            removed.append(str(folder / name))
    return tuple(removed)
