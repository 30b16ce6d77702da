"""`firekeep inspect`: what is in a file, without reading a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firekeep.cli import _layers, _listing, _output, _records
from firekeep.cli._errors import YES
from firekeep.cli._options import as_json_option, examples
from firekeep.cli._tree import Row
from firekeep.wording import count, size

if TYPE_CHECKING:
    from firekeep.opened import OpenedFile
    from firekeep.records import RecordDescription

_PLACES = 3


@click.command(
    "inspect",
    short_help="List tensors, metadata and scalars.",
    epilog=examples(
        "firekeep inspect model.safetensors",
        "firekeep inspect model.bpk --table",
        "firekeep inspect run.ckpt --values --top-level-key state_dict",
        "firekeep inspect optim-5.bpk",
        "firekeep inspect model.pt --json",
    ),
)
@click.argument("file")
@click.option("--table", is_flag=True, help="One line a tensor, with its full name, instead of a tree.")
@click.option("--all", "everything", is_flag=True, help="Show every tensor and value; fold and cut nothing.")
@click.option("--values", is_flag=True, help="Show what a PyTorch file holds besides tensors (epoch, settings).")
@click.option("--top-level-key", metavar="PATH", help="PyTorch: show only what lies under this dotted path.")
@click.option("--allow-trailing", is_flag=True, help="Open a safetensors file with bytes after its last tensor.")
@as_json_option
def command(
    *,
    file: str,
    table: bool,
    everything: bool,
    values: bool,
    top_level_key: str | None,
    allow_trailing: bool,
    as_json: bool,
) -> int:
    """List the tensors of FILE: names, dtypes, shapes, bytes, ids, ties, metadata, scalars.

    Only the table of contents is read, so the size of the file does not matter. Numbered subtrees that are alike are
    shown once, as in layers.{0..29}. Sizes are in decimal units (1 MB is 1,000,000 bytes). FILE may also be a folder
    of weights, safetensors or PyTorch files, or the index of a set of them.

    Of the record of an optimizer the moments are shown below the names of their parameters, and its options by groups; of that of a
    scheduler its counters. --all shows the file's own ids and texts, too.
    """
    from firekeep import api

    with api.open(file, top_level_key=top_level_key, allow_trailing=allow_trailing) as opened:
        record = _records.described(opened)
        rows = _rows(opened, {} if record is None or as_json else record.shown_names())
        if record is not None and record.params and not (everything or as_json):
            rows = [replace(row, param_id=None) for row in rows]  # the same id for each moment, where names are shown
        if as_json:
            _output.write_json(_document(opened, rows, record, values=values))
            return YES
        told = _headline(opened, rows, record)
        if rows:
            listing = _listing.table(rows) if table else _listing.tree(rows, fold=not everything)
            told += ["", *listing, "", *_listing.totals(rows)]
        told += _listing.section("Names of layers in the model", _layers.named(opened), everything=everything)
        told += _recorded(record, everything=everything)
        told += _beside(opened, record, everything=everything)
        if values:
            held = _listing.section("Values", _held(opened), everything=everything, tensors=everything)
            told += held or ["", "Values: none besides the tensors"]
        elif not rows and opened.format == "pytorch":
            told += ["", "There is no tensor in it: --values shows what it holds."]
    _output.write_lines(told)
    return YES


def _rows(opened: OpenedFile, names: Mapping[str, str]) -> list[Row]:
    """List the tensors, under `names` where they have others than in the file."""
    ties = opened.ties
    rows = {
        name: Row(
            name=names.get(name, name),
            dtype=str(entry.dtype) if entry.dtype is not None else "?",
            shape=entry.shape,
            numel=entry.numel,
            nbytes=entry.nbytes,
            param_id=str(entry.param_id) if entry.param_id is not None else None,
            tied_to=names.get(ties[name], ties[name]) if name in ties else None,
            problem=entry.problem,
        )
        for name, entry in opened.entries.items()
    }
    for name, kept in ties.items():  # names that the file's metadata ties to a tensor it holds
        if name not in rows and kept in rows:
            like = rows[kept]
            rows[name] = Row(
                name=name, dtype=like.dtype, shape=like.shape, numel=like.numel, nbytes=like.nbytes, tied_to=kept
            )
    return sorted(rows.values(), key=lambda row: _output.natural(row.name))


def _headline(opened: OpenedFile, rows: Sequence[Row], record: RecordDescription | None) -> list[str]:
    facts = [f"{opened.format} {opened.variant}".rstrip(), count(len(rows), "tensor")]
    if record is not None:
        facts.insert(1, _output.shown(record.title))
    nbytes = _file_bytes(opened)
    if nbytes is not None:
        facts.append(size(nbytes))
    return _output.headed(opened.path or "", ", ".join(facts))


def _file_bytes(opened: OpenedFile) -> int | None:
    """Add up the files of a set; None for a pipe, which has no size."""
    paths = {source.path for source in opened.container.sources} | {opened.path}
    files = [file for file in (Path(path) for path in paths if path is not None) if file.is_file()]
    return sum(file.stat().st_size for file in files) if files else None


def _recorded(record: RecordDescription | None, *, everything: bool) -> Iterator[str]:
    """Give what a record holds besides tensors, as values."""
    if record is None:
        return
    titles = {"optimizer": "Optimizer", "scheduler": "Scheduler", "training": "Training state", "values": "Values"}
    yield from _listing.section(titles.get(record.kind, "Record"), record.told(), everything=everything)
    notes = [line for note in record.notes for line in _output.folded(f"Note: {note}")]
    if notes:
        yield from ("", *notes)


def _beside(opened: OpenedFile, record: RecordDescription | None, *, everything: bool) -> Iterator[str]:
    told = frozenset() if record is None or everything else record.consumed
    metadata = {key: text for key, text in opened.metadata.items() if key not in told}
    yield from _listing.section("Metadata", metadata, everything=everything)
    scalars = {name: str(scalar) for name, scalar in opened.scalars.items() if name not in told}
    yield from _listing.section("Scalars", scalars, everything=everything)
    notes = [line for note in opened.notes for line in _output.folded(f"Note: {note}")]
    if opened.subtrees:
        import shlex

        places = " or ".join(shlex.quote(place) for place in opened.subtrees[:_PLACES])
        notes.append(f"See a part alone: --top-level-key {_output.escape(places)}")
    if notes:
        yield from ("", *notes)


def _held(opened: OpenedFile) -> dict[Any, Any]:
    held = opened.values()
    return held if isinstance(held, dict) else {"value": held}


def _document(
    opened: OpenedFile, rows: Sequence[Row], record: RecordDescription | None, *, values: bool
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "path": opened.path,
        "format": opened.format,
        "variant": opened.variant,
        "file_bytes": _file_bytes(opened),
        "tensors": [_described(row) for row in rows],
        "totals": _listing.totals_by_dtype(rows),
        "metadata": dict(opened.metadata),
        "scalars": {name: {"kind": scalar.kind, "value": scalar.value} for name, scalar in opened.scalars.items()},
        "ties": opened.ties,
        "subtrees": opened.subtrees,
        "notes": opened.notes,
        "details": dict(opened.details),
    }
    if record is not None:
        document["record"] = record.to_dict()
    return {**document, "values": opened.values()} if values else document


def _described(row: Row) -> dict[str, Any]:
    always = {"name": row.name, "dtype": row.dtype, "shape": row.shape, "bytes": row.nbytes}
    sometimes = {"param_id": row.param_id, "tied_to": row.tied_to, "problem": row.problem}
    return {**always, **{key: value for key, value in sometimes.items() if value is not None}}
