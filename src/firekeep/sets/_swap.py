"""Putting the files of a new set in the place of an older one: whenever this ends, one of the two is whole."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firekeep.blobs import MemoryBlob
from firekeep.disk import SCRATCH_SUFFIX, Part, WritePlan, write_file

_SUFFIX = ".safetensors"
_NEXT = f".new{_SUFFIX}"
"""How a file of the new set ends while the old one has its name."""
_MOST_INDEX_BYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a set stands: its folder, the name of its index, and the stem of its files' names."""

    folder: Path
    index_name: str
    stem: str

    @property
    def index(self) -> Path:
        """The path of the index."""
        return self.folder / self.index_name

    def named(self) -> set[str]:
        """Name the files of the set that stands there, as far as they are called as those of a set of this stem are."""
        shape = re.compile(rf"{re.escape(self.stem)}-\d{{5}}-of-\d{{5}}(?:\.new)?\.safetensors", re.ASCII)
        return {name for name in _weight_map(self.index).values() if isinstance(name, str) and shape.fullmatch(name)}

    def old_files(self) -> list[str]:
        """Name all that is of the set that stands there, with what a save that was killed has left of another."""
        named = self.named()
        shape = re.compile(rf"{re.escape(self.stem)}-\d{{5}}-of-\d{{5}}\.new\.safetensors", re.ASCII)
        with contextlib.suppress(OSError):
            named |= {path.name for path in self.folder.iterdir() if shape.fullmatch(path.name)}
        return sorted(named | {_final(name) for name in named})


def swap_in(staged: Mapping[Path, str], index: bytes, place: Place, *, durable: bool) -> list[str]:
    """Give complete files the names they are to have, by `staged`, and write their index; returns the names they got.

    The index is what makes files a set, and it is replaced in one step: the files it will name are there before, those of the old set
    until after. Where both want the same names, the new ones are a set under others first, and get their own by a second name of each
    file; on a file system that has no such hard links they keep the others.
    """
    if place.named().isdisjoint(staged.values()):
        _move_in(staged, index, place, durable=durable)
        return list(staged.values())
    aside = {path: name.removesuffix(_SUFFIX) + _NEXT for path, name in staged.items()}
    _move_in(aside, _renamed(index, dict(zip(staged.values(), aside.values(), strict=True))), place, durable=durable)
    if not _link_all(zip(aside.values(), staged.values(), strict=True), place.folder):
        return list(aside.values())
    try:
        _write_index(index, place, durable=durable)
    except OSError:
        if _stands(place.index, index):
            raise  # it was the folder that could not be synced
        return list(aside.values())
    remove(place.folder, aside.values())
    return list(staged.values())


def remove(folder: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Remove files as far as they are there and can be; give the paths of those that were."""
    removed = []
    for name in names:
        with contextlib.suppress(OSError):
            (folder / name).unlink()
            removed.append(str(folder / name))
    return tuple(removed)


def _move_in(moves: Mapping[Path, str], index: bytes, place: Place, *, durable: bool) -> None:
    """Rename files, none of which the index that stands there names, and replace it; a failure before that leaves none of them."""
    done: list[str] = []
    try:
        for path, name in moves.items():
            path.replace(place.folder / name)
            done.append(name)
        _write_index(index, place, durable=durable)
    except BaseException:
        if not _stands(place.index, index):  # an error may also come after the index is there
            remove(place.folder, done)
        raise


def _link_all(pairs: Iterable[tuple[str, str]], folder: Path) -> bool:
    """Give files a second name each, replacing what has it; False where the file system cannot."""
    for number, (path, name) in enumerate(pairs):
        link = folder / f"{name}.{os.getpid()}-{number}{SCRATCH_SUFFIX}"
        try:
            link.hardlink_to(folder / path)
            link.replace(folder / name)
        except OSError:
            return False
        finally:
            link.unlink(missing_ok=True)
    return True


def _write_index(index: bytes, place: Place, *, durable: bool) -> None:
    if durable:
        _sync(place.folder)
    plan = WritePlan(nbytes=len(index), parts=[Part(0, MemoryBlob(index))])
    write_file(place.index, plan, durable=durable)


def _sync(folder: Path) -> None:
    """Bring names to the disk, where the file system can, before an index speaks of them."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _stands(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def _final(name: str) -> str:
    return name.removesuffix(_NEXT) + _SUFFIX if name.endswith(_NEXT) else name


def _renamed(index: bytes, names: Mapping[str, str]) -> bytes:
    held = json.loads(index)
    held["weight_map"] = {tensor: names[file] for tensor, file in held["weight_map"].items()}
    return (json.dumps(held, indent=2, sort_keys=True) + "\n").encode()


def _weight_map(index: Path) -> dict[str, Any]:
    """Read what an older index says; nothing for one that is damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError, LookupError, TypeError):
        if index.stat().st_size <= _MOST_INDEX_BYTES:
            held = json.loads(index.read_bytes())["weight_map"]
            return held if isinstance(held, dict) else {}
    return {}
