"""Tensors made of tensors. Nothing is drawn: the bytes are gathered when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.views import joined, reshaped, sliced, stacked
from firekeep.wording import quote

_SHOWN = 5

SLOT = "{}"
"""Where the index stands in a name."""


def split(
    entry: TensorEntry, *, names: Sequence[str], sizes: Sequence[int] | None = None, axis: int = 0, heads: int = 1
) -> list[TensorEntry]:
    """Cut a tensor along an axis into parts of these names: of equal extents, or of the `sizes` given.

    With `heads`, the parts lie interleaved: the axis holds a piece of every part for the first head, then for the second, as in the
    `query_key_value` of GPT-NeoX. `sizes` are those of the whole parts all the same. Parts have no parameter id.

    Raises `RuleError`, naming the tensor, where sizes do not fit.
    """
    _require_names(names, entry)
    place = _place(entry, axis)
    extents = _extents(entry, len(names), sizes, place, heads)
    if heads > 1:
        entry = reshaped(entry, (*entry.shape[:place], heads, entry.shape[place] // heads, *entry.shape[place + 1 :]))
    parts = []
    start = 0
    for name, extent in zip(names, extents, strict=True):
        stop = start + extent // heads
        part = sliced(entry, axis=place + (heads > 1), start=start, stop=stop)
        if heads > 1:
            part = reshaped(part, (*part.shape[:place], extent, *part.shape[place + 2 :]))
        parts.append(replace(part, name=name, param_id=None))
        start = stop
    return parts


def merge(entries: Sequence[TensorEntry], *, name: str, axis: int = 0, heads: int = 1) -> TensorEntry:
    """Join tensors along an axis under a new name; what `split` cut is whole again.

    With `heads`, their pieces are interleaved, head by head. Raises `RuleError`, naming tensors, where an extent is no multiple of the
    heads or dtypes differ, and `EntryError` where the other extents do.
    """
    if not entries:
        raise RuleError(f"there is nothing to merge into {name!r}")
    place = _place(entries[0], axis)
    _require_axes(entries, name)
    _require_dtypes(entries, name)
    if heads == 1:
        return replace(joined(entries, axis=place, name=name), param_id=None)
    pieces = []
    for entry in entries:
        extent = entry.shape[place]
        _require_heads(entry, extent, heads)
        pieces.append(reshaped(entry, (*entry.shape[:place], heads, extent // heads, *entry.shape[place + 1 :])))
    whole = joined(pieces, axis=place + 1, name=name)
    extent = sum(entry.shape[place] for entry in entries)
    return replace(reshaped(whole, (*whole.shape[:place], extent, *whole.shape[place + 2 :])), param_id=None)


def stack(entries: Sequence[TensorEntry], *, name: str, axis: int = 0) -> TensorEntry:
    """Put tensors of one shape side by side along a new axis, under a new name."""
    if not entries:
        raise RuleError(f"there is nothing to stack into {name!r}")
    _require_axes(entries, name)
    _require_dtypes(entries, name)
    return stacked(entries, axis=_place(entries[0], axis, extra=1), name=name)


def unstack(entry: TensorEntry, *, names: str | Sequence[str], axis: int = 0) -> list[TensorEntry]:
    """Take a tensor apart along an axis, which goes away.

    `names` are those of the parts, or one text in which `{}` is the index: `layers.{}.weight`.
    Raises `RuleError`, naming the tensor, where there are not as many.
    """
    place = _place(entry, axis)
    count = entry.shape[place]
    if isinstance(names, str):
        if names.count(SLOT) != 1:
            raise RuleError(f"{names!r} has {SLOT} {names.count(SLOT)} times, where the index is due once")
        names = [names.replace(SLOT, str(index)) for index in range(count)]
    _require_names(names, entry)
    if len(names) != count:
        raise RuleError(
            f"axis {axis} of shape {list(entry.shape)} gives {count} parts, and there are {len(names)} names for them",
            tensor=entry.name,
        )
    rest = (*entry.shape[:place], *entry.shape[place + 1 :])
    cut = [sliced(entry, axis=place, start=index, stop=index + 1) for index in range(count)]
    return [replace(reshaped(part, rest), name=name, param_id=None) for name, part in zip(names, cut, strict=True)]


def _place(entry: TensorEntry, axis: int, *, extra: int = 0) -> int:
    """Count an axis from the front; -1 is the last."""
    rank = len(entry.shape) + extra
    if not -rank <= axis < rank:
        raise RuleError(f"shape {list(entry.shape)} has no axis {axis}", tensor=entry.name)
    return axis % rank


def _extents(entry: TensorEntry, count: int, sizes: Sequence[int] | None, place: int, heads: int) -> Sequence[int]:
    extent = entry.shape[place]
    if sizes is None:
        if extent % count:
            raise RuleError(
                f"axis {place} of shape {list(entry.shape)} cannot be cut into {count} equal parts",
                tensor=entry.name,
                remedy="Give their sizes.",
            )
        sizes = [extent // count] * count
    if len(sizes) != count:
        raise RuleError(f"there are {len(sizes)} sizes for {count} parts", tensor=entry.name)
    if sum(sizes) != extent or min(sizes) < 0:
        raise RuleError(
            f"the sizes {list(sizes)} make {sum(sizes)}, and axis {place} of shape {list(entry.shape)} has {extent}",
            tensor=entry.name,
            limit=extent,
            actual=sum(sizes),
        )
    for size in sizes:
        _require_heads(entry, size, heads)
    return sizes


def _require_heads(entry: TensorEntry, extent: int, heads: int) -> None:
    if heads < 1 or extent % heads:
        raise RuleError(f"a part of extent {extent} cannot be dealt out to {heads} heads", tensor=entry.name)


def _require_names(names: Sequence[str], entry: TensorEntry) -> None:
    if isinstance(names, str) or not names:
        raise RuleError("names are due for the parts", tensor=entry.name)
    doubles = [name for place, name in enumerate(names) if name in names[:place]]
    if doubles:
        raise RuleError(f"two of its parts would be called {doubles[0]!r}", tensor=entry.name)


def _require_axes(entries: Sequence[TensorEntry], name: str) -> None:
    """Refuse shapes of different ranks before an axis is looked for in them."""
    first = entries[0]
    for entry in entries:
        if len(entry.shape) != len(first.shape):
            raise RuleError(
                f"its shape {list(entry.shape)} has not as many axes as {first.name!r}, {list(first.shape)}: "
                f"they cannot both be part of {name!r}",
                tensor=entry.name,
            )


def _require_dtypes(entries: Sequence[TensorEntry], name: str) -> None:
    """Refuse parts of different dtypes, naming all of them: to round or widen some is not for a join to decide."""
    dtypes = [entry.dtype for entry in entries if entry.dtype is not None and entry.problem is None]
    if len(set(dtypes)) < 2:
        return
    told = ", ".join(f"{quote(entry.name)} is {entry.dtype}" for entry in entries[:_SHOWN])
    more = f", and {len(entries) - _SHOWN:,} more" if len(entries) > _SHOWN else ""
    floats = all(dtype.kind == "float" for dtype in dtypes)
    raise RuleError(
        f"{told}{more}: they cannot be joined into {quote(name)} as long as their dtypes differ",
        remedy=(
            "Cast them to one before: a save does with dtype='F32', and a load can read a copy of the file that "
            "firekeep.convert made with dtype='F32'."
            if floats
            else None
        ),
    )
