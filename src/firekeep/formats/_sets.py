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

_LISTED = 10
_OF_PATHS = ("/", "\\", ":", "\0")
"""What no name of a file beside another holds, on any system."""
SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
TORCH_INDEX_SUFFIX = ".bin.index.json"
TORCH_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth")
_OTHER_SUFFIXES = (*TORCH_SUFFIXES, ".bpk", ".gguf", ".h5", ".keras", ".msgpack", ".npz", ".onnx", TORCH_INDEX_SUFFIX)
_ORBAX = ("_CHECKPOINT_METADATA", "manifest.ocdbt")
"""Files of which one lies in each directory that Orbax writes."""
_STEP = re.compile(r"step-[0-9]{8,19}")
"""A folder that a CheckpointManager has made."""

Readers = Mapping[str, Reader]
"""The readers of the files of a set, by the name of their format."""


def open_directory(place: Path, options: OpenOptions, readers: Readers) -> tuple[Container, Source]:
    """Open the set whose index the directory holds, or its only safetensors file; raises `WrongFormatError` for any other.

    What is kept as safetensors goes before a set of PyTorch files, and such a set that is passed over is noted.
    """
    names = _files(place)
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    files = [name for name in names if name.endswith(SUFFIX)]
    of_torch = [name for name in names if name.endswith(TORCH_INDEX_SUFFIX)]
    opened = None
    if len(indexes) == 1:
        opened = open_index(place / indexes[0], options, readers)
    elif not indexes and len(files) == 1:
        shard = _open_shard(place / files[0], "safetensors", options, readers)
        opened = shard.container, shard.source
    elif not indexes and not files and len(of_torch) == 1:
        opened = open_index(place / of_torch[0], options, readers)
    if opened is None:
        raise _refuse_directory(place, names, indexes or files or of_torch)
    container, source = opened
    if of_torch and container.format == "safetensors":
        note = f"the directory holds a set of PyTorch files, too, which was passed over: {_list(of_torch)}"
        container = replace(container, notes=(*container.notes, note))
    return container, source


def _refuse_directory(place: Path, names: list[str], several: list[str]) -> WrongFormatError:
    if several:
        kind = "safetensors files and no index" if several[0].endswith(SUFFIX) else "indexes"
        message = f"the directory holds {len(several)} {kind}: {_list(several)}"
        return WrongFormatError(message, kind="directory", path=place, remedy="Open one of them by its path.")
    others = [name for name in names if name.endswith(_OTHER_SUFFIXES)]
    if others:
        return WrongFormatError(
            f"the directory holds no safetensors file, but {_list(others)}",
            kind="directory",
            path=place,
            remedy="Open one of them by its path.",
        )
    steps = sorted(one.name for one in place.iterdir() if _STEP.fullmatch(one.name) and one.is_dir())
    if steps:
        return WrongFormatError(
            f"the directory holds the steps of a training run: {_list(steps)}",
            kind="directory",
            path=place,
            remedy=f"Open a file of a step, such as {steps[-1]}/model.bpk; `firekeep checkpoints` lists the steps.",
        )
    if _is_orbax(place) or any(_is_orbax(one) for one in place.iterdir()):
        return WrongFormatError(
            "the directory holds checkpoints of Orbax, arrays in pieces that firekeep does not read",
            kind="directory",
            path=place,
            remedy="Restore one with orbax.checkpoint, and save it with firekeep.save or as a TrainingState.",
        )
    return WrongFormatError(
        f"the directory holds no safetensors file and no {INDEX_SUFFIX.removeprefix('.')}",
        kind="directory",
        path=place,
        remedy="Open a file by its path.",
    )


def _is_orbax(place: Path) -> bool:
    return any((place / name).is_file() for name in _ORBAX)


def open_index(place: Path, options: OpenOptions, readers: Readers) -> tuple[Container, Source] | None:
    """Open the files an index names; None for a JSON file that is no index and is not called one."""
    source = FileSource(place)
    with ExitStack() as opened:
        opened.callback(source.close)
        try:
            index = _read_index(source, options.limits, optional=not place.name.endswith(".index.json"))
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


def named_files(place: Path, options: OpenOptions) -> list[Path] | None:
    """Give the files that an index names, those that are not there, too; None for a JSON file that is no index."""
    source = FileSource(place)
    try:
        index = _read_index(source, options.limits, optional=not place.name.endswith(".index.json"))
    except FirekeepError as error:
        raise error.at(path=place)  # noqa: B904 - the same error, with its place
    finally:
        source.close()
    return None if index is None else [place.parent / name for name in sorted(set(index.weight_map.values()))]


def _choose_files(index: Index, folder: Path) -> tuple[list[str], list[str]]:
    """Give the files to open, and those that the index names and are not there: whatever else is may hold all of it, then."""
    named = sorted(set(index.weight_map.values()))
    present = _files(folder)
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
            f"the index names the shard {file!r}, which is a path: shards are files beside their index, named without directories"
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


def _files(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir() if entry.is_file())


def _list(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f", ... ({len(names)} in all)" if len(names) > _LISTED else "")
