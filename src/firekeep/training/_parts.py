"""The parts of a training state that have a file each: taken apart, planned for, and put back."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from firekeep import applying
from firekeep.applying import LoadJob
from firekeep.bridges import bridge_of, jax, slots_of
from firekeep.collecting import CollectJob, collect, contents_of
from firekeep.errors import RuleError, UnsupportedError
from firekeep.formats import FORMATS, Contents, OpenOptions
from firekeep.matching import Policy
from firekeep.opened import OpenedFile
from firekeep.records import LrSchedulerRecord, OptimizerError, OptimizerRecord, OptimizerReport
from firekeep.report import LoadError, LoadReport
from firekeep.rules import KeyRemapper
from firekeep.schedulers import SchedulerReport
from firekeep.sections import Section
from firekeep.slots import Convention
from firekeep.supply import supply_of_opened
from firekeep.training._nested import pack, unpack
from firekeep.training._told import REMEDY, is_bare, names_of_layers, with_layers
from firekeep.wording import some

VALUES = "firekeep.values"
"""The metadata key of a part that is nothing but its own state dict."""


_CODE = ("function", "class ")
"""Begins what others are called that never change."""


@dataclass(slots=True, kw_only=True)
class Restoring:
    """A restore on its way: what is asked for, and what was decided so far. `steps` are done once all parts have agreed."""

    rename: KeyRemapper
    strict: bool
    names: dict[str, str] = field(default_factory=dict)
    """The checkpoint's names of parameters that have another name in the model, and that name."""
    unfilled: set[str] = field(default_factory=set)
    """Parameters of models that do not get the checkpoint's weights, so that moments of these are of no use to them."""
    models: dict[str, LoadReport] = field(default_factory=dict)
    optimizers: dict[str, OptimizerReport] = field(default_factory=dict)
    schedulers: dict[str, SchedulerReport] = field(default_factory=dict)
    rates_back: list[str] = field(default_factory=list)
    moved_groups: dict[int, str] = field(default_factory=dict)
    """Which groups of an optimizer, by its `id`, had another place when they were saved: schedules tell groups by their places."""
    gradients: tuple[str, ...] | None = None
    """Parameters whose gradients come back; None where nobody asked."""
    values: list[str] = field(default_factory=list)
    fresh: dict[str, str] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    steps: list[Callable[[], object]] = field(default_factory=list)

    def known_names(self) -> dict[str, str]:
        """Give whole names and their new ones: as they are, and as an average of the model has them."""
        averaged = {f"module.{old}": f"module.{new}" for old, new in self.names.items()}
        return {**averaged, **self.names, **self.rename.names}

    def refuse(self, name: str, why: str, *, remedy: str = "") -> None:
        """Refuse the whole, or, where not all is asked for, let the part start as it is."""
        if self.strict:
            self.refusals.append("; ".join(filter(None, (f"{name}: {why}", remedy))))
        else:
            self.fresh[name] = why


