"""What came of a load: its report, why it was refused, and what would have to be allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from firekeep.applying._load import Load
from firekeep.applying._prepare import prepare
from firekeep.errors import FirekeepError, TruncatedError
from firekeep.folding import natural
from firekeep.matching import Policy, Remedy
from firekeep.report import LoadError, LoadReport, NothingMatchedError, Problem, make_report
from firekeep.rules import Losses
from firekeep.wording import count


def leniency(load: Load) -> Remedy | None:
    """Give what would have to be allowed for the load to do what it can, if with that it does."""
    made, policy, job = load.tried.plan, load.job.policy, load.job
    if made.nothing:  # which no policy allows
        return None
    strict = {"missing": policy.missing, "unused": policy.unused, "shape": policy.shape}
    left = {"missing": len(made.missing), "unused": len(made.unused), "shape": made.misfits}
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
        tried = report_on(prepare(load.outline, load.supply, lenient, target=load.target), applied=None)
    except FirekeepError:
        return None
    if not tried.ok:
        return None
    words = {"missing": "missing", "shape": "of another shape"}
    stay = " and ".join(f"{left[kind]:,} {word}" for kind, word in words.items() if kind in needed)
    rest = f"{len(tried.applied):,} of {count(tried.wanted, 'tensor')}"
    told = [f"{stay} stay as they are in the model"] if stay else []
    told += [f"{left['unused']:,} unused stay out of it"] if "unused" in needed else []
    return Remedy(
        reason=f"if that is meant, {', '.join(told)} and the rest ({rest}) is loaded with",
        python=", ".join(job.switches[kind] for kind in needed),
    )


def failure(load: Load, done: list[str], error: FirekeepError, *, touched: bool = True) -> LoadError:
    """Give the error of a load that broke off while bytes were read; without `touched` the object is as it was."""
    load.problems.append(Problem(kind="read", name=_broken_off(load, done, error), message=error.message))
    if touched and not load.job.stage:
        load.notes.append(
            "others may hold some of the new numbers; with stage=True all is read before anything is changed"
        )
    return LoadError(report_on(load, applied=load.shared.names(done), failed=True))


def _broken_off(load: Load, done: list[str], error: FirekeepError) -> str:
    """Name the tensor that could not be read; where many are read at once, the first that ends behind the end of the file."""
    if error.tensor is None and isinstance(error, TruncatedError) and error.actual is not None:
        for filling in load.fillings:
            window = filling.entry.blob.window()
            if window is None or window[0].path != error.path or filling.slot.path in done:
                continue
            if window[1] + filling.entry.blob.nbytes > error.actual:
                return filling.slot.path
    return error.tensor or ""


def report_on(load: Load, *, applied: Sequence[str] | None, failed: bool = False) -> LoadReport:
    """Report what became of every tensor; where `applied` is None, what would become of it."""
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


def outcome(load: Load, planned: LoadReport, done: Sequence[str]) -> LoadReport:
    """Report on a load that is done: all that was planned came of it but what casts lost, which shows while they are made."""
    applied = load.shared.names(done)
    if set(applied) == set(planned.applied):
        return replace(planned, losses=_lost(load.losses), dry_run=load.job.dry_run)
    return report_on(load, applied=applied)


def _blocked(load: Load) -> Iterator[str]:
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


def _ids_restored(load: Load, applied: Sequence[str] | None) -> int:
    """Count the parameters that took over an id, or would; trees of arrays and models of JAX keep none."""
    if load.outline.convention not in ("torch", "burn"):
        return 0
    names = None if applied is None else frozenset(applied)
    reached = [one for one in load.fillings if names is None or one.slot.path in names]
    keeping = [one for one in reached if load.outline.convention != "burn" or not one.slot.role.startswith("running_")]
    return sum(one.entry.param_id is not None for one in keeping)


def _lost(losses: Losses) -> Mapping[str, int]:
    return dict(losses.overflowed)


def refusal(load: Load, report: LoadReport) -> LoadError:
    """Give the error of a load that is refused."""
    return NothingMatchedError(report) if not load.tried.plan.matched else LoadError(report)
