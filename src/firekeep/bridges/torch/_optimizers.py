"""Optimizers of PyTorch, and all that look like one: described by the names of their parameters, and restored by them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from firekeep.bridges._states import Nested, OptimizerState, ParamState, Restoration
from firekeep.bridges.torch._bytes import bytes_of, pour, torch_dtype
from firekeep.bridges.torch._describe import ids_in
from firekeep.bridges.torch._walk import walk
from firekeep.dtypes import BY_NAME, BY_TORCH, DType
from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, RuleError, UnsupportedError
from firekeep.garbage import collector_paused
from firekeep.ids import ParamId
from firekeep.reading import Window, read_into, read_windows
from firekeep.tagged import join_tensors, split_tensors
from firekeep.tensors import torch_entry
from firekeep.wording import some

_BOUND = ("params", "param_names")
"""Keys of a group that say which parameters are in it, and not what is done with them."""


def owns_optimizer(obj: object) -> bool:
    """Take whatever keeps a `state` by parameter and groups of parameters: optimizers, and wrappers around one."""
    return isinstance(getattr(obj, "param_groups", None), list) and isinstance(getattr(obj, "state", None), Mapping)


def describe_optimizer(optimizer: Any, model: Any) -> OptimizerState:
    """Describe an optimizer without copying anything; see `firekeep.bridges.torch.describe_optimizer`."""
    with collector_paused():
        held = list(_parameters(model))
        named = _named(optimizer, held)
        params = tuple(_describe_param(optimizer, one) for one in sorted(named, key=lambda one: one.rank))
        options = [
            {key: value for key, value in group.items() if key not in _BOUND} for group in optimizer.param_groups
        ]
        groups = tuple(_describe(one, f"group {index}") for index, one in enumerate(options))
        return OptimizerState(
            kind=type(optimizer).__name__,
            base=_base(optimizer),
            groups=groups,
            params=params,
            extra=_describe(_extra(optimizer), "extra"),
            frozen=frozenset(path for path, value, _ in held if not value.requires_grad),
        )


def _describe_param(optimizer: Any, one: _Named) -> ParamState:
    return ParamState(
        path=one.path,
        param_id=one.param_id,
        dtype=_dtype(one.value),
        shape=tuple(one.value.shape),
        group=one.group,
        position=one.position,
        state=_describe(_state_of(optimizer, one.value), one.path),
    )


@dataclass(slots=True)
class _Named:
    """A parameter of an optimizer with its name in the model. `rank` is its place there, `position` its place in the optimizer."""

    path: str
    value: torch.Tensor
    param_id: ParamId
    rank: int
    group: int
    position: int


def _named(optimizer: Any, held: Iterable[tuple[str, torch.Tensor, ParamId]]) -> list[_Named]:
    """Name an optimizer's parameters by identity: as an object, never by order or shape. Raises `RuleError` for those the model lacks."""
    known: dict[int, tuple[str, ParamId, int]] = {}
    for rank, (path, value, param_id) in enumerate(held):
        known.setdefault(id(value), (path, param_id, rank))
    found: list[_Named] = []
    strange: list[str] = []
    position = 0
    for group, options in enumerate(optimizer.param_groups):
        for place, value in enumerate(options["params"]):
            if (name := known.get(id(value))) is None:
                strange.append(f"number {place} of group {group}, of shape {list(value.shape)}")
            else:
                found.append(_Named(name[0], value, name[1], name[2], group, position))
            position += 1
    if strange:
        raise RuleError(
            f"{len(strange):,} of the {position:,} parameters of {type(optimizer).__name__} are not in the model: {strange[0]}",
            remedy="Give the model whose parameters it was made of, or a dict of all the models and parameters that it trains.",
        )
    return _with_ids_of_their_own(found)


def _parameters(model: Any) -> Iterator[tuple[str, torch.Tensor, ParamId]]:
    """Give every tensor of a model, or of a dict of models and tensors, under its path."""
    if isinstance(model, nn.Module):
        found = walk(model)
        ids = ids_in(found)
        for place in found.places:
            if place.value is not None:
                yield place.path, place.value, ids[place.path]
    elif isinstance(model, Mapping):
        for name, part in model.items():
            if isinstance(part, torch.Tensor):
                yield name, part, _id_of_name(name)
            else:
                yield from ((f"{name}.{path}", value, param_id) for path, value, param_id in _parameters(part))
    else:
        raise UnsupportedError(
            f"{type(model).__name__} is no model that the parameters of an optimizer can be named by",
            remedy="Give a torch.nn.Module, or a dict of names to modules and parameters.",
        )


def _id_of_name(name: str) -> ParamId:
    return ParamId(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))


def _with_ids_of_their_own(found: list[_Named]) -> list[_Named]:
    """Tell apart parameters that are several objects in one memory: the optimizer keeps a state of each."""
    met: set[ParamId] = set()
    for one in sorted(found, key=lambda one: one.rank):
        if one.param_id in met:
            one.param_id = _id_of_name(f"{int(one.param_id)} {one.path}")
        met.add(one.param_id)
    return found


