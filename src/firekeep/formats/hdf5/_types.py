"""Datatypes and dataspaces: what the elements of a dataset are, and how many along each axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from firekeep.dtypes import BY_NAME, DType
from firekeep.errors import MetadataError
from firekeep.formats.hdf5._file import Fields, Hdf5
from firekeep.formats.hdf5._headers import Message

_FLOATS = {
    (2, 5, 10): "F16",
    (4, 8, 23): "F32",
    (8, 11, 52): "F64",
    (2, 8, 7): "BF16",
    (1, 4, 3): "F8_E4M3",
    (1, 5, 2): "F8_E5M2",
}
_INTEGERS = {1: "8", 2: "16", 4: "32", 8: "64"}
_OTHERS = {
    2: "times", 4: "bit fields", 5: "bytes without a type", 6: "records (a compound type)", 7: "references",
    9: "lists of any length", 10: "arrays within elements", 11: "complex numbers",
}  # fmt: skip
_COMPLEX = (6, 11)
"""Classes that hold complex numbers: h5py writes them as records of two floats."""
_FIXED, _FLOAT, _TEXT, _OPAQUE, _ENUM, _LISTS = 0, 1, 3, 5, 8, 9
_MOST_AXES = 32


class Type(NamedTuple):
    """A datatype: `dtype` is None beside a `problem`. `kind` is the class of HDF5's own table, `size` the bytes of an element."""

    kind: int
    size: int
    dtype: DType | None
    problem: str | None
    is_big: bool = False
    is_text: bool = False


def read_type(file: Hdf5, message: Message) -> Type:
    """Read a datatype message."""
    if message.is_shared:
        return Type(
            -1,
            0,
            None,
            "its type is kept in another object of the file (a committed datatype): write it with h5py's create_dataset(name, data=...)",
        )
    return _read(Fields(file, message.data))


def _read(fields: Fields) -> Type:
    head, bits, size = fields.number(1), fields.number(3), fields.number(4)
    kind = head & 0x0F
    if kind == _FIXED:
        return _integer(fields, bits, size)
    if kind == _FLOAT:
        return _float(fields, bits, size)
    if kind == _ENUM:
        return _enum(fields, bits, size, padded=head >> 4 < 3)
    if kind == _TEXT or (kind == _LISTS and bits & 0x0F == 1):
        return Type(kind, size, None, "its elements are text, not numbers", is_text=True)
    if kind not in _OTHERS:
        raise MetadataError(f"a datatype is of class {kind}, which HDF5 does not have")
    remedy = ": write the parts of complex numbers as two datasets, .real and .imag" if kind in _COMPLEX else ""
    return Type(kind, size, None, f"its elements are {_OTHERS[kind]}, not numbers{remedy}")


def _integer(fields: Fields, bits: int, size: int) -> Type:
    offset, precision = fields.number(2), fields.number(2)
    if size not in _INTEGERS or offset or precision != size * 8:
        return Type(_FIXED, size, None, f"its elements are integers of {precision} bits in {size} bytes")
    dtype = BY_NAME[("I" if bits & 8 else "U") + _INTEGERS[size]]
    return Type(_FIXED, size, dtype, None, is_big=bool(bits & 1) and size > 1)


def _float(fields: Fields, bits: int, size: int) -> Type:
    offset, precision = fields.number(2), fields.number(2)
    exponent_at, exponent, mantissa_at, mantissa = (fields.number(1) for _ in range(4))
    bias = fields.number(4)
    name = _FLOATS.get((size, exponent, mantissa))
    made = (offset, precision, exponent_at, mantissa_at, bits >> 8, bits & 0x70)
    if name is None or made != (0, size * 8, mantissa, 0, size * 8 - 1, 0x20) or bias != (1 << (exponent - 1)) - 1:
        told = f"{exponent} bits of exponent, {mantissa} of mantissa"
        return Type(_FLOAT, size, None, f"its elements are floats of a make of their own ({told})")
    return Type(_FLOAT, size, BY_NAME[name], None, is_big=bool(bits & 1) and size > 1)


def _enum(fields: Fields, bits: int, size: int, *, padded: bool) -> Type:
    """Tell the bools of h5py: an enumeration of FALSE and TRUE over a byte."""
    base = _read(fields)
    names = [_name(fields, padded=padded) for _ in range(min(bits & 0xFFFF, 3))]
    if base.kind == _FIXED and size == 1 and names == ["FALSE", "TRUE"] and bytes(fields.take(2)) == b"\0\1":
        return Type(_ENUM, 1, BY_NAME["BOOL"], None)
    return Type(_ENUM, size, None, "its elements are names by number (an enumeration), not numbers")


def _name(fields: Fields, *, padded: bool) -> str:
    text = bytearray()
    while piece := fields.number(1):
        text.append(piece)
    if padded:
        fields.skip(min(-(len(text) + 1) % 8, fields.left))
    return text.decode("utf-8", "replace")


def read_space(file: Hdf5, message: Message) -> tuple[int, ...] | None:
    """Read a dataspace message: the shape, or None for a dataset that has no elements and no shape."""
    if message.is_shared:
        raise MetadataError("a dataspace is kept in another object of the file")
    fields = Fields(file, message.data)
    version, rank, _ = fields.number(1), fields.number(1), fields.number(1)
    if version == 1:
        fields.skip(5)
    elif version != 2 or (kind := fields.number(1)) > 2:
        raise MetadataError(f"a dataspace of version {version} is not known")
    elif kind == 2:
        return None
    if rank > _MOST_AXES:
        raise MetadataError(f"a dataspace has {rank} axes; HDF5 has at most {_MOST_AXES}")
    return tuple(fields.length() for _ in range(rank))


def read_texts(file: Hdf5, kind: Type, raw: memoryview, number: int) -> Iterator[str]:
    """Read the texts of an attribute, of fixed length or in the file's heap."""
    for index in range(number):
        piece = raw[index * kind.size : (index + 1) * kind.size]
        if kind.kind == _TEXT:
            text = bytes(piece).split(b"\0")[0]
        else:
            fields = Fields(file, piece)
            length, address, place = fields.number(4), fields.address(), fields.number(4)
            text = bytes(file.global_heap(address, place)[:length]) if length else b""
        yield text.decode("utf-8", "replace").rstrip("\0")
