"""Scanning all files of a folder, or of a set, as one report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from firekeep.formats._protocol import OpenOptions
from firekeep.formats.pytorch._report import ScanGlobal, ScanReport, ordered
from firekeep.formats.pytorch._scan import Search, scan
from firekeep.garbage import collector_paused
from firekeep.sources import FileSource, Source

_MOST_FILES = 10_000
_SUFFIXES = frozenset(".pt .pth .bin .ckpt .pkl .pickle .pck .joblib .npy .npz .pt2 .ptl .mar .nemo".split())  # noqa: SIM905
"""Of files that are pickles, or archives of some: where they look like one and are damaged, that is told."""


def scan_folder(place: Path, options: OpenOptions) -> ScanReport:
    """Scan each file below a folder; names in the report start with the file's path in it. See `_scan`.

    Links to files are followed, links to folders are not. What cannot be read counts as damage: it was not scanned.
    """
    found: list[ScanGlobal] = []
    damaged: list[str] = []
    pickles = 0
    for number, path in enumerate(_files(place, damaged)):
        if number >= _MOST_FILES:
            damaged.append(f"not scanned: the files of the folder after the first {_MOST_FILES:,}")
            break
        name = path.relative_to(place).as_posix()
        try:
            report = _scan_one(path, options)
        except OSError as error:
            damaged.append(f"{name!r} was not scanned: {error.strerror or error}")
            continue
        pickles += report.pickles
        found += [replace(one, member=f"{name}/{one.member}" if one.member else name) for one in report.globals]
        damaged += [f"{name!r}: {report.damaged}"] if report.damaged is not None else []
    more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
    return ScanReport(
        globals=ordered(found), damaged=f"{damaged[0]}{more}" if damaged else None, pickles=pickles, path=str(place)
    )


def scan_set(index: Path, files: Sequence[Path], options: OpenOptions) -> ScanReport:
    """Scan the files of a set, which together may take what one file may; what is not there was not scanned."""
    search = Search(options.limits, sum(file.stat().st_size for file in files if file.is_file()))
    with collector_paused():
        for file in files:
            try:
                source = FileSource(file)
            except OSError as error:
                search.damaged.append(f"{file.name!r} was not scanned: {error.strerror or error}")
                continue
            try:
                search.any(source, file.name, 0, expected=file.suffix.lower() != ".safetensors")
            finally:
                source.close()
    return search.report(str(index))


def _scan_one(path: Path, options: OpenOptions) -> ScanReport:
    source = FileSource(path)
    try:
        return scan(source, options, expected=_is_expected(source, path))
    finally:
        source.close()


def _is_expected(source: Source, path: Path) -> bool:
    """Say whether a file among others should be a pickle: by its suffix or its first bytes. Text may look like one by chance."""
    head = bytes(source.view(0, min(2, source.size)))
    return path.suffix.lower() in _SUFFIXES or head[:1] == b"\x80" or head == b"PK"


def _files(place: Path, damaged: list[str]) -> Iterator[Path]:
    """Give the files in order; folders that cannot be listed are noted."""

    def note(error: OSError) -> None:
        damaged.append(f"{error.filename!r} was not scanned: {error.strerror}")

    for folder, folders, files in os.walk(place, onerror=note):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        damaged += [f"{name!r} was not scanned: it is a link to a folder" for name in links]
        folders.sort()
        yield from (Path(folder, name) for name in sorted(files))
