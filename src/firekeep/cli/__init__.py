"""The command line: one file a command, a skin over the library.

Exit codes are the same everywhere: 0 yes, 1 the answer is no, 2 could not do it.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from firekeep._version import __version__
from firekeep.cli import _errors, _output

COMMANDS = (
    *("inspect", "verify", "scan", "doctor", "convert", "diff", "keys", "match"),
    *("checkpoints", "resume-check"),
)


class _Commands(click.Group):
    """The group of commands, each imported when it is called: an `inspect` pays for nothing else."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click gives it
        """List the commands in the order a newcomer would try them."""
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called, or say which one was meant."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"perhaps {near[0]!r} was meant" if near else f"there are {', '.join(COMMANDS)}"
            ctx.fail(f"No such command {args[0]!r}: {hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = import_module(f"firekeep.cli.{cmd_name.replace('-', '_')}").command
        return found


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="firekeep", message="%(prog)s %(version)s")
def commands() -> None:
    """Look into, check, compare, convert and match model weight files, and the checkpoints of training runs.

    Reads .bpk (Burn), .safetensors, PyTorch files, .npy and .npz (NumPy), .msgpack (Flax), .h5 and .keras (HDF5, Keras) and .gguf;
    writes .bpk and .safetensors. The kind is told from the content. Nothing in a file is ever executed.

    Exit codes: 0 yes, 1 the answer is no (damaged, dangerous, different, no match), 2 could not do it; the reason is then on
    standard error.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code; errors become one line on standard error."""
    _output.prepare()
    try:
        return _invoke(arguments)
    except BaseException as error:  # noqa: BLE001 - sorted there: what is not ours is raised again
        return _errors.report(error)


def _invoke(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    try:
        with commands.make_context("firekeep", list(arguments)) as context:
            code = commands.invoke(context)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    _output.flush()
    return code if isinstance(code, int) else _errors.YES


def main() -> NoReturn:
    """Run the command line of this process."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # leave through `finally`, so that no scratch file is left
            signal.signal(getattr(signal, name), _leave)
    sys.exit(run(sys.argv[1:]))


def _leave(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)
