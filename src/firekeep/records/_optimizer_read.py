"""A file as what it keeps of an optimizer: Burn's fields by id, and what firekeep wrote beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.errors import FormatError, WrongFormatError
from firekeep.formats import Contents
from firekeep.layouts import LAYOUT, UNSPECIFIED, check_layout
from firekeep.records._kinds import RANK, kind_of
from firekeep.records._optimizer_write import OPTIMIZER, STATE, VERSION
from firekeep.rules.layout import read_layers
from firekeep.scalars import Scalar
from firekeep.slots import Convention, Layer
from firekeep.tagged import decode


@dataclass(slots=True)
class SavedParam:
    """What Burn's fields keep of a parameter of the file. `rank` is None where the file does not say it."""

    param_id: int
    path: str | None = None
    rank: int | None = None
    tensors: dict[str, TensorEntry] = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)

    def fields(self) -> list[str]:
        """List the names of all fields."""
        return [*self.tensors, *self.scalars]

    def label(self) -> str:
        """Give its path, or its id where it has none."""
        return f"id {self.param_id}" if self.path is None else self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """What firekeep wrote of a parameter of the model: which parameters of the file it is there, by id and name, and its state."""

    param_id: int
    path: str
    ids: tuple[int, ...]
    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    group: int
    position: int
    state: Any
    turned: tuple[bool, ...] = ()
    """Of each of the parameters of the file, whether its axes are the other way round there; empty where none is."""


@dataclass(slots=True)
class Saved:
    """A record of an optimizer. Of one that Burn wrote only `params`, or the vectors of L-BFGS, are known."""

    kind: str | None = None
    base: str = ""
    family: str | None = None
    layout: Convention | None = "burn"
    convention: Convention | None = "torch"
    """The convention of the model that it was taken of: what `states` say of shapes is as it has them."""
    groups: tuple[Any, ...] = ()
    extra: Any = None
    params: dict[int, SavedParam] = field(default_factory=dict)
    states: dict[int, SavedState] = field(default_factory=dict)
    told: tuple[Layer, ...] = ()
    """Layers of the file of which its metadata tell what no tensor does."""
    rest: Any = None
    order: tuple[int, ...] = ()
    tensors: Mapping[str, TensorEntry] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def is_global(self) -> bool:
        """Whether it is L-BFGS's, which keeps nothing by parameter."""
        return "history_s.len" in self.scalars


def read_state(contents: Contents, *, where: str | None = None) -> Saved:
    """Read what a record says; raises `WrongFormatError` for a file of something else, `FormatError` for what is contradictory."""
    tensors = {entry.name: entry for entry in contents.entries}
    _refuse_others(tensors, contents, where)
    saved = Saved(tensors=tensors, scalars=contents.scalars)
    said = contents.metadata.get(LAYOUT, "burn")
    saved.layout = None if said == UNSPECIFIED else check_layout(said)
    saved.told = read_layers(contents.metadata)
    for name, entry in tensors.items():
        if (split := _split(name)) is not None:
            _param(saved, split[0]).tensors[split[1]] = entry
    for name, scalar in contents.scalars.items():
        if (split := _split(name)) is None:
            continue
        if split[1] == RANK:
            _param(saved, split[0]).rank = int(scalar)
        else:
            _param(saved, split[0]).scalars[split[1]] = scalar
    for key, text in contents.metadata.items():
        if _is_id(key):
            _param(saved, int(key)).path = text
        elif key.startswith(STATE) and _is_id(key[len(STATE) :]):
            _read_param(saved, int(key[len(STATE) :]), text)
    if (about := contents.metadata.get(OPTIMIZER)) is not None:
        _read_about(saved, about)
    return saved


def _refuse_others(tensors: Mapping[str, TensorEntry], contents: Contents, where: str | None) -> None:
    kind = kind_of(tensors, contents.metadata, contents.scalars)
    if kind in ("optimizer", "nothing"):
        return
    holds = {"module": "the weights of a model", "scheduler": "the state of a scheduler"}[kind]
    of = {"module": "ModuleRecord", "scheduler": "LrSchedulerRecord"}[kind]
    example = next(iter(tensors or contents.scalars), "")
    raise WrongFormatError(
        f"it holds {holds} ({example!r}), and not the state of an optimizer",
        kind=kind,
        path=where,
        remedy=f"Read it with {of}.load, and give the file that the optimizer was saved to.",
    )


def _split(name: str) -> tuple[int, str] | None:
    head, dot, tail = name.partition(".")
    return (int(head), tail) if dot and tail and _is_id(head) else None


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 1 << 64


def _param(saved: Saved, param_id: int) -> SavedParam:
    return saved.params.setdefault(param_id, SavedParam(param_id))


def _read_param(saved: Saved, param_id: int, text: str) -> None:
    told = decode(text)
    try:
        if told["dtype"] not in BY_NAME:
            raise ValueError(told["dtype"])
        saved.states[param_id] = SavedState(
            param_id=param_id,
            path=str(told["path"]),
            ids=tuple(int(one) for one in told["ids"]),
            names=tuple(str(one) for one in told["names"]),
            dtype=told["dtype"],
            shape=tuple(int(one) for one in told["shape"]),
            group=int(told["group"]),
            position=int(told["position"]),
            state=told["state"],
            turned=tuple(bool(one) for one in told.get("turned", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"what the record says of the parameter {param_id} lacks its {error}") from None


def _read_about(saved: Saved, text: str) -> None:
    about = decode(text)
    try:
        if about["version"] > VERSION:
            raise FormatError(
                f"the record has version {about['version']}, and this firekeep knows up to {VERSION}",
                remedy="Read it with a newer firekeep.",
            )
        saved.kind, saved.base, saved.family = str(about["class"]), str(about["base"]), about["family"]
        convention = about.get("convention", "torch")
        saved.convention = None if convention is None else check_layout(convention)
        saved.groups, saved.extra = tuple(about["groups"]), about["extra"]
        if not isinstance(saved.extra, dict):
            raise TypeError("further state")
        saved.rest, saved.order = about.get("global"), tuple(int(one) for one in about.get("order", ()))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"what the record says of the optimizer lacks its {error}") from None
