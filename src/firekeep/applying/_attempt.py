"""A plan for one reading of a file's layout, and which reading is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from firekeep.applying._idle import tell_idle_rules
from firekeep.applying._job import LoadJob
from firekeep.applying._norms import Norms, norms_of
from firekeep.applying._sample import sample
from firekeep.applying._turning import doubt_squares, turn_as_told, turn_ties
from firekeep.applying._unsaid import told_elsewhere, untold_kernels
from firekeep.applying._wants import Wanted, list_wants
from firekeep.entry import TensorEntry, tie_key
from firekeep.errors import RuleError, UnsupportedError
from firekeep.layouts import BURNS, CONVENTIONS, UNSPECIFIED, FileLayout
from firekeep.matching import MatchOptions, Plan, Remedy, Want, may_meet, plan, skeletons_of
from firekeep.rules.layout import GROUPLESS, SIDES, groups_told, moved
from firekeep.slots import Convention, Layer, Outline
from firekeep.supply import Supply
from firekeep.views import permuted
from firekeep.wording import some

COUNTER = "num_batches_tracked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Wants paired with offers. `sources` gives the file's own name of each offer, `overlooked` names that strictness does not see."""

    wanted: Wanted
    offers: tuple[TensorEntry, ...]
    options: MatchOptions
    plan: Plan
    sources: Mapping[str, str]
    overlooked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A supply after the rename rules."""

    entries: tuple[TensorEntry, ...]
    sources: Mapping[str, str]
    submodules: frozenset[str]
    layers: tuple[Layer, ...] = ()
    """The layers that the supply tells of, in its own layout, under the names after the renames."""
    in_rows: bool = False
    """All linear weights of Burn's layout lie as [in, out], those that did not having been turned round."""
    unturned: frozenset[str] | None = None
    """The supply's own names of matrices that lie as PyTorch had them in Burn's layout; None where nobody says."""
    complete: bool = False
    """The layers are all there are of known kinds: those of a model."""
    idle: tuple[str, ...] = ()
    """What is to be told of rename rules that met no name."""


def offer(supply: Supply, job: LoadJob) -> Offered:
    """Rename what a supply has; raises `RuleError` naming both where two names become one."""
    offered = dict(supply.entries)
    in_rows = supply.columns is not None
    for path in supply.columns or ():
        name = f"{path}.weight" if path else "weight"
        if (
            name in offered
            and len(offered[name].shape) == 2
            and (supply.layout is None or supply.layout.name == "burn")
        ):
            offered[name] = permuted(offered[name], (1, 0))
    if job.surgery:
        offered = {entry.name: entry for entry in job.surgery.apply(offered.values()).entries}
    if not job.remapper:
        names = list(offered)
        return Offered(
            unturned=supply.unturned,
            entries=tuple(offered.values()),
            sources=dict(zip(names, names, strict=True)),
            submodules=supply.submodules,
            layers=(*supply.layers, *supply.told),
            complete=supply.live and bool(supply.layers),
            in_rows=in_rows,
        )
    renaming = job.remapper.rename(offered)
    entries = tuple(
        entry if (new := renaming.names[name]) == name else entry.renamed(new) for name, entry in offered.items()
    )
    sources = {new: old for old, new in renaming.names.items()}
    # Modules without tensors take part in lists by their place: two that become one are one.
    submodules = frozenset(job.remapper.rename([path]).names[path] for path in supply.submodules)
    return Offered(
        entries=entries,
        sources=sources,
        submodules=submodules,
        layers=tuple(moved((*supply.layers, *supply.told), renaming.names)),
        complete=supply.live and bool(supply.layers),
        in_rows=in_rows,
        unturned=supply.unturned,
        idle=tuple(tell_idle_rules(renaming, side="source" if supply.live else "file")),
    )


