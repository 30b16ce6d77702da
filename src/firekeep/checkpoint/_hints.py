"""What a directory without steps is instead, and what was most likely meant."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from firekeep.checkpoint._names import MANIFEST, step_of
from firekeep.checkpoint._shelf import listed
from firekeep.checkpoint._store import scan_steps
from firekeep.errors import RuleError
from firekeep.wording import count

_ORBAX = ("_CHECKPOINT_METADATA", "manifest.ocdbt")
"""Files of which one lies in each directory that Orbax writes."""
_SUBFOLDERS = ("checkpoint", "checkpoints")
"""Where Burn's Learner, and others, keep the steps within the directory of a run."""


def make_directory(directory: Path) -> tuple[Path, ...]:
    """Make a directory for steps, and give what was not there before, the innermost first; raises `RuleError` for a file."""
    if os.path.lexists(directory) and not directory.is_dir():
        raise RuleError(
            "it is no directory, and steps are kept in one",
            path=directory,
            remedy="Give a directory. The weights of a file are put into a model by firekeep.load_into(model, path).",
        )
    missing = tuple(place for place in (directory, *directory.parents) if not os.path.lexists(place))
    directory.mkdir(parents=True, exist_ok=True)
    return missing


def unmake(made: tuple[Path, ...]) -> None:
    """Take directories away again that were made for nothing, as far as nobody has put anything there."""
    with contextlib.suppress(OSError):
        for place in made:
            place.rmdir()


def hint(directory: Path) -> str | None:
    """Say what a directory that holds no complete step is, and what to give instead; None where nothing tells."""
    if not directory.is_dir():
        return "There is no such directory: look at its name." if not os.path.lexists(directory) else None
    place = directory.resolve()
    number = step_of(place.name)
    if number is not None and (place / MANIFEST).is_file():
        known = count(len(scan_steps(place.parent, layout="firekeep").steps), "step")
        above = os.path.normpath(directory / os.pardir) if directory.name == place.name else place.parent
        return f"It is one step, {number}, of the {known} of {above}: give that directory, and {number} as the step."
    for name in _SUBFOLDERS:
        if scan_steps(directory / name).steps:
            return f"There are steps in {directory / name}: give that."
    if _is_orbax(directory) or any(_is_orbax(directory / name) for name in listed(directory)):
        return (
            "It holds checkpoints of Orbax, which firekeep does not read: restore one with orbax.checkpoint, "
            "and save it as a TrainingState in another directory."
        )
    return None


def _is_orbax(place: Path) -> bool:
    return any((place / name).is_file() for name in _ORBAX)
