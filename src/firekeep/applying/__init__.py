"""Putting tensors into a model: a plan first, then the bytes, then a report that names every tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from firekeep import floats
from firekeep.applying._alias import reads_itself
from firekeep.applying._anew import Anew
from firekeep.applying._attempt import Attempt, choose_layout, offer, other_layout
from firekeep.applying._constants import compare_constants
from firekeep.applying._counters import counters, uncounted
from firekeep.applying._job import Hold, LoadJob
from firekeep.applying._ranges import find_outside
from firekeep.applying._stage import stage
from firekeep.applying._ties import Shared, share
from firekeep.applying._told import Told, told_entries, told_outline
from firekeep.applying._twins import refuse_twins
from firekeep.applying._valueless import tell_valueless
from firekeep.applying._wants import variants_of, without_variants
from firekeep.bridges import Bridge, Filling, bridge_of, remaker_of
from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, RuleError, TruncatedError
from firekeep.folding import natural
from firekeep.garbage import collector_paused
from firekeep.layouts import tell_steps, tell_sums
from firekeep.matching import Policy, Remedy, find_remedies
from firekeep.report import ConstantDifference, LoadError, LoadReport, NothingMatchedError, Problem, make_report
from firekeep.rules import Losses, can_cast, cast
from firekeep.rules.layout import restore_biases
from firekeep.slots import Outline, Slot
from firekeep.supply import Supply
from firekeep.wording import count, some

__all__ = [
    "Hold",
    "LoadJob",
    "LoadPlan",
    "load_as",
    "load_into",
    "plan_load",
    "preview",
    "told_entries",
    "told_outline",
    "variants_of",
    "without_variants",
]

_PARTED = "{} of two biases: the two are those that the metadata keep, where their sum is still the file's"


@dataclass(slots=True, kw_only=True)
class _Load:
    """A load on its way."""

    supply: Supply
    job: LoadJob
    target: str
    outline: Outline
    skipped: tuple[str, ...]
    tried: Attempt
    fillings: list[Filling] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    casts: dict[str, tuple[str, str]] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    notes: list[str] = field(default_factory=list)
    remedies: list[Remedy] = field(default_factory=list)
    constants: list[ConstantDifference] = field(default_factory=list)
    shared: Shared = field(default_factory=Shared)
    counted: tuple[str, ...] = ()
    """Counters of batches that the file keeps as scalars, and what is made up since the file cannot have it: places of the model, and no
    tensors of the file."""
    unheld: tuple[str, ...] = ()
    """Such counters of which the model has no place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What a load would do: `put` does it, and gives the object and the report.

    `names` maps the file's names to those that the model's tensors have in a file of that layout, where the two differ.
    """

    report: LoadReport
    names: Mapping[str, str]
    put: Callable[[], tuple[Any, LoadReport]]


def load_into(obj: Any, supply: Supply, job: LoadJob) -> LoadReport:
    """Put tensors into an object; see `firekeep.load_into`.

    A load that is refused has changed nothing and raises `LoadError` with the whole report.
    """
    bridge = bridge_of(obj)
    return _load_over(bridge if job.telling is None else Told(bridge, job.telling), obj, supply, job)


def load_as(obj: Any, supply: Supply, job: LoadJob) -> tuple[Any, LoadReport]:
    """Make an object like another with tensors in it; see `firekeep.load_as`."""
    bridge = Anew(remaker_of(obj), obj)
    report = _load_over(bridge if job.telling is None else Told(bridge, job.telling), obj, supply, job)
    return bridge.made, report


def plan_load(obj: Any, supply: Supply, job: LoadJob, *, anew: bool = False) -> LoadPlan:
    """Plan what `load_into` would do, or with `anew` what `load_as` would, and change nothing."""
    bridge = Anew(remaker_of(obj), obj) if anew else bridge_of(obj)
    load, report = _plan_over(bridge, obj, supply, replace(job, dry_run=True))
    sources = load.tried.sources
    found = ((sources.get(pair.offer.name, pair.offer.name), pair.want.name) for pair in load.tried.plan.found)

    def put() -> tuple[Any, LoadReport]:
        load.job = replace(job, dry_run=False)
        made = _carry_out(bridge, obj, load, report)
        return bridge.made if isinstance(bridge, Anew) else obj, made

    return LoadPlan(report=report, names={old: new for old, new in found if old != new}, put=put)


def _load_over(bridge: Bridge, obj: Any, supply: Supply, job: LoadJob) -> LoadReport:
    load, report = _plan_over(bridge, obj, supply, job)
    return report if job.dry_run else _carry_out(bridge, obj, load, report)


def _plan_over(bridge: Bridge, obj: Any, supply: Supply, job: LoadJob) -> tuple[_Load, LoadReport]:
    with collector_paused():
        load = _prepare(bridge.outline(obj), supply, job, target=type(obj).__name__)
        if supply.constants:
            load.constants += compare_constants(bridge.constants(obj), supply.constants, _paired(load.tried))
    report = _report(load, applied=None)
    if not report.ok and not load.remedies and (found := _leniency(load)) is not None:
        load.remedies.append(found)
        report = _report(load, applied=None)
    return load, report


def _carry_out(bridge: Bridge, obj: Any, load: _Load, report: LoadReport) -> LoadReport:
    if not report.ok:
        raise _refusal(load, report)
    outside = list(find_outside(load.fillings))
    if outside:
        load.problems += outside
        names = {problem.name for problem in outside}
        load.fillings = [filling for filling in load.fillings if filling.slot.path not in names]
        report = _report(load, applied=None)
        if not report.ok:
            raise _refusal(load, report)
    return _fill(bridge, obj, load)


def _paired(tried: Attempt) -> dict[str, str]:
    """Map names of the model's tensors to those that go there."""
    sources = tried.sources
    return {
        path: sources.get(pair.offer.name, pair.offer.name) for pair in tried.plan.found for path in pair.want.paths
    }


