"""One object for all that a training run is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, MutableMapping
from typing import Any

from firekeep.bridges import jax as jax_bridge
from firekeep.bridges import torch as torch_bridge
from firekeep.errors import RuleError
from firekeep.formats import Contents
from firekeep.layouts import check_layout
from firekeep.opened import OpenedFile
from firekeep.rules import KeyRemapper
from firekeep.sections import GRADIENTS, Section
from firekeep.training._facts import Fact, environment
from firekeep.training._gradients import GradientsPart, gradient_parts, section_of
from firekeep.training._kinds import check_kind, check_schedule
from firekeep.training._parts import (
    ModelPart,
    OptimizerPart,
    Part,
    Restoring,
    scheduler_part,
    values_part,
)
from firekeep.training._report import RestoreError, RestoreReport
from firekeep.training._rest import Rest
from firekeep.training._rng import check_generators
from firekeep.training._unkept import Unkept, not_in
from firekeep.wording import some

_MOVING = ("optimizer", "scheduler", "scaler", "ema")
_IN_JAX = {
    "scheduler": "in JAX a schedule is part of tx, and goes on by the count in the optimizer's state; "
    "make the state with strict=False to go on without it, and look at report.model, which is then filled as far as it fits",
    "scaler": "JAX has no GradScaler; make the state with strict=False to go on without it, "
    "and look at report.model, which is then filled as far as it fits",
}
"""What to do about a part that a state of JAX has in another place, or nowhere."""
STATE = "state"
"""The section of all that has no file of its own."""


class TrainingState:
    """All that a run needs to go on as if it had never stopped, for a `CheckpointManager` to save and restore.

    `model` is a model, or a dict of several. `optimizer` and `scheduler` are one or a dict of them; an optimizer's parameters are told by
    identity in the model or models. `scaler` is a GradScaler. `ema` is an average of the model: a model too, an object with a
    `state_dict`, or a dict of them. `data` is whatever knows its place in the data by a `state_dict`, or a dict of such: a
    `ResumableLoader`, a sampler, a loader of one's own. `step`, `epoch`, `metrics` and `values` are yours to change: values may be any
    plain ones, nested, arrays and tensors included. With `rng=True` the generators of Python, NumPy and PyTorch are kept, and
    `generators` names further ones.

    `rename` turns names of the checkpoint into the model's, for models and optimizers alike. With `strict=True` a restore is refused, and
    nothing changed, where a part is not in the checkpoint or does not fit, where the checkpoint has an optimizer, a scheduler, a scaler
    or an average and the state none, or where an optimizer has other parameters than it had, but for such without a state that take no
    gradient; `strict=False` takes what there is and reports the rest.
    `layout="burn"` keeps models and optimizers as Burn does.

    Of JAX, `model` is a module of `flax.nnx` or Equinox, a `TrainState`, or any tree of arrays; `optimizer` a `flax.nnx.Optimizer`, or a
    state of optax for the parameters in `model`, with its transformation as `tx` (a dict of them where there are several). What never
    changes is made anew by a restore, and is then at `state.model` and `state.optimizer`. Keys of `jax.random` belong among the values.
    Variables of Linen do not tell their layers: where a run moves to them from another framework, `like` does, a model with the same
    layers in any framework.
    `data` with `get_state()` and `set_state()`, as Grain's iterators have, will do too.

    With `gradients=True` the gradients of PyTorch's parameters are kept, too, in a file as large as that of the weights: for a run that is
    saved in the middle of a step, while it accumulates them. Without it, save between steps. A restore leaves parameters those that the
    checkpoint has for them, and no others.

    Which parameters of PyTorch's take no gradient is kept too, and told where it is not as it was. With `frozen=True` a restore has them
    take one or none as in the saved run: for runs that freeze layers, or thaw them, by the step.

    Example:
        >>> state = TrainingState(model=model, optimizer=optimizer, scheduler=scheduler, data=loader)  # doctest: +SKIP
        >>> manager.save(state, step=state.step)  # doctest: +SKIP
        >>> print(manager.restore(state))  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        model: Any,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        ema: Any = None,
        data: Any = None,
        step: int = 0,
        epoch: int = 0,
        metrics: MutableMapping[str, Any] | None = None,
        values: MutableMapping[str, Any] | None = None,
        rng: bool = True,
        generators: Mapping[str, Any] | None = None,
        rename: Any = (),
        strict: bool = True,
        layout: str | None = None,
        tx: Any = None,
        like: Any = None,
        gradients: bool = False,
        frozen: bool = False,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.scaler = scaler
        self.ema = ema
        self.data = data
        self.step = step
        self.epoch = epoch
        self.metrics: MutableMapping[str, Any] = {} if metrics is None else metrics
        self.values: MutableMapping[str, Any] = {} if values is None else values
        self.rng = rng
        self.generators = dict(generators or {})
        self.rename = KeyRemapper.of(rename)
        self.strict = strict
        self.tx = tx
        self.like = like
        self.gradients = gradients
        self.frozen = frozen
        self.layout = None if layout is None else check_layout(layout)
        self._unkept = Unkept()
        check_generators(self.generators)
        self._check_kinds()
        self._rest()
        names = [Section(part.name, Contents(entries=())).name for part in self._parts()]
        if twice := [name for name in names if names.count(name) > 1 or name == STATE]:
            raise RuleError(f"two parts of the state would have one name: {some(twice)}")
        self._find_unkept()

    def sections(self) -> list[Section]:
        """Give the parts, each a file of its own; nothing is copied but the states of random generators.

        Warns once, with a `LeftOutWarning`, of what the state's objects hold that no file does.
        """
        parts = list(self._parts())
        made = [part.section() for part in parts]
        others = {
            f"{part.name}.{name}": what
            for part in parts
            if isinstance(part, ModelPart)
            for name, what in part.others.items()
        }
        moving = not_in(self.values, self._find_unkept())
        made.append(self._rest().section(step=self.step, epoch=self.epoch, unkept=moving))
        self._unkept.tell({**not_in(self.values, others), **moving})
        return made

    def facts(self) -> dict[str, Fact]:
        """Give what is worth knowing of the run before any file is opened: where it is, and what else decides its bits."""
        return {"step": self.step, "epoch": self.epoch, **environment()}

    def restore(
        self,
        opened: Mapping[str, OpenedFile],
        *,
        rename: Any = None,
        strict: bool | None = None,
        dry_run: bool = False,
    ) -> RestoreReport:
        """Take the state back from open files, by the names of their sections, and report what became of it.

        All parts are planned for before any is changed: one that is refused raises `RestoreError` with the whole report, and all is as it
        was. `rename` and `strict` say for once what else the state itself says. `dry_run=True` only reports, refused or not.
        """
        restoring = Restoring(
            rename=self.rename if rename is None else KeyRemapper.of(rename),
            strict=self.strict if strict is None else strict,
        )
        parts = list(self._parts())
        for part in parts:
            if part.name in opened:
                part.plan(opened[part.name], restoring)
            elif isinstance(part, GradientsPart):
                restoring.fresh[part.name] = "the checkpoint was saved without them, so there are none"
            else:
                why = f"the checkpoint has no such section: it has {some(list(opened))}"
                restoring.refuse(part.name, why, remedy="make the state with strict=False to let it start as it is")
        dropped = _left_over(opened, {part.name for part in parts}, restoring, in_jax=jax_bridge.owns(self.model))
        rest = self._rest().plan(opened.get(STATE), restoring)
        source = next((one.path for one in opened.values() if one.path is not None), None)

        def report(*, done: bool = False) -> RestoreReport:
            return RestoreReport(
                source=source,
                step=self.step if rest.step is None else rest.step,
                epoch=self.epoch if rest.epoch is None else rest.epoch,
                models=dict(restoring.models),
                optimizers=dict(restoring.optimizers),
                schedulers=dict(restoring.schedulers),
                rates_back=tuple(restoring.rates_back),
                rng=rest.rng,
                data=rest.data,
                values=(*restoring.values, *rest.values),
                gradients=restoring.gradients,
                fresh=dict(restoring.fresh),
                dropped={**dropped, **rest.dropped},
                changed=rest.changed,
                notes=rest.notes,
                refusals=tuple(restoring.refusals),
                dry_run=not done,
            )

        if dry_run:
            return report()
        if restoring.refusals:
            raise RestoreError(report(done=True))
        for number, step in enumerate(restoring.steps):
            try:
                step()
            except Exception as error:
                if number:
                    error.add_note(
                        f"The state is restored in part: {number} of {len(restoring.steps)} steps were done before."
                    )
                raise
        self._drop_gradients(opened)
        if rest.step is not None and rest.epoch is not None:
            self.step, self.epoch = rest.step, rest.epoch
        return report(done=True)

    def _check_kinds(self) -> None:
        for kind in ("model", "optimizer", "ema"):
            given = getattr(self, kind)
            check_kind(kind, given)
            for name, one in given.items() if isinstance(given, Mapping) else ():
                check_kind(f"{kind}-{name}", one)
        for name, one in _named(self.scheduler, "scheduler").items():
            check_schedule(name, one)

    def _find_unkept(self) -> dict[str, str]:
        return self._unkept.find(self._optimizers(), _named(self.scheduler, "scheduler"))

    def _rest(self) -> Rest:
        return Rest(
            metrics=self.metrics,
            values=self.values,
            data=_named(self.data, "data"),
            rng=self.rng,
            generators=self.generators,
            models={name: one for name, one in self._models().items() if torch_bridge.owns(one)},
            averages={name: one for name, one in _named(self.ema, "ema").items() if torch_bridge.owns(one)},
            frozen=self.frozen,
        )

    def _drop_gradients(self, opened: Container[str]) -> None:
        """Take away what was gathered by the run that ends here, as far as nothing came in its place."""
        for name, one in self._models().items():
            if torch_bridge.owns(one) and not (self.gradients and section_of(name) in opened):
                torch_bridge.set_gradients(one, {})

    def _models(self) -> dict[str, Any]:
        if _several(self.model):
            return {f"model-{name}": one for name, one in self.model.items()}
        return {"model": self.model}

    def _parts(self) -> Iterator[Part]:
        for name, one in self._models().items():
            prefix = f"{name.removeprefix('model-')}." if name != "model" else ""
            put = self._setter("model", name) if jax_bridge.owns(one) else None
            yield ModelPart(name=name, model=one, prefix=prefix, layout=self.layout, put=put, like=self.like)
        for name, one in self._optimizers().items():
            yield OptimizerPart(
                name=name,
                optimizer=one,
                model=self.model,
                layout=self.layout,
                tx=self.tx.get(name.removeprefix("optimizer-")) if isinstance(self.tx, Mapping) else self.tx,
                put=self._setter("optimizer", name),
                like=self.like,
            )
        schedules = _named(self.scheduler, "scheduler")
        driven = [id(getattr(one, "optimizer", None)) for one in schedules.values()]
        for name, one in schedules.items():
            yield scheduler_part(name, one, is_alone=driven.count(id(getattr(one, "optimizer", None))) == 1)
        if self.scaler is not None:
            yield scheduler_part("scaler", self.scaler)
        for name, one in _named(self.ema, "ema").items():
            if torch_bridge.owns(one):
                yield ModelPart(name=name, model=one, layout=self.layout, is_average=True)
            elif jax_bridge.owns(one):
                put = self._setter("ema", name)
                yield ModelPart(name=name, model=one, layout=self.layout, is_average=True, put=put, like=self.like)
            else:
                yield values_part(name, one)

        if self.gradients:
            yield from gradient_parts(self._models())

    def _optimizers(self) -> dict[str, Any]:
        if isinstance(self.optimizer, Mapping) and not all(map(_is_optimizer, self.optimizer.values())):
            return {"optimizer": self.optimizer}  # a state of one's own making
        return _named(self.optimizer, "optimizer")

    def _setter(self, kind: str, name: str) -> Callable[[Any], None]:
        """Give what puts an object that was made anew into the place of the one before."""

        def put(made: Any) -> None:
            if name == kind:
                setattr(self, kind, made)
            else:
                held = getattr(self, kind)
                setattr(self, kind, {**held, name.removeprefix(f"{kind}-"): made})

        return put

    def __repr__(self) -> str:
        parts = ", ".join(part.name for part in self._parts())
        return f"<TrainingState: step {self.step:,}, epoch {self.epoch:,}: {parts}>"


