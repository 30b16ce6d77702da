"""What a load plans before a byte is read: the attempt to match, and what each slot is to hold."""

from __future__ import annotations

from dataclasses import replace

from firekeep.applying._attempt import Attempt, Offered, choose_layout, offer, other_layout
from firekeep.applying._counters import counters, uncounted
from firekeep.applying._idle import choose_slots
from firekeep.applying._job import Hold, LoadJob
from firekeep.applying._load import Load
from firekeep.applying._ties import share
from firekeep.applying._told import told_entries
from firekeep.applying._twins import propose_parts, refuse_twins
from firekeep.applying._valueless import tell_beside, tell_valueless
from firekeep.bridges import Filling
from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.layouts import seen_by, tell_steps, tell_sums
from firekeep.matching import find_remedies
from firekeep.report import Problem
from firekeep.rules import can_cast, cast, narrows
from firekeep.rules.layout import restore_biases
from firekeep.slots import Outline, Slot
from firekeep.supply import Supply
from firekeep.wording import count, some

_PARTED = "{} of two biases: the two are those that the metadata keep, where their sum is still the file's"


def prepare(outline: Outline, supply: Supply, job: LoadJob, *, target: str) -> Load:
    """Match what a model wants with what there is, and decide what goes where, or find what would help."""
    chosen, idle = choose_slots(job.chosen, outline)
    if len(outline) and not chosen:
        raise RuleError(
            f"none of the {count(len(outline), 'place')} of {target} is left after include and exclude",
            remedy=f"Patterns are searched in the model's names: {some(outline.paths())}.",
        )

    def attempt_at(supply: Supply, job: LoadJob) -> tuple[Offered, Attempt, tuple[str, ...]]:
        offered = offer(supply, job)
        return (offered, *choose_layout(outline, chosen, offered, supply, job))

    if outline.layers:
        supply, job = _without_collections(supply, job)
    offered, tried, notes = attempt_at(supply, job)
    refuse_twins(tried, supply, job, lambda supply, job: attempt_at(supply, job)[1])
    load = Load(
        supply=supply,
        job=job,
        target=target,
        outline=outline,
        skipped=tuple(slot.path for slot in outline if slot.path not in chosen),
        tried=tried,
        notes=[
            *idle,
            *offered.idle,
            *supply.notes(),
            *notes,
            *tried.notes,
            *tell_valueless(outline),
            *tell_beside(outline),
        ],
    )
    _refuse_slots(load, chosen)
    tried = load.tried
    if tried.plan.refusals(job.policy):
        found = other_layout(outline, chosen, offered, tried, job)
        load.remedies += [found] if found is not None else []
        load.remedies += find_remedies(
            tried.plan, tried.wanted.wants, tried.offers, options=tried.options, renamed=bool(job.remapper)
        )
        load.remedies += propose_parts(tried, supply, job, lambda supply, job: attempt_at(supply, job)[1])
        return load
    _settle(load, chosen)
    return load


def _without_collections(supply: Supply, job: LoadJob) -> tuple[Supply, LoadJob]:
    """Give the tensors of a tree of Linen, which a model with layers calls by these, not by the collections around them.

    Renames that are found by the collections see them still.
    """
    if supply.layers or supply.layout is None or supply.layout.name != "linen":
        return supply, job
    made = told_entries(list(supply.entries.values()))
    job = replace(job, remapper=seen_by(job.remapper, supply.entries))
    return replace(supply, entries={entry.name: entry for entry in made}), job


def _refuse_slots(load: Load, chosen: set[str]) -> None:
    """Name the chosen slots that nothing can be put into, and those of which the file's layout has no form."""
    for slot in load.outline:
        if slot.problem is not None and slot.path in chosen:
            load.problems.append(Problem(kind="read", name=slot.path, message=slot.problem))
    for path, why in load.tried.wanted.unholdable.items():
        load.problems.append(Problem(kind="read", name=path, message=why))


def _settle(load: Load, chosen: set[str]) -> None:
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


def _filling(load: Load, slot: Slot, entry: TensorEntry) -> Filling:
    source = entry.require()
    dtype = _held(load.job.dtype, slot, source)
    if dtype is not source and dtype != source:
        load.casts[slot.path] = (str(source), str(dtype))
        if can_cast(entry, dtype) and narrows(source, dtype):
            entry = cast(entry, dtype, load.losses)  # by us, so that what it loses is counted
    return Filling(slot, entry, dtype)


def _held(hold: Hold, slot: Slot, source: DType) -> DType:
    if hold == "file":
        return source
    if hold == "module" or source.kind != "float" or slot.dtype.kind != "float":
        return slot.dtype
    return hold
