"""Reading a sharded set: an index that says which tensor is in which file, and the files beside it, each read by its own format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from firekeep.errors import FirekeepError, LimitError, MetadataError, UnsupportedError, WrongFormatError
from firekeep.formats._json import parse_object, refuse_giants, require_text
from firekeep.formats._pool import MOST_OPEN, Pool, PooledSource
from firekeep.formats._protocol import Container, OpenOptions, Reader
from firekeep.formats._union import FILES_OF, Index, Shard, join_shards
from firekeep.limits import Limits
from firekeep.sources import FileSource, Source, closed_on_failure

_OF_PATHS = ("/", "\\", ":", "\0")
"""What no name of a file beside another holds, on any system."""
SUFFIX = ".safetensors"
TORCH_INDEX_SUFFIX = ".bin.index.json"
TORCH_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth")
_INDEX_NAME = re.compile(r".+\.index(?:\.[^.]+)?\.json")
"""What an index is called, that of a variant (`.index.fp16.json`) too."""

Readers = Mapping[str, Reader]
"""The readers of the files of a set, by the name of their format."""


def open_index(place: Path, options: OpenOptions, readers: Readers) -> tuple[Container, Source] | None:
    """Open the files an index names; None for a JSON file that is no index and is not called one."""
    source = FileSource(place)
    with ExitStack() as opened:
        opened.callback(source.close)
        try:
            index = _read_index(source, options.limits, optional=not _INDEX_NAME.fullmatch(place.name))
            if index is None:
                return None
            names, missing = _choose_files(index, place.parent)
            shards = []
            pool = Pool() if len(names) > MOST_OPEN else None
            budget = _Budget(options)
            for name in names:
                try:
                    shards.append(_open_shard(place.parent / name, index.format, budget.options(), readers, pool=pool))
                except FirekeepError as error:
                    if not missing:
                        raise budget.explain(error)  # noqa: B904 - the same error, with more words
                else:
                    opened.callback(shards[-1].source.close)
                    budget.spend(shards[-1].container.taken)
            container = join_shards(index, shards, missing)
        except FirekeepError as error:
            raise error.at(path=place)  # noqa: B904 - the same error, with its place
        opened.pop_all()
    return container, source


def open_single(place: Path, format: str, options: OpenOptions, readers: Readers) -> tuple[Container, Source]:
    """Open the one file of a directory that holds all of the weights."""
    source = FileSource(place, private=options.private)
    with closed_on_failure(source):
        container = readers[format](source, options)
        if container.format != format:
            raise WrongFormatError(
                f"this is a {container.format} file, and its name is that of a file of PyTorch",
                kind=container.format,
                remedy="Open it by its own path.",
            )
        if container.subtrees:
            raise WrongFormatError(
                f"the weights of the directory are parts of a checkpoint in this file: {', '.join(container.subtrees[:3])}",
                kind="directory",
                remedy="Open it by its own path.",
            )
        return container, source


def named_files(place: Path, options: OpenOptions) -> list[Path] | None:
    """Give the files that an index names, those that are not there, too; None for a JSON file that is no index."""
    source = FileSource(place)
    try:
        index = _read_index(source, options.limits, optional=not _INDEX_NAME.fullmatch(place.name))
    except FirekeepError as error:
        raise error.at(path=place)  # noqa: B904 - the same error, with its place
    finally:
        source.close()
    return None if index is None else [place.parent / name for name in sorted(set(index.weight_map.values()))]


def _choose_files(index: Index, folder: Path) -> tuple[list[str], list[str]]:
    """Give the files to open, and those that the index names and are not there: whatever else is may hold all of it, then."""
    named = sorted(set(index.weight_map.values()))
    present = files_in(folder)
    missing = sorted(set(named) - set(present))
    if not missing:
        return named, []
    suffixes = TORCH_SUFFIXES if index.format == "pytorch" else (SUFFIX,)
    return [name for name in present if name.endswith(suffixes)], missing


class _Budget:
    """What the files of a set have left of the limits that hold for all of them together."""

    def __init__(self, options: OpenOptions) -> None:
        self._options = options
        self._given = options.limits

    def options(self) -> OpenOptions:
        """Give the options for the next file."""
        return self._options

    def spend(self, taken: Mapping[str, int]) -> None:
        """Count what a file took."""
        if taken:
            limits = self._options.limits
            left = {field: max(0, getattr(limits, field) - amount) for field, amount in taken.items()}
            self._options = replace(self._options, limits=replace(limits, **left))

    def explain(self, error: FirekeepError) -> FirekeepError:
        """Say of a limit that the files before have used up a part of it."""
        if isinstance(error, LimitError) and self._options.limits != self._given:
            error.message += " (the files of a set share the limits of one: the others took the rest)"
        return error


def _read_index(source: Source, limits: Limits, *, optional: bool) -> Index | None:
    """Parse and check an index; None for a JSON file that need not be one, and is not."""
    if source.size > limits.safetensors_header_bytes:
        if optional:
            return None
        raise LimitError(
            f"the index has {source.size} bytes, more than the limit of {limits.safetensors_header_bytes}",
            limit=limits.safetensors_header_bytes,
            actual=source.size,
        )
    view = source.view(0, source.size)
    refuse_giants(view, "the index")
    raw = bytes(view)
    if optional and b'"weight_map"' not in raw:
        return None
    index = parse_object(raw, "the index")
    weight_map, described = index.get("weight_map"), index.get("metadata")
    if not isinstance(weight_map, dict):
        raise MetadataError("the index has no weight_map, the object that says which file each tensor is in")
    if len(weight_map) > limits.safetensors_tensors:
        raise LimitError(
            f"the index names {len(weight_map)} tensors, more than the limit of {limits.safetensors_tensors}",
            limit=limits.safetensors_tensors,
            actual=len(weight_map),
        )
    for name, file in weight_map.items():
        require_text(name, "the tensor name")
        if not isinstance(file, str):
            raise MetadataError("the index gives no file name for it", tensor=name)
    files = set(weight_map.values())
    for file in files:
        _require_plain(file)
    return Index(weight_map, described if isinstance(described, dict) else {}, _format_of(files))


def _require_plain(file: str) -> None:
    """A name from a file is never a path: only what lies beside the index can be meant."""
    require_text(file, "the shard name")
    if file in ("", ".", "..") or any(part in file for part in _OF_PATHS):
        raise MetadataError(
            f"the index names the shard {file!r}, which is a path: shards are files beside their index, named without directories",
            remedy="Do not trust the index: fetch it again. Files of weights open by their own paths.",
        )


def _format_of(files: set[str]) -> str:
    """Tell a set of PyTorch files by their suffixes, which such an index has; a mixed one is refused, as nobody writes it."""
    of_torch = sorted(file for file in files if file.endswith(TORCH_SUFFIXES))
    others = sorted(files.difference(of_torch))
    if of_torch and others:
        raise MetadataError(
            f"the index names files of two formats, {of_torch[0]} and {others[0]} among them",
            remedy="Open each of its files by its own path.",
        )
    return "pytorch" if of_torch else "safetensors"


def _open_shard(place: Path, format: str, options: OpenOptions, readers: Readers, *, pool: Pool | None = None) -> Shard:
    source: Source
    if pool is None:
        source = FileSource(place, private=options.private)
    else:
        source = PooledSource(place, pool, private=options.private)
    with closed_on_failure(source):
        container = readers[format](source, options)
        _require_member(container, format)
        return Shard(place.name, container, source)


def _require_member(container: Container, format: str) -> None:
    """Refuse a file of another format than its name says, and one that holds more than the tensors of a set."""
    if container.format != format:
        raise WrongFormatError(
            f"this is a {container.format} file among the {FILES_OF[format]} of a set",
            kind=container.format,
            remedy="Open it by its own path.",
        )
    if container.layers or container.variant == "torchscript":
        raise UnsupportedError(
            "it holds a whole model, where a file of a set holds a part of a state dict",
            remedy="Open it by its own path.",
        )


def files_in(directory: Path) -> list[str]:
    """List the files of a directory by their names."""
    return sorted(entry.name for entry in directory.iterdir() if entry.is_file())
