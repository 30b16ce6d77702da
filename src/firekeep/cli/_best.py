"""How commands are told which step is the best."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from firekeep.checkpoint import KeepBest

_Command = TypeVar("_Command", bound=Callable[..., int])

mode_option = click.option(
    "--mode", type=click.Choice(("min", "max")), help="With --best: whether less or more is better. Default: min."
)


def best_option(told: str) -> Callable[[_Command], _Command]:
    """Make the option that names a metric."""
    return click.option("--best", metavar="METRIC", help=told)


def best_rule(best: str | None, mode: str | None) -> KeepBest | None:
    """Read both options; None where no metric is named. A name that says that more is better wants to be told the mode."""
    from firekeep import checkpoint

    if best is None:
        if mode is not None:
            raise click.UsageError("--mode goes with --best.")
        return None
    return checkpoint.KeepBest(best, None if mode is None else "max" if mode == "max" else "min")