def _state_of(optimizer: Any, value: torch.Tensor) -> Mapping[str, Any]:
    kept = optimizer.state.get(value)
    if kept is None:
        return {}
    if not isinstance(kept, Mapping):
        raise UnsupportedError(
            f"{type(optimizer).__name__} keeps a {type(kept).__name__} of a parameter, where a dict is due"
        )
    return kept


def _extra(optimizer: Any) -> dict[str, Any]:
    """Give what an optimizer keeps besides states of parameters: under names, or as further parts of its state dict."""
    named = {key: value for key, value in optimizer.state.items() if not isinstance(key, torch.Tensor)}
    extra: dict[str, Any] = {"state": named} if named else {}
    if overrides(optimizer, "state_dict"):
        whole = optimizer.state_dict()
        more = {key: value for key, value in whole.items() if key not in ("state", "param_groups")}
        if not _is_own_state(optimizer, whole.get("state")):
            more["state"] = whole["state"]
        if more:
            extra["state_dict"] = more
    return extra


def _is_own_state(optimizer: Any, given: Any) -> bool:
    """Say whether what a class gives as the state is that of its parameters: one that wraps another may give the other's."""
    if not isinstance(given, Mapping) or not given:
        return True
    params = [value for group in optimizer.param_groups for value in group["params"]]
    return all(
        not isinstance(key, int) or (key < len(params) and set(one) <= set(_state_of(optimizer, params[key])))
        for key, one in given.items()
        if isinstance(one, Mapping)
    )


def overrides(optimizer: Any, method: str) -> bool:
    """Say whether the class has a method of PyTorch's optimizers by itself."""
    own = getattr(type(optimizer), method, None)
    return own is not None and own is not getattr(torch.optim.Optimizer, method)


def _base(optimizer: Any) -> str:
    """Give the name of the class of PyTorch's own that an optimizer is of, or derives from."""
    for one in type(optimizer).__mro__:
        if one.__module__.startswith("torch.optim") and one is not torch.optim.Optimizer:
            return one.__name__
    return ""


def _describe(value: Mapping[str, Any], place: str) -> dict[str, Nested]:
    """Give plain data in which tensors are entries."""
    if (flat := _describe_flat(value, place)) is not None:
        return flat
    skeleton, found = split_tensors(dict(value), lambda leaf: isinstance(leaf, torch.Tensor), path=place)
    made: dict[str, Nested] = join_tensors(skeleton, {path: _entry(path, leaf) for path, leaf in found.items()})
    return made


def _describe_flat(value: Mapping[str, Any], place: str) -> dict[str, Nested] | None:
    """Do the same for what most states are, tensors and numbers by name, each tensor once; None for any other.

    Tens of thousands are described while the training loop waits.
    """
    made: dict[str, Nested] = {}
    met: set[int] = set()
    for key, item in value.items():
        if isinstance(item, torch.Tensor) and type(key) is str and id(item) not in met:
            met.add(id(item))
            made[key] = _entry(f"{place}.{key}", item)
        elif type(item) in _PLAIN:
            made[key] = item
        else:
            return None
    return made


_PLAIN = (int, float, bool, str, type(None))


def _entry(path: str, tensor: Any) -> TensorEntry:
    try:
        return torch_entry(path, tensor.detach())
    except FirekeepError as error:
        raise error.at(tensor=path)  # noqa: B904 - the same error, with its place


def _dtype(value: torch.Tensor) -> DType:
    return _DTYPES.get(value.dtype, BY_NAME["F32"])


_DTYPES: dict[Any, DType] = {getattr(torch, name): row for name, row in BY_TORCH.items() if hasattr(torch, name)}


def restore_optimizer(optimizer: Any, model: Any, restoration: Restoration) -> None:
    """Put states and options into an optimizer; see `firekeep.bridges.torch.restore_optimizer`.

    All tensors are read before anything is changed.
    """
    named = {one.path: one for one in _named(optimizer, _parameters(model))}
    if unknown := [path for path in restoration.states if path not in named]:
        raise RuleError(f"the optimizer has no parameters {some(unknown)}")
    drawing = _Drawing()
    with collector_paused():
        states = {
            path: {key: drawing.make(value, _home(named[path], optimizer, key)) for key, value in state.items()}
            for path, state in restoration.states.items()
        }
        anywhere = _Home(torch.device("cpu"), torch.device("cpu"), None)
        options = {index: drawing.make(dict(given), anywhere) for index, given in restoration.groups.items()}
        extra = drawing.make(dict(restoration.extra), anywhere)
    drawing.read()
    _put_extra(optimizer, extra)
    for path, one in named.items():
        if path in states:
            optimizer.state[one.value] = states[path]
        else:
            _forget(optimizer, one)
    for index, given in options.items():
        _set_options(optimizer.param_groups[index], given)


@dataclass(slots=True)
class _Home:
    """Where tensors of a state go: numbers of rank 0 here, all others there, laid like the parameter where they have its shape."""

    numbers: torch.device
    tensors: torch.device
    like: torch.Tensor | None


