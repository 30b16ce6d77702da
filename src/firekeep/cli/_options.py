"""What several commands share: options, and examples under the help."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, get_args

import click

from firekeep.slots import Convention

if TYPE_CHECKING:
    from firekeep.rules import KeyRemapper

_Command = TypeVar("_Command", bound=Callable[..., int])

LAYOUTS: tuple[str, ...] = get_args(Convention)

as_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Write JSON to standard output, and nothing else."
)
files_argument = click.argument("files", metavar="FILE...", nargs=-1, required=True)

_RENAMES = (
    click.option(
        "--rename",
        multiple=True,
        metavar="'REGEX=>TEXT'",
        help="Replace in names; $1 is the first group. Repeatable, applied in order.",
    ),
    click.option(
        "--preset",
        multiple=True,
        metavar="NAME",
        help="Renames of a usual case, before --mapping: 'hf-llama-to-burn', or a prefix to take off: 'module.', "
        "'_orig_mod.', 'model.', 'base_model.model.'. Repeatable.",
    ),
    click.option(
        "--mapping", metavar="FILE", help="Renames and a table of names from a TOML or JSON file, before --rename."
    ),
)


def rename_options(command: _Command) -> _Command:
    """Add the options that give names new ones."""
    for option in reversed(_RENAMES):
        command = option(command)
    return command


def renames(*, rename: tuple[str, ...], preset: tuple[str, ...], mapping: str | None) -> KeyRemapper:
    """Read these options, in the order in which their rules are tried."""
    from firekeep import previews

    return previews.renames_of(rename, presets=preset, mapping=mapping)


def examples(*lines: str) -> str:
    """Give an epilog that shows command lines as they are typed."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))
