"""The line of a program that a warning is about."""

from __future__ import annotations

import sys


def levels_outside(package: str, *, generated: bool = False) -> int:
    """Count the calls up to the first one that is not of a package's code, as `stacklevel` of a warning given where this is called.

    With `generated` the code that dataclasses make is passed over, too. Python 3.12 has `skip_file_prefixes` for it.
    """
    frame, level = sys._getframe(1), 1  # noqa: SLF001
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        inside = name == package or name.startswith(f"{package}.")
        if not inside and not (generated and frame.f_code.co_filename == "<string>"):
            break
        frame, level = frame.f_back, level + 1
    return level
