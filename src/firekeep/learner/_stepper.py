"""One step of the optimizers from a group of batches: forward, backward, clipping, and what half precision asks for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from firekeep.errors import RuleError
from firekeep.learner._batches import Judge, Outcome, device_of, to_device
from firekeep.learner._means import Means
from firekeep.learner._options import Options, Precision


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step: its loss, the mean over its batches, and whether the scaler left it out because gradients were not finite."""

    loss: torch.Tensor
    skipped: bool = False


class Stepper:
    """Makes steps. The loss of a step is the mean over its batches, however many they are, and so are its gradients."""

    def __init__(self, model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer], options: Options) -> None:
        self.model = model
        self.optimizers = dict(optimizers)
        self.device = device_of(model)
        self.scaler = torch.amp.GradScaler(self.device.type) if options.precision == "fp16" else None
        self._judge: Judge = options.judge
        self._options = options
        self._parameters = [
            parameter
            for optimizer in optimizers.values()
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        closing = [name for name, optimizer in self.optimizers.items() if _asks_for_closure(optimizer)]
        if closing and (self.scaler is not None or len(self.optimizers) > 1):
            kind = type(self.optimizers[closing[0]]).__name__
            raise RuleError(
                f"{kind} evaluates the model several times in a step, which goes neither with fp16 nor with a second optimizer",
                remedy='Use precision="fp32" or "bf16", and one optimizer.',
            )
        self._closing = bool(closing)

    def step(self, group: Sequence[Any], means: Means) -> Stepped:
        """Make a step of a group of batches, and add loss and metrics of each to the means."""
        if not self._closing:
            loss = self._gradients(group, means)
            return Stepped(loss, skipped=self._apply())
        first: list[torch.Tensor] = []

        def closure() -> torch.Tensor:
            loss = self._gradients(group, None if first else means)
            first.append(loss)
            self._clip()
            return loss

        (optimizer,) = self.optimizers.values()
        optimizer.step(closure)  # type: ignore[arg-type]
        return Stepped(first[0])

    def judge(self, batch: Any) -> Outcome:
        """Run the model on a batch as in training, without gradients."""
        with torch.no_grad(), self._autocast():
            return self._judge(self.model, to_device(batch, self.device))

    def _gradients(self, group: Sequence[Any], means: Means | None) -> torch.Tensor:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for batch in group:
            with self._autocast():
                outcome = self._judge(self.model, to_device(batch, self.device))
            share = outcome.loss / len(group) if len(group) > 1 else outcome.loss
            (share if self.scaler is None else self.scaler.scale(share)).backward()  # type: ignore[no-untyped-call]
            total = total + share.detach()
            if means is not None:
                means.add("loss", outcome.loss, outcome.samples)
                for name, value in outcome.metrics.items():
                    means.add(name, value, outcome.samples)
        return total

    def _apply(self) -> bool:
        if self.scaler is None:
            self._clip()
            for optimizer in self.optimizers.values():
                optimizer.step()
            return False
        if self._options.clip_norm is not None or self._options.clip_value is not None:
            for optimizer in self.optimizers.values():
                self.scaler.unscale_(optimizer)
            self._clip()
        for optimizer in self.optimizers.values():
            self.scaler.step(optimizer)
        before = self.scaler.get_scale()
        self.scaler.update()
        return self.scaler.get_scale() < before

    def _clip(self) -> None:
        if self._options.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._options.clip_norm)
        if self._options.clip_value is not None:
            nn.utils.clip_grad_value_(self._parameters, self._options.clip_value)

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = _HALF.get(self._options.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)


_HALF: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def _asks_for_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Say whether `step` cannot do without a function that evaluates the model, as LBFGS's."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
