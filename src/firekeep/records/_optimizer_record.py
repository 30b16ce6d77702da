"""The state of an optimizer as Burn keeps it in a file, and as PyTorch needs it back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from firekeep.bridges._states import OptimizerState
from firekeep.entry import TensorEntry
from firekeep.errors import EntryError, FirekeepError, UnsupportedError
from firekeep.formats import Contents
from firekeep.ids import ParamId
from firekeep.layouts import UNSPECIFIED, check_layout
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.opened import OpenedFile, Readable
from firekeep.records._across import for_burn
from firekeep.records._file_params import FileLayout, layers_of
from firekeep.records._files import copied, open_record, record_bytes, write_record
from firekeep.records._kinds import RANK
from firekeep.records._optimizer_plan import plan_restoration, restoration_of
from firekeep.records._optimizer_read import Saved, read_state
from firekeep.records._optimizer_report import OptimizerError, OptimizerReport
from firekeep.records._optimizer_verdict import OptimizerPolicy, report_of
from firekeep.records._optimizer_write import write_state
from firekeep.rules import KeyRemapper
from firekeep.rules.layout import TELLING
from firekeep.saving import Progress
from firekeep.scalars import Scalar
from firekeep.slots import Layer
from firekeep.tensors import describe
from firekeep.wording import some


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldStates:
    """What Burn keeps of one parameter: fields by name, in the order in which Burn declares them.

    A field is an array, or a number: whole ones are unsigned as Burn's counters are; give a `Scalar` to say otherwise. A dict is a state
    within the state.
    """

    param_id: int
    path: str | None
    rank: int
    fields: Mapping[str, Any] = field(default_factory=dict)


class OptimizerWarning(UserWarning):
    """A run that goes on elsewhere will not go on as it would have here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerPlan:
    """What becomes of an optimizer once `put` is called."""

    report: OptimizerReport
    do: Callable[[], Any]
    places: Mapping[int, int] = field(default_factory=dict)
    """The place that each group of the optimizer which takes over options had among those of the record."""

    def put(self) -> tuple[Any, OptimizerReport]:
        """Put the state into the optimizer, and give what goes on and the report."""
        return self.do(), replace(self.report, dry_run=False)


