"""What several commands share: options, and examples under the help."""

from __future__ import annotations

import click

as_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Write JSON to standard output, and nothing else."
)
files_argument = click.argument("files", metavar="FILE...", nargs=-1, required=True)


def examples(*lines: str) -> str:
    """Give an epilog that shows command lines as they are typed."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))
