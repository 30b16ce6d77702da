"""The table of a file as columns, checked as Burn 0.22.1 checks it.

Three ways lead here: a scan with NumPy for large tables (where NumPy is loaded anyway), a quick decoder for what is spelled exactly
as Burn spells it, and a strict one for everything else, which has the last word. Checks look at whole columns, and go through
the descriptors one by one only when a column shows something odd.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, itemgetter, sub
from typing import Any, TypeVar

from firekeep.dtypes import DType
from firekeep.errors import FirekeepError, LimitError, MetadataError
from firekeep.formats.burnpack._decode import decode_quickly
from firekeep.formats.burnpack._elements import U64, dtype_of, dtype_tree, nbytes_of, scalar_of, show
from firekeep.formats.burnpack._layout import KNOWN_KEYS
from firekeep.formats.burnpack._scan import Scan, scan
from firekeep.formats.burnpack._strict import Tree, decode_strictly
from firekeep.limits import Limits
from firekeep.scalars import Scalar

SCAN_FROM = 1 << 16
"""Bytes of a table below which a scan gains nothing."""
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Form:
    """What many tensors have in common. `nbytes` is None where dtype and shape do not go together."""

    dtype: DType
    shape: tuple[int, ...]
    nbytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All tensors in name order, one list a field; and what stands beside them."""

    names: list[str]
    forms: list[Form]
    starts: list[int]
    ends: list[int]
    param_ids: list[int | None]
    metadata: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)
    notes: frozenset[str] = frozenset()
    left_over: int = 0
    """Bytes behind the table, inside the length that the header gives it."""


def read_table(data: bytes | memoryview, limits: Limits) -> Table:
    """Decode a table and check every descriptor, in name order.

    Raises `MetadataError` or `LimitError`, naming the tensor, for what Burn refuses, and for names that stand there twice.
    """
    table = _scanned(data, limits) if len(data) >= SCAN_FROM and "numpy" in sys.modules else None
    table = table or _decoded(decode_quickly(data, limits)) or _read_strictly(data, limits)
    count, limit = len(table.names), limits.burnpack_tensors
    if count > limit:
        raise LimitError(f"{count} tensors: the limit is {limit}", limit=limit, actual=count)
    if not _all_plain(table, limits):
        for index in range(count):
            _check(table, index, limits)
    return table


# Three ways to the columns


def _scanned(data: bytes | memoryview, limits: Limits) -> Table | None:
    found = scan(data, most=limits.burnpack_tensors)
    if found is None:
        return None
    rest = decode_quickly(found.rest, limits)
    if rest is None or "tensors" in rest:
        return None

    def parse(spelled: bytes) -> Form | None:
        tree = decode_quickly(b"\xa2" + spelled, limits)
        return None if tree is None else _plain_form(tree.get("dtype"), tree.get("shape"))

    forms = _shared(found.forms, parse)
    return None if forms is None else _beside(found, forms, rest)


def _decoded(tree: Tree | None) -> Table | None:
    """Give the columns of a tree that is spelled exactly as Burn spells it."""
    tensors = None if tree is None else tree.get("tensors")
    if tree is None or type(tensors) is not dict or not _is_plain(tensors):
        return None
    names = sorted(tensors)
    rows = list(map(tensors.__getitem__, names))
    spelled = list(map(itemgetter("dtype"), rows))
    if _kinds(spelled) - {str}:
        trees = {repr(dtype): dtype for dtype in spelled}
        spelled = list(map(repr, spelled))
    else:
        trees = {dtype: dtype for dtype in set(spelled)}
    keys = zip(spelled, map(tuple, map(itemgetter("shape"), rows)), strict=True)
    forms = _shared(keys, lambda key: _plain_form(trees[key[0]], list(key[1])))
    if forms is None:
        return None
    offsets = list(map(itemgetter("data_offsets"), rows))
    found = Scan(
        names=names,
        forms=[],
        starts=[start for start, _ in offsets],
        ends=[end for _, end in offsets],
        param_ids=[row.get("param_id") for row in rows],
        rest=b"",
    )
    return _beside(found, forms, {key: value for key, value in tree.items() if key != "tensors"})


def _read_strictly(data: bytes | memoryview, limits: Limits) -> Table:
    tree: Any
    tree, left_over = decode_strictly(bytes(data), limits)
    tensors = tree["tensors"]
    names = sorted(tensors)
    notes: set[str] = set()
    forms = []
    for name in names:
        try:
            forms.append(_form(dtype_of(tensors[name]["dtype"], notes), tuple(tensors[name]["shape"])))
        except MetadataError as error:
            raise error.at(tensor=name)  # noqa: B904 - the same error, with its place
    return Table(
        names=names,
        forms=forms,
        starts=[tensors[name]["data_offsets"][0] for name in names],
        ends=[tensors[name]["data_offsets"][1] for name in names],
        param_ids=[tensors[name].get("param_id") for name in names],
        metadata=tree.get("metadata", {}),
        scalars=_scalars(tree.get("scalars", {})),
        notes=frozenset(notes),
        left_over=left_over,
    )


