"""PyTorch models: `torch.nn.Module`, compiled, on several devices or on none. PyTorch is imported when a model is there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from firekeep.bridges._protocol import Bridge, Filling
from firekeep.bridges._values import Hanging
from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.ids import ParamId
from firekeep.slots import Constants, Outline

if TYPE_CHECKING:
    from torch import Tensor, nn

    from firekeep.bridges._states import OptimizerState, Restoration
    from firekeep.bridges.torch._schedulers import SchedulerState
    from firekeep.scalars import Scalar
    from firekeep.schedulers import SchedulerReport

__all__ = [
    "at_once",
    "beside_optimizer",
    "beside_schedule",
    "cast",
    "changes_in_place",
    "constants",
    "cuda_devices",
    "describe_optimizer",
    "entries",
    "extra_state",
    "facts",
    "fill",
    "gradient_faults",
    "gradients",
    "ids_of",
    "modules_of",
    "name",
    "outline",
    "owns",
    "owns_optimizer",
    "restore_optimizer",
    "restore_scheduler",
    "rng_fault",
    "rng_state",
    "scheduler_state",
    "schedules",
    "seeded",
    "set_extra_state",
    "set_gradients",
    "set_rng_state",
    "tensor_of",
]

name = "torch"


def owns(obj: object) -> bool:
    """Say whether the object is a `torch.nn.Module`."""
    framework: Any = sys.modules.get("torch.nn")  # who gives a module has it imported
    return framework is not None and isinstance(obj, getattr(framework, "Module", ()))


def outline(obj: nn.Module) -> Outline:
    """Describe the parameters and persistent buffers of a model, under the names and in the order of its state dict.

    The names are those of the model inside the wrappers of `torch.compile` and data parallelism. Extra state of modules is left out.
    """
    from firekeep.bridges.torch import _describe

    return _describe.outline(obj)


def entries(obj: nn.Module) -> list[TensorEntry]:
    """Describe the values of a model, without copying any; parameters that have no id yet get one."""
    from firekeep.bridges.torch import _describe

    return _describe.entries(obj)


def constants(obj: nn.Module) -> list[Constants]:
    """Tell what the parts of the object compute with beside their tensors; see `Bridge.constants`."""
    from firekeep.bridges.torch import _constants

    return _constants.constants(obj)


def fill(obj: nn.Module, fillings: Sequence[Filling], done: list[str]) -> None:
    """Put tensors into a model, in place where the dtype stays; see `Bridge.fill`.

    Parameters stay the objects they are, but for those on the meta device, which are replaced by ones in memory.
    """
    from firekeep.bridges.torch import _fill

    _fill.fill(obj, fillings, done)


def at_once() -> Bridge:
    """Give a bridge for one load or save, which walks the model once."""
    from firekeep.bridges.torch._at_once import AtOnce

    return AtOnce()


def ids_of(obj: nn.Module) -> dict[str, ParamId]:
    """Give the ids of all parameters and buffers of a model by path, made where there were none.

    They stay through `.to()`, `to_empty()` and `load_state_dict`. A deep copy of a model gets ids of its own.
    """
    from firekeep.bridges.torch import _describe

    return _describe.ids_of(obj)


def schedules(obj: object) -> bool:
    """Say whether the object is a learning rate scheduler of PyTorch, a GradScaler or an AveragedModel."""
    if "torch" not in sys.modules:  # who gives one has it imported
        return False
    from firekeep.bridges.torch import _schedulers

    return _schedulers.owns(obj)


def scheduler_state(scheduler: Any) -> SchedulerState:
    """Take the state of a scheduler of PyTorch, a GradScaler or an AveragedModel (its count: its module is a model).

    The whole state, and what the scheduler has put into the optimizer's groups, is text under one metadata key. Burn's counters stand
    beside it where Burn has such a schedule. Raises `SchedulerError` naming the place of what cannot be kept.
    """
    from firekeep.bridges.torch import _schedulers

    return _schedulers.scheduler_state(scheduler)


def restore_scheduler(
    scheduler: Any, scalars: Mapping[str, Scalar], metadata: Mapping[str, str] | None = None
) -> SchedulerReport:
    """Bring a scheduler to where the one was that a record was taken of, from its whole state, else from Burn's counters.

    The learning rates go into the optimizer's groups too, so it may be loaded before or after. What does not fit is in the report,
    and then nothing has been changed. Raises `FormatError` for a state that is damaged.
    """
    from firekeep.bridges.torch import _schedulers

    return _schedulers.restore_scheduler(scheduler, scalars, metadata)


def cast(obj: nn.Module, dtype: DType) -> None:
    """Cast the floats of a model in place; raises `UnsupportedError` for a dtype that PyTorch has not."""
    from firekeep.bridges.torch import _fill

    _fill.cast(obj, dtype)


def owns_optimizer(obj: object) -> bool:
    """Say whether the object keeps a state by parameter in groups of parameters: an optimizer, or a wrapper around one."""
    if "torch" not in sys.modules:
        return False
    from firekeep.bridges.torch import _optimizers

    return _optimizers.owns_optimizer(obj)


def describe_optimizer(optimizer: Any, model: Any) -> OptimizerState:
    """Describe what an optimizer keeps, by the names that its parameters have in a model, or in a dict of models; nothing is copied.

    Parameters are told by identity. Raises `RuleError` for those that are not in the model.
    """
    from firekeep.bridges.torch import _optimizers

    return _optimizers.describe_optimizer(optimizer, model)


def changes_in_place(_optimizer: Any) -> bool:
    """Say whether a state is put into the optimizer itself: always."""
    return True


def restore_optimizer(optimizer: Any, model: Any, restoration: Restoration) -> Any:
    """Put states and options into an optimizer; parameters without a state start afresh. All is read before anything is changed."""
    from firekeep.bridges.torch import _optimizers

    _optimizers.restore_optimizer(optimizer, model, restoration)
    return optimizer


def beside_optimizer(optimizer: Any, *, kept: AbstractSet[int] = frozenset()) -> Iterator[Hanging]:
    """Find what hangs on an optimizer besides its state, its groups and what a state dict of its own gives.

    `kept` are the identities of optimizers within it that are kept by themselves. Optimizers of PyTorch hang nothing on themselves.
    """
    from firekeep.bridges.torch import _beside

    return _beside.beside_optimizer(optimizer, kept=kept)


def beside_schedule(scheduler: Any) -> Iterator[Hanging]:
    """Find what a schedule, or a function that it calls, counts in besides what its state dict gives."""
    from firekeep.bridges.torch import _beside

    return _beside.beside_schedule(scheduler)


def rng_state() -> dict[str, Any]:
    """Take the states of PyTorch's generators: "cpu" a tensor, "cuda" a list of them by device, where CUDA is in use."""
    from firekeep.bridges.torch import _rng

    return _rng.rng_state()


