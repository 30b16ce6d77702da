"""`firekeep match`: would the tensors of one file fit a model that has those of another."""

from __future__ import annotations

import click

from firekeep.cli import _output, _reports
from firekeep.cli._errors import NO, YES, narrower
from firekeep.cli._options import LAYOUTS, as_json_option, examples, rename_options, renames


@click.command(
    "match",
    short_help="Say if a file fits a model, by another file of it.",
    epilog=examples(
        "firekeep match model.pt --like burn-model.bpk",
        r"firekeep match theirs.safetensors --like mine.bpk --rename '^model\.=>'",
        "firekeep match run.ckpt --like model.bpk --include '^encoder' --json",
    ),
)
@click.argument("file")
@click.option(
    "--like",
    metavar="FILE2",
    required=True,
    help="A file that the model has written: its names, compared with FILE's after the renames, shapes and layout.",
)
@rename_options
@click.option("--include", multiple=True, metavar="REGEX", help="Fill only places of FILE2 that match. Repeatable.")
@click.option("--exclude", multiple=True, metavar="REGEX", help="Leave places of FILE2 that match. Repeatable.")
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    metavar="LAYOUT",
    help="How FILE's layers lie, if FILE does not say it rightly: torch, burn, flax, linen, equinox, keras.",
)
@click.option("--exact", is_flag=True, help="Take equal names only; look through no wrappers and other spellings.")
@click.option("--allow-unused", is_flag=True, help="FILE may hold more than FILE2, as a checkpoint does.")
@click.option(
    "--top-level-key",
    metavar="PATH",
    help="PyTorch: take what lies under this dotted path. Default: the part that is a model; '' takes all.",
)
@click.option("--like-top-level-key", metavar="PATH", help="The same of FILE2.")
@as_json_option
def command(
    *,
    file: str,
    like: str,
    rename: tuple[str, ...],
    preset: tuple[str, ...],
    mapping: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    layout: str | None,
    exact: bool,
    allow_unused: bool,
    top_level_key: str | None,
    like_top_level_key: str | None,
    as_json: bool,
) -> int:
    """Say how the tensors of FILE would go into a model that has the names and shapes of FILE2. No tensor is read or written.

    Says what firekeep.load_into would: names are found through known wrappers and other spellings, layers are turned from
    one layout to the other. Renames turn names of FILE into those of FILE2. Exit code 0 when every place is filled and
    every tensor used (or allowed not to be), 1 otherwise.
    """
    from firekeep import previews

    chosen = renames(rename=rename, preset=preset, mapping=mapping)
    with narrower(file):
        report = previews.preview(
            file,
            like,
            match="exact" if exact else "auto",
            rename=chosen,
            include=include,
            exclude=exclude,
            layout=layout,
            top_level_key=top_level_key,
            like_top_level_key=like_top_level_key,
            allow_unused=allow_unused or None,
        )
    if as_json:
        _output.write_json(report.to_dict())
    else:
        _output.write_lines(_reports.told_load(report))
    return YES if report.exact or (allow_unused and report.complete) else NO