def attempt(outline: Outline, chosen: set[str], offered: Offered, layout: Convention | None, job: LoadJob) -> Attempt:
    """Pair what the chosen slots want from a file in this layout with what is offered.

    All slots are planned for, and the chosen ones kept: a list is matched by all of its elements.
    """
    layers = offered.layers
    wanted, options, found = _pair(outline, offered, layout, job, layers)
    if more := told_elsewhere(found, wanted, layers):
        layers = (*layers, *more)
        wanted, options, found = _pair(outline, offered, layout, job, layers)
    if layout not in (None, outline.convention):
        found = turn_ties(found, outline)
    if (layout or outline.convention) == "burn" and not (job.surgery or outline.bare):
        if offered.unturned is not None:
            told = frozenset(layer.path for layer in layers)  # of which the way there knows by itself how they lie
            found = turn_as_told(found, outline, offered.unturned, sources=offered.sources, told=told)
        elif outline.convention == "torch":
            found = doubt_squares(found, outline, sources=offered.sources)
    counters = _counters_of(found) if wanted.layers and outline.convention != "torch" else frozenset()
    if len(chosen) < len(outline):
        wanted = wanted.narrowed(chosen)
        found = found.narrowed(lambda want: not chosen.isdisjoint(want.slots))
    seen, overlooked, notes = _overlook(found, wanted, counters)
    if (found.unsure or found.hints) and not seen.refusals(job.policy):  # nothing else keeps them out of the model
        seen, overlooked, notes = _overlook(found.cautious(), wanted, counters)
    return Attempt(
        wanted=wanted,
        offers=offered.entries,
        options=options,
        plan=seen,
        sources=offered.sources,
        overlooked=overlooked,
        notes=(*notes, *untold_kernels(seen, wanted, layers)),
    )


def _pair(
    outline: Outline, offered: Offered, layout: Convention | None, job: LoadJob, layers: tuple[Layer, ...]
) -> tuple[Wanted, MatchOptions, Plan]:
    wanted = list_wants(outline, layout, in_rows=offered.in_rows, layers=layers)
    sources = offered.sources if job.remapper else {}
    options = MatchOptions(
        match=job.match, modules=wanted.modules, keyed=wanted.keyed, submodules=offered.submodules, sources=sources
    )

    def norms_in(convention: Convention) -> Norms:
        return norms_of(offered.entries, layers, convention, complete=offered.complete)

    return wanted, options, plan(wanted.wants, offered.entries, options=options, spell=lambda: wanted.spell(norms_in))


def _overlook(found: Plan, wanted: Wanted, counters: frozenset[str]) -> tuple[Plan, tuple[str, ...], tuple[str, ...]]:
    """Set aside what the other side cannot have: counters of batches, states of random numbers, and further names of a tensor."""
    overlooked = list(wanted.no_counterpart)
    missing, notes = _lacking(found, wanted, overlooked) if found.missing else ([], [])
    again = _used_again(found, wanted)
    notes += [f"{name!r} is {other!r} in the file, and the model has it once" for name, other in again.items()]
    notes += _grouped(found, wanted)
    unused = tuple(entry for entry in found.unused if entry.name not in counters and entry.name not in again)
    overlooked += sorted(counters)
    return replace(found, missing=tuple(missing), unused=unused), tuple(overlooked), tuple(notes)


def _lacking(found: Plan, wanted: Wanted, overlooked: list[str]) -> tuple[list[Want], list[str]]:
    """Give the wants that are missing indeed, add those to be overlooked to the list, and tell of those that are filled by another name."""
    missing, notes = [], []
    filled = dict.fromkeys(path for pair in found.pairs for path in pair.want.slots)
    ties = {slot.path: slot.tied_to or slot.path for slot in wanted.outline}
    roots: dict[str | None, str] = {}
    for path in filled:
        roots.setdefault(ties.get(path), path)
    random = {slot.path for slot in wanted.outline if slot.layer is not None and slot.layer.kind == "rng_state"}
    for want in found.missing:
        if want.name in wanted.spare:
            continue
        if want.name.rpartition(".")[2] == COUNTER or (want.slots and random.issuperset(want.slots)):
            overlooked.append(want.paths[0])
        elif (
            want.slots
            and not any(path in filled for path in want.slots)
            and all(ties.get(path) in roots for path in want.slots)
        ):
            notes.append(
                f"{want.paths[0]!r} is {roots[ties[want.slots[0]]]!r} in the model, and the file holds it once"
            )
        else:
            missing.append(want)
    return missing, notes


