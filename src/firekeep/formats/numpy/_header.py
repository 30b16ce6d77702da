"""The header of one array: magic, version, length, and a dict of three keys that says what the array is."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from firekeep.dtypes import BY_NAME, DType
from firekeep.errors import HeaderError, LimitError, MetadataError, TruncatedError, UnsupportedError
from firekeep.formats._signatures import COPY_AGAIN
from firekeep.formats.numpy._literal import parse_literal
from firekeep.limits import Limits

MAGIC = b"\x93NUMPY"
LONGEST = 1 << 16
"""Bytes that a header is read of; NumPy itself takes 10,000."""
_MOST_AXES = 64

_DTYPES = {
    "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64", "c16": "C128", "b1": "BOOL", "?": "BOOL",
    "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64", "u1": "U8", "u2": "U16", "u4": "U32", "u8": "U64",
}  # fmt: skip
_OTHERS = {
    "O": "pickled Python objects",
    "U": "text",
    "S": "text in bytes",
    "a": "text in bytes",
    "M": "dates",
    "m": "spans of time",
    "f": "floats of a size that only some machines have",
    "c": "complex numbers of a size that only some machines have",
    "V": "bytes without a type; NumPy saves bfloat16 and the other types of ml_dtypes so, and which it was is lost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a header says. `start` is where the data begin, counted from the magic; `dtype` is None beside a `problem`."""

    dtype: DType | None
    problem: str | None
    shape: tuple[int, ...]
    is_fortran: bool
    swap: int
    start: int

    @property
    def is_pickled(self) -> bool:
        """Whether the elements are pickled objects."""
        return self.problem is not None and self.problem.startswith(_OTHERS["O"])


def read_header(head: bytes | memoryview, size: int, limits: Limits) -> Header:
    """Read a header from the first bytes of an array that has `size` bytes with it, and check that the data are as long as it says.

    `head` holds `LONGEST` bytes, or all there are. Raises `HeaderError` for what is no header, `TruncatedError` and `MetadataError`
    where the data are shorter or longer, `LimitError` for an array beyond `limits.tensor_bytes`.
    """
    if bytes(head[: len(MAGIC)]) != MAGIC[: min(len(head), len(MAGIC))]:
        raise HeaderError(f"an array of NumPy begins with {MAGIC!r}, this with {bytes(head[:6])!r}", offset=0)
    start, text = _find(head, size)
    told = parse_literal(text)
    if not isinstance(told, dict) or told.keys() != {"descr", "fortran_order", "shape"}:
        raise HeaderError("the header of the array does not say descr, fortran_order and shape, and nothing else")
    shape, is_fortran = told["shape"], told["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise HeaderError(f"the header of the array gives no shape but {str(shape)[:60]}")
    if len(shape) > _MOST_AXES or type(is_fortran) is not bool:
        raise HeaderError(f"the header of the array says {len(shape)} axes and fortran_order {str(is_fortran)[:20]}")
    code, problem = _read_type(told["descr"])
    dtype = None if problem else BY_NAME[_DTYPES[code.lstrip("<>|=")]]
    if dtype is not None:
        _check_size(dtype, shape, size - start, limits)
    swapped = dtype is not None and code.startswith(">") and dtype.bits > 8
    return Header(
        dtype=dtype,
        problem=problem,
        shape=shape,
        is_fortran=is_fortran and len(shape) > 1,
        swap=_unit(dtype) if swapped else 0,
        start=start,
    )


def _unit(dtype: DType | None) -> int:
    """Bytes of the numbers an element is made of: a complex one is two."""
    return 0 if dtype is None else dtype.itemsize // (2 if dtype.kind == "complex" else 1)


def _find(head: bytes | memoryview, size: int) -> tuple[int, str]:
    """Find where the header's text ends and the data begin."""
    if len(head) < 12 and size < 12:
        raise TruncatedError("the array ends within its header", limit=12, actual=size, remedy=COPY_AGAIN)
    version = (head[6], head[7])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise UnsupportedError(
            f"the array is of version {version[0]}.{version[1]} of NumPy's format; 1.0 to 3.0 are known"
        )
    width = 2 if version == (1, 0) else 4
    length = int.from_bytes(head[8 : 8 + width], "little")
    start = 8 + width + length
    if start > size:
        raise TruncatedError(
            f"the header of the array needs {start} bytes, there are {size}",
            limit=start,
            actual=size,
            remedy=COPY_AGAIN,
        )
    if start > LONGEST:
        raise LimitError(
            f"the header of the array has {length} bytes, at most {LONGEST} are read", limit=LONGEST, actual=start
        )
    try:
        return start, bytes(head[8 + width : start]).decode("utf-8" if version == (3, 0) else "latin-1")
    except UnicodeDecodeError:
        raise HeaderError("the header of the array is not UTF-8") from None


def _read_type(descr: Any) -> tuple[str, str | None]:
    """Give the code of a plain type, or say why there is no tensor of it."""
    if not isinstance(descr, str):
        if _has_objects(descr):
            return "", f"{_OTHERS['O']} in records, which are not read"
        return "", "its elements are records (a structured dtype), not numbers"
    found = re.fullmatch(r"[<>|=]?([A-Za-z?])(\d{0,9})(?:\[.{0,20}\])?", descr)
    if found is None:
        raise HeaderError(f"the header of the array names no dtype but {descr[:40]!r}")
    if found[1] + found[2] in _DTYPES:
        return descr, None
    if found[1] == "O":
        return "", f"{_OTHERS['O']}, which are not read"
    what = _OTHERS.get(found[1])
    if what is None:
        raise HeaderError(f"the header of the array names no dtype but {descr[:40]!r}")
    return "", f"its elements are {what} ({descr!r})"


def _has_objects(descr: Any) -> bool:
    if isinstance(descr, str):
        return re.fullmatch(r"[<>|=]?O\d*", descr) is not None
    return isinstance(descr, list | tuple) and any(_has_objects(part) for part in descr)


def _check_size(dtype: DType, shape: tuple[int, ...], there: int, limits: Limits) -> None:
    nbytes = dtype.itemsize * math.prod(shape)
    if nbytes > limits.tensor_bytes:
        raise LimitError(
            f"the array has {nbytes} bytes, the limit is {limits.tensor_bytes}",
            limit=limits.tensor_bytes,
            actual=nbytes,
        )
    if there < nbytes:
        raise TruncatedError(f"the array needs {nbytes} bytes, there are {there}", limit=nbytes, actual=there)
    if there > nbytes:
        raise MetadataError(f"{there - nbytes} bytes follow the {nbytes} of the array", limit=nbytes, actual=there)
