"""What a batch is: pairs of inputs and targets, or whatever an objective of the user's own takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from firekeep.errors import RuleError

Loss = Callable[[Any, Any], torch.Tensor]
Objective = Callable[[nn.Module, Any], Any]
Metric = Callable[[Any, Any], torch.Tensor | float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a model made of a batch: the loss, each metric, and how many samples they are the mean of."""

    loss: torch.Tensor
    metrics: Mapping[str, torch.Tensor | float]
    samples: int


@dataclass(frozen=True, slots=True)
class Judge:
    """Runs a model on a batch, and measures what comes out."""

    objective: Objective
    metrics: Mapping[str, Metric]

    def __call__(self, model: nn.Module, batch: Any) -> Outcome:
        """Give loss and metrics."""
        loss, output, target = self._made(self.objective(model, batch))
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            told = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise RuleError(f"the loss is {told}, and a tensor of one number is needed", remedy="Take the mean of it.")
        with torch.no_grad():
            found = {name: metric(output, target) for name, metric in self.metrics.items()}
        return Outcome(loss=loss, metrics=found, samples=samples_in(batch))

    def _made(self, made: Any) -> tuple[Any, Any, Any]:
        if isinstance(made, tuple) and len(made) == 3:
            return made
        if isinstance(made, tuple) or self.metrics:
            told = f"{len(made)} values" if isinstance(made, tuple) else "the loss alone, and there are metrics"
            raise RuleError(f"the objective gave {told}", remedy="Have it give the loss, the output and the target.")
        return made, None, None


def objective_of(loss: Loss | None, objective: Objective | None) -> Objective:
    """Give an objective: the user's own, or that of a loss of output and target."""
    if (loss is None) == (objective is None):
        raise RuleError(
            "give either loss=, a function of output and target, or objective=, a function of the model and a batch"
        )
    return objective if loss is None else _paired(loss)  # type: ignore[return-value]


def _paired(loss: Loss) -> Objective:
    def objective(model: nn.Module, batch: Any) -> tuple[torch.Tensor, Any, Any]:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise RuleError(
                f"a batch is {type(batch).__name__}, and a pair of inputs and targets is needed",
                remedy="Give the Learner objective=, a function of the model and such a batch, in place of loss=.",
            )
        inputs, target = batch
        output = model(inputs)
        return loss(output, target), output, target

    return objective


def to_device(batch: Any, device: torch.device) -> Any:
    """Move all tensors of a batch; tuples, lists and dictionaries are gone through, other things stay as they are."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def samples_in(batch: Any) -> int:
    """Count the samples of a batch: the first size of the first tensor in it; 1 where there is none."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else 1
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return next((samples_in(value) for value in values if isinstance(value, torch.Tensor | Mapping | tuple | list)), 1)


def device_of(model: nn.Module) -> torch.device:
    """Tell where a model is: where its first parameter or buffer is."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")
