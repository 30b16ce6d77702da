"""`firekeep diff`: how two files differ."""

from __future__ import annotations

import click

from firekeep.cli import _output, _reports
from firekeep.cli._errors import NO, YES
from firekeep.cli._options import as_json_option, examples
from firekeep.cli._progress import progress_bar


@click.command(
    "diff",
    short_help="Compare two files, tensor by tensor.",
    epilog=examples(
        "firekeep diff model.pt model.safetensors",
        "firekeep diff epoch-1.bpk epoch-2.bpk --include '^decoder'",
        "firekeep diff a.pt b.pt --no-values --json",
    ),
)
@click.argument("a")
@click.argument("b")
@click.option("--include", multiple=True, metavar="REGEX", help="Compare only tensors whose name matches. Repeatable.")
@click.option("--exclude", multiple=True, metavar="REGEX", help="Leave out tensors whose name matches. Repeatable.")
@click.option("--values/--no-values", default=True, help="Compare numbers, too, or names, dtypes and shapes alone.")
@as_json_option
def command(
    *,
    a: str,
    b: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    values: bool,
    as_json: bool,
) -> int:
    """Compare the tensors of files A and B, whatever their formats.

    Exit code 0 when all names, dtypes, shapes and numbers are equal, 1 when they differ. NaN equals NaN in the same
    place. Differing metadata is listed and does not count. --json has every difference.
    """
    from firekeep import api

    with progress_bar(f"diff {b}") as progress:
        found = api.diff(a, b, include=include, exclude=exclude, values=values, progress=progress)
    if as_json:
        _output.write_json(found.to_dict())
    else:
        _output.write_lines(_reports.told(found))
    return YES if found.equal else NO
