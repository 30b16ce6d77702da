"""PyTorch files, read without PyTorch and without running anything that is in them.

Zip, legacy stream, tar and bare pickle, TorchScript and whole models included. What a pickle would have imported or called is
remembered, shown and judged by `scan_source`, and never done.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from firekeep.errors import WrongFormatError
from firekeep.formats._protocol import Container, OpenOptions
from firekeep.formats.pytorch._container import assemble
from firekeep.formats.pytorch._found import Found
from firekeep.formats.pytorch._inert import Opaque, TensorRef
from firekeep.formats.pytorch._kinds import tell_kind
from firekeep.formats.pytorch._report import ScanGlobal, ScanReport
from firekeep.garbage import collector_paused
from firekeep.sources import Source

__all__ = [
    "Opaque",
    "ScanGlobal",
    "ScanReport",
    "TensorRef",
    "open_container",
    "scan_folder",
    "scan_set",
    "scan_source",
]


def open_container(source: Source, options: OpenOptions) -> Container:
    """Read the pickle of a PyTorch file and no tensor.

    Entries come in the order of the object: that of `state_dict()`, not that of the data. Raises `UnsafePickleError` for damaged
    pickles, `TensorNotFoundError` for a `top_level_key` that is not there, other kinds of `FormatError` for files that contradict
    themselves.
    """
    with collector_paused():
        return assemble(_read(source, options), options)


def _read(source: Source, options: OpenOptions) -> Found:
    kind = tell_kind(source)
    if kind == "zip":
        from firekeep.formats.pytorch._zip import read_zip

        return read_zip(source, options)
    if kind == "tar":
        from firekeep.formats.pytorch._tar import read_tar

        return read_tar(source, options)
    if kind == "legacy":
        from firekeep.formats.pytorch._legacy import open_legacy

        return open_legacy(source, options)
    if kind == "pickle":
        from firekeep.formats.pytorch._plain import read_plain

        return read_plain(source, options)
    raise WrongFormatError("this is not a PyTorch file: neither a zip or tar archive nor a pickle")


def scan_source(source: Source, options: OpenOptions) -> ScanReport:
    """Say what the pickles of any file would import and call; a file without pickles has nothing to say.

    Damage and odd structure are reported, not raised.
    """
    from firekeep.formats.pytorch._scan import scan

    return scan(source, options)


def scan_folder(place: Path, options: OpenOptions) -> ScanReport:
    """Say the same of all files in a folder and the folders in it, as one report: `member` starts with the file's path there.

    What cannot be read, and folders that are only linked to, are told as not scanned: such a report is not safe.
    """
    from firekeep.formats.pytorch import _folder

    return _folder.scan_folder(place, options)


def scan_set(index: Path, files: Sequence[Path], options: OpenOptions) -> ScanReport:
    """Say the same of the files that an index names, as one report of one budget: `member` starts with the file's name."""
    from firekeep.formats.pytorch import _folder

    return _folder.scan_set(index, files, options)
