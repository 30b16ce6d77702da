"""Which parameters take no gradient: no file of weights says so, and a run that trains others is another run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from firekeep.bridges import torch as torch_bridge
from firekeep.training._names import live_names
from firekeep.training._parts import Restoring
from firekeep.wording import some


def frozen_of(models: Mapping[str, Any]) -> dict[str, list[str]]:
    """List them by model."""
    return {name: torch_bridge.frozen(one) for name, one in models.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenChange:
    """Parameters of a model that come back, by their names there, and take gradients now and took none, or the other way round."""

    model: str
    thawed: tuple[str, ...]
    stopped: tuple[str, ...]

    def told(self) -> Iterator[str]:
        """Say what is not as it was, and what to do about it."""
        if self.thawed:
            rest = f"{some(self.thawed)} took no gradient, and {_takes(self.thawed)} one now"
            yield f"{self.model}: {rest}{_remedy(self.thawed, to_freeze=True)}"
        if self.stopped:
            rest = f"{some(self.stopped)} took a gradient, and {_takes(self.stopped)} none now"
            yield f"{self.model}: {rest}{_remedy(self.stopped, to_freeze=False)}"

    def undone(self) -> Iterator[str]:
        """Say what is again as it was."""
        if self.thawed:
            yield f"{self.model}: {some(self.thawed)} {_takes(self.thawed)} no gradient, as in the saved run"
        if self.stopped:
            yield f"{self.model}: {some(self.stopped)} {_takes(self.stopped)} a gradient, as in the saved run"

    def undo(self, model: Any) -> None:
        """Have the parameters take gradients, or none, as they did."""
        held = dict(torch_bridge.parameters_of(model))
        for names, takes in ((self.thawed, False), (self.stopped, True)):
            wanted = set(map(_bare, names))
            for name, value in held.items():
                if _bare(name) in wanted and (not takes or value.is_floating_point() or value.is_complex()):
                    value.requires_grad_(takes)


def frozen_changes(models: Mapping[str, Any], saved: Mapping[str, Any], restoring: Restoring) -> Iterator[FrozenChange]:
    """Find the parameters that come back and are frozen now, and were not, or the other way round."""
    for name, now in frozen_of(models).items():
        if name not in saved or (report := restoring.models.get(name)) is None:
            continue
        named = live_names(name, saved[name], restoring).values()
        then, today = (set(_places(list_of, report.applied)) for list_of in (named, now))
        thawed = tuple(path for path in report.applied if path in then - today)
        stopped = tuple(path for path in report.applied if path in today - then)
        if thawed or stopped:
            yield FrozenChange(model=name, thawed=thawed, stopped=stopped)


def _remedy(names: Collection[str], *, to_freeze: bool) -> str:
    them = "it" if len(names) == 1 else "them"
    return f": call requires_grad_({not to_freeze}) of {them} before the restore, or have it done by TrainingState(frozen=True)"


def _takes(names: Collection[str]) -> str:
    return "takes" if len(names) == 1 else "take"


def _places(names: Iterable[str], places: Iterable[str]) -> Iterator[str]:
    """Give the model's names of parameters, whatever wrappers are around it, or were."""
    known = {_bare(path): path for path in places}
    return (known.get(_bare(name), name) for name in names)


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


_WRAPPERS = frozenset(("module", "_orig_mod", "_checkpoint_wrapped_module"))
