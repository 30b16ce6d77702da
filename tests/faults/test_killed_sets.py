"""A save of a set is killed before each call that changes the folder: whoever looks afterwards finds one whole set, old or new."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import firekeep
from firekeep import WrongFormatError
from firekeep.disk import is_scratch

CHANGING = ("open", "pwrite", "fsync", "rename", "replace", "link", "unlink", "chmod", "fchmod", "mkdir")


class Killed(BaseException):
    """The process is no more: what would tidy up after it gets this, too."""


def weights(first: int, tensors: int = 4) -> dict[str, np.ndarray]:
    return {f"t{index}": np.full(100, first + index, np.float32) for index in range(tensors)}


OLD, NEW = weights(0), weights(100)
BEFORE: dict[str, Callable[[Path], Any]] = {
    "as many shards": lambda folder: firekeep.save(OLD, folder, max_shard_size=800),
    "more shards": lambda folder: firekeep.save(OLD, folder, max_shard_size=400),
    "one file": lambda folder: firekeep.save(OLD, folder, max_shard_size="1MB"),
    "nothing": lambda folder: folder.mkdir(),
}


@contextmanager
def killed_before(last: int, *, no_links: bool = False):
    """Have each call from the `last` one on be none; gives the number of those made."""
    made = [0]

    def stand_in(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                return real(*args, **kwargs)
            if 0 <= last <= made[0]:
                raise Killed
            made[0] += 1
            if name == "link" and no_links:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            return real(*args, **kwargs)

        return call

    patches = [mock.patch.object(os, name, stand_in(name, getattr(os, name))) for name in CHANGING]
    for patch in patches:
        patch.start()
    try:
        yield made
    finally:
        for patch in reversed(patches):
            patch.stop()


def same(loaded: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    return loaded.keys() == wanted.keys() and all(np.array_equal(loaded[name], wanted[name]) for name in wanted)


def found(folder: Path) -> str:
    """Say which of the two is there, looked for in all ways that there are."""
    if not any((folder / f"model.safetensors{more}").exists() for more in ("", ".index.json")):
        with pytest.raises(WrongFormatError, match="the directory holds"):
            firekeep.load_file(folder)
        return "none"
    loaded = firekeep.load_file(folder)
    outcome = "new" if same(loaded, NEW) else "old" if same(loaded, OLD) else "mixed"
    assert same(firekeep.load_file(folder / "model.safetensors"), NEW if outcome == "new" else OLD)
    index = folder / "model.safetensors.index.json"
    if index.exists():  # as other libraries read it
        files = set(json.loads(index.read_text())["weight_map"].values())
        read = {name: held for file in files for name, held in firekeep.load_file(folder / file).items()}
        assert same(read, NEW) or same(read, OLD)
    return outcome


def names_of(size: int | str) -> set[str]:
    if size == "1MB":
        return {"model.safetensors"}
    return {"model.safetensors.index.json", *(f"model-0000{number}-of-00002.safetensors" for number in (1, 2))}


@pytest.mark.parametrize("no_links", [False, True], ids=["", "no hard links"])
@pytest.mark.parametrize("after", [800, "1MB"], ids=["to a set", "to one file"])
@pytest.mark.parametrize("before", BEFORE)
def test_whenever_it_is_killed_the_old_or_the_new_one_is_whole(tmp_path: Path, before: str, after: Any, no_links: bool):
    BEFORE[before](tmp_path / "before")
    outcomes = []
    for last in range(1000):
        folder = tmp_path / str(last)
        shutil.copytree(tmp_path / "before", folder)
        with killed_before(last, no_links=no_links):
            try:
                report = firekeep.save(NEW, folder, max_shard_size=after)
            except Killed:
                report = None
        outcomes.append(found(folder))
        assert outcomes[-1] in ("new", "none" if before == "nothing" else "old"), f"killed before call {last}"
        if report is not None:
            names = {path.name for path in report.files or (report.path,)}
            assert {path.name for path in folder.iterdir()} == names
            break
        firekeep.save(NEW, folder, max_shard_size=after)
        assert found(folder) == "new"
        # A file of the old set that was not yet removed is named by no index, and stays.
        left = {path.name for path in folder.iterdir() if not is_scratch(path.name)} - names_of(after)
        assert all(re.fullmatch(r"model-\d{5}-of-\d{5}\.safetensors", name) for name in left)
    assert outcomes == sorted(outcomes, key=("none", "old", "new").index), "once the new one is there it stays"
    assert outcomes[-1] == "new"
    assert len(outcomes) > 5


def failing(name: str, number: int):
    """Have one call of a name fail."""
    real, count = getattr(os, name), iter(range(1000))

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(count) == number:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*args, **kwargs)

    return mock.patch.object(os, name, call)


@pytest.mark.parametrize(("name", "calls"), [("replace", 2), ("rename", 3), ("pwrite", 3)])
@pytest.mark.parametrize("size", [400, 800])
def test_a_failure_leaves_the_old_set_and_nothing_beside_it(tmp_path: Path, name: str, calls: int, size: int):
    for number in range(calls):
        folder = tmp_path / str(number)
        firekeep.save(OLD, folder, max_shard_size=size)
        listed = sorted(path.name for path in folder.iterdir())
        with failing(name, number), pytest.raises(OSError, match="Input/output"):
            firekeep.save(NEW, folder, max_shard_size=800)
        assert found(folder) == "old", number
        assert sorted(path.name for path in folder.iterdir()) == listed, number


@pytest.mark.parametrize(
    ("name", "number"), [("replace", 2), ("replace", 3), ("rename", 3), ("pwrite", 3), ("link", 1)]
)
def test_a_set_that_cannot_get_its_own_names_keeps_others_until_the_next_save(tmp_path: Path, name: str, number: int):
    folder = tmp_path / "set"
    firekeep.save(OLD, folder, max_shard_size=800)
    with failing(name, number):
        report = firekeep.save(NEW, folder, max_shard_size=800)
    assert [path.name for path in report.files] == [
        "model-00001-of-00002.new.safetensors",
        "model-00002-of-00002.new.safetensors",
        "model.safetensors.index.json",
    ]
    assert {path.name for path in folder.iterdir()} == {path.name for path in report.files}
    assert found(folder) == "new"
    report = firekeep.save(OLD, folder, max_shard_size=800)
    assert found(folder) == "old"
    assert {path.name for path in folder.iterdir()} == {path.name for path in report.files} == names_of(800)


def test_an_error_after_the_index_is_there_takes_no_file_of_the_set_away(tmp_path: Path):
    folder = tmp_path / "set"
    firekeep.save(OLD, folder, max_shard_size=400)
    from firekeep.disk import _scratch

    def fail(_target: Any) -> None:
        if "-of-00002" in (folder / "model.safetensors.index.json").read_text():
            raise OSError(errno.EIO, "the file was saved, but its folder could not be synced")

    with (
        mock.patch.object(_scratch, "sync_folder", fail),
        mock.patch("firekeep.disk.sync_folder", fail),
        pytest.raises(OSError, match="could not be synced"),
    ):
        firekeep.save(NEW, folder, max_shard_size=800)
    assert found(folder) == "new"
