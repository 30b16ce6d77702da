"""Which parameters take no gradient: no file of weights says so, and a run that trains others is another run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from firekeep.bridges import torch as torch_bridge
from firekeep.training._names import live_names
from firekeep.training._parts import Restoring
from firekeep.wording import some


def frozen_of(models: Mapping[str, Any]) -> dict[str, list[str]]:
    """List them by model."""
    return {name: torch_bridge.frozen(one) for name, one in models.items()}


def frozen_changes(models: Mapping[str, Any], saved: Mapping[str, Any], restoring: Restoring) -> Iterator[str]:
    """Say which parameters that come back take gradients now and took none, or the other way round."""
    for name, now in frozen_of(models).items():
        if name not in saved or (report := restoring.models.get(name)) is None:
            continue
        named = live_names(name, saved[name], restoring).values()
        then, today = (set(_places(list_of, report.applied)) for list_of in (named, now))
        if thawed := [path for path in report.applied if path in then - today]:
            yield f"{name}: {some(thawed)} took no gradient, and {_takes(thawed)} one now"
        if stopped := [path for path in report.applied if path in today - then]:
            yield f"{name}: {some(stopped)} took a gradient, and {_takes(stopped)} none now"


def _takes(names: Collection[str]) -> str:
    return "takes" if len(names) == 1 else "take"


def _places(names: Iterable[str], places: Iterable[str]) -> Iterator[str]:
    """Give the model's names of parameters, whatever wrappers are around it, or were."""
    known = {_bare(path): path for path in places}
    return (known.get(_bare(name), name) for name in names)


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


_WRAPPERS = frozenset(("module", "_orig_mod", "_checkpoint_wrapped_module"))