def _grouped(found: Plan, wanted: Wanted) -> Iterator[str]:
    """Tell of kernels whose shape is another one since they are in groups, which the model's kind of layer has not."""
    own = wanted.outline.convention
    if own not in GROUPLESS or wanted.layout not in BURNS or not found.mismatched:
        return
    slots = {slot.path: slot for slot in wanted.outline}
    for pair in found.mismatched:
        layer = slots[pair.want.paths[0]].layer
        groups = 1 if layer is None else groups_told(layer, pair.want.shape, pair.offer.shape)
        if groups > 1:
            yield f"{pair.offer.name!r} is of a transposed convolution in {groups} groups by its shape, and {SIDES[own]}'s has no groups"


def _used_again(found: Plan, wanted: Wanted) -> dict[str, str]:
    """Map further names of embeddings that are used to the names they are used by: a head may be such, which elsewhere is no layer."""
    if wanted.layout in (None, wanted.outline.convention) or not found.unused:
        return {}
    slots = {slot.path: slot for slot in wanted.outline}
    embeddings = (
        pair
        for pair in found.pairs
        if (layer := slots[pair.want.paths[0]].layer) is not None and layer.kind == "embedding"
    )
    used = {key: pair.offer.name for pair in embeddings if (key := tie_key(pair.offer)) is not None}
    return {entry.name: used[key] for entry in found.unused if (key := tie_key(entry)) in used and key is not None}


def _counters_of(found: Plan) -> frozenset[str]:
    """Give the counters that lie beside tensors which the model wants; those of layers it does not have are unused like the rest."""
    pairs = (*found.pairs, *found.mismatched, *found.clashes, *found.unreadable)
    layers = {pair.offer.name.rpartition(".")[0] for pair in pairs}
    halves = ((entry.name, entry.name.rpartition(".")) for entry in found.unused)
    return frozenset(name for name, (layer, _, last) in halves if last == COUNTER and layer in layers)


def choose_layout(
    outline: Outline, chosen: set[str], offered: Offered, supply: Supply, job: LoadJob
) -> tuple[Attempt, tuple[str, ...]]:
    """Read the file in the layout that was asked for, that it names, or that its format leads one to expect.

    Burn's own safetensors files have either layout and do not say which: their names and shapes decide, and where these fit both it is
    refused. Gives the attempt and what is to be told about it.
    """
    if job.layout is None and supply.layout is not None and supply.layout.name == UNSPECIFIED:
        return _unspecified(outline, chosen, offered, supply, job), ()
    said = job.layout or _said(supply.layout, outline)
    if outline.bare:
        _refuse_turned(outline, said or (supply.layout.name if supply.layout is not None else None), offered, supply)
    if said is not None or outline.convention is None or supply.layout is None:
        return attempt(outline, chosen, offered, said, job), ()
    default = supply.layout.name
    if default == "torch":
        return attempt(outline, chosen, offered, "torch", job), ()
    tries = {name: attempt(outline, chosen, offered, name, job) for name in BURNS}
    good = [name for name, tried in tries.items() if not tried.plan.missing and not tried.plan.mismatched]
    if not good:
        best = max(map(_filled, tries.values()))
        good = [name for name, tried in tries.items() if _filled(tried) == best and not tried.plan.refusals(job.policy)]
    if len(good) == 2 and _differ(tries["torch"], tries["burn"]):
        raise RuleError(
            "the file was written by Burn, whose files have its own layout or PyTorch's and do not say which; all shapes fit both",
            path=supply.where,
            remedy="Say which it is: layout='burn' (no adapter when it was saved), or layout='torch'.",
        )
    if len(good) == 2:
        return tries["torch"], ("in both layouts that Burn writes the file reads the same",)
    layout = good[0] if good else default
    told = "names and shapes tell the layout" if good else "the layout is taken to be that of most such files"
    return tries[layout], (f"{told}: {layout}",)  # type: ignore[index]


