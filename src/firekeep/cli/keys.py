"""`firekeep keys`: what the tensors of a file are called, and would be called after renames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firekeep.cli import _layers, _output
from firekeep.cli._errors import YES, narrower
from firekeep.cli._options import as_json_option, examples, rename_options, renames
from firekeep.wording import WIDTH, count, headline, quote

if TYPE_CHECKING:
    from firekeep.rules import Renaming

_ARROW = "  ->  "
_LAYERS = 8
"""Layers whose names in the model are told."""


@click.command(
    "keys",
    short_help="List names, before and after renames.",
    epilog=examples(
        "firekeep keys model.safetensors",
        r"firekeep keys model.pt --rename '^layers\.(\d+)=>blocks.$1'",
        "firekeep keys run.ckpt --preset module. --mapping names.toml --json",
    ),
)
@click.argument("file")
@rename_options
@click.option(
    "--top-level-key",
    metavar="PATH",
    help="PyTorch: take what lies under this dotted path. Default: the part that is a model; '' takes all.",
)
@as_json_option
def command(
    *,
    file: str,
    rename: tuple[str, ...],
    preset: tuple[str, ...],
    mapping: str | None,
    top_level_key: str | None,
    as_json: bool,
) -> int:
    """List the names of the tensors of FILE, and what renames make of them: try them here, then use them with convert or match.

    Every rule is told with the number of names it was found in. Two names that would become one are refused with exit
    code 2. Names are those that convert and match see: of a PyTorch checkpoint, those of the one part that is a model.
    """
    from firekeep import previews

    remapper = renames(rename=rename, preset=preset, mapping=mapping)
    names = previews.renamed_keys(file, top_level_key=top_level_key)
    with narrower(file):
        renaming = remapper.rename(sorted(names, key=_output.natural))
    file, part, layers = _asked(file)
    part = top_level_key or (None if top_level_key == "" else part)
    if as_json:
        _output.write_json(_document(file, part, layers, renaming))
    else:
        _output.write_lines(_told(file, part, layers, renaming))
    return YES


def _asked(file: str) -> tuple[str, str | None, dict[str, str]]:
    """Name the file of a folder and the part of a checkpoint that were taken, and what layers are called in the model.

    A pipe was read already, and is not asked.
    """
    from firekeep import api

    if not Path(file).is_file() and not Path(file).is_dir():
        return file, None, {}
    with api.open(file) as opened:
        place = opened.path if Path(file).is_dir() else None
        return place or file, next(iter(opened.subtrees), None), _layers.named(opened)


def _told(file: str, part: str | None, layers: Mapping[str, str], renaming: Renaming) -> Iterator[str]:
    facts = count(len(renaming.names), "name")
    if renaming.hits or renaming.unmet or renaming.changed:
        facts += f", {renaming.changed:,} changed"
    yield from _output.escape_lines(headline(f"{file}:", facts))
    if part is not None:
        yield from _output.folded(f"what lies under {quote(part)}, without that prefix", indent="  ")
    if layers:
        few = [f"{quote(path)} is {quote(name)}" for path, name in list(layers.items())[:_LAYERS]]
        more = f" and {len(layers) - _LAYERS:,} more (see inspect --all)" if len(layers) > _LAYERS else ""
        yield from _output.folded(f"in the model {', '.join(few)}{more}", indent="  ")
    yield from _rules(renaming)
    if renaming.names:
        yield ""
    shown = [(_output.escape(old) or '""', _output.escape(new) or '""') for old, new in renaming.names.items()]
    column = _column([(_output.width(old), _output.width(new)) for old, new in shown if old != new])
    for old, new in shown:
        yield _line(old, new, column)


def _rules(renaming: Renaming) -> Iterator[str]:
    for rule, hits in renaming.hits:
        told = f"found in {count(hits, 'name')}" if hits else "NOT FOUND in any name"
        yield from _output.folded(f"{quote(rule, 200)}: {told}", indent="  ")
    if renaming.unmet:
        yield f"  names of the table that the file has not: {len(renaming.unmet):,}"
        yield from (f"    {_output.shown(name)}" for name in renaming.unmet)
    if renaming.holed:
        yield f"  names left with nothing before, between or behind dots: {len(renaming.holed):,}"
        yield from (f"    {_output.shown(renaming.names[old])}" for old in renaming.holed)


def _column(widths: Sequence[tuple[int, int]]) -> int:
    """Give the width of the first column with which most pairs of names stand on one line, of several the least."""
    room = WIDTH - 2 - len(_ARROW)
    changes: Counter[int] = Counter()
    for old, new in widths:
        if old + new <= room:  # from a column of `old` on, up to one that leaves too little for `new`
            changes[old] += 1
            changes[room - new + 1] -= 1
    best, most, pairs = 0, 0, 0
    for column in sorted(changes):
        pairs += changes[column]
        if pairs > most:
            best, most = column, pairs
    return best


def _line(old: str, new: str, column: int) -> str:
    """Give one name, or two with an arrow, which stand below one another where there is no room for both beside the others."""
    if old == new:
        return f"  {old}"
    if _output.width(old) <= column and 2 + column + len(_ARROW) + _output.width(new) <= WIDTH:
        return f"  {_output.pad(old, column)}{_ARROW}{new}"
    return f"  {old}\n  {_ARROW}{new}"


def _document(file: str, part: str | None, layers: Mapping[str, str], renaming: Renaming) -> dict[str, Any]:
    return {
        "path": file,
        "part": part,
        "layers": dict(layers),
        "names": renaming.names,
        "changed": renaming.changed,
        "rules": [{"rule": rule, "hits": hits} for rule, hits in renaming.hits],
        "unmet": renaming.unmet,
        "holed": renaming.holed,
    }