def rng_fault(state: Mapping[str, Any]) -> str | None:
    """Say why a state that `rng_state` gave, perhaps elsewhere, cannot be put back here, or give None."""
    from firekeep.bridges.torch import _rng

    return _rng.rng_fault(state)


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Put the states of generators back; those of devices that are not there are left."""
    from firekeep.bridges.torch import _rng

    _rng.set_rng_state(state)


def seeded(seed: int) -> AbstractContextManager[None]:
    """Give a context in which the CPU's generator draws by a seed; afterwards it is as it was."""
    from firekeep.bridges.torch import _rng

    return _rng.seeded(seed)


def cuda_devices() -> int:
    """Count the CUDA devices that can be used."""
    from firekeep.bridges.torch import _rng

    return _rng.cuda_devices()


def facts() -> dict[str, str | int | bool]:
    """Give what decides the bits of a result besides the state: PyTorch's version, threads, switches and devices."""
    from firekeep.bridges.torch import _rng

    return _rng.facts()


def tensor_of(entry: TensorEntry) -> Tensor:
    """Give an entry as a tensor on the CPU, in memory of its own; raises `UnsupportedError` for a dtype that PyTorch has not."""
    from firekeep.bridges.torch import _rng

    return _rng.tensor_of(entry)


def frozen(obj: nn.Module) -> list[str]:
    """List the parameters that take no gradient, by the names of slots."""
    from firekeep.bridges.torch import _extra_state

    return _extra_state.frozen(obj)


def parameters_of(obj: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Give the parameters, tied ones once, by the names that `frozen` has for them."""
    from firekeep.bridges.torch import _extra_state

    return _extra_state.named_parameters(obj)


def modules_of(obj: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Give all modules, by the names that slots begin with."""
    from firekeep.bridges.torch import _extra_state

    return _extra_state.modules_of(obj)


def gradients(obj: nn.Module) -> list[TensorEntry]:
    """Describe the gradients that parameters have, by the names of slots; no bytes are drawn.

    Raises `UnsupportedError` naming one that is sparse, or sharded.
    """
    from firekeep.bridges.torch import _gradients

    return _gradients.gradients(obj)


def gradient_faults(obj: nn.Module, found: Mapping[str, TensorEntry]) -> dict[str, str]:
    """Say which gradients no parameter of this name takes, and why; nothing is changed."""
    from firekeep.bridges.torch import _gradients

    return _gradients.gradient_faults(obj, found)


def set_gradients(obj: nn.Module, found: Mapping[str, TensorEntry]) -> None:
    """Give parameters these gradients, and all others none."""
    from firekeep.bridges.torch import _gradients

    _gradients.set_gradients(obj, found)


def extra_state(obj: nn.Module) -> dict[str, Any]:
    """Give what modules keep besides tensors (`get_extra_state`), by path; empty for most models."""
    from firekeep.bridges.torch import _extra_state

    return _extra_state.extra_state(obj)


def set_extra_state(obj: nn.Module, states: Mapping[str, Any]) -> None:
    """Give modules back what `extra_state` took of them; paths without such a module are left."""
    from firekeep.bridges.torch import _extra_state

    _extra_state.set_extra_state(obj, states)
