"""What modules have besides tensors: a state of their own, code that changes tensors on their way, parameters without a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
    return [path for path, value in named_parameters(root) if not value.requires_grad]


def named_parameters(root: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Give the parameters, tied ones once, by the names of slots."""
    return ((_bare(path), value) for path, value in _inside(root).named_parameters())


def stateful(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    """Choose the modules that by themselves keep a state besides their tensors."""
    keeping: dict[type[nn.Module], bool] = {}
    for path, module in modules:
        own = type(module)
        if own not in keeping:
            keeping[own] = _keeps_more(own)
        if keeping[own]:
            yield path, module


def rewriting(modules: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Choose the modules whose tensors code other than PyTorch's changes on their way into a state dict or out of one."""
    overriding: dict[type[nn.Module], bool] = {}
    for path, module in modules:
        own = type(module)
        if own not in overriding:
            overriding[own] = _overrides(own)
        before, after = module._load_state_dict_pre_hooks, module._state_dict_hooks  # noqa: SLF001 - nothing else tells
        hooked = (before or after) and not all(map(_is_torch, (*before.values(), *after.values())))
        if overriding[own] or hooked:
            yield path, module


def _keeps_more(own: type[nn.Module]) -> bool:
    takes = own.set_extra_state is not nn.Module.set_extra_state
    return takes and own.get_extra_state is not nn.Module.get_extra_state


def _overrides(own: type[nn.Module]) -> bool:
    return not (_is_torch(own._load_from_state_dict) and _is_torch(own._save_to_state_dict))  # noqa: SLF001


def _is_torch(hook: Any) -> bool:
    code = getattr(hook, "hook", hook)
    return (getattr(code, "__module__", None) or type(code).__module__).partition(".")[0] == "torch"


def modules_of(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Give the modules, by the names that slots begin with."""
    return ((_bare(path), module) for path, module in _inside(root).named_modules())


def _inside(root: nn.Module) -> nn.Module:
    return root.module if isinstance(root, nn.DataParallel | nn.parallel.DistributedDataParallel) else root


def _bare(path: str) -> str:
    return ".".join(name for name in path.split(".") if name not in _AROUND)


def _keepers(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return stateful(modules_of(root))