def preview(outline: Outline, supply: Supply, job: LoadJob, *, target: str) -> LoadReport:
    """Report what a load into such a model would do, refused or not; nothing is read."""
    with collector_paused():
        return _report(_prepare(outline, supply, replace(job, dry_run=True), target=target), applied=None)


def _prepare(outline: Outline, supply: Supply, job: LoadJob, *, target: str) -> _Load:
    chosen = {slot.path for slot in outline if job.chosen.accepts(slot)}
    if len(outline) and not chosen:
        raise RuleError(
            f"none of the {count(len(outline), 'place')} of {target} is left after include and exclude",
            remedy=f"Patterns are searched in the model's names: {some(outline.paths())}.",
        )
    if outline.layers and not job.remapper:
        supply = _without_collections(supply)
    offered = offer(supply, job)
    tried, notes = choose_layout(outline, chosen, offered, supply, job)
    refuse_twins(tried, supply)
    load = _Load(
        supply=supply,
        job=job,
        target=target,
        outline=outline,
        skipped=tuple(slot.path for slot in outline if slot.path not in chosen),
        tried=tried,
        notes=[*supply.notes(), *notes, *tried.notes, *tell_valueless(outline)],
    )
    _refuse_slots(load, chosen)
    tried = load.tried
    if tried.plan.refusals(job.policy):
        found = other_layout(outline, chosen, offered, tried, job)
        load.remedies += [found] if found is not None else []
        load.remedies += find_remedies(
            tried.plan, tried.wanted.wants, tried.offers, options=tried.options, renamed=bool(job.remapper)
        )
        return load
    _settle(load, chosen)
    return load


def _without_collections(supply: Supply) -> Supply:
    """Give the tensors of a tree of Linen, which a model with layers calls by these, not by the collections around them."""
    if supply.layers or supply.layout is None or supply.layout.name != "linen":
        return supply
    made = told_entries(list(supply.entries.values()))
    return replace(supply, entries={entry.name: entry for entry in made})


