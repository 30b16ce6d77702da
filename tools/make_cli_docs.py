"""Write docs/cli.md from the commands themselves.

Usage: make_cli_docs.py [--check]. With --check nothing is written; the exit code is 1 when the page is not current.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from firekeep.cli import COMMANDS, commands

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
INTRODUCTION = """\
# The command line

This page is made from the commands by `make docs`; change the texts there. `python -m firekeep` is the same as `firekeep`.

What a file holds is never trusted by the terminal: control characters, escape sequences and text direction marks in names and metadata are
printed as `\\x1b` and the like. Errors are one line on standard error, `firekeep: PATH: what is wrong. What to do.`, and exit code 2.

| exit code | means |
|---|---|
| 0 | yes: done, whole, safe, equal |
| 1 | the answer is no: damaged, dangerous, different, not opened by firekeep |
| 2 | could not do it: no such file, wrong options, refused; the reason is on standard error |
| 130, 141, 143 | interrupted, output pipe closed, terminated |

`--json` writes one JSON document to standard output and nothing else there; numbers that are not finite are written as text.
"""


def help_of(command: click.Command, path: str) -> str:
    """Give the help of one command as a terminal of 80 columns shows it."""
    context = click.Context(
        command, info_name=path, terminal_width=80, max_content_width=80, help_option_names=["-h", "--help"]
    )
    lines = [line.rstrip() for line in command.get_help(context).splitlines()]
    return "\n".join(lines)


def page() -> str:
    """Give the whole page."""
    parts = [INTRODUCTION, f"## firekeep\n\n```text\n{help_of(commands, 'firekeep')}\n```\n"]
    for name in COMMANDS:
        command = commands.get_command(click.Context(commands), name)
        assert command is not None
        parts.append(f"## firekeep {name}\n\n```text\n{help_of(command, f'firekeep {name}')}\n```\n")
    return "\n".join(parts)


def main() -> int:
    """Write or check the page."""
    text = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.read_text() if PAGE.exists() else ""
        if current != text:
            print("docs/cli.md is not current: run `make docs`", file=sys.stderr)
        return int(current != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
