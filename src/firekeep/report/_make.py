"""A plan and what came of it, as a report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from firekeep.folding import natural
from firekeep.matching import Pair, Plan, Policy, Remedy, suggest
from firekeep.report._report import ConstantDifference, LoadReport, Problem, ProblemKind, Renamed

_NONE: Mapping[str, str] = MappingProxyType({})


def make_report(
    plan: Plan,
    *,
    policy: Policy,
    source: str | None = None,
    target: str | None = None,
    sources: Mapping[str, str] = _NONE,
    applied: Iterable[str] | None = None,
    skipped: Iterable[str] = (),
    no_counterpart: Collection[str] = (),
    problems: Iterable[Problem] = (),
    casts: Mapping[str, tuple[str, str]] | None = None,
    losses: Mapping[str, int] | None = None,
    ids_restored: int = 0,
    dry_run: bool = False,
    failed: bool = False,
    remedies: Sequence[Remedy] = (),
    constants: Sequence[ConstantDifference] = (),
    notes: Sequence[str] = (),
) -> LoadReport:
    """Make the report of a load from its plan.

    `applied` are the model's names that were filled; None takes all that the plan fills, unless it is refused. `sources` gives the file's
    own name of an offer that rules renamed. `no_counterpart` are names of offers or slots that strictness overlooks. `problems` are
    those that the plan does not know: of reading, of ties.
    """
    plan = _overlooking(plan, frozenset(no_counterpart))
    refusals = plan.refusals(policy)
    missing = {path: want for want in plan.missing for path in want.paths}
    errors = (*_problems(plan, sources), *problems)
    if applied is None:
        applied = () if refusals else _filled(plan, {*missing, *(error.name for error in errors)})
    unused = {sources.get(offer.name, offer.name): offer for offer in plan.unused}
    near = {} if plan.ok else suggest(plan.missing, plan.unused)
    return LoadReport(
        source=source,
        target=target,
        applied=_ordered(applied),
        missing=_ordered(missing),
        unused=_ordered(unused),
        skipped=_ordered(skipped),
        no_counterpart=_ordered(no_counterpart),
        errors=errors,
        renamed=tuple(_renamed(plan, sources)),
        steps=plan.steps,
        casts=casts or {},
        losses=losses or {},
        ids_restored=ids_restored,
        dry_run=dry_run,
        refusals=refusals,
        nothing_matched=plan.nothing,
        failed=failed,
        suggestions={path: near[want.name] for path, want in missing.items() if want.name in near},
        ambiguities=plan.ambiguities,
        remedies=tuple(remedies),
        constants=tuple(constants),
        notes=tuple(notes),
        missing_shapes={path: want.shape for path, want in missing.items()},
        unused_shapes={name: offer.shape for name, offer in unused.items()},
        unused_renamed={name: offer.name for name, offer in unused.items() if offer.name != name},
        wanted=len({*missing, *(path for pair in plan.found for path in pair.want.paths)}),
        offered=plan.offered,
    )


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(dict.fromkeys(names), key=natural))


def _overlooking(plan: Plan, names: frozenset[str]) -> Plan:
    if not names:
        return plan
    return replace(
        plan,
        missing=tuple(want for want in plan.missing if not names.issuperset(want.paths) and want.name not in names),
        unused=tuple(offer for offer in plan.unused if offer.name not in names),
    )


def _filled(plan: Plan, without: Collection[str]) -> Iterator[str]:
    """Give the places that the plan fills; one that several tensors fill together, and that lacks any of them, is not filled."""
    return (path for pair in plan.pairs for path in pair.want.paths if path not in without)


def _problems(plan: Plan, sources: Mapping[str, str]) -> Iterator[Problem]:
    for pair in plan.mismatched:
        mine, theirs = list(pair.want.shape), list(pair.offer.shape)
        yield from _both(
            pair, sources, "shape", f"its shape is {mine} in the model, {theirs} in the file", mine, theirs
        )
    for pair in plan.clashes:
        message = f"it holds {pair.want.dtype} in the model, {pair.offer.dtype} in the file: another kind of numbers"
        if pair.offer.dtype is not None and pair.offer.dtype.block is not None:
            message = (
                f"the file keeps it in quantized blocks ({pair.offer.dtype}), whose values dequantize=True computes"
            )
        yield from _both(pair, sources, "kind", message, pair.want.dtype, pair.offer.dtype)
    for pair in plan.unreadable:
        yield from _both(pair, sources, "read", pair.offer.problem or "its dtype is unknown", None, None)


def _both(
    pair: Pair, sources: Mapping[str, str], kind: ProblemKind, message: str, expected: object, found: object
) -> Iterator[Problem]:
    for path in pair.want.paths:
        yield Problem(
            kind=kind,
            name=path,
            message=message,
            file_name=sources.get(pair.offer.name, pair.offer.name),
            expected=None if expected is None else str(expected),
            found=None if found is None else str(found),
        )


def _renamed(plan: Plan, sources: Mapping[str, str]) -> Iterator[Renamed]:
    for pair in plan.found:
        name = sources.get(pair.offer.name, pair.offer.name)
        for path in pair.want.paths:
            if path != name:
                steps = pair.via if pair.via != ("exact",) else ()
                ruled = ("rename",) if name != pair.offer.name else ()
                laid = ("layout",) if path != pair.want.name else ()
                yield Renamed(name, path, (*ruled, *steps, *laid))
