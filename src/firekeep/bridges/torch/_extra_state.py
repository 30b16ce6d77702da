"""What modules keep that is no tensor: `get_extra_state` and `set_extra_state`, and which parameters take no gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

_AROUND = ("_orig_mod", "_checkpoint_wrapped_module")


def extra_state(root: nn.Module) -> dict[str, Any]:
    """Take it by path of the module; see the door."""
    return {path: module.get_extra_state() for path, module in _keepers(root)}


def set_extra_state(root: nn.Module, states: Mapping[str, Any]) -> None:
    """Put it back; see the door."""
    for path, module in _keepers(root):
        if path in states:
            module.set_extra_state(states[path])


def frozen(root: nn.Module) -> list[str]:
    """List the parameters that take no gradient; see the door."""
    return [_bare(path) for path, value in _inside(root).named_parameters() if not value.requires_grad]


def _inside(root: nn.Module) -> nn.Module:
    return root.module if isinstance(root, nn.DataParallel | nn.parallel.DistributedDataParallel) else root


def _bare(path: str) -> str:
    return ".".join(name for name in path.split(".") if name not in _AROUND)


def _keepers(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for path, module in _inside(root).named_modules():
        own = type(module)
        takes = own.set_extra_state is not nn.Module.set_extra_state
        if takes and own.get_extra_state is not nn.Module.get_extra_state:
            yield _bare(path), module