def _left_over(
    opened: Mapping[str, OpenedFile], names: Collection[str], restoring: Restoring, *, in_jax: bool
) -> dict[str, str]:
    """Name sections that the state has no part for; of those that the next save would lose for good, the restore is refused."""
    dropped = {}
    for name, one in opened.items():
        if name in names or name == STATE:
            continue
        dropped[name] = "the state has no such part"
        if GRADIENTS in one.metadata:
            dropped[name] = "JAX keeps no gradients" if in_jax else "the state was made without gradients=True"
        kind = name.partition("-")[0]
        if restoring.strict and kind in _MOVING:
            remedy = f"make the state with {kind}=..., or with strict=False to go on without it"
            if in_jax and kind in ("scheduler", "scaler"):
                remedy = _IN_JAX[kind]
            restoring.refusals.append(f"{name}: the checkpoint has it, and the state has no such part; {remedy}")
    return dropped


def _several(model: Any) -> bool:
    return isinstance(model, Mapping) and bool(model) and all(torch_bridge.owns(one) for one in model.values())


def _named(given: Any, kind: str) -> dict[str, Any]:
    """Give one object under the name of its kind, or several under names that begin with it."""
    if given is None:
        return {}
    return {f"{kind}-{name}": one for name, one in given.items()} if isinstance(given, Mapping) else {kind: given}


def _is_optimizer(one: Any) -> bool:
    return jax_bridge.owns_optimizer(one) or torch_bridge.owns_optimizer(one)