def _unspecified(outline: Outline, chosen: set[str], offered: Offered, supply: Supply, job: LoadJob) -> Attempt:
    """Take arrays of which nobody said how their layers lie for what the model has, where it makes no difference."""
    if outline.convention is None:
        return attempt(outline, chosen, offered, None, job)
    own = outline.convention
    tries = {name: attempt(outline, chosen, offered, name, job) for name in dict.fromkeys((own, *BURNS))}
    found = _filled(tries[own])
    others = [name for name, tried in tries.items() if own in BURNS or _filled(tried) >= found]
    if any(_differ(tries[own], tries[name]) for name in others):
        raise RuleError(
            "the file holds arrays of which nobody said how their layers lie",
            path=supply.where,
            remedy=f"Say what it is: {' or '.join(f'layout={name!r}' for name in sorted(tries, reverse=True))}.",
        )
    return tries[own]


def _refuse_turned(outline: Outline, layout: str | None, offered: Offered, supply: Supply) -> None:
    """Refuse tensors that may have to be turned round for a state dict, which does not tell its layers."""
    known = (None, outline.convention)
    burns = layout in (None, *BURNS) and outline.convention in BURNS  # between these two, convolutions lie alike
    unclear = [entry.name for entry in offered.entries if len(entry.shape) == 2 or (len(entry.shape) > 2 and not burns)]
    if layout in known or not unclear:
        return
    file = " or a PyTorch file of one" if outline.convention in ("flax", "linen") else ""
    raise RuleError(
        f"the tensors lie as {layout!r} has them, those of a state dict as {outline.convention!r} has them, and nothing tells which "
        f"belong to layers that are turned round: {some(unclear)}",
        path=supply.where,
        remedy=f"Load into the model itself, give like= a model with the same layers{file}, or say "
        f"layout={outline.convention!r} to take them as they lie.",
    )


def _said(layout: FileLayout | None, outline: Outline) -> Convention | None:
    if layout is None or outline.convention is None or not layout.said:
        return None
    for known in CONVENTIONS:
        if known == layout.name:
            return known
    raise UnsupportedError(
        f"the file's layers lie as {layout.name!r} has them, and this model's as {outline.convention!r} has them",
        remedy=f"Say layout={outline.convention!r} if its tensors lie as the model's do.",
    )


def _filled(tried: Attempt) -> int:
    """Count the places that find a tensor which fits."""
    return len({path for pair in tried.plan.pairs for path in pair.want.slots})


def _differ(first: Attempt, second: Attempt) -> bool:
    """Say whether two readings would put other numbers into the model."""
    return _forms(first) != _forms(second)


def _forms(tried: Attempt) -> list[tuple[str, str]]:
    entries = [pair.offer.renamed(pair.want.name) for pair in tried.plan.pairs]
    made = tried.wanted.settle(entries)
    return sorted((entry.name, made.steps.get(entry.name, "")) for entry in made.entries)


def other_layout(outline: Outline, chosen: set[str], offered: Offered, tried: Attempt, job: LoadJob) -> Remedy | None:
    """Try the file in the other layouts, and give the one in which it fits best as a remedy if that is better than now."""
    own = outline.convention
    if own is None or job.surgery or not (tried.plan.mismatched or tried.plan.missing):
        return None  # pieces of a tensor that was cut the other way may have the very shapes, and other numbers
    now, best = tried.wanted.layout or own, None
    few, skeletons = sample(outline), skeletons_of(offered.entries)
    offered = replace(offered, complete=True)  # what norms are called in a layout does not speak for it
    for name in CONVENTIONS:
        if name == now:
            continue
        looked = list_wants(few, name, in_rows=offered.in_rows, layers=offered.layers)
        looked.spell()
        if not may_meet(looked.wants, skeletons):
            continue
        found = attempt(outline, chosen, offered, name, job).plan
        gain = len(found.pairs) - len(tried.plan.pairs)
        fewer = len(found.mismatched) < len(tried.plan.mismatched) or not (found.mismatched or tried.plan.mismatched)
        if fewer and gain > (0 if best is None else best.gain):
            best = Remedy(
                reason=f"in the layout of {SIDES[name]} {'the shapes fit' if tried.plan.mismatched else 'the names are these'}",
                python=f"layout={name!r}",
                cli=f"--layout {name}",
                gain=gain,
            )
    return best
