"""Which optimizers Burn has too, and what each side calls the parts of their states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Moment:
    """A tensor that goes with a parameter: Burn's field, PyTorch's key. `derived` ones are made of others, and have no key."""

    field: str
    key: str
    derived: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An optimizer that both sides have.

    `kinds` are PyTorch's classes, and what bridges call the rules of optax. `time` is Burn's field for the number of steps and PyTorch's
    key. `moments` come in the order in which Burn declares them. `elementwise` ones treat every number by itself, so that their states can
    be split and turned with the parameter.
    """

    name: str
    kinds: tuple[str, ...]
    moments: tuple[Moment, ...]
    time: tuple[str, str] | None = None
    elementwise: bool = True

    def fields(self) -> list[str]:
        """List the names of Burn's fields."""
        return [*([self.time[0]] if self.time else []), *(one.field for one in self.moments)]


_ADAM = (
    Moment("momentum.moment_1", "exp_avg"),
    Moment("momentum.moment_2", "exp_avg_sq"),
    Moment("momentum.max_moment_2", "max_exp_avg_sq"),
)

FAMILIES: tuple[Family, ...] = (
    Family(name="sgd", kinds=("SGD", "optax.SGD"), moments=(Moment("momentum.velocity", "momentum_buffer"),)),
    Family(name="adam", kinds=("Adam", "AdamW", "optax.Adam"), moments=_ADAM, time=("momentum.time", "step")),
    Family(
        name="adagrad",
        kinds=("Adagrad", "optax.Adagrad"),
        moments=(Moment("lr_decay.sum", "sum"),),
        time=("lr_decay.time", "step"),
    ),
    Family(
        name="rmsprop",
        kinds=("RMSprop", "optax.RMSprop"),
        moments=(
            Moment("square_avg.square_avg", "square_avg"),
            Moment("centered.grad_avg", "grad_avg"),
            Moment("centered.avg", "", derived=True),
            Moment("momentum.buf", "momentum_buffer"),
        ),
    ),
    Family(
        name="muon",
        kinds=("Muon", "optax.Muon"),
        moments=(Moment("momentum.velocity", "momentum_buffer"),),
        elementwise=False,
    ),
    Family(
        name="adafactor",
        kinds=("Adafactor",),
        moments=(Moment("second_moment", "row_var"), Moment("column_second_moment", "col_var")),
        time=("time", "step"),
        elementwise=False,
    ),
    Family(
        name="adan",
        kinds=(),
        moments=(
            Moment("momentum.exp_avg", "exp_avg"),
            Moment("momentum.exp_avg_sq", "exp_avg_sq"),
            Moment("momentum.exp_avg_diff", "exp_avg_diff"),
            Moment("momentum.neg_pre_grad", "neg_pre_grad"),
        ),
        time=("momentum.time", "step"),
    ),
    Family(name="lion", kinds=("optax.Lion",), moments=(Moment("momentum", "exp_avg"),)),
    Family(
        name="lamb",
        kinds=("optax.Lamb",),
        moments=(Moment("moment_1", "exp_avg"), Moment("moment_2", "exp_avg_sq")),
        time=("time", "step"),
    ),
    Family(name="lbfgs", kinds=("LBFGS",), moments=(), elementwise=False),
)
_BY_KIND = {kind: family for family in FAMILIES for kind in family.kinds}
_BY_NAME = {family.name: family for family in FAMILIES}


def family_of(kind: str, base: str, keys: Collection[str]) -> Family | None:
    """Give the family of an optimizer by its class, or by what it keeps where its class is nobody's; None where Burn has no such.

    Of classes that PyTorch does not have, those are taken for Adan, Lion, LAMB or Adam that keep what these keep and are called so.
    """
    if base:
        return _BY_KIND.get(base)
    there, name = frozenset(keys), kind.lower()
    if {"exp_avg", "exp_avg_sq", "exp_avg_diff"} <= there:
        return _BY_NAME["adan"]
    if there - {"step"} == {"exp_avg"} and "lion" in name:
        return _BY_NAME["lion"]
    if {"exp_avg", "exp_avg_sq"} <= there:
        return _BY_NAME["lamb"] if "lamb" in name else _BY_NAME["adam"] if "adam" in name else None
    if not there:  # it has made no step yet
        return next((_BY_NAME[known] for known in ("adan", "lion", "lamb") if known in name), None)
    return None


def family_named(name: str | None) -> Family | None:
    """Give a family by its own name."""
    return None if name is None else _BY_NAME.get(name)


def family_of_fields(fields: Collection[str]) -> list[Family]:
    """List the families whose states have such fields: of a file that does not say what it is of."""
    there = frozenset(fields)
    return [family for family in FAMILIES if there and there <= frozenset(family.fields())]


_STEP_AND: Mapping[str, tuple[str, ...]] = {
    "Adadelta": ("step", "square_avg", "acc_delta"),
    "Adagrad": ("step", "sum"),
    "Adam": ("step", "exp_avg", "exp_avg_sq"),
    "AdamW": ("step", "exp_avg", "exp_avg_sq"),
    "Adamax": ("step", "exp_avg", "exp_inf"),
    "ASGD": ("step", "eta", "mu", "ax"),
    "Muon": ("momentum_buffer",),
    "NAdam": ("step", "mu_product", "exp_avg", "exp_avg_sq"),
    "RAdam": ("step", "exp_avg", "exp_avg_sq"),
    "RMSprop": ("step", "square_avg"),
    "Rprop": ("step", "prev", "step_size"),
    "SparseAdam": ("step", "exp_avg", "exp_avg_sq"),
}
_WHERE: Mapping[str, tuple[tuple[str, str], ...]] = {
    "Adam": (("amsgrad", "max_exp_avg_sq"),),
    "AdamW": (("amsgrad", "max_exp_avg_sq"),),
    "RMSprop": (("centered", "grad_avg"), ("momentum", "momentum_buffer")),
}
NUMBERS = frozenset(("step", "eta", "mu", "mu_product"))
"""Keys of numbers, where the others are tensors of the parameter's shape."""


def needs(base: str, shape: tuple[int, ...]) -> Callable[[Options], dict[str, tuple[int, ...] | None]] | None:
    """Say what a step of a class of PyTorch's looks for in a parameter's state, by options: keys, and the shapes of tensors.

    None where it is not known: of classes that are not PyTorch's, and of LBFGS.
    """
    if base == "SGD":
        return lambda _: {}
    if base == "Adafactor":
        return lambda _: _adafactor(shape)
    if base not in _STEP_AND:
        return None

    def listed(options: Options) -> dict[str, tuple[int, ...] | None]:
        keys = (*_STEP_AND[base], *(key for option, key in _WHERE.get(base, ()) if options.get(option)))
        return {key: None if key in NUMBERS else shape for key in keys}

    return listed


def _adafactor(shape: tuple[int, ...]) -> dict[str, tuple[int, ...] | None]:
    if len(shape) < 2:
        return {"step": None, "variance": shape}
    return {"step": None, "row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}
