"""A careful reader of zip directories: members by name, and where exactly their bytes lie.

The standard library inflates; everything else is decided here, since `zipfile` gives no offset of the data, copies stored members
and takes overlapping ones. Names are never paths: they are looked up, compared and printed.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterator, Mapping
from types import MappingProxyType

from firekeep.blobs import CHUNK, Blob, WindowBlob
from firekeep.errors import (
    DigestError,
    FirekeepError,
    FormatError,
    HeaderError,
    LimitError,
    MetadataError,
    TruncatedError,
    UnsupportedError,
)
from firekeep.formats._protocol import Finding
from firekeep.formats._zip_cut import describe_cut
from firekeep.formats._zip_records import (
    DEFLATED,
    FLAG_DESCRIPTOR,
    FLAG_ENCRYPTED,
    FLAG_PATCH,
    FLAG_STRONG,
    LOCAL,
    LOCAL_MAGIC,
    LOCAL_SIZE,
    STORED,
    EndRecord,
    ZipMember,
    decode_name,
    find_end,
    find_odd_names,
    quote,
    read_members,
    refuse_two_readings,
)
from firekeep.limits import Limits
from firekeep.sources import Source

__all__ = ["InflatedBlob", "ZipDirectory", "ZipMember", "read_directory"]

_METHODS = {
    1: "shrink", 6: "implode", 9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstandard", 95: "xz", 97: "wavpack", 98: "ppmd",
    99: "AES encryption",
}  # fmt: skip
_NOTES_KEPT = 20
_MOST_ARCHIVES = 1_000
_FLAGS_COMPARED = FLAG_ENCRYPTED | FLAG_DESCRIPTOR | FLAG_PATCH | FLAG_STRONG
_RATIO_SLACK = 1024
"""Bytes that a member may inflate to beyond the ratio: tiny members have little to compare with."""


def read_directory(source: Source, limits: Limits) -> ZipDirectory:
    """Read the central directory of the zip archive that ends the file.

    Local headers are read when a member is touched, and must agree on its name. Raises `HeaderError` where there is no archive,
    `TruncatedError` where its end is missing, `MetadataError` where records contradict one another, `UnsupportedError` for
    archives in several parts and `LimitError` for too many members.
    """
    end = find_end(source, stop=source.size)
    if end is None:
        if source.size >= 4 and bytes(source.view(0, 4)) == LOCAL_MAGIC:
            raise describe_cut(source)
        raise HeaderError("there is no zip archive: no end record in the last 65,557 bytes")
    spans = _find_spans(source, end)
    if len(spans) == 1 and end.start > 0:
        refuse_two_readings(source, end)
    return ZipDirectory(source, end, spans, read_members(source, end, limits), limits)


class ZipDirectory:
    """The members of a zip archive in the order of its directory, and access to their bytes. Made by `read_directory`."""

    def __init__(
        self,
        source: Source,
        end: EndRecord,
        spans: tuple[tuple[int, int], ...],
        members: dict[str, ZipMember],
        limits: Limits,
    ) -> None:
        self._source = source
        self._end = end
        self._limits = limits
        self._offsets: dict[str, int] = {}
        self._bounds: dict[int, int] = {}
        self._more_notes = 0
        self._differing: set[str] = set()
        self._attested: dict[str, Finding | None] = {}
        self.members: Mapping[str, ZipMember] = MappingProxyType(members)
        self.spans = spans
        self._notes = _note(source, end, members, spans)

    @property
    def archives(self) -> int:
        """How many archives stand one after the other in the file; the members are those of the last."""
        return len(self.spans)

    @property
    def start(self) -> int:
        """The first byte of the archive in the file."""
        return self._end.start

    @property
    def notes(self) -> tuple[str, ...]:
        """What was noticed and not refused, so far: touching members may add to it."""
        more = (f"{self._more_notes} more notes of this kind",) if self._more_notes else ()
        return (*self._notes, *more)

    def data_offset(self, member: ZipMember) -> int:
        """Find where a member's bytes start, from its local header.

        Raises `MetadataError` when the local header has another name or method than the directory says: other readers would
        see another file. Differing sizes, checksums and flags are added to `notes`.
        """
        known = self._offsets.get(member.name)
        if known is not None:
            return known
        at = member.header_offset
        view = self._source.view(at, min(LOCAL_SIZE + 2 * 0xFFFF, self._source.size - at))
        magic, flags, method, crc, compressed, size, n, x = LOCAL.unpack_from(view)
        if magic != LOCAL_MAGIC:
            raise MetadataError(
                f"zip member {quote(member.name)} has no local header at {at}, where the directory says", offset=at
            )
        name = decode_name(bytes(view[LOCAL_SIZE : LOCAL_SIZE + n]))
        if name != member.name:
            raise MetadataError(
                f"the zip archive was tampered with: its directory calls a member {quote(member.name)}, the member's own header "
                f"at {at} calls it {quote(name)}",
                offset=at,
            )
        if method != member.method:
            raise MetadataError(
                f"zip member {quote(name)} is {_name_method(member.method)} by the directory and {_name_method(method)} by its own "
                f"header at {at}",
                offset=at,
            )
        start: int = at + LOCAL_SIZE + n + x
        self._check_bound(member, start)
        if flags != member.flags or not (flags & FLAG_DESCRIPTOR and crc == compressed == size == 0):
            self._note_difference(member, flags=flags, crc=crc, compressed=compressed, size=size)
        self._offsets[member.name] = start
        return start

    def _check_bound(self, member: ZipMember, start: int) -> None:
        if not self._bounds:
            starts = sorted(other.header_offset for other in self.members.values())
            self._bounds = dict(zip(starts, [*starts[1:], self._end.directory], strict=True))
        bound = self._bounds[member.header_offset]
        if start + member.compressed > bound:
            raise MetadataError(
                f"zip member {quote(member.name)} lies at {start} to {start + member.compressed}, but the next record starts at {bound}",
                offset=start,
                limit=bound,
                actual=start + member.compressed,
            )

    def _note_difference(self, member: ZipMember, *, flags: int, crc: int, compressed: int, size: int) -> None:
        deferred = flags & FLAG_DESCRIPTOR
        told = [
            f"{what} {local} there and {central} here"
            for what, local, central in (
                ("checksum", crc, member.crc),
                ("compressed size", compressed, member.compressed),
                ("size", size, member.size),
            )
            if local != central and local != 0xFFFFFFFF and not (deferred and local == 0)
        ]
        if (flags ^ member.flags) & _FLAGS_COMPARED:
            told.append(f"flags {flags:#x} there and {member.flags:#x} here")
        if not told:
            return
        self._differing.add(member.name)
        if len(self._differing) > _NOTES_KEPT:
            self._more_notes += 1
        else:
            self._notes.append(
                f"zip member {quote(member.name)}: its own header and the directory differ: {', '.join(told)}; the directory is taken"
            )

    def blob(self, member: ZipMember) -> Blob:
        """Give a member's bytes: a window of the file where they are stored as they are, else inflated when drawn.

        Raises `UnsupportedError` for encrypted members and methods other than stored and deflate, `LimitError` for a member that
        claims to inflate beyond `limits.inflate_ratio`.
        """
        _require_plain(member)
        start = self.data_offset(member)
        if member.method == STORED:
            return WindowBlob(self._source, start, member.size)
        most = member.compressed * self._limits.inflate_ratio + _RATIO_SLACK
        if member.size > most:
            raise LimitError(
                f"zip member {quote(member.name)} claims to inflate from {member.compressed} to {member.size} bytes, "
                f"more than {self._limits.inflate_ratio} to 1",
                limit=most,
                actual=member.size,
            )
        return InflatedBlob(self._source, start, member)

    def read(self, member: ZipMember, *, limit: int, verify: bool = True) -> bytes:
        """Give a member's bytes, checked against its checksum unless `verify` is false.

        Raises `LimitError` when it has more than `limit` bytes, `DigestError` when the checksum differs. A checksum of 0 stands
        for none.
        """
        if member.size > limit:
            raise LimitError(
                f"zip member {quote(member.name)} has {member.size} bytes; at most {limit} are read",
                limit=limit,
                actual=member.size,
            )
        blob = self.blob(member)
        if isinstance(blob, InflatedBlob):
            return bytes(blob.inflate(verify=verify))
        data = bytes(blob.view())
        if verify:
            _check_crc(member, zlib.crc32(data))
        return data

    def check(self, member: ZipMember) -> Finding | None:
        """Read a member through and say what is wrong with it: None where its header, size and checksum all hold."""
        try:
            blob = self.blob(member)
            crc = 0
            for chunk in blob.chunks():
                crc = zlib.crc32(chunk, crc)
            _check_crc(member, crc)
        except FirekeepError as error:
            return Finding("error", member.name, error.message)
        if member.crc == 0 and crc != 0:
            return Finding(
                "note", member.name, "the writer kept no checksum of this member: its bytes cannot be checked"
            )
        if member.name in self._differing:
            return Finding(
                "warning", member.name, "its own header and the zip directory differ in sizes, checksum or flags"
            )
        return None

    def attest(self, member: ZipMember) -> bool:
        """Compare a member with its checksum, unless that was done before; False where the writer kept none.

        Raises `DigestError`. A deflated member is always compared when it is drawn, and not read for this.
        """
        if member.method == STORED and member.name not in self._attested:
            self._attested[member.name] = self.check(member)
        found = self._attested.get(member.name)
        if found is not None and found.severity == "error":
            raise DigestError(found.message)
        return member.crc != 0 or (member.method == STORED and found is None)


class InflatedBlob(Blob):
    """The bytes of a deflated member, inflated each time they are drawn: never more than declared, and checked at the end."""

    __slots__ = ("_member", "_offset", "_source")

    def __init__(self, source: Source, offset: int, member: ZipMember) -> None:
        self._source = source
        self._offset = offset
        self._member = member
        super().__init__(member.size)

    def view(self) -> memoryview:
        """Inflate into a fresh buffer; raises `FormatError` for damaged data, `DigestError` for a wrong checksum."""
        return memoryview(self.inflate()).toreadonly()

    @property
    def is_checked(self) -> bool:
        """Whether there is a checksum, with which the bytes are compared whenever they are drawn."""
        return self._member.crc != 0

    def inflate(self, *, verify: bool = True) -> bytearray:
        """Inflate into a fresh buffer, with or without a look at the checksum."""
        data = bytearray(self.nbytes)
        at = 0
        for piece in self._pieces(CHUNK, verify=verify):
            data[at : at + len(piece)] = piece
            at += len(piece)
        return data

    def chunks(self, size: int = CHUNK) -> Iterator[memoryview]:
        """Inflate piece by piece, holding one piece at a time."""
        return (memoryview(piece) for piece in self._pieces(size, verify=True))

    def _pieces(self, size: int, *, verify: bool) -> Iterator[bytes]:
        packed = self._source.view(self._offset, self._member.compressed)
        stream, crc, left = zlib.decompressobj(-15), 0, self.nbytes
        for piece in _inflate(stream, packed, size, self._member.name):
            if len(piece) > left:
                raise FormatError(
                    f"zip member {quote(self._member.name)} inflates to more than its declared {self.nbytes} bytes"
                )
            left -= len(piece)
            crc = zlib.crc32(piece, crc)
            yield piece
        if left or not stream.eof:
            raise TruncatedError(
                f"zip member {quote(self._member.name)} inflates to {self.nbytes - left} bytes, {self.nbytes} were declared",
                limit=self.nbytes,
                actual=self.nbytes - left,
            )
        if verify:
            _check_crc(self._member, crc)

    def identity(self) -> Hashable | None:
        """One member of one open file is one storage."""
        return (id(self._source), self._offset, self.nbytes)


def _inflate(stream: zlib._Decompress, packed: memoryview, size: int, name: str) -> Iterator[bytes]:
    """Feed slices of the packed bytes, so that what zlib keeps back is never copied whole."""
    step = 1 << 16
    try:
        for at in range(0, len(packed), step):
            rest: memoryview | bytes = packed[at : at + step]
            while rest and not stream.eof:
                piece = stream.decompress(rest, size)
                rest = stream.unconsumed_tail
                if piece:
                    yield piece
        while not stream.eof and (piece := stream.decompress(b"", size)):
            yield piece
    except zlib.error as error:
        raise FormatError(f"zip member {quote(name)} has damaged compressed data: {error}") from None


def _check_crc(member: ZipMember, crc: int) -> None:
    if member.crc not in (crc, 0):
        raise DigestError(
            f"zip member {quote(member.name)} is damaged: its checksum is {crc:08x}, the archive's directory says {member.crc:08x}"
        )


def _require_plain(member: ZipMember) -> None:
    if member.flags & (FLAG_ENCRYPTED | FLAG_STRONG):
        raise UnsupportedError(f"zip member {quote(member.name)} is encrypted", remedy="Decrypt the archive first.")
    if member.flags & FLAG_PATCH:
        raise UnsupportedError(f"zip member {quote(member.name)} is a patch of another file (flag bit 5)")
    if member.method not in (STORED, DEFLATED):
        raise UnsupportedError(f"zip member {quote(member.name)} is packed with {_name_method(member.method)}")


def _name_method(method: int) -> str:
    if method in (STORED, DEFLATED):
        return "stored" if method == STORED else "deflated"
    return _METHODS.get(method, f"method {method}")


def _find_spans(source: Source, last: EndRecord) -> tuple[tuple[int, int], ...]:
    """Walk back through the archives that end where the next one starts."""
    spans = [(last.start, last.stop)]
    while spans[0][0] > 0 and len(spans) < _MOST_ARCHIVES:
        try:
            end = find_end(source, stop=spans[0][0])
        except FormatError:
            break
        if end is None or end.stop != spans[0][0]:
            break
        spans.insert(0, (end.start, end.stop))
    return tuple(spans)


def _note(
    source: Source, end: EndRecord, members: dict[str, ZipMember], spans: tuple[tuple[int, int], ...]
) -> list[str]:
    notes = []
    if len(spans) > 1:
        listed = ", ".join(f"{start} to {stop}" for start, stop in spans[:5]) + (" ..." if len(spans) > 5 else "")
        notes.append(
            f"the file holds {len(spans)} zip archives one after the other, at bytes {listed}; the members are those of the last"
        )
    if spans[0][0] > 0:
        notes.append(f"the zip archive starts at byte {spans[0][0]}: other bytes stand before it")
    first = min([member[6] for member in members.values()], default=end.start)
    if first > end.start:
        notes.append(f"{first - end.start} bytes at {end.start} belong to no member of the zip archive")
    if end.stop < source.size:
        notes.append(f"{source.size - end.stop} bytes follow the end of the zip archive")
    if end.comment:
        notes.append(f"the zip archive has a comment of {end.comment} bytes")
    if odd := find_odd_names(members):
        shown = ", ".join(quote(name) for name in odd[:3])
        notes.append(f"{len(odd)} member names are unusual and only taken as names: {shown}")
    return notes
