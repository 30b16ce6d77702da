"""The lines `inspect` prints: tree, table, totals, and what stands beside the tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from firekeep.cli._output import LONGEST, columns, folded, pad, plain, shape, shorten, shown, width
from firekeep.cli._tree import Line, Row, draw, grow
from firekeep.wording import WIDTH, count, middle, size

_SIZE = 7
_MOST_SHAPE = 18
_LEAST_NAME = 24
_ALL_OF_A_TEXT = 1_000_000
_SOME = 20
"""Entries of a long list or mapping shown unless everything is asked for."""


def tree(rows: Sequence[Row], *, fold: bool) -> list[str]:
    """Draw the tree: label, dtype, shape, bytes, and what else is known of a tensor."""
    root = grow(rows, fold=fold)
    lines = list(draw(root))
    dtype = max(len(row.dtype) for row in rows)
    extent = min(_MOST_SHAPE, max(len(_extent(line)) for line in lines))
    ids = max((len(row.param_id) + 2 for row in rows if row.param_id), default=0)
    longest = max(width(line.text) for line in lines)
    room = max(_LEAST_NAME, WIDTH - (2 + dtype + 2 + extent + 2 + _SIZE + ids))
    name = min(room, longest) if fold else longest
    drawn = []
    for line in lines:
        drawn += _tree_lines(line, name=name, dtype=dtype, extent=extent, whole=not fold)
    if any(line.times > 1 for line in lines):
        drawn += ["", "Alike subtrees are shown once: --all shows every tensor."]
    return drawn


def _tree_lines(line: Line, *, name: int, dtype: int, extent: int, whole: bool) -> list[str]:
    """Give a line, and what else is known of its tensor on lines of its own where there is no room; a `whole` one stays one."""
    node, row = line.node, line.node.row
    cells = [
        pad(middle(line.text, name), name),
        pad(row.dtype if row else "", dtype),
        pad(_extent(line), extent),
        pad(size((row.nbytes if row else node.nbytes) * line.times), _SIZE, right=True),
    ]
    remarks = _remarks(row)
    told = "  ".join([*cells, *remarks])
    if whole or width(told) <= WIDTH:
        return [told]
    ids = [remark for remark in remarks if row is not None and remark == row.param_id]
    rest = [remark for remark in remarks if remark not in ids]
    return ["  ".join([*cells, *ids]), *(part for remark in rest for part in folded(remark, indent=line.below))]


def _extent(line: Line) -> str:
    row, times = line.node.row, line.times
    if times > 1:
        return f"{times:,} x {shape(row.shape) if row else size(line.node.nbytes)}"
    return shape(row.shape) if row else count(line.node.tensors, "tensor")


def _remarks(row: Row | None) -> list[str]:
    if row is None:
        return []
    remarks = [row.param_id] if row.param_id else []
    if row.tied_to is not None:
        remarks.append(f"= {shown(row.tied_to)}")
    if row.problem is not None:
        remarks.append(f"no bytes: {shorten(row.problem)}")
    return remarks


def table(rows: Sequence[Row]) -> list[str]:
    """Give one line a tensor, the name last and whole."""
    with_ids = any(row.param_id for row in rows)
    cells = [("dtype", "shape", "bytes", *(("id",) if with_ids else ()), "name")]
    for row in rows:
        ids = (row.param_id or "",) if with_ids else ()
        notes = [f"  {remark}" for remark in _remarks(row) if remark != row.param_id]
        cells.append((row.dtype, shape(row.shape), size(row.nbytes), *ids, shown(row.name, 1_000) + "".join(notes)))
    return columns(cells, right=[2])


def totals(rows: Sequence[Row]) -> list[str]:
    """Add up tensors, elements and bytes for each dtype; tied names count once."""
    kinds = totals_by_dtype(rows)
    cells = [("dtype", "tensors", "elements", "bytes")]
    cells += [
        (name, f"{each['tensors']:,}", f"{each['elements']:,}", size(each["bytes"])) for name, each in kinds.items()
    ]
    if len(kinds) > 1:
        every = {key: sum(each[key] for each in kinds.values()) for key in ("tensors", "elements", "bytes")}
        cells.append(("all", f"{every['tensors']:,}", f"{every['elements']:,}", size(every["bytes"])))
    return columns(cells, right=[1, 2, 3])


def totals_by_dtype(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """Add up for each dtype, most bytes first; names tied to another are left out."""
    kinds: dict[str, dict[str, int]] = {}
    for row in rows:
        if row.tied_to is not None:
            continue
        each = kinds.setdefault(row.dtype, {"tensors": 0, "elements": 0, "bytes": 0})
        each["tensors"] += 1
        each["elements"] += row.numel
        each["bytes"] += row.nbytes
    return dict(sorted(kinds.items(), key=lambda item: -item[1]["bytes"]))


def section(title: str, values: Mapping[str, object], *, everything: bool, tensors: bool = True) -> list[str]:
    """Give a titled list of names and values, one a line; nothing for an empty one. Without `tensors` these are only counted."""
    told = plain(values)
    if not tensors:
        told = _count_tensors(told)
    return ["", title, *_outline(told, "  ", everything)] if told and not isinstance(told, str) else []


def _count_tensors(value: Any) -> Any:
    """Put one count in the place of all tensors of a mapping or list: they are listed elsewhere."""
    if isinstance(value, dict):
        kept = {key: _count_tensors(item) for key, item in value.items() if not _is_tensor(item)}
        number = len(value) - len(kept)
        told = f"<{count(number, 'tensor')}>"
        return {**kept, "...": told} if number and kept else told if number else kept
    if isinstance(value, list):
        if value and all(map(_is_tensor, value)):
            return f"<{count(len(value), 'tensor')}>"
        return [_count_tensors(item) for item in value]
    return value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("<tensor ") and value.endswith(">")


def _outline(value: Any, indent: str, everything: bool) -> Iterator[str]:
    items = (
        [(f"{shown(key)}:", item) for key, item in value.items()]
        if isinstance(value, dict)
        else [("-", item) for item in value]
    )
    few = items if everything else items[:_SOME]
    for label, item in few:
        if isinstance(item, dict | list) and item and not _is_flat(item):
            yield f"{indent}{label}"
            yield from _outline(item, indent + "  ", everything)
        else:
            told = f"{label} {_leaf(item, everything)}"
            yield from [f"{indent}{told}"] if everything else folded(told, indent=indent)
    if len(few) < len(items):
        yield f"{indent}... {len(items) - len(few):,} more: --all shows them"


def _is_flat(value: Any) -> bool:
    return isinstance(value, list) and not any(isinstance(item, dict | list) for item in value)


def _leaf(value: Any, everything: bool) -> str:
    if isinstance(value, dict):
        return "{}"
    if not isinstance(value, list):
        return shorten(str(value), _ALL_OF_A_TEXT if everything else LONGEST)
    few = value if everything else value[:_SOME]
    more = [f"... {len(value) - len(few):,} more"] if len(few) < len(value) else []
    return f"[{', '.join([*(_leaf(item, everything) for item in few), *more])}]"
