"""Which files of a folder this process has open: other libraries open and close theirs when they like."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def open_below(folder: Path) -> list[str]:
    """List the open files below a folder and the folder itself, removed ones too, as often as they are open."""
    root = os.path.realpath(folder)
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found.append(str(descriptor.readlink()))
    return sorted(path for path in found if path == root or path.startswith(f"{root}/"))
