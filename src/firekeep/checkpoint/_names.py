"""What things are called in a directory of checkpoints. Whatever has another name is somebody else's, and left alone."""

from __future__ import annotations

import itertools
import os
import re
from functools import lru_cache

from firekeep.sections import SECTION_NAME

MANIFEST = "manifest.json"
LOCK = ".firekeep.lock"
SUFFIX = ".bpk"
MAX_STEP = 10**18

WRITING, ASIDE, DOOMED = "new", "old", "gone"
"""Kinds of scratch directories: a step being written, one that is being replaced, and one that is being deleted."""

_STEP = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,18})")
_SCRATCH = re.compile(r"\.step-([0-9]{8,19})\.([0-9]{1,10})-[0-9]+\.(new|old|gone)\.tmp")
_COUNTER = itertools.count()


def step_name(step: int) -> str:
    """Name the directory of a step."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """Tell which step a directory's name stands for; None for a name that is spelled in any other way."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def scratch_name(step: int, kind: str) -> str:
    """Make a name that no other process, and no other save of this one, uses."""
    return f".{step_name(step)}.{os.getpid()}-{next(_COUNTER)}.{kind}.tmp"


def scratch_of(name: str) -> tuple[int, int, str] | None:
    """Tell step, process and kind from the name of a scratch directory."""
    match = _SCRATCH.fullmatch(name) if name.startswith(".") else None  # most are steps, and there can be thousands
    return (int(match[1]), int(match[2]), match[3]) if match else None


def file_name(section: str) -> str:
    """Name the file of a section."""
    return f"{section}{SUFFIX}"


@lru_cache(maxsize=256)  # the files of thousands of steps have the same few names
def section_of(name: str) -> str | None:
    """Tell which section a file's name stands for; None for what cannot be the name of one."""
    section = name.removesuffix(SUFFIX)
    return section if section != name and SECTION_NAME.fullmatch(section) else None
