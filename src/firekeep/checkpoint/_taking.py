"""What a manager takes of a state, and what it knows besides."""

from __future__ import annotations

import os
import socket

from firekeep.checkpoint._manifest import check_facts
from firekeep.checkpoint._retention import BEST, KeepBest
from firekeep.checkpoint._step import Fact
from firekeep.errors import RuleError
from firekeep.sections import Savable, Section
from firekeep.wording import some


def sections_of(state: Savable) -> list[Section]:
    """Take a state apart, and refuse sections that would become one file."""
    if not callable(getattr(state, "sections", None)):
        needed = "a state with sections() and restore(opened) is needed, such as a firekeep.training.TrainingState"
        raise TypeError(f"{needed}, not {type(state).__name__}")
    sections = list(state.sections())
    if not sections:
        raise RuleError("the state has no sections: nothing would be saved")
    names = [section.name.casefold() for section in sections]
    twice = sorted({section.name for section in sections if names.count(section.name.casefold()) > 1})
    if twice:
        raise RuleError(f"the state has sections of one name, or that differ in case only: {some(twice)}")
    return sections


def facts_of(state: Savable, *, best: KeepBest) -> dict[str, Fact]:
    """Give the facts of a save: those of the process, of the manager, and of the state."""
    own: dict[str, Fact] = {"host": socket.gethostname(), "pid": os.getpid(), BEST: f"{best.mode} {best.metric}"}
    if hasattr(os, "sched_getaffinity"):
        own["cpus"] = len(os.sched_getaffinity(0))
    told = getattr(state, "facts", None)
    return {**own, **check_facts(told() if callable(told) else {})}
