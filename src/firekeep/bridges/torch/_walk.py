"""Every place of a torch model that holds a tensor, in the order and under the names of its state dict."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn

from firekeep.bridges.torch._layers import (
    PARENTS,
    class_of,
    facts_of,
    is_keyed,
    is_list,
    is_packed,
    kind_of,
    label_of,
    may_be_packed,
)
from firekeep.bridges.torch._ties import fault, first_names
from firekeep.errors import LimitError, UnsupportedError
from firekeep.garbage import collector_paused
from firekeep.slots import Layer
from firekeep.wording import quote

_DEEPEST = 500
"""Levels of modules in one another; what reads a model goes down them, and Python itself has an end."""

# Modules that only stand around another one: where they are defined, their class, and what they call the one inside.
_WRAPPERS = (
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "module"),
    ("torch.nn.parallel.data_parallel", "DataParallel", "module"),
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "ActivationWrapper", "_checkpoint_wrapped_module"),
)


# Not frozen, as a Slot is not: a model may have tens of thousands.
@dataclass(slots=True)
class Place:
    """A parameter or persistent buffer: where it hangs, and what hangs there now.

    `value` is None where a module keeps its weights packed. `fault` says why it is none that can be described by dtype, shape and memory.
    """

    path: str
    module: nn.Module
    name: str
    value: torch.Tensor | None
    layer: Layer | None
    containers: tuple[str, ...]
    fault: str | None
    is_parameter: bool


@dataclass(slots=True)
class Walk:
    """All places of a model, its layers of known kinds, the paths of all its parts, and what no file can give values."""

    places: list[Place] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)
    keyed: set[str] = field(default_factory=set)
    valueless: list[str] = field(default_factory=list)
    parts: list[tuple[str, nn.Module]] = field(default_factory=list)
    """All parts with their paths, the model itself as the first."""
    held: list[Mapping[str, object]] = field(default_factory=list)
    """The dicts of all parts that hold tensors or further parts."""
    names: list[str] = field(default_factory=list)
    """The keys of these dicts, one after the other."""
    things: list[object] = field(default_factory=list)
    """Their values."""
    _ties: dict[str, str] | None = None

    @property
    def ties(self) -> dict[str, str]:
        """Each further path of a tensor, and the first one."""
        if self._ties is None:
            self._ties = first_names(self.places)
        return self._ties

    def is_still_so(self) -> bool:
        """Say whether everything hangs where it was found; of modules compiled to TorchScript nobody can tell."""
        if not all(isinstance(around, dict) for around in self.held):
            return False
        things = [thing for around in self.held for thing in around.values()]
        return (
            len(things) == len(self.things)
            and all(map(is_, things, self.things))
            and list(chain.from_iterable(self.held)) == self.names
        )

    def hold(self, around: Mapping[str, object]) -> None:
        """Take note of what hangs in a dict of a module."""
        self.held.append(around)
        self.names += around.keys()
        self.things += around.values()


def walk(root: nn.Module) -> Walk:
    """Walk a model as its state dict does, through the wrappers of `torch.compile` and data parallelism, whose names are left out.

    Buffers that are not persistent are no places, and those of them on the meta device are `valueless`. The extra state of modules,
    which is no tensor, is no place either.
    """
    walker = _Walker()
    with collector_paused():
        walker.visit(root, "", (), None, None)
    return walker.found


@dataclass(slots=True)
class _Class:
    """What is known of a module by its class alone; of a wrapper, what it calls the module inside."""

    kind: str | None
    label: str
    is_list: bool
    is_keyed: bool
    may_be_packed: bool
    inner: str | None


class _Walker:
    def __init__(self) -> None:
        self.found = Walk()
        self._classes: dict[type, _Class] = {}
        self._around: set[int] = set()
        self._wrappers = [
            (getattr(sys.modules[place], name), inner)
            for place, name, inner in _WRAPPERS
            if hasattr(sys.modules.get(place), name)  # of a class that nobody imported there is no object
        ]

    def visit(
        self,
        module: nn.Module,
        path: str,
        containers: tuple[str, ...],
        parent: Layer | None,
        around: Layer | None,
    ) -> None:
        """Add the places of a module, then those of its children. `around` is the layer whose own tensors these are."""
        known = self._classes.get(type(module))
        if known is None or known.inner is not None:
            module, known = self._unwrap(module)
        found, marker = self.found, id(module)
        if marker in self._around or len(containers) >= _DEEPEST:
            self._refuse_endless(module, path)
        self._around.add(marker)
        found.parts.append((path, module))
        layer = around
        if known.kind is not None:
            layer = Layer(kind=known.kind, path=path, parent=parent, facts=facts_of(module, known.kind))
            found.layers.append(layer)
            if known.kind in PARENTS:
                parent = layer
        prefix = f"{path}." if path else ""
        inside = (*containers, known.label)
        if known.may_be_packed and is_packed(module):
            found.places.append(
                Place(f"{prefix}weight", module, "weight", None, layer, inside, fault=None, is_parameter=False)
            )
            self._around.discard(marker)
            return
        listed = (*containers, "Vec") if known.is_list else inside
        if known.is_keyed:
            found.keyed.add(path)
        self._hold(module, prefix, layer, inside, listed)
        passed = around if known.kind is None else None
        if children := module._modules:  # noqa: SLF001
            found.hold(children)
        for name, child in children.items():
            if child is None:
                continue
            below = prefix + name
            found.modules.add(below)
            # A list of parametrizations belongs to the layer it parametrizes; any other child is a layer of its own, or of none.
            belongs = layer if name == "parametrizations" else passed
            self.visit(child, below, listed if name.isdecimal() else inside, parent, belongs)
        self._around.discard(marker)

    def _hold(
        self, module: nn.Module, prefix: str, layer: Layer | None, inside: tuple[str, ...], listed: tuple[str, ...]
    ) -> None:
        """Add parameters, then persistent buffers: as a state dict is made, further names of a tied tensor included."""
        places, parameters, buffers = self.found.places, module._parameters, module._buffers  # noqa: SLF001
        if parameters:
            self.found.hold(parameters)
        for name, value in parameters.items():
            if value is not None:
                owner = listed if name.isdecimal() else inside
                places.append(Place(prefix + name, module, name, value, layer, owner, fault(value), is_parameter=True))
        if not buffers:
            return
        self.found.hold(buffers)
        fleeting = getattr(module, "_non_persistent_buffers_set", ())
        for name, buffer in buffers.items():
            if buffer is not None and name not in fleeting:
                owner = listed if name.isdecimal() else inside
                places.append(
                    Place(prefix + name, module, name, buffer, layer, owner, fault(buffer), is_parameter=False)
                )
        self.found.valueless += (prefix + name for name in _valueless(module, fleeting))

    def _refuse_endless(self, module: nn.Module, path: str) -> None:
        if id(module) in self._around:
            raise UnsupportedError(
                f"the {type(module).__name__} at {quote(path)} contains itself: its tensors would have no end of names",
                remedy="Keep that reference where torch does not take it for a part: in a list or tuple.",
            )
        raise LimitError(
            f"the modules lie deeper than {_DEEPEST} levels in one another, at {quote(path)}",
            limit=_DEEPEST,
            actual=_DEEPEST + 1,
        )

    def _unwrap(self, module: nn.Module) -> tuple[nn.Module, _Class]:
        """Give the module inside all that only stands around it, and what its class tells."""
        while (known := self._classes.get(type(module)) or self._class(module)).inner is not None:
            around: Any = module._modules  # noqa: SLF001 - wrappers hand other attributes on to the module inside
            self.found.hold(around)
            module = around[known.inner]
        return module, known

    def _class(self, module: nn.Module) -> _Class:
        written = class_of(module)
        known = _Class(
            kind=kind_of(written),
            label=f"Struct:{label_of(module)}",
            is_list=is_list(written),
            is_keyed=is_keyed(written),
            may_be_packed=may_be_packed(type(module)),
            inner=next((name for cls, name in self._wrappers if isinstance(module, cls)), None),
        )
        if written is type(module) and not isinstance(module, torch.jit.ScriptModule):
            self._classes[written] = known
        return known


def _valueless(module: nn.Module, fleeting: Collection[str]) -> list[str]:
    """Give the buffers of a module on the meta device that no state dict holds."""
    found = ((name, module._buffers.get(name)) for name in sorted(fleeting))  # noqa: SLF001
    return [name for name, buffer in found if buffer is not None and buffer.is_meta]
