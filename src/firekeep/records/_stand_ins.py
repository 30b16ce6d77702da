"""Tensors within plain data that goes into a text: where each is kept, and the small ones themselves."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from firekeep.blobs import MemoryBlob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.errors import FormatError
from firekeep.tagged import TensorAt, replace_tensors

_INLINE = "="
_FORMS = {"F32": "<f", "F64": "<d", "I32": "<i", "I64": "<q"}
"""How counters are kept, of which there may be tens of thousands: read without NumPy."""


def take_out(value: Any, place: str, keep: Callable[[str, TensorEntry], str | None]) -> Any:
    """Replace the tensors in plain data by stand-ins. `keep` is told the path of each and gives the name it is kept under.

    Numbers (tensors of rank 0) stand in the text itself, with their dtype and bytes, and so do those that `keep` has no name for.
    """

    def stand_in(path: str, entry: TensorEntry) -> TensorAt:
        name = keep(path, entry) if entry.shape else None
        return TensorAt(_spell(entry) if name is None else name)

    return replace_tensors(value, _is_entry, stand_in, path=place)


def _is_entry(leaf: object) -> bool:
    return isinstance(leaf, TensorEntry)


def _spell(entry: TensorEntry) -> str:
    extents = ",".join(map(str, entry.shape))
    return f"{_INLINE}{entry.require().name} [{extents}] {bytes(entry.read()).hex()}"


def put_back(value: Any, find: Callable[[str], TensorEntry | None]) -> Any:
    """Put the tensors back where their stand-ins are; raises `FormatError` for one that is nowhere.

    Numbers in the text are one each, however alike: counters that agree now are counted on apart.
    """
    known: dict[str, TensorEntry] = {}

    def entry(_path: str, stand_in: TensorAt) -> TensorEntry:
        name = stand_in.path
        if name.startswith(_INLINE):
            return _read(name)
        if name not in known:
            if (found := find(name)) is None:
                raise FormatError(f"the record speaks of a tensor {name!r}, and does not hold it")
            known[name] = found
        return known[name]

    return replace_tensors(value, _is_stand_in, entry)


def _is_stand_in(leaf: object) -> bool:
    return isinstance(leaf, TensorAt)


def _read(text: str) -> TensorEntry:
    try:
        dtype, extents, data = text.removeprefix(_INLINE).split(" ", 2)
        shape = tuple(int(one) for one in extents.strip("[]").split(",") if one)
        entry = TensorEntry(dtype, BY_NAME[dtype], shape, MemoryBlob(bytes.fromhex(data)))
        if entry.nbytes != BY_NAME[dtype].nbytes(shape):
            raise ValueError
    except (ValueError, KeyError):
        raise FormatError(f"{text[:60]!r} is no number of a known dtype") from None
    return entry


def number(value: float, dtype: str = "F32") -> TensorEntry:
    """Give a number as a tensor of rank 0."""
    import numpy as np

    from firekeep.arrays import numpy_dtype
    from firekeep.tensors import array_entry

    return array_entry("number", np.asarray(value, numpy_dtype(BY_NAME[dtype])))


def as_number(value: Any) -> int | float | None:
    """Give a number, or a tensor of rank 0, as one of Python's; None for anything else."""
    if isinstance(value, TensorEntry):
        if value.shape != () or value.require().kind not in ("float", "int", "uint"):
            return None
        if (form := _FORMS.get(value.require().name)) is not None:
            known: int | float = struct.unpack(form, value.read())[0]
            return known
        from firekeep.arrays import as_array

        found: int | float = as_array(value).astype("float64" if value.require().kind == "float" else "int64").item()
        return found
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def names_in(value: Mapping[str, Any]) -> list[str]:
    """List the keys of a state under which there is anything."""
    return [key for key, one in value.items() if one is not None]
