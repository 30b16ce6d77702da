"""A dry run of a restore without the program that would do it: a step against another one, or against a file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from firekeep import applying
from firekeep.applying import LoadJob
from firekeep.checkpoint._catalog import Catalog, Layout, describe
from firekeep.checkpoint._errors import DirectoryBusyError, NoStepError
from firekeep.checkpoint._held import HeldStep, hold_step
from firekeep.checkpoint._hints import hint
from firekeep.checkpoint._metric import which_there_are
from firekeep.checkpoint._names import step_of
from firekeep.checkpoint._resume_report import PartCheck, ResumeReport
from firekeep.checkpoint._retention import BEST, KeepBest, remembered
from firekeep.checkpoint._step import StepInfo
from firekeep.checkpoint._store import Store, scan_steps
from firekeep.errors import FirekeepError, RuleError
from firekeep.formats import OpenOptions
from firekeep.layouts import CONVENTIONS
from firekeep.likeness import outline_of_file
from firekeep.limits import Limits
from firekeep.opened import OpenedFile, open_file
from firekeep.records import (
    LrSchedulerRecord,
    OptimizerRecord,
    OptimizerReport,
    compare_optimizers,
    compare_schedulers,
    compare_with_model,
    describe_record,
)
from firekeep.report import LoadReport
from firekeep.sections import GRADIENTS
from firekeep.supply import Supply, supply_of_opened
from firekeep.wording import count, quote, some

_OWN_FACTS = frozenset(("host", "pid", "cpus", "step", "epoch", "firekeep", BEST))
"""Facts that differ from save to save, and decide nothing."""
_SETTINGS = frozenset(("length", "seed", "shuffle", "num_replicas", "drop_last", "batch_size"))
"""What the order of samples follows from."""


@dataclass(slots=True)
class _Side:
    """A step, or a file, with its sections held open."""

    what: str
    step: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    sections: dict[str, OpenedFile] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    is_file: bool = False
    held: HeldStep | None = None

    def refuse_torn(self) -> None:
        """Raise `DirectoryBusyError` for files that another program has written anew in their place while they were read."""
        if self.held is not None and (anew := self.held.written_anew()):
            raise DirectoryBusyError(
                f"another program wrote {some(anew)} of step {self.step} anew while it was read: what was compared may be of two saves",
                path=self.held.info.folder,
                remedy="Check again once it is done.",
            )

    def of_kind(self, kind: str) -> list[str]:
        """List the sections that are records of a kind."""
        return [name for name, found in self.kinds.items() if found == kind]


def check(place: Path, like: Path, *, step: int | str, best: KeepBest | None, limits: Limits) -> ResumeReport:
    """Compare a step with another place; see `check_resume`."""
    options = OpenOptions(limits=limits)
    with contextlib.ExitStack() as stack:
        mine = _open(place, step, best, options, stack)
        theirs = _open(like, "latest", best, options, stack)
        checks = tuple(_file_checks(mine, theirs, options) if theirs.is_file else _step_checks(mine, theirs, options))
        if not checks:
            raise RuleError(f"{mine.what} has {some(list(mine.sections))}, and {theirs.what} nothing of the kind")
        checks = tuple(_with_question(checks, mine))
        mine.refuse_torn()
        theirs.refuse_torn()
        seen = {check.name for check in checks}
        return ResumeReport(
            source=mine.what,
            like=theirs.what,
            step=mine.step,
            parts=checks,
            fresh={} if theirs.is_file else {name: "the step lacks it" for name in theirs.sections if name not in seen},
            dropped={}
            if theirs.is_file
            else {name: f"{theirs.what} has no such part" for name in mine.sections if name not in seen},
            unchecked=tuple(name for name in mine.sections if name not in seen) if theirs.is_file else (),
            changed=() if theirs.is_file else tuple(_changes(mine.facts, theirs.facts)),
        )


def choose_step(place: Path, step: int | str, best: KeepBest | None) -> tuple[Layout, StepInfo]:
    """Find a step in a directory of them; a directory that is a step is that one. Raises `NoStepError` saying what there is.

    The layout of the directory is given with it.
    """
    number = step_of(place.resolve().name)
    catalog = scan_steps(place)
    if number is not None and not catalog.steps:
        place = place.resolve()
        catalog = scan_steps(place.parent, layout="firekeep")
        step = number if step == "latest" else step
    rule = _rule(catalog, best)
    found = _found(catalog, step, rule)
    if found is None:
        metrics = [info.metrics for info in catalog.steps] if step == "best" else []
        remedy = which_there_are(rule.metric, metrics) if catalog.steps else hint(place)
        raise NoStepError(f"{_asked(step, rule)} is asked for, and {describe(catalog)}", remedy=remedy)
    return catalog.layout, found


def _rule(catalog: Catalog, best: KeepBest | None) -> KeepBest:
    """Give what tells the best step: what is asked for, else what the manager of the steps had."""
    return best or remembered(catalog.steps) or KeepBest("valid_loss")


def _is_another_meant(place: Path, step: int | str, best: KeepBest | None, info: StepInfo) -> bool:
    """Say whether another step may be the latest or the best: one that was being replaced when the directory was looked at."""
    if not isinstance(step, str):
        return False
    catalog = scan_steps(place)
    if not catalog.steps and step_of(place.resolve().name) is not None:
        if step == "latest":  # the step that the directory is
            return False
        place = place.resolve().parent
        catalog = scan_steps(place, layout="firekeep")
    store = Store(directory=place, layout=catalog.layout)
    if step == "latest":
        return store.passed_over(info.step)
    return _rule(catalog, best).best(catalog.steps) != info or store.is_unclear(catalog)


def _found(catalog: Catalog, step: int | str, best: KeepBest) -> StepInfo | None:
    if step == "latest":
        return catalog.latest()
    if step == "best":
        return best.best(catalog.steps)
    if isinstance(step, str):
        raise RuleError(f"step={step!r}: 'latest', 'best' or a number")
    return catalog.find(step)


def _asked(step: int | str, best: KeepBest) -> str:
    if step == "best":
        return f"a step with a number for the metric {best.metric!r}"
    return "a step" if step == "latest" else f"step {step}"


def _open(
    place: Path, step: int | str, best: KeepBest | None, options: OpenOptions, stack: contextlib.ExitStack
) -> _Side:
    if place.is_dir():
        held = stack.enter_context(
            hold_step(
                lambda: choose_step(place, step, best),
                directory=place,
                doubt=lambda info: _is_another_meant(place, step, best, info),
            )
        )
        info = held.info
        side = _Side(f"step {info.step} of {_parent(place, info)}", info.step, info.facts, held=held)
        files = held.opened(options)
    else:
        side = _Side(str(place), is_file=True)
        files = {"": stack.enter_context(open_file(place, options))}
    for name, opened in files.items():
        kind = _kind(opened)
        section = name or {"module": "model"}.get(kind, kind)
        side.sections[section], side.kinds[section] = opened, kind
    return side


def _kind(opened: OpenedFile) -> str:
    if GRADIENTS in opened.metadata:
        return "gradients"
    described = describe_record(opened)
    return described.kind if described is not None else "module" if len(opened) else "nothing"


def _parent(place: Path, info: StepInfo) -> Path:
    return place.parent if step_of(place.name) == info.step and place.name == info.folder.name else place


def _step_checks(mine: _Side, theirs: _Side, options: OpenOptions) -> Iterator[PartCheck]:
    for name, opened in mine.sections.items():
        other = theirs.sections.get(name)
        if other is None:
            continue
        kinds = (mine.kinds[name], theirs.kinds[name])
        if kinds[0] != kinds[1] and "nothing" not in kinds:
            yield PartCheck(name=name, kind=kinds[0], exact=False, told=f"a {kinds[0]} here, a {kinds[1]} there")
        else:
            kind = kinds[0] if kinds[0] != "nothing" else kinds[1]
            yield _check(name, kind, opened, other, options)


def _file_checks(mine: _Side, theirs: _Side, options: OpenOptions) -> Iterator[PartCheck]:
    (kind,), (other,) = theirs.kinds.values(), theirs.sections.values()
    names = mine.of_kind(kind)
    if len(names) > 1:
        names = [name for name in names if name in ("model", "optimizer", "scheduler")]
    if len(names) != 1:
        return
    check = _check(names[0], kind, mine.sections[names[0]], other, options)
    yield check
    optimizers = (
        mine.of_kind("optimizer") if isinstance(check.report, LoadReport) and len(mine.of_kind("module")) == 1 else []
    )
    for name in optimizers if len(optimizers) == 1 else ():
        record = OptimizerRecord.of_opened(mine.sections[name])
        yield _of_optimizer(mine.sections[name], name, compare_with_model(record, check.report))


def _check(name: str, kind: str, opened: OpenedFile, other: OpenedFile, options: OpenOptions) -> PartCheck:
    try:
        if kind == "optimizer":
            records = (OptimizerRecord.of_opened(opened), OptimizerRecord.of_opened(other))
            if (why := _apart(*(record.layout for record in records))) is not None:
                return PartCheck(name=name, kind=kind, exact=False, untold=True, told=f"{_states(records[0])}, {why}")
            return _of_optimizer(opened, name, compare_optimizers(*records))
        if kind == "scheduler":
            schedules = (LrSchedulerRecord.of_opened(opened), LrSchedulerRecord.of_opened(other))
            return _of_scheduler(name, *schedules)
        if kind == "training":
            return _of_training(name, _values(opened), _values(other))
        if kind == "values":
            return _of_values(name, _values(opened), _values(other))
        if kind == "gradients":  # whether they have a place the models tell
            return PartCheck(name=name, kind=kind, exact=True, told=f"of {count(len(opened), 'parameter')}")
        if kind == "nothing":
            return PartCheck(name=name, kind=kind, exact=True, told="nothing is kept of it")
        return _of_model(name, opened, other, options)
    except FirekeepError as error:
        return PartCheck(name=name, kind=kind, exact=False, told=str(error))


def _of_model(name: str, opened: OpenedFile, other: OpenedFile, options: OpenOptions) -> PartCheck:
    supply = supply_of_opened(opened, options)
    job = LoadJob(dry_run=True)
    try:
        outline, target = outline_of_file(other, options, supply, job)
    except RuleError:
        why = _apart(*(_layout_name(one) for one in (supply, supply_of_opened(other, options))))
        if why is None:
            raise
        told = f"{count(len(opened), 'tensor')}, {why}"
        return PartCheck(name=name, kind="module", exact=False, untold=True, told=told)
    report = applying.preview(outline, supply, job, target=target)
    wrong = {*report.missing, *(problem.name for problem in report.errors)}
    told = f"{report.wanted - len(wrong):,} of {count(report.wanted, 'tensor')}"
    if report.casts:
        told += f", {len(report.casts):,} of them cast"
    return PartCheck(
        name=name,
        kind="module",
        exact=report.exact and not report.casts,
        told=told,
        report=report,
        notes=tuple(f"{one} is cast from {old} to {new}" for one, (old, new) in list(report.casts.items())[:5]),
    )


def _layout_name(supply: Supply) -> str | None:
    return None if supply.layout is None else supply.layout.name


def _apart(mine: str | None, theirs: str | None) -> str | None:
    """Say that tensors lie as two frameworks have them, where both are known."""
    if mine == theirs or not {mine, theirs} <= set(CONVENTIONS):
        return None
    return f"as {mine!r} has them, and {theirs!r} there: a restore turns them round by the layers, which no file of the two tells"


def _states(record: OptimizerRecord) -> str:
    return f"{count(len(record.paths), 'state')} of {record.optimizer or 'an optimizer'}"


def _with_question(checks: Iterable[PartCheck], mine: _Side) -> Iterator[PartCheck]:
    """Say once, of what the files do not tell, how the objects are asked in the program that makes them."""
    asked = False
    for one in checks:
        path = mine.sections[one.name].path
        if one.untold and not asked and path is not None:
            asked = True
            place = os.fspath(Path(path).parent)
            files = f"{{file.stem: firekeep.open(file) for file in pathlib.Path({place!r}).glob('*.bpk')}}"
            question = f"print(state.restore({files}, dry_run=True))"
            yield replace(
                one, notes=(f"to know it, ask from Python, with the TrainingState that is to go on: {question}",)
            )
        else:
            yield one


def _of_optimizer(opened: OpenedFile, name: str, made: OptimizerReport) -> PartCheck:
    report = replace(made, source=opened.path)
    more = {
        "that start anew": len(report.fresh),
        "that cannot be taken over": len(report.dropped),
        "in the step only": len(report.orphaned),
        "without a state then as now": len(report.stateless),
    }
    told = [count(len(report.restored), "state") + f" of {report.target}"]
    told += [f"{number:,} {what}" for what, number in more.items() if number]
    if report.groups_kept:
        places = len(report.groups_restored)
        told.append(f"options of {places:,} of {count(places + len(report.groups_kept), 'group')}")
    return PartCheck(
        name=name,
        kind="optimizer",
        exact=report.exact,
        told=", ".join(told),
        notes=report.notes if report.exact else (),  # else they stand in the report, which is told in full
        report=report,
    )


def _of_scheduler(name: str, record: LrSchedulerRecord, like: LrSchedulerRecord) -> PartCheck:
    report = compare_schedulers(record, like)
    told = f"{count(len(report.restored), 'value')} of {report.scheduler}"
    return PartCheck(
        name=name,
        kind="scheduler",
        exact=report.ok and not report.changed,
        told=told,
        fresh=dict.fromkeys(report.missing, "the step lacks it") | dict(report.refused),
        notes=(*report.changed, *report.notes),
    )


def _values(opened: OpenedFile) -> Mapping[str, Any]:
    described = describe_record(opened)
    return {} if described is None else described.values


def _of_values(name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> PartCheck:
    fresh = {key: "the step lacks it" for key in theirs if key not in mine}
    dropped = {key: "nothing of the name is there" for key in mine if key not in theirs}
    told = count(len(mine), "value")
    return PartCheck(name=name, kind="values", exact=not (fresh or dropped), told=told, fresh=fresh, dropped=dropped)


def _of_training(name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> PartCheck:
    """Compare what a training state keeps besides models, optimizers and schedules: places in the data, random generators."""
    fresh, dropped = dict[str, str](), dict[str, str]()
    places, wanted = _part(mine, "data"), _part(theirs, "data")
    generators, needed = _generators(mine), _generators(theirs)
    for held, due, what in ((places, wanted, "place in the data"), (generators, needed, "state of the generator")):
        fresh |= {key: f"the step has no {what} of this name" for key in due if key not in held}
        dropped |= {key: f"there is no {what} of this name" for key in held if key not in due}
    for key in wanted:
        if key in places and (why := _other_order(places[key], wanted[key])) is not None:
            fresh[key] = why
    told = [f"step {mine.get('step', '?')}, epoch {mine.get('epoch', '?')}"]
    told += [f"data: {', '.join(places)}"] if places else []
    told += [f"random: {', '.join(generators)}"] if generators else []
    values = _part(mine, "values")
    told += [f"values: {', '.join(map(str, values))}"] if values else []
    return PartCheck(
        name=name,
        kind="training",
        exact=not (fresh or dropped),
        told="; ".join(told),
        fresh=fresh,
        dropped=dropped,
        notes=tuple(
            f"the value {quote(str(key))} is not in the step" for key in _part(theirs, "values") if key not in values
        ),
    )


def _part(tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    held = tree.get(key)
    return held if isinstance(held, Mapping) else {}


def _generators(tree: Mapping[str, Any]) -> dict[str, Any]:
    held = _part(tree, "rng")
    return {**{key: held[key] for key in held if key != "generators"}, **_part(held, "generators")}


def _other_order(mine: Any, theirs: Any, place: str = "") -> str | None:
    """Say which setting that the order of samples follows from is another one."""
    if not isinstance(mine, Mapping) or not isinstance(theirs, Mapping):
        return None
    for key in theirs:
        if key in mine and key in _SETTINGS and mine[key] != theirs[key]:
            return f"it was one of {place}{key}={mine[key]!r}, and is one of {place}{key}={theirs[key]!r}"
        if key in mine and (why := _other_order(mine[key], theirs[key], f"{place}{key}.")) is not None:
            return why
    return None


def _changes(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    for name, value in mine.items():
        if name in theirs and name not in _OWN_FACTS and value != theirs[name]:
            yield f"{name} was {value}, and is {theirs[name]} there"
