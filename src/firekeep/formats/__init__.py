"""The family of file formats: one row a member, told apart by content and never by suffix."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePath

from firekeep.errors import UnsupportedError
from firekeep.formats._protocol import (
    Container,
    Contents,
    Finding,
    OpenOptions,
    Reader,
    Severity,
    Sharder,
    Shards,
    Writer,
)
from firekeep.sources import Source

__all__ = [
    "FORMATS",
    "Container",
    "Contents",
    "Finding",
    "Format",
    "OpenOptions",
    "Severity",
    "Shards",
    "files_of_set",
    "format_for_suffix",
    "open_path",
    "open_source",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A row of the table: a member's name, the suffixes it is saved under, and its door, imported when used."""

    name: str
    suffixes: tuple[str, ...]
    writes: bool
    why_not: str = ""
    """Why a format is not written, as the end of a sentence."""
    holds_scalars: bool = False
    holds_param_ids: bool = False
    layout: str = "torch"
    """How layers lie in a file that says nothing of it."""
    shards: bool = False
    """It can be written as several files with an index."""

    def reader(self) -> Reader:
        """Give the member's `open_container`."""
        reader: Reader = import_module(f"firekeep.formats.{self.name}").open_container
        return reader

    def writer(self) -> Writer:
        """Give the member's `plan`; raises `UnsupportedError` for formats that are only read."""
        if not self.writes:
            able = " or ".join(row.suffixes[0] for row in FORMATS.values() if row.writes)
            raise UnsupportedError(
                f"{self.name} files are read, not written{self.why_not}", remedy=f"Write {able} instead."
            )
        writer: Writer = import_module(f"firekeep.formats.{self.name}").plan
        return writer

    def sharder(self) -> Sharder:
        """Give the member's `plan_shards`; raises `UnsupportedError` for formats that are always one file."""
        if not self.shards:
            able = " or ".join(row.suffixes[0] for row in FORMATS.values() if row.shards)
            raise UnsupportedError(f"{self.name} files are not written in shards", remedy=f"Write {able}, or one file.")
        sharder: Sharder = import_module(f"firekeep.formats.{self.name}").plan_shards
        return sharder


FORMATS = {
    row.name: row
    for row in (
        Format(
            name="burnpack", suffixes=(".bpk",), writes=True, layout="burn", holds_scalars=True, holds_param_ids=True
        ),
        Format(name="safetensors", suffixes=(".safetensors",), writes=True, shards=True),
        Format(
            name="pytorch",
            suffixes=(".pt", ".pth", ".ckpt", ".bin"),
            writes=False,
            why_not=": they are pickles, programs that run where they are loaded",
        ),
        Format(
            name="numpy",
            suffixes=(".npz", ".npy"),
            writes=False,
            why_not=": NumPy writes them, and they have no type for bfloat16",
            layout="unspecified",
        ),
        Format(
            name="flax",
            suffixes=(".msgpack",),
            writes=False,
            why_not=": flax.serialization writes them",
            layout="unspecified",
        ),
        Format(
            name="hdf5",
            suffixes=(".h5", ".hdf5", ".keras"),
            writes=False,
            why_not=": Keras writes its own",
            layout="unspecified",
        ),
        Format(
            name="gguf",
            suffixes=(".gguf",),
            writes=False,
            why_not=": the converters of llama.cpp write them, and know what each kind of model needs",
            layout="unspecified",
        ),
    )
}

_OF_SETS = (".safetensors", ".bin")
"""Suffixes of names that a set can have."""


def format_for_suffix(path: str | os.PathLike[str]) -> Format:
    """Choose the format to write from a path's suffix; raises `UnsupportedError` listing the suffixes there are."""
    suffix = PurePath(path).suffix.lower()
    for row in FORMATS.values():
        if suffix in row.suffixes:
            return row
    known = ", ".join(suffix for row in FORMATS.values() if row.writes for suffix in row.suffixes)
    raise UnsupportedError(
        f"{os.fspath(path)}: no format is known by the suffix {suffix!r}", remedy=f"Use one of {known}."
    )


def open_source(source: Source, options: OpenOptions) -> Container:
    """Tell the format from the content and open it; anything else raises `WrongFormatError` saying what it is."""
    from firekeep.formats._detect import detect

    return FORMATS[detect(source, limits=options.limits)].reader()(source, options)


def open_path(path: str, options: OpenOptions) -> tuple[Container, Source] | None:
    """Open a directory or an index (`*.index.json`) as one sharded set, of safetensors or of PyTorch files; None for any other path.

    A directory without an index opens when it holds a single file of weights. A path at which nothing is stands for the set whose index
    is called so (`model.safetensors`, of `model.safetensors.index.json`). All headers are read and compared with the index,
    both ways. Names in an index are names of files beside it, never paths. The source given back is the index (or the only file of the
    directory); the shards are the container's own. Raises `FormatError` naming what is missing or doubled.
    """
    place = Path(path)
    if not path:  # no file's name, and no other name of the current directory
        return None
    if place.is_dir():
        from firekeep.formats import _folders

        return _folders.open_directory(place, options, _set_readers())
    if (index := _index_at(place)) is not None:
        from firekeep.formats import _sets

        return _sets.open_index(index, options, _set_readers())
    return None


def files_of_set(path: str, options: OpenOptions) -> list[Path] | None:
    """Give the files that an index names; None for a path to anything else."""
    index = _index_at(Path(path)) if path else None
    if index is None:
        return None
    from firekeep.formats import _sets

    return _sets.named_files(index, options)


def _index_at(place: Path) -> Path | None:
    """Give a path that may be an index, or the index of the set that stands where no file of the name is."""
    if place.suffix == ".json":
        return place if place.is_file() else None
    if place.suffix in _OF_SETS and not os.path.lexists(place):
        index = place.with_name(f"{place.name}.index.json")
        return index if index.is_file() else None
    return None


def _set_readers() -> Mapping[str, Reader]:
    """Give the readers of what comes in sets: what is called as a PyTorch file may be anything, and is told by its content."""
    return {"safetensors": FORMATS["safetensors"].reader(), "pytorch": open_source}
