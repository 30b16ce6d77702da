"""Records as files: always burnpack, under names that end in .bpk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from firekeep.blobs import MemoryBlob
from firekeep.disk import to_bytes
from firekeep.entry import TensorEntry, tie_key
from firekeep.errors import ExistsError, FirekeepError
from firekeep.formats import FORMATS, Contents, OpenOptions
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.opened import OpenedFile, Readable, is_readable, no_file, open_file, require_name
from firekeep.saving import Progress, prepare, publish

SUFFIX = ".bpk"


def record_path(path: str | os.PathLike[str]) -> Path:
    """Give the path that a record is written to: `.bpk` is added unless the name ends in exactly that ("model-1.0" gets one too)."""
    given = require_name(path)
    return Path(given) if given.endswith(SUFFIX) else Path(given + SUFFIX)


def find_record(path: str | os.PathLike[str]) -> Path:
    """Give the path that a record is read from: with `.bpk` added, or as it is where only that is a file."""
    given, full = Path(require_name(path)), record_path(path)
    return given if not full.exists() and given.is_file() else full


def write_record(
    contents: Contents,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = True,
    durable: bool = True,
    digest: bool = False,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Path:
    """Write a record, whole or not at all, and give the path it has."""
    target = record_path(path)
    if not overwrite and os.path.lexists(target):
        raise ExistsError(
            "the file exists, and overwrite=False", path=target, remedy="Give overwrite=True, or another name."
        )
    try:
        prepared = prepare(contents, FORMATS["burnpack"], digest=digest, limits=limits)
        return publish(target, prepared, overwrite=overwrite, durable=durable, progress=progress)
    except FirekeepError as error:
        raise error.at(path=target)  # noqa: B904 - the same error, with its place


def record_bytes(contents: Contents, *, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Make the file in memory."""
    plan, observe, seal = prepare(contents, FORMATS["burnpack"], digest=False, limits=limits)
    return to_bytes(plan, observe=observe, seal=seal)


def open_record(source: Readable, *, limits: Limits = DEFAULT_LIMITS) -> OpenedFile:
    """Open a record, held open for its tensors to be drawn when they are used."""
    if not is_readable(source):
        raise no_file(source, remedy="A record of an object at hand is what `of` takes, where this loads a file.")
    options = OpenOptions(limits=limits)
    return open_file(find_record(source) if isinstance(source, str | os.PathLike) else source, options)


def copied(entries: Iterable[TensorEntry]) -> list[TensorEntry]:
    """Draw tensors into memory of their own, tied ones once: what they were taken of may change then."""
    held: dict[tuple[object, ...], MemoryBlob] = {}
    made = []
    for entry in entries:
        key = tie_key(entry)
        blob = held.get(key) if key is not None else None
        if blob is None:
            data = bytearray(entry.read())
            blob = MemoryBlob(data, identity=("copy", id(data)))
            if key is not None:
                held[key] = blob
        made.append(replace(entry, blob=blob))
    return made
