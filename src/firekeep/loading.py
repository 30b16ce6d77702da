"""All tensors of a file as NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry, tie_key
from firekeep.errors import FirekeepError, LimitError, RuleError, UnsupportedError
from firekeep.formats import OpenOptions
from firekeep.garbage import collector_paused
from firekeep.opened import OpenedFile, Readable, open_file
from firekeep.rules import PathFilter
from firekeep.sources import Source

if TYPE_CHECKING:
    import numpy as np

    from firekeep.arrays import Array

_SHOWN = 5


def load_file(source: Readable, options: OpenOptions, *, chosen: PathFilter, copy: bool) -> dict[str, Array]:
    """Open a file and give its tensors as writable arrays; see `firekeep.load_file`."""
    with open_file(source, options, private=not copy) as opened, collector_paused():
        try:
            entries = choose(opened, chosen)
            refuse_without_bytes(entries.values(), as_arrays=True)
            arrays = _copy(entries) if copy else _map(entries)
        except FirekeepError as error:
            raise error.at(path=opened.path)  # noqa: B904 - the same error, with its place
        for name, kept in opened.container.ties.items():
            if name in arrays and kept in arrays:
                arrays[name] = arrays[kept]
    return arrays


def choose(opened: OpenedFile, chosen: PathFilter) -> dict[str, TensorEntry]:
    """Give the entries of all names that a filter takes; raises `RuleError` when it takes none of those there are."""
    entries = opened.filled()
    if not chosen:
        return entries
    kept = chosen.select(entries).kept
    if entries and not kept:
        first = ", ".join(map(repr, list(entries)[:_SHOWN]))
        raise RuleError(
            f"none of the {len(entries)} tensors is left after include and exclude",
            remedy=f"Patterns are searched in the names as they stand in the file: {first}"
            f"{', ...' if len(entries) > _SHOWN else '.'}",
        )
    return {name: entries[name] for name in kept}


def refuse_without_bytes(entries: Iterable[TensorEntry], *, as_arrays: bool = False) -> None:
    """Raise `UnsupportedError` naming all tensors that cannot be given, and how to leave them out."""
    refused = [(entry, fault) for entry in entries if (fault := _fault(entry, as_arrays=as_arrays)) is not None]
    if not refused:
        return
    broken = [(entry.name, fault) for entry, fault in refused]
    blocks = [
        entry.name for entry, _ in refused if entry.problem is None and entry.dtype is not None and entry.dtype.block
    ]
    rest = [name for name, _ in broken if name not in blocks]
    ways = ["Compute the float32 values of those in quantized blocks: dequantize=True."] if blocks else []
    ways += [f"Leave out what you do not need: {exclusion(rest)}."] if rest else []
    shown = "; ".join(f"{name!r}: {fault}" for name, fault in broken[:_SHOWN])
    more = f"; and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
    raise UnsupportedError(
        f"{len(broken)} of the tensors cannot be given: {shown}{more}",
        tensor=broken[0][0] if len(broken) == 1 else None,
        remedy=" ".join(ways),
    )


def exclusion(names: list[str]) -> str:
    """Spell the `exclude` that leaves out these tensors and no other."""
    import re

    if len(names) > _SHOWN:
        return "exclude=... with patterns of their names"
    pattern = "|".join(re.sub(r"\\(?=[-#&~ ])", "", re.escape(name)) for name in names)
    return f"exclude={f'^({pattern})$' if len(names) > 1 else f'^{pattern}$'!r}"


def _fault(entry: TensorEntry, *, as_arrays: bool) -> str | None:
    if entry.problem is not None or entry.dtype is None:
        return entry.problem or "its dtype is unknown"
    if as_arrays and entry.dtype.numpy is None:
        return f"NumPy has no type for {entry.dtype}"
    return None


def _map(entries: dict[str, TensorEntry]) -> dict[str, Array]:
    """Give views of private mappings; what does not lie in its file as it is, or not in a file, is copied."""
    import numpy as np

    arrays: dict[str, Array] = {}
    types = _Types()
    late: dict[str, TensorEntry] = {}
    ndarray = np.ndarray
    last: Source | None = None
    base = memoryview(b"")
    for name, entry in entries.items():
        to, blob = types[entry.require().name], entry.blob
        place = blob.window() if to is not None and blob.nbytes else None
        if place is not None:
            if place[0] is not last:
                last = place[0]
                base = last.view(0, last.size)
            if not base.readonly:
                try:
                    arrays[name] = ndarray(entry.shape, to, base, place[1])
                    continue
                except (ValueError, TypeError):
                    pass  # a shape that NumPy cannot hold: told when it is drawn
        arrays[name] = _NOTHING  # keeps the order of the file
        late[name] = entry
    return arrays | _copy(late)


def _copy(entries: dict[str, TensorEntry]) -> dict[str, Array]:
    """Give arrays in memory of their own; tied tensors share theirs."""
    import numpy as np

    from firekeep.reading import read_windows

    types = _Types()
    arrays: dict[str, Array] = dict.fromkeys(entries, _NOTHING)
    whole: list[TensorEntry] = []
    windows: list[tuple[Source, int, int]] = []
    made: dict[tuple[object, ...], Array] = {}
    for name, entry in entries.items():
        place = entry.blob.window() if types[entry.require().name] is not None and entry.blob.nbytes else None
        if place is not None:
            whole.append(entry)
            windows.append((*place, entry.blob.nbytes))
            continue
        key = tie_key(entry)
        known = made.get(key) if key is not None else None
        arrays[name] = known if known is not None else _draw(entry)
        if key is not None:
            made[key] = arrays[name]
    for entry, view in zip(whole, read_windows(windows) if windows else (), strict=True):
        try:
            arrays[entry.name] = np.ndarray(entry.shape, types[entry.require().name], view)
        except (ValueError, TypeError):
            arrays[entry.name] = _draw(entry)  # which says why
    return arrays


_NOTHING: Any = None


class _Types(dict[str, "np.dtype[Any] | None"]):
    """The NumPy types of dtypes, by name, whose bytes are an array's as they are; None for those packed several to a byte."""

    def __missing__(self, name: str) -> np.dtype[Any] | None:
        from firekeep.arrays import numpy_dtype

        dtype = BY_NAME[name]
        self[name] = found = numpy_dtype(dtype) if dtype.bits >= 8 else None
        return found


def _draw(entry: TensorEntry) -> Array:
    from firekeep.arrays import as_array

    try:
        array = as_array(entry)
        return array if array.flags.writeable else array.copy()
    except MemoryError:
        raise LimitError(
            f"{entry.nbytes} bytes of memory are needed for it, and the system refuses them",
            tensor=entry.name,
            actual=entry.nbytes,
        ) from None
