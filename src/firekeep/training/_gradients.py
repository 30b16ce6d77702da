"""Gradients that were gathered and not applied yet, for runs that are saved in the middle of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from firekeep.bridges import torch as torch_bridge
from firekeep.errors import RuleError
from firekeep.formats import Contents
from firekeep.opened import OpenedFile
from firekeep.sections import GRADIENTS, Section
from firekeep.training._names import live_names, prefix_of
from firekeep.training._parts import Part, Restoring
from firekeep.wording import quote

VERSION = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsPart:
    """The `.grad` of a model's parameters, each in the layout of PyTorch. A parameter that has none has none again."""

    name: str
    model: Any
    of: str
    """The section of the model."""

    def section(self) -> Section:
        """Take those that are there; nothing is copied."""
        entries = torch_bridge.gradients(self.model)
        return Section(self.name, Contents(entries=entries, metadata={GRADIENTS: VERSION}))

    def plan(self, opened: OpenedFile, restoring: Restoring) -> None:
        """Find each its parameter, under the name that it has now."""
        if opened.metadata.get(GRADIENTS) != VERSION:
            restoring.refuse(self.name, "the checkpoint has no gradients there that this firekeep knows")
            restoring.steps.append(lambda: torch_bridge.set_gradients(self.model, {}))
            return
        saved = opened.entries
        live = live_names(self.of, list(saved), restoring)
        found = {live[name]: saved[name] for name in saved}
        faults = torch_bridge.gradient_faults(self.model, found)
        faults |= {
            path: "the parameter does not have the weights that it belongs to"
            for path in found
            if path not in faults and f"{prefix_of(self.of)}{path}" in restoring.unfilled
        }
        if faults:
            path, why = next(iter(faults.items()))
            more = f", and {len(faults) - 1:,} more have no place" if len(faults) > 1 else ""
            restoring.refuse(self.name, f"that of {quote(path)} has no place: {why}{more}")
        taken = {path: entry for path, entry in found.items() if path not in faults}
        restoring.gradients = (*(restoring.gradients or ()), *(f"{prefix_of(self.of)}{path}" for path in taken))
        restoring.steps.append(lambda: torch_bridge.set_gradients(self.model, taken))


def section_of(model: str) -> str:
    """Name the section of a model's gradients."""
    return model.replace("model", "gradients", 1)


def gradient_parts(models: Mapping[str, Any]) -> Iterator[Part]:
    """Make a part for each model of PyTorch; raises `RuleError` where there is none: others keep no gradients."""
    ours = {name: one for name, one in models.items() if torch_bridge.owns(one)}
    if not ours:
        raise RuleError(
            "gradients=True: only parameters of PyTorch have gradients of their own, and the model has none",
            remedy="Leave it out; of optax, MultiSteps keeps what it has gathered in the optimizer's state.",
        )
    return (GradientsPart(name=section_of(name), model=one, of=name) for name, one in ours.items())