def _beside(found: Scan, forms: list[Form], rest: Tree) -> Table | None:
    """Complete the columns by metadata and scalars; None unless these, too, are spelled as Burn does."""
    metadata: Any = rest.get("metadata", {})
    scalars: Any = rest.get("scalars", {})
    if set(rest) - set(KNOWN_KEYS) or type(metadata) is not dict or type(scalars) is not dict:
        return None
    if _kinds(chain(metadata, metadata.values(), scalars)) - {str}:
        return None
    try:
        typed = _scalars(scalars)
    except MetadataError:
        return None
    return Table(
        names=found.names,
        forms=forms,
        starts=found.starts,
        ends=found.ends,
        param_ids=found.param_ids,
        metadata=metadata,
        scalars=typed,
    )


def _is_plain(tensors: dict[Any, Any]) -> bool:
    """Say whether all descriptors have the keys and types that Burn writes, and no others."""
    rows = tensors.values()
    if _kinds(tensors) - {str} or _kinds(rows) - {dict}:
        return False
    try:
        shapes = list(map(itemgetter("shape"), rows))
        offsets = list(map(itemgetter("data_offsets"), rows))
        dtypes = list(map(itemgetter("dtype"), rows))
    except KeyError:
        return False
    ids = [row.get("param_id") for row in rows]
    return not (
        sum(map(len, rows)) != 4 * len(ids) - ids.count(None)  # other keys, or an id of null
        or _kinds(chain(shapes, offsets)) - {list}
        or _kinds(chain(chain.from_iterable(shapes), chain.from_iterable(offsets))) - {int}
        or set(map(len, offsets)) - {2}
        or _kinds(dtypes) - {str, dict}
        or _kinds(ids) - {int, type(None)}
    )


def _kinds(values: Iterable[object]) -> set[type]:
    return set(map(type, values))


def _shared(keys: Iterable[Key], parse: Callable[[Key], Form | None]) -> list[Form] | None:
    """Make one form of equal keys; None if any is not plain."""
    keys = list(keys)
    known: dict[Key, Form] = {}
    for key in set(keys):
        form = parse(key)
        if form is None:
            return None
        known[key] = form
    return list(map(known.__getitem__, keys))


def _plain_form(spelled: object, shape: object) -> Form | None:
    if type(shape) is not list or _kinds(shape) - {int}:
        return None
    notes: set[str] = set()
    try:
        dtype = dtype_of(spelled, notes)
        if notes or spelled != dtype_tree(dtype):
            return None
    except FirekeepError:
        return None
    return _form(dtype, tuple(shape))


def _form(dtype: DType, shape: tuple[int, ...]) -> Form:
    try:
        return Form(dtype, shape, nbytes_of(dtype, shape))
    except MetadataError:
        return Form(dtype, shape, None)


def _scalars(tree: Any) -> dict[str, Scalar]:
    out = {}
    for name, value in tree.items():
        try:
            out[name] = scalar_of(value)
        except MetadataError as error:
            error.message = f"scalar {name!r}: {error.message}"
            raise
    return out


# Checks


def _all_plain(table: Table, limits: Limits) -> bool:
    """Say whether whole columns already show that no descriptor can be wrong."""
    if not table.names:
        return True
    lengths = list(map(sub, table.ends, table.starts))
    return (
        lengths == list(map(attrgetter("nbytes"), table.forms))
        and max(lengths) <= limits.burnpack_tensor_bytes
        and min(table.starts) >= 0
        and max(table.ends) < U64
        and max(filter(None, table.param_ids), default=0) < U64
        and min(filter(None, table.param_ids), default=0) >= 0
    )


def _check(table: Table, index: int, limits: Limits) -> None:
    name, start, end = table.names[index], table.starts[index], table.ends[index]
    try:
        if not 0 <= start < U64 or not 0 <= end < U64:
            raise MetadataError(f"data_offsets {show([start, end])} are not 64-bit offsets")
        if end < start:
            raise MetadataError(f"its data ends at {end}, before it starts at {start}")
        limit = limits.burnpack_tensor_bytes
        if end - start > limit:
            raise LimitError(f"it has {end - start} bytes: the limit is {limit}", limit=limit, actual=end - start)
        dtype, shape = table.forms[index].dtype, table.forms[index].shape
        expected = nbytes_of(dtype, shape)
        if end - start != expected:
            raise MetadataError(
                f"{dtype} of shape {show(list(shape))} takes {expected} bytes, its data_offsets span {end - start}",
                offset=start,
            )
        param_id = table.param_ids[index]
        if param_id is not None and not 0 <= param_id < U64:
            raise MetadataError(f"param_id {show(param_id)} does not fit 64 unsigned bits")
    except FirekeepError as error:
        raise error.at(tensor=name)  # noqa: B904 - the same error, with its place
