"""What became of each part of a training state when it was restored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from firekeep.errors import FirekeepError
from firekeep.records import OptimizerReport
from firekeep.report import LoadReport
from firekeep.schedulers import SchedulerReport
from firekeep.showing import Shown
from firekeep.wording import count, lines, quote, some

_SHOWN = 4
_TITLE = re.compile(r"[^:]+: [0-9,]+")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RestoreReport(Shown):
    """What a restored run goes on with.

    `models`, `optimizers` and `schedulers` hold the report of each part by its name: "model", "ema", "optimizer-head", "scaler". `rng`
    names the random generators that go on where they were, `data` the loaders and samplers. `fresh` maps parts that the checkpoint does
    not have, or that could not be taken from it, to the reason: they start as they are. `dropped` are parts of the checkpoint of which no
    use was made. `changed` tells what else decides the bits of a result and is not what it was: threads, versions.

    It is true when it is `exact`. A refused restore has changed nothing, and `refusals` says why.
    """

    source: str | None = None
    step: int = 0
    epoch: int = 0
    models: Mapping[str, LoadReport] = field(default_factory=dict)
    optimizers: Mapping[str, OptimizerReport] = field(default_factory=dict)
    schedulers: Mapping[str, SchedulerReport] = field(default_factory=dict)
    rates_back: tuple[str, ...] = ()
    """Learning rates that were set by hand beside the schedule's, and are again what they were when they were saved."""
    rng: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    gradients: tuple[str, ...] | None = None
    """Parameters that have the gradient again which was not applied yet; None where the state or the checkpoint keeps none."""
    fresh: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What may surprise, though it is exact."""
    refusals: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def model(self) -> LoadReport | None:
        """The report of the model, where there is one of that name."""
        return self.models.get("model")

    @property
    def optimizer(self) -> OptimizerReport | None:
        """The report of the optimizer, where there is one of that name."""
        return self.optimizers.get("optimizer")

    @property
    def scheduler(self) -> SchedulerReport | None:
        """The report of the scheduler, where there is one of that name."""
        return self.schedulers.get("scheduler")

    @property
    def ok(self) -> bool:
        """Whether the state was restored as asked for, or would be."""
        return not self.refusals

    @property
    def exact(self) -> bool:
        """Whether the run goes on bit for bit as the saved one would have, as far as its state and this process can tell."""
        return (
            self.ok
            and not (self.fresh or self.dropped or self.changed)
            and all(_is_exact(one) for one in self.models.values())
            and all(one.exact for one in self.optimizers.values())
            and all(map(_goes_on, self.schedulers.values()))
        )

    def __bool__(self) -> bool:
        return self.exact

    def to_dict(self) -> dict[str, Any]:
        """Give the report as data that `json` writes."""
        return {
            "source": self.source,
            "ok": self.ok,
            "exact": self.exact,
            "dry_run": self.dry_run,
            "refusals": list(self.refusals),
            "step": self.step,
            "epoch": self.epoch,
            "models": {name: one.to_dict() for name, one in self.models.items()},
            "optimizers": {name: one.to_dict() for name, one in self.optimizers.items()},
            "schedulers": {name: one.to_dict() for name, one in self.schedulers.items()},
            "rates_back": list(self.rates_back),
            "rng": list(self.rng),
            "data": list(self.data),
            "values": list(self.values),
            "gradients": None if self.gradients is None else list(self.gradients),
            "fresh": dict(self.fresh),
            "dropped": dict(self.dropped),
            "changed": list(self.changed),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return "\n".join((*lines([self.verdict()], indent=""), *self._body()))

    def verdict(self) -> str:
        """Say in one sentence what came of it."""
        if self.refusals:
            done = "would not be restored" if self.dry_run else "was not restored, and nothing was changed"
            return f"the state {done}: {'; '.join(self.refusals)}"
        done = "would be restored" if self.dry_run else "restored"
        how = "exactly" if self.exact else "not exactly"
        return f"the state of step {self.step:,}, epoch {self.epoch:,}, {done}, {how}"

    def set_back(self) -> tuple[str, ...]:
        """Say which options of optimizers this run had set otherwise, and has again as they were saved."""
        told: list[str] = []
        for name, one in self.optimizers.items():
            told += [f"{name}: {back}" for back in one.options_back[:_SHOWN]]
            if len(one.options_back) > _SHOWN:
                told.append(f"{name}: {len(one.options_back) - _SHOWN:,} more options are as they were saved")
        return (*told, *self.rates_back)

    def reasons(self) -> tuple[str, ...]:
        """Say, a sentence each, why the run does not go on exactly; nothing where it does."""
        told = [f"{name} starts as it is: {why}" for name, why in self.fresh.items()]
        told += [f"{name} is not taken over: {why}" for name, why in self.dropped.items()]
        told += self.changed
        told += [f"{name}: {_told_model(one)}" for name, one in self.models.items() if not _is_exact(one)]
        for name, made in self.optimizers.items():
            if not made.exact:
                told += [f"{name}: {why}" for why in made.changed or (_told_optimizer(made),)]
        told += [f"{name}: {_told_scheduler(one)}" for name, one in self.schedulers.items() if not _goes_on(one)]
        return (*self.refusals, *told)

    def _body(self) -> Iterator[str]:
        yield from lines(f"{name}: {_told_model(one)}" for name, one in self.models.items())
        yield from lines(f"{name}: {_told_optimizer(one)}" for name, one in self.optimizers.items())
        yield from lines(f"{name}: {_told_scheduler(one)}" for name, one in self.schedulers.items())
        yield from lines(self.set_back())
        yield from lines(
            f"{title}: {', '.join(names)}"
            for title, names in (("random", self.rng), ("data", self.data), ("values", self.values))
            if names
        )
        if self.gradients is not None:
            yield from lines([f"gradients: of {count(len(self.gradients), 'parameter')}"])
        yield from lines(f"starts as it is: {name}: {why}" for name, why in self.fresh.items())
        yield from lines(f"not taken over: {name}: {why}" for name, why in self.dropped.items())
        yield from lines(f"changed: {one}" for one in self.changed)
        yield from lines(f"note: {one}" for one in self.notes)
        parts: dict[str, LoadReport | OptimizerReport] = {**self.models, **self.optimizers}
        for name, report in parts.items():
            if not report.exact:
                yield from lines([f"{name} in full:"])
                yield from _in_full(str(report))


class RestoreError(FirekeepError, RuntimeError):
    """A training state was not restored, and nothing was changed; `report` says of each part why."""

    def __init__(self, report: RestoreReport) -> None:
        super().__init__(report.verdict(), path=report.source)
        self.report = report

    def __str__(self) -> str:
        return str(self.report)

    def __reduce__(self) -> tuple[type[RestoreError], tuple[RestoreReport]]:
        return type(self), (self.report,)


def _in_full(text: str) -> Iterator[str]:
    """Tell a report further in, with its lists and what is to be typed on lines of their own, as they were."""
    whole, inset, in_list = "", 0, False
    for line in text.split("\n"):
        said = line.strip()
        depth = len(line) - len(line.lstrip())
        if whole and ((depth == 4 and not in_list) or (depth > 4 and in_list)):
            whole += f" {said}"
            continue
        if whole:
            yield from lines([whole], indent=" " * (4 + inset))
        in_list = in_list if depth >= 4 else _TITLE.fullmatch(said) is not None
        whole, inset = said, depth
    if whole:
        yield from lines([whole], indent=" " * (4 + inset))


def _is_exact(report: LoadReport) -> bool:
    """Say whether a model has every tensor as it was; one that is found at another place of its list may be another one."""
    moved = any("index" in one.via for one in report.renamed)
    return report.exact and not (report.casts or report.skipped or moved)


def _told_model(report: LoadReport) -> str:
    told = f"{len(report.applied):,} of {count(report.wanted, 'tensor')}"
    cast = [f"{len(report.casts):,} of them cast"] if report.casts else []
    return "; ".join((", ".join((told, *cast)), *report.steps))


def _told_optimizer(report: OptimizerReport) -> str:
    more = {
        "fresh": len(report.fresh),
        "dropped": len(report.dropped),
        "in the record only": len(report.orphaned),
        "without a state then as now": len(report.stateless),
    }
    counted = [f"{number:,} {what}" for what, number in more.items() if number]
    groups = len(report.groups_restored)
    if report.groups_kept:
        counted.append(f"options of {groups:,} of {count(groups + len(report.groups_kept), 'group')}")
    return ", ".join((f"{count(len(report.restored), 'state')} of {report.target}", *counted))


def _told_scheduler(report: SchedulerReport) -> str:
    told = f"{count(len(report.restored), 'value')} of {report.scheduler}"
    more = [f"{quote(key)} refused: {why}" for key, why in report.refused]
    more += [f"not in the record: {some(report.missing)}"] if report.missing else []
    more += [f"of no use to it: {some(report.unknown)}"] if report.unknown else []
    return "; ".join((told, *more, *report.changed))


def _goes_on(report: SchedulerReport) -> bool:
    """Say whether a schedule goes on as the saved one would have."""
    return report.ok and not (report.changed or report.unknown)