class Part(Protocol):
    """A part of a state. `name` is that of its section."""

    @property
    def name(self) -> str: ...

    def section(self) -> Section:
        """Take the part apart; nothing is copied."""
        ...

    def plan(self, opened: OpenedFile, restoring: Restoring) -> None:
        """Decide what becomes of the part, and change nothing: what is to be done is added to the steps."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """A model, or an average of one, whose names follow those of the model.

    `prefix` stands before the names of its parameters for optimizers of several models.
    """

    name: str
    model: Any
    prefix: str = ""
    layout: Convention | None = None
    is_average: bool = False
    put: Callable[[Any], None] | None = None
    """Takes the object that was made in place of one that never changes."""
    like: Any = None
    """Tells the layers of variables of Linen."""
    others: dict[str, str] = field(default_factory=dict)
    """What of the model is no tensor, by name, as `section` has found it."""

    def section(self) -> Section:
        """Take the weights, with their ids, in the framework's own layout unless told otherwise."""
        if bridge_of(self.model).name in ("jax", "plain") and (numbers := slots_of(self.model).numbers):
            raise UnsupportedError(
                f"{self.name}: {some(numbers)} {'is a number' if len(numbers) == 1 else 'are numbers'} of Python among arrays, "
                "and would not be kept",
                remedy="Make arrays of them (jnp.asarray, np.asarray), or give them as step= or values= of the state.",
            )
        model = with_layers(self.model, self.like, layout=self.layout, remapper=KeyRemapper())
        made = collect(model, CollectJob(layout=self.layout))
        if bridge_of(self.model).name != "torch":  # whose modules' state is kept with the rest
            self.others.update((one.name, one.what) for one in made.others if not one.what.startswith(_CODE))
        return Section(self.name, contents_of(made, FORMATS["burnpack"], metadata={}, scalars={}))

    def plan(self, opened: OpenedFile, restoring: Restoring) -> None:
        """Match the weights; their names are those of the optimizer's parameters, too."""
        allowed = "error" if restoring.strict else "allow"
        rename = restoring.rename
        if self.is_average:
            rename = KeyRemapper.of(rename.rules, names=restoring.known_names())
        job = LoadJob(
            policy=Policy(missing=allowed, unused=allowed, shape=allowed),  # type: ignore[arg-type]
            remapper=rename,
        )
        supply = supply_of_opened(opened, OpenOptions())
        layout = None if supply.layout is None else supply.layout.name
        try:
            model = with_layers(self.model, self.like, layout=layout, remapper=rename)
            plan = applying.plan_load(model, supply, job, anew=self._is_made_anew())
        except LoadError as error:
            restoring.models[self.name] = error.report
            restoring.refusals.append(f"{self.name}: {', '.join(error.report.refusals) or error.message}")
            return
        except RuleError as error:
            if self.like is not None or not is_bare(self.model):
                raise
            restoring.refusals.append(f"{self.name}: {error.message}; {REMEDY}")
            return
        if not plan.report.ok:
            restoring.refusals.append(f"{self.name}: {', '.join(plan.report.refusals)}")
        numbers = jax.numbers(self.model) if plan.report.casts and jax.owns(self.model) else frozenset()
        restoring.models[self.name] = _without_widths(plan.report, numbers)
        if (
            not plan.report.wanted and bridge_of(self.model).name != "torch"
        ):  # a loss is a module, too, and has nothing to restore
            restoring.fresh[self.name] = f"no tensor was found in the {type(self.model).__name__} that was given"
        if not self.is_average:
            restoring.names |= {f"{self.prefix}{old}": f"{self.prefix}{new}" for old, new in plan.names.items()}
            left = (*plan.report.missing, *(problem.name for problem in plan.report.errors))
            restoring.unfilled |= {f"{self.prefix}{name}" for name in left}

        def fill() -> None:
            made, report = plan.put()
            restoring.models[self.name] = _without_widths(report, numbers)
            if made is not model and self.put is not None:
                self.put(made)

        restoring.steps.append(fill)

    def _is_made_anew(self) -> bool:
        """Say whether another model is to be made, this one having places which never change."""
        return self.put is not None and any(slot.problem is not None for slot in slots_of(self.model))


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerPart:
    """An optimizer, and the model or models whose parameters it moves."""

    name: str
    optimizer: Any
    model: Any
    layout: Convention | None = None
    tx: Any = None
    put: Callable[[Any], None] | None = None
    like: Any = None

    def section(self) -> Section:
        """Take the state by parameter."""
        model = with_layers(self.model, self.like, layout=self.layout, remapper=KeyRemapper())
        record = OptimizerRecord.of(self.optimizer, model, layout=self.layout, copy=False, tx=self.tx)
        return Section(self.name, record.contents())

    def plan(self, opened: OpenedFile, restoring: Restoring) -> None:
        """Match the states by id and name, and check that the step can take them."""
        record = OptimizerRecord(_contents(opened), source=opened.path)
        layers = names_of_layers(record.paths, layout=record.layout, model=self.model)
        rename = KeyRemapper.of(restoring.rename.rules, names={**layers, **restoring.known_names()})
        model = with_layers(self.model, self.like, layout=record.layout, remapper=rename)
        if jax.owns_optimizer(self.optimizer) and (why := jax.unplaced(self.optimizer, self.model)) is not None:
            restoring.refusals.append(f"{self.name}: {why}")
            return

        try:
            plan = record.plan(
                self.optimizer,
                model,
                rename=rename,
                allow_dropped=not restoring.strict,
                tx=self.tx,
                unfilled=restoring.unfilled,
                same_params=restoring.strict,
            )
        except OptimizerError as error:
            restoring.optimizers[self.name] = error.report
            remedy = f"; {_WITHOUT_STRICT}" if restoring.strict and _is_partial(error.report) else ""
            restoring.refusals.append(f"{self.name}: {', '.join(error.report.refusals)}{remedy}")
            return
        restoring.optimizers[self.name] = plan.report
        if moved := [f"{now} was {then}" for now, then in sorted(plan.places.items()) if now != then]:
            restoring.moved_groups[id(self.optimizer)] = ", ".join(moved)

        def put() -> None:
            made, restoring.optimizers[self.name] = plan.put()
            if made is not self.optimizer and self.put is not None:
                self.put(made)

        restoring.steps.append(put)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPart:
    """A schedule of learning rates, or a scaler of gradients."""

    name: str
    scheduler: Any
    is_alone: bool = True
    """Whether no other schedule drives the same optimizer, whose rates this one then knows."""

    def section(self) -> Section:
        """Take the counters and the whole state."""
        return Section(self.name, LrSchedulerRecord.of(self.scheduler).contents())

    def plan(self, opened: OpenedFile, restoring: Restoring) -> None:
        """Try the state on, and take it off again: a schedule takes one whole or not at all."""
        record = LrSchedulerRecord.of_opened(opened)
        if moved := restoring.moved_groups.get(id(getattr(self.scheduler, "optimizer", None))):
            why = f"it tells groups of parameters by their order, and they are in another one than in the saved run (group {moved})"
            restoring.refuse(self.name, why, remedy="give the optimizer its groups in the order of the saved run")
            return
        before = LrSchedulerRecord.of(self.scheduler)
        told, held = _rates_of(self.scheduler), _rates_in(self.scheduler)
        report = record.restore(self.scheduler)
        saved = _rates_in(self.scheduler)
        before.restore(self.scheduler)
        if (misfit := _misfit(report)) is not None:
            restoring.refuse(self.name, misfit, remedy="with strict=False it starts as it is")
            return
        restoring.schedulers[self.name] = report
        told_before = any("lr: " in back for one in restoring.optimizers.values() for back in one.options_back)
        if self.is_alone and not told_before:
            restoring.rates_back += [
                f"{self.name}: lr, which was set by hand: {mine:g} -> {theirs:g}, as it was saved"
                for mine, due, theirs in zip(held, told, saved, strict=False)
                if mine not in (due, theirs)
            ]

        def put() -> None:
            restoring.schedulers[self.name] = record.restore(self.scheduler)

        restoring.steps.append(put)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesPart:
    """Anything else with a `state_dict` of plain values, arrays and tensors."""

    name: str
    holder: Any

    def section(self) -> Section:
        """Take its state dict."""
        entries, metadata = pack(dict(self.holder.state_dict()), key=VALUES)
        return Section(self.name, Contents(entries=entries, metadata=metadata))

    def plan(self, opened: OpenedFile, restoring: Restoring) -> None:
        """Read the state, and have the object look at it if it can."""
        if VALUES not in opened.metadata:
            restoring.refuse(self.name, f"the checkpoint has no state of a {type(self.holder).__name__} there")
            return
        state = unpack(opened, key=VALUES)
        check_state(self.holder, state)
        restoring.values.append(self.name)
        restoring.steps.append(lambda: self.holder.load_state_dict(state))


