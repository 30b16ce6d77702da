"""Opening `.npy` and `.npz`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from firekeep.blobs import Blob, StridedBlob, WindowBlob
from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, FormatError, LimitError, MetadataError, UnsupportedError
from firekeep.formats._absent import absent, check_bools, tell_absent
from firekeep.formats._protocol import Container, Finding, OpenOptions
from firekeep.formats._zip import ZipDirectory, ZipMember, read_directory
from firekeep.formats._zip_records import quote
from firekeep.formats.numpy._header import LONGEST, MAGIC, Header, read_header
from firekeep.limits import Limits
from firekeep.sources import Source

UNNAMED = "arr_0"
"""What NumPy calls an array that is given no name."""
_SUFFIX = ".npy"
_SHOWN = 3
_REMEDY = "NumPy would run their pickles. Ask for the file with plain arrays."


def open_container(source: Source, options: OpenOptions) -> Container:
    """Read the headers of all arrays, and no array.

    Arrays are windows of the file where they lie in it row by row in this machine's byte order; others (Fortran's order, big-endian,
    deflated) are made when drawn. An array of records, text or objects is listed with its problem; where all are pickled objects, the
    file is refused.
    """
    head = bytes(source.view(0, min(source.size, len(MAGIC))))
    return _open_npy(source, options) if head == MAGIC else _open_npz(source, options)


def _open_npy(source: Source, options: OpenOptions) -> Container:
    header = read_header(source.view(0, min(source.size, LONGEST)), source.size, options.limits)
    entry = _make(UNNAMED, header, WindowBlob(source, 0, source.size))
    _require_some({UNNAMED: header})
    return Container(
        format="numpy",
        variant="npy",
        entries={UNNAMED: entry},
        notes=(
            f"the array has no name in the file: it is called {UNNAMED!r} here, as NumPy would",
            *tell_absent([entry]),
        ),
        details={
            "data_offset": header.start,
            "order": "Fortran" if header.is_fortran else "C",
            "file_bytes": source.size,
        },
        check=lambda: check_bools([entry]),
    )


def _open_npz(source: Source, options: OpenOptions) -> Container:
    directory = read_directory(source, options.limits)
    if directory.archives > 1:
        raise MetadataError(
            f"the file holds {directory.archives} archives one after the other, as when two saves go to one open file",
            remedy="Cut it into its parts, and open one of them.",
        )
    members = [member for member in directory.members.values() if member.name.endswith(_SUFFIX)]
    headers: dict[str, Header | None] = {}
    entries = []
    for member in sorted(members, key=directory.data_offset):
        name = member.name.removesuffix(_SUFFIX)
        try:
            headers[name], entry = _open_member(directory, member, name, options.limits)
        except FirekeepError as error:
            raise error.at(tensor=name)  # noqa: B904 - the same error, with its place
        entries.append(entry)
    _require_some(headers)
    others = [name for name in directory.members if not name.endswith((_SUFFIX, "/"))]
    return Container(
        format="numpy",
        variant="npz",
        entries={entry.name: entry for entry in entries},
        notes=(*directory.notes, *_tell_others(others), *tell_absent(entries)),
        details={"members": len(directory.members), "deflated": sum(member.method != 0 for member in members)},
        check=lambda: itertools.chain(_check(directory), check_bools(entries)),
        attest=lambda entry: directory.attest(directory.members[f"{entry.name}{_SUFFIX}"]),
    )


def _open_member(
    directory: ZipDirectory, member: ZipMember, name: str, limits: Limits
) -> tuple[Header | None, TensorEntry]:
    """Describe the array of a member. One that cannot be unpacked costs only itself: nobody knows what is in it."""
    blob = None
    try:
        blob = directory.blob(member)
        head = _first(blob.chunks(LONGEST), LONGEST)
    except LimitError:
        raise
    except FormatError as error:
        if blob is None and not isinstance(error, UnsupportedError):
            raise
        return None, absent(name, (), error.message)
    header = read_header(head, member.size, limits)
    return header, _make(name, header, blob)


def _first(chunks: Iterable[memoryview], length: int) -> bytes:
    """Gather the first bytes of a member: as few pieces as give them are inflated."""
    head = b""
    for chunk in chunks:
        head += bytes(chunk[: length - len(head)])
        if len(head) >= length:
            break
    return head


def _make(name: str, header: Header, blob: Blob) -> TensorEntry:
    dtype, shape = header.dtype, header.shape
    if dtype is None or header.problem is not None:
        return absent(name, shape, header.problem or "", nbytes=max(0, blob.nbytes - header.start))
    if type(blob) is WindowBlob and not header.is_fortran and not header.swap:
        return TensorEntry(name, dtype, shape, WindowBlob(blob.source, blob.offset + header.start, dtype.nbytes(shape)))
    strided = StridedBlob(
        blob,
        offset=header.start,
        itemsize=dtype.itemsize,
        shape=shape,
        strides=_strides(shape, is_fortran=header.is_fortran),
        swap=header.swap,
    )
    return TensorEntry(name, dtype, shape, strided)


def _strides(shape: tuple[int, ...], *, is_fortran: bool) -> tuple[int, ...]:
    """Give the steps along the axes, in elements."""
    steps = tuple(itertools.accumulate(shape if is_fortran else shape[::-1], lambda a, b: a * b, initial=1))[:-1]
    return steps if is_fortran else steps[::-1]


def _require_some(headers: Mapping[str, Header | None]) -> None:
    """Refuse a file that holds nothing but pickled objects."""
    pickled = [name for name, header in headers.items() if header is not None and header.is_pickled]
    if pickled and len(pickled) == len(headers):
        shown = ", ".join(map(quote, pickled[:_SHOWN]))
        raise UnsupportedError(
            f"the file holds nothing but pickled Python objects, in {shown}, which are not read", remedy=_REMEDY
        )


def _tell_others(names: list[str]) -> Iterator[str]:
    if names:
        shown = ", ".join(map(quote, names[:_SHOWN])) + (" ..." if len(names) > _SHOWN else "")
        yield f"{len(names)} members of the archive are no arrays and left aside: {shown}"


def _check(directory: ZipDirectory) -> Iterator[Finding]:
    """Read every member through."""
    for member in directory.members.values():
        if (finding := directory.check(member)) is not None:
            yield finding