def _leniency(load: _Load) -> Remedy | None:
    """Give what would have to be allowed for the load to do what it can, if with that it does."""
    made, policy, job = load.tried.plan, load.job.policy, load.job
    if made.nothing:  # which no policy allows
        return None
    strict = {"missing": policy.missing, "unused": policy.unused, "shape": policy.shape}
    left = {"missing": len(made.missing), "unused": len(made.unused), "shape": len(made.mismatched)}
    needed = [kind for kind, number in left.items() if number and strict[kind] == "error"]
    if not needed or not set(needed) <= set(job.switches):
        return None
    allowed = Policy(
        missing="allow" if "missing" in needed else policy.missing,
        unused="allow" if "unused" in needed else policy.unused,
        shape="allow" if "shape" in needed else policy.shape,
    )
    lenient = replace(job, policy=allowed, dry_run=True)
    try:
        tried = _report(_prepare(load.outline, load.supply, lenient, target=load.target), applied=None)
    except FirekeepError:
        return None
    if not tried.ok:
        return None
    words = {"missing": "missing", "shape": "of another shape"}
    stay = " and ".join(f"{left[kind]:,} {word}" for kind, word in words.items() if kind in needed)
    told = [f"{stay} stay as they are in the model"] if stay else []
    told += [f"{left['unused']:,} unused stay out of it"] if "unused" in needed else []
    return Remedy(
        reason=f"if that is meant, {', '.join(told)} and the rest is loaded with",
        python=", ".join(job.switches[kind] for kind in needed),
    )


def _refuse_slots(load: _Load, chosen: set[str]) -> None:
    """Name the chosen slots that nothing can be put into, and those of which the file's layout has no form."""
    for slot in load.outline:
        if slot.problem is not None and slot.path in chosen:
            load.problems.append(Problem(kind="read", name=slot.path, message=slot.problem))
    for path, why in load.tried.wanted.unholdable.items():
        load.problems.append(Problem(kind="read", name=path, message=why))


def _settle(load: _Load, chosen: set[str]) -> None:
    """Give the paired tensors the names and forms of the slots, and decide what each slot holds."""
    tried = load.tried
    entries = [
        pair.offer if pair.offer.name == pair.want.name else pair.offer.renamed(pair.want.name)
        for pair in tried.plan.pairs
    ]
    made = tried.wanted.settle(entries)
    slots = {slot.path: slot for slot in load.outline}
    for name, why in made.problems.items():
        load.problems.append(Problem(kind="read", name=name, message=why))
    told = tell_steps(made.steps.values(), source=tried.wanted.layout, target=load.outline.convention)
    load.notes += [told] if told is not None else []
    settled = [entry for entry in made.entries if entry.name in chosen]
    restored: set[str] = set()
    if load.supply.biases and load.outline.convention == "torch":
        before = settled
        settled, parted = restore_biases(before, load.supply.biases)
        restored = {entry.name for entry, old in zip(settled, before, strict=True) if entry is not old}
        load.notes += [_PARTED.format(count(parted, "sum"))] if parted else []
    load.notes += tell_sums({name: step for name, step in made.steps.items() if name in chosen - restored})
    load.unheld = tuple(uncounted(load.supply, load.outline, tried))
    kept = list(counters(load.supply, load.outline, tried, chosen))
    made_up = [entry.name for entry in settled if entry.name in tried.wanted.no_counterpart]
    load.counted = (*(entry.name for entry in kept), *made_up)
    settled += kept
    load.shared = share(settled, slots)
    load.problems += load.shared.conflicts
    load.fillings = [_filling(load, slots[entry.name], entry) for entry in load.shared.entries]


def _filling(load: _Load, slot: Slot, entry: TensorEntry) -> Filling:
    source = entry.require()
    dtype = _held(load.job.dtype, slot, source)
    if dtype is not source and dtype != source:
        load.casts[slot.path] = (str(source), str(dtype))
        if can_cast(entry, dtype) and _narrows(source, dtype):
            entry = cast(entry, dtype, load.losses)  # by us, so that what it loses is counted
    return Filling(slot, entry, dtype)


def _held(hold: Hold, slot: Slot, source: DType) -> DType:
    if hold == "file":
        return source
    if hold == "module" or source.kind != "float" or slot.dtype.kind != "float":
        return slot.dtype
    return hold


def _narrows(source: DType, target: DType) -> bool:
    before, after = floats.span(source), floats.span(target)
    return before[0] < after[0] or before[1] > after[1]