_WITHOUT_STRICT = "with strict=False what fits is taken over, and the rest starts anew"


def _is_partial(report: OptimizerReport) -> bool:
    """Say whether a restore that is refused would be one if not all were asked for."""
    return bool(report.restored or report.stateless or report.dropped)


def _without_widths(report: LoadReport, numbers: Container[str]) -> LoadReport:
    """Leave casts of numbers of Python's out of a report: a file holds them in so many bits, and they take any."""
    casts = {name: cast for name, cast in report.casts.items() if name not in numbers}
    return report if len(casts) == len(report.casts) else replace(report, casts=casts)


def _misfit(report: SchedulerReport) -> str | None:
    """Say why a state is none of a schedule, or give None. Burn's counters do not say of what they are: their names do."""
    if report.refused:
        return "; ".join(f"{key}: {why}" for key, why in report.refused)
    if report.source != "burn" or not (report.missing or report.unknown):
        return None
    mine, theirs = (some(keys) if keys else "none" for keys in (report.missing, report.unknown))
    return f"the checkpoint has another schedule than {report.scheduler}: of its counters it lacks {mine}, and has others: {theirs}"


def _rates_of(scheduler: Any) -> list[float]:
    """Give the rates that a schedule has set last, by group."""
    return [float(rate) for rate in getattr(scheduler, "_last_lr", None) or ()]


def _rates_in(scheduler: Any) -> list[float]:
    """Give the rates that its optimizer steps with."""
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", ())
    return [float(group["lr"]) for group in groups if "lr" in group]


def scheduler_part(name: str, scheduler: Any, *, is_alone: bool = True) -> Part:
    """Choose how a schedule or scaler is kept: as a record where it is known, else by its state dict."""
    from firekeep.bridges import torch as bridge

    if hasattr(scheduler, "to_record_scalars") or bridge.schedules(scheduler):
        return SchedulerPart(name=name, scheduler=scheduler, is_alone=is_alone)
    return values_part(name, scheduler)


def values_part(name: str, holder: Any) -> ValuesPart:
    """Take anything with `state_dict` and `load_state_dict`; raises `RuleError` naming what has none."""
    if not has_state(holder):
        raise RuleError(
            f"{name}: a {type(holder).__name__} has no state_dict() and load_state_dict()",
            remedy="Give an object that has both, or keep what matters among the values.",
        )
    return ValuesPart(name=name, holder=holder)


def has_state(holder: Any) -> bool:
    """Say whether an object gives a state and takes one."""
    return callable(getattr(holder, "state_dict", None)) and callable(getattr(holder, "load_state_dict", None))


def check_state(holder: Any, state: Mapping[str, Any]) -> None:
    """Have an object that can look at a state do so before it is changed."""
    if callable(check := getattr(holder, "check_state", None)):
        check(state)


def _contents(opened: OpenedFile) -> Contents:
    return Contents(
        entries=list(opened.container.entries.values()),
        metadata=dict(opened.metadata),
        scalars=dict(opened.scalars),
    )
