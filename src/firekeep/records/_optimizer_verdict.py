"""Whether a planned restoration is what was asked for, and the report of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from firekeep.folding import natural, some_alike
from firekeep.records import _across
from firekeep.records._optimizer_plan import Planned
from firekeep.records._optimizer_report import OptimizerReport
from firekeep.wording import count

_ADD_BEFORE = "give it them before the restore, as the saved run had done (add_param_group)"
_ADD_BEHIND = "make it without them, and add them behind the restore (add_param_group)"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerPolicy:
    """What of a record may be without effect, and what of an optimizer may start anew.

    With `same_params` the record and the optimizer have to be of the same parameters, as far as the record knows them and a step would
    be another one: those without a state that take no gradient may come and go.
    """

    allow_fresh: bool = True
    allow_dropped: bool = False
    allow_orphaned: bool = True
    same_params: bool = False


def report_of(planned: Planned, policy: OptimizerPolicy, *, source: str | None, dry_run: bool) -> OptimizerReport:
    """Say what becomes of each parameter, and whether the policy allows it."""
    settled = {*planned.states, *planned.stateless, *planned.dropped}
    fresh = [one.path for one in planned.live.params if one.path not in settled]
    kept = {place: why for place, why in planned.groups_kept.items() if place not in planned.groups}
    return OptimizerReport(
        source=source,
        target=_across.told(planned.live.kind, planned.live.base),
        restored=_sorted(planned.states),
        stateless=_sorted(planned.stateless),
        fresh=_sorted(fresh),
        dropped={name: planned.dropped[name] for name in _sorted(planned.dropped)},
        orphaned=_sorted(planned.orphaned),
        groups_restored=tuple(sorted(planned.groups)),
        groups_kept=kept,
        renamed=planned.renamed,
        changed=tuple(planned.changed),
        notes=tuple(planned.notes),
        options_back=tuple(planned.options_back),
        refusals=tuple(_refusals(planned, fresh, policy)),
        dry_run=dry_run,
    )


def _refusals(planned: Planned, fresh: list[str], policy: OptimizerPolicy) -> Iterator[str]:
    saved, live = planned.saved, planned.live
    if planned.other is not None and not policy.allow_dropped:
        unsaid = "L-BFGS" if saved.is_global else "another optimizer"
        record = unsaid if saved.kind is None else _across.told(saved.kind, saved.base)
        yield f"the record is of {record}, and the optimizer is {_across.told(live.kind, live.base)}"
    if hollow := _across.hollow(live, planned.states, planned.extra):
        yield f"the state has shapes and no values, and the record nothing for {some_alike(hollow)}"
    if planned.dropped and not policy.allow_dropped:
        yield f"{count(len(planned.dropped), 'state')} that cannot be taken over"
    if fresh and not policy.allow_fresh:
        yield f"{count(len(fresh), 'parameter')} that would start anew"
    if planned.orphaned and not policy.allow_orphaned:
        yield f"{count(len(planned.orphaned), 'parameter')} in the record only"
    strange = _strange(planned, fresh) if policy.same_params else []
    lost = planned.lost if policy.same_params else []
    in_torch = not _across.is_optax(live.base)
    if lost:
        told = f"{count(len(lost), 'parameter')} of the record that the optimizer lacks ({some_alike(_sorted(lost))})"
        yield f"{told}; {_ADD_BEFORE}" if in_torch else told
    if strange:
        lacks = "that the record lacks" if in_torch else "that the record has no state of"
        told = f"{count(len(strange), 'parameter')} of the optimizer {lacks} ({some_alike(_sorted(strange))})"
        yield f"{told}; {_ADD_BEHIND}" if in_torch else told
    if policy.same_params and planned.gaps:
        told = f"{count(len(planned.gaps), 'part')} that only one of the record and the state of optax has"
        yield f"{told} ({some_alike(planned.gaps)}); make it by the transformations of the saved run"
    known = saved.params or saved.states or saved.is_global
    if known and len(fresh) == len(live.params) and not (lost or strange):
        yield "not one parameter of the record is in the optimizer"


def _strange(planned: Planned, fresh: list[str]) -> list[str]:
    """Choose the parameters that the record does not know and a step would move; Burn's records know those only that have a state."""
    saved, live = planned.saved, planned.live
    if saved.kind is None:
        return []
    if _across.is_optax(live.base):
        new = {*fresh, *(planned.stateless if _across.is_optax(saved.base) else ())}  # of a mask, such as was there
        return [one.path for one in live.params if one.state and one.path in new]
    return [path for path in fresh if path not in live.frozen]


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=natural))
