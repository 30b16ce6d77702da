"""Reading a sharded set: an index that says which tensor is in which file, and the files beside it."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

from firekeep.errors import FirekeepError, LimitError, MetadataError, UnsupportedError, WrongFormatError
from firekeep.formats._protocol import Container, OpenOptions
from firekeep.formats.safetensors._json import parse_object, refuse_giants, require_text
from firekeep.formats.safetensors._pool import MOST_OPEN, Pool, PooledSource
from firekeep.formats.safetensors._read import open_container
from firekeep.formats.safetensors._union import Index, Shard, join_shards
from firekeep.limits import Limits
from firekeep.sources import FileSource, Source

_LISTED = 10
_OF_PATHS = ("/", "\\", ":", "\0")
"""What no name of a file beside another holds, on any system."""
SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_OTHER_SUFFIXES = (".bin", ".bpk", ".ckpt", ".gguf", ".h5", ".keras", ".msgpack", ".npz", ".onnx", ".pt", ".pth")
_TORCH_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth")
_ORBAX = ("_CHECKPOINT_METADATA", "manifest.ocdbt")
"""Files of which one lies in each directory that Orbax writes."""
_STEP = re.compile(r"step-[0-9]{8,19}")
"""A folder that a CheckpointManager has made."""


def open_directory(place: Path, options: OpenOptions) -> tuple[Container, Source]:
    """Open the set whose index the directory holds, or its only safetensors file; raises `WrongFormatError` for any other."""
    names = _files(place)
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    files = [name for name in names if name.endswith(SUFFIX)]
    if len(indexes) == 1:
        opened = open_index(place / indexes[0], options)
        if opened is not None:
            return opened
    if not indexes and len(files) == 1:
        shard = _open_shard(place, files[0], options)
        return shard.container, shard.source
    raise _refuse_directory(place, names, indexes or files)


def _refuse_directory(place: Path, names: list[str], several: list[str]) -> WrongFormatError:
    if several:
        kind = "indexes" if several[0].endswith(INDEX_SUFFIX) else "safetensors files and no index"
        message = f"the directory holds {len(several)} {kind}: {_list(several)}"
        return WrongFormatError(message, kind="directory", path=place, remedy="Open one of them by its path.")
    others = [name for name in names if name.endswith((*_OTHER_SUFFIXES, ".bin.index.json"))]
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


def open_index(place: Path, options: OpenOptions) -> tuple[Container, Source] | None:
    """Open the files an index names; None for a JSON file that is no index and is not called one."""
    source = FileSource(place)
    with ExitStack() as opened:
        opened.callback(source.close)
        try:
            index = _read_index(source, options.limits, optional=not place.name.endswith(".index.json"))
            if index is None:
                return None
            named = sorted(set(index.weight_map.values()))
            present = _files(place.parent)
            missing = sorted(set(named) - set(present))
            names = [name for name in present if name.endswith(SUFFIX)] if missing else named
            shards = []
            pool = Pool() if len(names) > MOST_OPEN else None
            for name in names:
                try:
                    shards.append(_open_shard(place.parent, name, options, pool=pool))
                except FirekeepError:
                    if not missing:
                        raise
                else:
                    opened.callback(shards[-1].source.close)
            container = join_shards(index, shards, missing)
        except FirekeepError as error:
            raise error.at(path=place)  # noqa: B904 - the same error, with its place
        opened.pop_all()
    return container, source


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
    _require_safetensors(files)
    return Index(weight_map, described if isinstance(described, dict) else {})


def _require_plain(file: str) -> None:
    """A name from a file is never a path: only what lies beside the index can be meant."""
    require_text(file, "the shard name")
    if file in ("", ".", "..") or any(part in file for part in _OF_PATHS):
        raise MetadataError(
            f"the index names the shard {file!r}, which is a path: shards are files beside their index, named without directories"
        )


def _require_safetensors(files: set[str]) -> None:
    foreign = sorted(file for file in files if file.endswith(_TORCH_SUFFIXES))
    if foreign:
        raise UnsupportedError(
            f"this is the index of {len(foreign)} PyTorch files ({foreign[0]} ...): only sets of safetensors files are opened by index",
            remedy="Open each of its files by its own path.",
        )


def _open_shard(directory: Path, name: str, options: OpenOptions, *, pool: Pool | None = None) -> Shard:
    source: Source
    if pool is None:
        source = FileSource(directory / name, private=options.private)
    else:
        source = PooledSource(directory / name, pool, private=options.private)
    try:
        return Shard(name, open_container(source, options), source)
    except FirekeepError as error:
        source.close()
        raise error.at(path=source.path)  # noqa: B904 - the same error, with its place
    except BaseException:
        source.close()
        raise


def _files(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir() if entry.is_file())


def _list(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f", ... ({len(names)} in all)" if len(names) > _LISTED else "")
