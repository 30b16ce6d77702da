"""What decides the bits of a result besides the state of a run."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

from firekeep._version import __version__
from firekeep.wording import quote

Fact = str | int | float | bool

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG", "XLA_FLAGS")
_INNOCENT = frozenset(("firekeep",))
"""Facts that decide nothing: they are told, and never as a change."""


def environment() -> dict[str, Fact]:
    """Give versions, threads and switches of this process."""
    facts: dict[str, Fact] = {
        "firekeep": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    if (numpy := sys.modules.get("numpy")) is not None:
        facts["numpy"] = str(numpy.__version__)
    facts |= {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    if "torch" in sys.modules:
        from firekeep.bridges import torch as bridge

        facts |= bridge.facts()
    if "jax" in sys.modules:
        from firekeep.bridges import jax

        facts |= jax.facts()
    return facts


def changes(saved: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what is not as it was."""
    now = environment()
    names = [name for name in (*saved, *(name for name in now if name not in saved)) if name not in _INNOCENT]
    return tuple(
        f"{name} was {_told(saved, name)}, and is {_told(now, name)}"
        for name in names
        if saved.get(name) != now.get(name) and not _is_just_absent(saved, now, name)
    )


def _is_just_absent(saved: Mapping[str, Any], now: Mapping[str, Any], name: str) -> bool:
    """Say whether a library or a device was not in use on one side: it has made no difference, or its state tells of it."""
    return (name not in saved or name not in now) and name not in _VARIABLES


def _told(facts: Mapping[str, Any], name: str) -> str:
    return quote(str(facts[name])) if name in facts else "not set"
