"""Looking into compressed files and tape archives, a bounded way, for what is in them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from firekeep.formats._signatures import OTHER_FILE, Identity, count_bytes, fill, shell_name
from firekeep.sources import Source

_TAR_KINDS = {"gzip": "tar.gz", "bzip2": "tar.bz2", "xz": "tar.xz", "zlib": "tar.z"}
_PEEKED = 1 << 18
"""Bytes unpacked, at most, to see what a compressed file holds."""
_BLOCK = 512
_MOST_MEMBERS = 1_000
_TORCH_MEMBERS = {"sys_info", "pickle", "storages"}
_MODEL_NAME = re.compile(r"\.(pt|pth|th|ckpt|bin|safetensors|bpk)$", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.+=/-]*")


def identify_tar(source: Source) -> Identity | None:
    """Name a tape archive: PyTorch's own before 0.1.10, or another."""
    members = list(_iter_tar(source))
    if not members:
        return None
    names = {name for name, _ in members}
    if names >= _TORCH_MEMBERS:
        return Identity(kind="pytorch", title="a PyTorch file (tar)", format="pytorch")
    return _name_tar(source, members, flag="", kind="tar", title="a tar archive")


def identify_packed(source: Source, head: bytes) -> Identity | None:
    """Name a compressed file by what its first bytes unpack to."""
    for kind, magic, flag, title, step, unpack in (
        ("gzip", b"\x1f\x8b", "z", "a gzip-compressed file", "Unpack it: `gzip -dc {file} > {out}`.", _gunzip),
        ("bzip2", b"BZh", "j", "a bzip2-compressed file", "Unpack it: `bzip2 -dc {file} > {out}`.", _bunzip2),
        ("xz", b"\xfd7zXZ\0", "J", "an xz-compressed file", "Unpack it: `xz -dc {file} > {out}`.", _unxz),
        ("zlib", b"\x78", "", "a zlib-compressed file, as joblib writes them", OTHER_FILE, _inflate),
    ):
        if not head.startswith(magic):
            continue
        inner = unpack(bytes(source.view(0, min(source.size, _PEEKED))))
        if kind == "zlib" and not inner:
            return None
        members = list(_iter_headers(inner))
        if members:
            return _name_tar(
                source, members, flag=flag, kind=_TAR_KINDS[kind], title=title.replace("file", "tar archive")
            )
        held = _name_head(inner)
        return Identity(
            kind=kind,
            title=title + (f" with {held} inside" if held else ""),
            facts=(("holds", held),) if held else (),
            next_step=fill(step, source),
        )
    return None


def _name_head(inner: bytes) -> str:
    """Say what the first bytes of an unpacked file show."""
    if inner.startswith(b"PK\x03\x04"):
        return "a zip archive (as torch.save writes)"
    if inner.startswith(b"NRUB"):
        return "a burnpack"
    if inner[8:9] == b"{" and inner[4:8] == b"\0\0\0\0":
        return "a safetensors file"
    if inner[:1] == b"\x80" and inner[1:2] <= b"\x05":
        return "a pickle"
    return ""


def _name_tar(source: Source, members: list[tuple[str, int]], *, flag: str, kind: str, title: str) -> Identity:
    models = [
        name
        for name, size in members
        if _MODEL_NAME.search(name) and size and _PLAIN_NAME.fullmatch(name.removeprefix("./"))
    ]
    models = [name for name in models if ".." not in name]
    shown = ", ".join(f"{name[:100]!r} ({count_bytes(size)})" for name, size in members[:5])
    if models:
        best = min(models, key=lambda name: (not name.endswith("weights.th"), len(name)))
        title += f" with {best!r} inside"
        step = f"Take the file out and open it: `tar -x{flag}f {shell_name(source)} {best}`."
    elif source.size < 2 * _BLOCK:
        step = OTHER_FILE
    else:
        step = f"See what is in it: `tar -t{flag}f {shell_name(source)}`."
    more = " ..." if len(members) > 5 else ""
    return Identity(kind=kind, title=title, facts=(("first members", shown + more),), next_step=step)


def _iter_tar(source: Source) -> Iterator[tuple[str, int]]:
    at = 0
    for _ in range(_MOST_MEMBERS):
        if at + _BLOCK > source.size:
            return
        member = _read_tar_header(bytes(source.view(at, _BLOCK)))
        if member is None:
            return
        yield member
        at += _BLOCK + -(-member[1] // _BLOCK) * _BLOCK


def _iter_headers(data: bytes) -> Iterator[tuple[str, int]]:
    at = 0
    while (member := _read_tar_header(data[at : at + _BLOCK])) is not None:
        yield member
        at += _BLOCK + -(-member[1] // _BLOCK) * _BLOCK


def _read_tar_header(block: bytes) -> tuple[str, int] | None:
    """Read name and size of a member, if the header's checksum holds (POSIX.1-1988 ustar, and the older form)."""
    if len(block) < _BLOCK or not block[0]:
        return None
    declared = _read_octal(block[148:156])
    if declared is None or declared != sum(block) - sum(block[148:156]) + 8 * ord(" "):
        return None
    size = _read_octal(block[124:136])
    if size is None:
        return None
    return block[:100].split(b"\0", 1)[0].decode(errors="replace"), size


def _read_octal(field: bytes) -> int | None:
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    text = field.strip(b" \0")
    return int(text, 8) if re.fullmatch(rb"[0-7]{1,12}", text) else None


def _gunzip(data: bytes) -> bytes:
    return _unpack_zlib(data, 31)


def _inflate(data: bytes) -> bytes:
    return _unpack_zlib(data, 15) if len(data) > 2 and (data[0] * 256 + data[1]) % 31 == 0 else b""


def _unpack_zlib(data: bytes, window: int) -> bytes:
    try:
        return zlib.decompressobj(window).decompress(data, _PEEKED)
    except zlib.error:
        return b""


def _bunzip2(data: bytes) -> bytes:
    import bz2

    try:
        return bz2.BZ2Decompressor().decompress(data, _PEEKED)
    except OSError:
        return b""


def _unxz(data: bytes) -> bytes:
    import lzma

    try:
        return lzma.LZMADecompressor(memlimit=128 << 20).decompress(data, _PEEKED)
    except (lzma.LZMAError, MemoryError):
        return b""