_ON_HOST = ("step", "mu_product")
"""Numbers that PyTorch keeps in the memory of the host, unless the step runs as one on the device."""


def _home(one: _Named, optimizer: Any, key: str) -> _Home:
    group = optimizer.param_groups[one.group]
    on_device = group.get("capturable") or group.get("fused") or key not in _ON_HOST
    device = one.value.device
    return _Home(device if on_device else torch.device("cpu"), device, one.value)


_LARGE = 64 << 10


class _Drawing:
    """Tensors to be made of entries: those that lie in a file as they are needed are read all at once.

    The large ones get memory that many share, in huge pages: pages of 4 KB one by one take longer to come by than the file to read.
    """

    def __init__(self) -> None:
        self._large: list[tuple[Window, torch.Tensor, tuple[int, ...]]] = []
        self._small: list[tuple[Window, torch.Tensor]] = []
        self._others: list[tuple[TensorEntry, torch.Tensor]] = []

    def make(self, value: Nested, home: _Home) -> Any:
        """Give plain data with tensors in the place of entries; they are empty until `read`."""
        skeleton, found = split_tensors(value, lambda leaf: isinstance(leaf, TensorEntry))
        tensors: dict[str, object] = {}
        for path, entry in found.items():
            assert isinstance(entry, TensorEntry)  # noqa: S101 - the predicate above
            tensors[path] = self._tensor(entry, home)
        return join_tensors(skeleton, tensors)

    def _tensor(self, entry: TensorEntry, home: _Home) -> torch.Tensor:
        dtype = torch_dtype(entry.require())
        if dtype is None:
            raise UnsupportedError(f"PyTorch has no dtype for {entry.dtype}", tensor=entry.name)
        device = home.tensors if entry.shape else home.numbers
        like = home.like
        if like is not None and (tuple(like.shape) != entry.shape or like.is_meta):
            like = None
        window = _window(entry, dtype) if device.type == "cpu" else None
        if window is not None and window[2] >= _LARGE and (like is None or _is_plain(like)):
            target = torch.empty(0, dtype=dtype)
            self._large.append((window, target, entry.shape))
            return target
        if like is not None:
            target = torch.empty_like(like, dtype=dtype, device=device, requires_grad=False)
        else:
            target = torch.empty(entry.shape, dtype=dtype, device=device)
        if window is not None and target.is_contiguous() and window[2] == target.nbytes:
            self._small.append((window, target))
        else:
            self._others.append((entry, target))
        return target

    def read(self) -> None:
        """Fill the tensors."""
        with torch.no_grad():
            views = read_windows([window for window, _, _ in self._large], tied=False)
            for view, (_, target, shape) in zip(views, self._large, strict=True):
                target.set_(torch.frombuffer(view, dtype=target.dtype).reshape(shape))  # type: ignore[call-overload]
            read_into([window for window, _ in self._small], [bytes_of(target) for _, target in self._small], [])
            for entry, target in self._others:
                try:
                    pour(entry, target)
                except FirekeepError as error:
                    raise error.at(tensor=entry.name)  # noqa: B904 - the same error, with its place


def _window(entry: TensorEntry, dtype: torch.dtype) -> Window | None:
    """Give where the bytes of a tensor lie in a file exactly as PyTorch wants them, or None."""
    place = entry.blob.window()
    if place is None or place[0].fileno() is None or dtype is torch.bool or sys.byteorder == "big":
        return None
    nbytes = entry.numel * dtype.itemsize
    return (*place, nbytes) if entry.blob.nbytes == nbytes else None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Say whether a tensor like this one is nothing but its elements, row by row."""
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.is_contiguous()


def _forget(optimizer: Any, one: _Named) -> None:
    """Let a parameter start afresh, as if the optimizer had been made just now."""
    group = optimizer.param_groups[one.group]
    if isinstance(optimizer, torch.optim.Adagrad):  # the only one that makes its states before the first step
        state = optimizer.state[one.value]
        start = group.get("initial_accumulator_value", 0.0)
        state["step"] = torch.zeros_like(state["step"]) if "step" in state else torch.tensor(0.0)
        filled = complex(start, start) if one.value.is_complex() else start
        state["sum"] = torch.full_like(one.value, filled, memory_format=torch.preserve_format).detach()
        return
    optimizer.state.pop(one.value, None)


def _put_extra(optimizer: Any, extra: Mapping[str, Any]) -> None:
    if "state_dict" in extra and overrides(optimizer, "load_state_dict"):
        optimizer.load_state_dict({**optimizer.state_dict(), **extra["state_dict"]})
    for key, value in extra.get("state", {}).items():
        optimizer.state[key] = value


def _set_options(group: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Set options of a group; a learning rate that is a tensor stays the object that schedulers and graphs know."""
    for key, value in options.items():
        held = group.get(key)
        if isinstance(held, torch.Tensor) and _is_number(value):
            held.fill_(value)
        elif isinstance(value, torch.Tensor) and isinstance(held, int | float):
            group[key] = value.item()
        else:
            group[key] = value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1)


__all__: Sequence[str] = ("describe_optimizer", "owns_optimizer", "restore_optimizer")
