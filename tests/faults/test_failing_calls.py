"""Each call that a save makes of the system fails once: the old file or the new one is whole, and nothing else is left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from descriptors import open_below
from faults.calls import OLD, each_call, plan, save
from firekeep.disk import to_bytes

NEW = b"HEAD" + to_bytes(plan())[4:]
SETTINGS = {
    "over a file": {"overwrite": True},
    "a new file": {"overwrite": True},
    "a new file only": {"overwrite": False},
    "through a link": {"overwrite": True},
    "over a file, in the cache": {"overwrite": True, "durable": False},
}


class Place:
    """A folder in which a save is about to happen."""

    def __init__(self, folder: Path, setting: str) -> None:
        self.folder = folder
        self.path = self.file = folder / "weights"
        self.old = OLD if "over" in setting or "link" in setting else None
        if "link" in setting:
            self.file = folder / "real"
            self.path.symlink_to("real")
        if self.old is not None:
            self.file.write_bytes(self.old)
            self.file.chmod(0o640)
        self.names = self.listed()

    def listed(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def found(self) -> bytes | None:
        return self.file.read_bytes() if self.file.exists() else None


def calls_of(folder: Path, setting: str) -> list[str]:
    """List the calls that an undisturbed save makes."""
    folder.mkdir()
    place = Place(folder, setting)
    names = []

    def act(number, name, call):
        names.append(name)
        return call()

    with each_call(act):
        save(place.path, **SETTINGS[setting])
    assert place.found() == NEW
    return names


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_calls_that_matter_are_among_those_that_fail_below(tmp_path, setting):
    names = calls_of(tmp_path / "counted", setting)
    expected = {"open", "pwrite", "close", "statvfs", "fallocate"}
    expected |= {"link", "unlink"} if not SETTINGS[setting]["overwrite"] else {"rename"}
    expected |= {"fsync", "posix_fadvise"} if SETTINGS[setting].get("durable", True) else set()
    assert expected <= set(names)
    assert names.count("pwrite") >= 7
    assert names.count("fsync") == (2 if SETTINGS[setting].get("durable", True) else 0)


ERRORS = {
    "ENOSPC": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "EIO": OSError(errno.EIO, os.strerror(errno.EIO)),
    "EACCES": OSError(errno.EACCES, os.strerror(errno.EACCES)),
    "interrupt": KeyboardInterrupt("between two calls"),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_whichever_call_fails_one_file_is_whole_and_no_other_is_left(tmp_path, setting, error):
    names = calls_of(tmp_path / "counted", setting)
    for failing, name in enumerate(names):
        folder = tmp_path / str(failing)
        folder.mkdir()
        place = Place(folder, setting)

        def act(number, called, call, failing=failing):
            if number != failing:
                return call()
            if called == "close":
                call()  # a descriptor is gone even when closing it fails
            raise ERRORS[error]

        raised = None
        with each_call(act):
            try:
                save(place.path, **SETTINGS[setting])
            except (OSError, KeyboardInterrupt) as caught:
                raised = caught
        where = f"call {failing} ({name}) of {names}"
        saved = raised is None or "was saved" in str(raised) or place.found() == NEW
        assert place.found() == (NEW if saved else place.old), where
        if not saved and place.old is not None:
            assert place.file.stat().st_mode & 0o777 == 0o640, where
        if name != "unlink":  # a name that cannot be removed stays
            expected = sorted({*place.names, place.file.name}) if saved else place.names
            assert place.listed() == expected, where
        assert open_below(folder) == [], where


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_failure_after_the_last_write_is_told(tmp_path, setting):
    """What was not written whole is never reported as saved: an error of fsync, close or rename reaches the caller."""
    names = calls_of(tmp_path / "counted", setting)
    last = max(number for number, name in enumerate(names) if name == "pwrite")
    published = max(number for number, name in enumerate(names) if name in ("rename", "link"))
    for failing in range(last, published + 1):
        if names[failing] in ("stat", "lstat", "fstat", "posix_fadvise"):
            continue
        folder = tmp_path / str(failing)
        folder.mkdir()
        place = Place(folder, setting)

        def act(number, called, call, failing=failing):
            if number == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call()

        with each_call(act), pytest.raises(OSError, match="Input/output error") as caught:
            save(place.path, **SETTINGS[setting])
        assert str(place.path) in str(caught.value), names[failing]
        assert place.found() == place.old, names[failing]


def test_the_next_save_after_a_failed_one_succeeds(tmp_path):
    place = Place(tmp_path, "over a file")

    def act(number, name, call):
        if name == "rename":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return call()

    with each_call(act), pytest.raises(OSError, match=r"busy.*weights"):
        save(place.path, overwrite=True)
    assert place.found() == OLD
    save(place.path, overwrite=True)
    assert place.found() == NEW
    assert place.listed() == ["weights"]