def _fill(bridge: Bridge, obj: Any, load: _Load) -> LoadReport:
    if load.supply.live and not load.job.stage and reads_itself(bridge, obj, load.fillings):
        load.job = replace(load.job, stage=True)
    if load.job.stage:
        try:
            load.fillings = stage(load.fillings)
        except FirekeepError as error:
            raise _failure(load, [], error) from error
    done: list[str] = []
    try:
        bridge.fill(obj, load.fillings, done)
    except FirekeepError as error:
        raise _failure(
            load, done, error, touched=not isinstance(bridge.base if isinstance(bridge, Told) else bridge, Anew)
        ) from error
    return _report(load, applied=load.shared.names(done))


def _failure(load: _Load, done: list[str], error: FirekeepError, *, touched: bool = True) -> LoadError:
    load.problems.append(Problem(kind="read", name=_broken_off(load, done, error), message=error.message))
    if touched and not load.job.stage:
        load.notes.append(
            "others may hold some of the new numbers; with stage=True all is read before anything is changed"
        )
    return LoadError(_report(load, applied=load.shared.names(done), failed=True))


def _broken_off(load: _Load, done: list[str], error: FirekeepError) -> str:
    """Name the tensor that could not be read; where many are read at once, the first that ends behind the end of the file."""
    if error.tensor is None and isinstance(error, TruncatedError) and error.actual is not None:
        for filling in load.fillings:
            window = filling.entry.blob.window()
            if window is None or window[0].path != error.path or filling.slot.path in done:
                continue
            if window[1] + filling.entry.blob.nbytes > error.actual:
                return filling.slot.path
    return error.tensor or ""


def _report(load: _Load, *, applied: Sequence[str] | None, failed: bool = False) -> LoadReport:
    tried = load.tried
    made = make_report(
        tried.plan,
        policy=load.job.policy,
        source=load.supply.where,
        target=load.target,
        sources=tried.sources,
        applied=applied,
        skipped=load.skipped,
        no_counterpart=[*(name for name in tried.overlooked if name not in load.counted), *load.unheld],
        problems=load.problems,
        casts=load.casts,
        losses=_lost(load.losses),
        ids_restored=_ids_restored(load, applied),
        dry_run=load.job.dry_run,
        failed=failed,
        remedies=load.remedies,
        constants=load.constants,
        notes=load.notes,
    )
    if made.missing:  # the plan speaks of shapes as the file would have them
        shapes = {slot.path: slot.shape for slot in load.outline}
        made = replace(made, missing_shapes={name: shapes[name] for name in made.missing if name in shapes})
    if applied is None and (blocked := tuple(_blocked(load))):
        made = replace(made, refusals=(*made.refusals, *blocked), applied=(), casts={}, losses={}, ids_restored=0)
    return made if not load.counted else _with_counters(made, load.counted, planned=applied is None and made.ok)


def _blocked(load: _Load) -> Iterator[str]:
    """Say what else the policy does not allow: places that nothing can be put into, and one tensor that would have to be two."""
    tied = sum(problem.kind == "tie" for problem in load.problems)
    closed = len(load.problems) - tied
    if load.tried.plan.matched and not load.tried.plan.pairs and not load.problems:
        yield "nothing that fits"  # whatever is allowed, a load of nothing is none
    if closed and load.job.policy.missing == "error":
        yield f"{closed:,} that cannot be filled"
    if tied and load.job.policy.shape == "error":
        yield f"{tied:,} tied in the model only"


def _with_counters(made: LoadReport, counted: Sequence[str], *, planned: bool) -> LoadReport:
    """Reckon the counters among the places of the model; a plan of tensors does not know them."""
    applied = tuple(sorted((*made.applied, *counted), key=natural)) if planned else made.applied
    return replace(made, applied=applied, wanted=made.wanted + len(counted))


def _ids_restored(load: _Load, applied: Sequence[str] | None) -> int:
    """Count the parameters that took over an id, or would; trees of arrays and models of JAX keep none."""
    if load.outline.convention not in ("torch", "burn"):
        return 0
    names = None if applied is None else frozenset(applied)
    reached = [one for one in load.fillings if names is None or one.slot.path in names]
    keeping = [one for one in reached if load.outline.convention != "burn" or not one.slot.role.startswith("running_")]
    return sum(one.entry.param_id is not None for one in keeping)


def _lost(losses: Losses) -> Mapping[str, int]:
    return dict(losses.overflowed)


def _refusal(load: _Load, report: LoadReport) -> LoadError:
    return NothingMatchedError(report) if not load.tried.plan.matched else LoadError(report)