class OptimizerRecord:
    """The state of an optimizer, by id and path of its parameters; always a burnpack file.

    Fields have the names that Burn gives them wherever Burn has the optimizer. What only PyTorch knows (its class, the options of
    groups, the types of counters, states of other optimizers) stands beside them under keys that begin with `firekeep.`, which Burn
    ignores.
    """

    def __init__(self, contents: Contents, *, source: str | None = None) -> None:
        self._entries = list(contents.entries)
        self._metadata, self._scalars = dict(contents.metadata), dict(contents.scalars)
        self._source = source
        self._saved: Saved | None = None

    @classmethod
    def of(cls, optimizer: Any, model: Any, *, layout: str | None = None, copy: bool = True, tx: Any = None) -> Self:
        """Take the state of an optimizer; the names of its parameters are those of the model, told by identity.

        `model` is the module whose parameters they are, or a dict of several. `layout="burn"` lays the state like the weights of a
        `.bpk`: moments of a Linear are turned round. The default keeps the framework's own way and is exact. With `copy=False` tensors
        are drawn when they are saved, and are then what the optimizer holds at that time.

        For optax, `optimizer` is a state, or a `flax.nnx.Optimizer`, and `model` what `init` was given, or the model with the same names.
        `tx` is the transformation of a bare state: only it tells NAdam and LAMB from Adam, and the rate that RMSprop's momentum holds.
        """
        taken = describe_state(optimizer, model, tx)
        chosen = taken.convention if layout is None else check_layout(layout)
        layers = layers_of(model) if chosen not in (taken.convention, None) or chosen in TELLING else ()
        if chosen == "burn":
            taken = for_burn(taken)
            _warn_of_rates(taken, layers)
        contents = write_state(taken, layout=chosen, layers=layers)
        return cls(replace(contents, entries=copied(contents.entries)) if copy else contents)

    @classmethod
    def of_states(cls, states: Iterable[FieldStates]) -> Self:
        """Make a record of Burn's fields as they are: what Burn itself would write, in this order of parameters."""
        entries: list[TensorEntry] = []
        scalars: dict[str, Scalar] = {}
        metadata: dict[str, str] = {}
        for one in states:
            own = ParamId(one.param_id)
            scalars[f"{int(own)}.{RANK}"] = Scalar("uint", one.rank)
            if one.path is not None:
                metadata[str(int(own))] = one.path
            for name, value in _flat(one.fields, str(int(own))):
                if (scalar := _scalar(value)) is not None:
                    scalars[name] = scalar
                else:
                    entries.append(replace(_entry(name, value), param_id=own))
        return cls(Contents(entries=entries, metadata=metadata, scalars=scalars))

    @classmethod
    def load(cls, path: Readable, *, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Open a record; its tensors are read when it is applied. Raises `WrongFormatError` for a file of something else."""
        return cls.of_opened(open_record(path, limits=limits))

    @classmethod
    def of_opened(cls, opened: OpenedFile) -> Self:
        """Take the record in an open file, which has to stay open until it was applied."""
        contents = Contents(
            entries=list(opened.container.entries.values()),
            metadata=dict(opened.metadata),
            scalars=dict(opened.scalars),
        )
        record = cls(contents, source=opened.path)
        record.saved()
        return record

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, *, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Open a record in memory."""
        return cls.load(data, limits=limits)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = True,
        durable: bool = True,
        digest: bool = False,
        progress: Progress | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Path:
        """Write the record, whole or not at all, and give its path; `.bpk` is added to a name that does not end in it."""
        return write_record(
            self.contents(),
            path,
            overwrite=overwrite,
            durable=durable,
            digest=digest,
            progress=progress,
            limits=limits,
        )

    def to_bytes(self, *, limits: Limits = DEFAULT_LIMITS) -> bytes:
        """Make the file in memory."""
        return record_bytes(self.contents(), limits=limits)

    def apply(
        self,
        optimizer: Any,
        model: Any,
        *,
        rename: Any = (),
        allow_fresh: bool = True,
        allow_dropped: bool = False,
        allow_orphaned: bool = True,
        dry_run: bool = False,
        tx: Any = None,
    ) -> Any:
        """Put the state into an optimizer, all of it or nothing, and report what became of each parameter.

        A saved parameter is found by its id, else by its path, after `rename` (the record's names to the model's). Parameters that the
        record lacks start anew; states of parameters that are gone are reported. A state that the optimizer's step could not take, because
        of its shape or of another kind of optimizer, refuses the load, or is left out by name with `allow_dropped=True`.

        Options of a group come back where a saved group has the same parameters in it, else the group keeps those it has.

        A state of optax is left as it is, and another one returned with the report: `state, report = record.apply(state, params)`. What it
        starts anew with is what lies in the given state, such as that of `init`, which may be of shapes only where all is in the record.
        Raises `OptimizerError` with the report.
        """
        made, report = self.restored(
            optimizer,
            model,
            rename=rename,
            allow_fresh=allow_fresh,
            allow_dropped=allow_dropped,
            allow_orphaned=allow_orphaned,
            dry_run=dry_run,
            tx=tx,
        )
        return report if _bridge_of(optimizer).changes_in_place(optimizer) else (made, report)

    def restored(
        self,
        optimizer: Any,
        model: Any,
        *,
        rename: Any = (),
        allow_fresh: bool = True,
        allow_dropped: bool = False,
        allow_orphaned: bool = True,
        dry_run: bool = False,
        tx: Any = None,
    ) -> tuple[Any, OptimizerReport]:
        """Do what `apply` does, and give in any case what goes on, an optimizer that has changed or another state, and the report."""
        plan = self.plan(
            optimizer,
            model,
            rename=rename,
            allow_fresh=allow_fresh,
            allow_dropped=allow_dropped,
            allow_orphaned=allow_orphaned,
            tx=tx,
            dry_run=dry_run,
        )
        return (optimizer, plan.report) if dry_run else plan.put()

    def plan(
        self,
        optimizer: Any,
        model: Any,
        *,
        rename: Any = (),
        allow_fresh: bool = True,
        allow_dropped: bool = False,
        allow_orphaned: bool = True,
        dry_run: bool = True,
        tx: Any = None,
        unfilled: Collection[str] = (),
        same_params: bool = False,
    ) -> OptimizerPlan:
        """Decide what `apply` would do, and change nothing: `put` of what comes back does it, for the optimizer as it is now.

        `unfilled` are parameters that did not get the weights which their states belong to: these are dropped. `same_params=True` refuses
        parameters that only one of the record and the optimizer has, but for those without a state that take no gradient.
        Raises `OptimizerError` with the report, which says `dry_run`.
        """
        saved = self.saved()
        remapper = KeyRemapper.of(rename)
        live = describe_state(optimizer, model, tx)
        layers = layers_of(model) if saved.layout not in (live.convention, None) or saved.told else ()
        planned = plan_restoration(saved, live, layers, remapper, unfilled=unfilled)
        policy = OptimizerPolicy(
            allow_fresh=allow_fresh,
            allow_dropped=allow_dropped,
            allow_orphaned=allow_orphaned,
            same_params=same_params,
        )
        report = report_of(planned, policy, source=self._source, dry_run=dry_run)
        if not report.ok:
            raise OptimizerError(report)

        def put() -> Any:
            try:
                return _bridge_of(optimizer).restore_optimizer(optimizer, model, restoration_of(planned))
            except FirekeepError as error:
                raise error.at(path=self._source)  # noqa: B904 - the same error, with its place

        return OptimizerPlan(report=report, do=put, places=planned.places)

    def contents(self) -> Contents:
        """Give what a file of the record holds."""
        return Contents(entries=list(self._entries), metadata=dict(self._metadata), scalars=dict(self._scalars))

    def saved(self) -> Saved:
        """Give the record as read; raises `WrongFormatError` where it is one of something else."""
        if self._saved is None:
            self._saved = read_state(self.contents(), where=self._source)
        return self._saved

    @property
    def optimizer(self) -> str | None:
        """The class of the optimizer; Burn's records do not say it."""
        return self.saved().kind

    @property
    def layout(self) -> str:
        """How the tensors lie: "burn", "torch" or as another framework has them; "unspecified" of a tree that tells no layers."""
        return self.saved().layout or UNSPECIFIED

    @property
    def metadata(self) -> Mapping[str, str]:
        """Text beside the tensors: paths by id, and what only firekeep reads."""
        return dict(self._metadata)

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        """Numbers beside the tensors."""
        return dict(self._scalars)

    @property
    def paths(self) -> tuple[str, ...]:
        """The parameters, by their names in the file."""
        return tuple(dict.fromkeys(one.label() for one in self.saved().params.values()))

    def keys(self) -> list[str]:
        """List the names of the tensors, in the order their data lie."""
        return [entry.name for entry in self._entries]

    def entry(self, name: str) -> TensorEntry:
        """Give one tensor; raises `EntryError` where there is none of this name."""
        for entry in self._entries:
            if entry.name == name:
                return entry
        raise EntryError("the record has no such tensor", tensor=name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<OptimizerRecord of {self.optimizer or 'Burn'}: {len(self)} tensors, layout {self.layout!r}>"


def _warn_of_rates(taken: OptimizerState, layers: tuple[Layer, ...]) -> None:
    """Warn of matrices that Burn's Muon steps with another rate: it takes rows by columns of a Linear that is turned round."""
    if taken.base not in ("Muon", "optax.Muon"):
        return
    turned = (
        [one.path for one in taken.params if len(one.shape) == 2]
        if taken.base != "Muon"
        else [
            name
            for home in FileLayout.of(taken.params, layers, "burn").params
            if home.is_turned
            for name in home.origins
        ]
    )
    shapes = {one.path: one.shape for one in taken.params}
    uneven = [name for name in turned if len(set(shapes[name])) > 1]
    if uneven:
        warnings.warn(
            f"Burn's Muon scales the rate of a matrix by its rows and columns, and has those of {some(uneven)} the other way "
            "round: a run that goes on there takes other steps",
            OptimizerWarning,
            stacklevel=3,
        )


def describe_state(optimizer: Any, model: Any, tx: Any = None) -> OptimizerState:
    """Describe an optimizer by the bridge that owns it. `tx` is the transformation of a state of optax."""
    state: OptimizerState = _bridge_of(optimizer).describe_optimizer(optimizer, model, *(() if tx is None else (tx,)))
    return state


def _bridge_of(optimizer: Any) -> Any:
    from firekeep.bridges import jax, torch

    bridges: tuple[Any, ...] = (jax, torch)  # who has an optimizer of JAX need not have PyTorch
    for bridge in bridges:
        if bridge.owns_optimizer(optimizer):
            return bridge
    raise UnsupportedError(
        f"an object of type {type(optimizer).__module__}.{type(optimizer).__qualname__} is no optimizer that is known",
        remedy="Give a torch.optim.Optimizer, a wrapper that has its param_groups and state, a state of optax or a flax.nnx.Optimizer.",
    )


def _flat(fields: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}", value


def _scalar(value: Any) -> Scalar | None:
    if isinstance(value, Scalar):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Scalar("uint", value)
    return Scalar.of(value) if isinstance(value, int | float) else None


def _entry(name: str, value: Any) -> TensorEntry:
    return value.renamed(name) if isinstance(value, TensorEntry) else describe(name, value)
