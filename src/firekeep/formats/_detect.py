"""Telling what a file is from its content, never from its suffix.

The tests of files that firekeep does not read are imported when a file gets as far: opening one that it reads stays cheap.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePath

from firekeep.errors import FormatError, WrongFormatError
from firekeep.formats._signatures import DISTRIBUTED, HEAD, Identity, match_magic
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.sources import Source

_BURNPACK = b"NRUB"
_LEGACY = (bytes.fromhex("6cfc9c46f9206aa85019"), b"119547037146038801333356")
"""The magic number of torch.save before 1.6, as a binary pickle holds it and as a text pickle does."""
_LEGACY_WITHIN = 64
_TAR_BLOCK = 512
_LAST_PROTOCOL = 5
_PICKLE_SEARCHED = 1 << 16
_INSTRUCTIONS_READ = 32


def detect(source: Source, *, limits: Limits = DEFAULT_LIMITS) -> str:
    """Name the format that reads a file: a row of the family's table.

    Raises `WrongFormatError` for anything else, with what it is and what to do; `FormatError` for a damaged zip archive.
    """
    identity = identify(source, limits=limits)
    if identity.error is not None:
        raise identity.error
    if identity.format is None:
        raise WrongFormatError(
            f"this is {identity.title}",
            kind=identity.kind,
            path=source.path,
            remedy=identity.next_step,
        )
    return identity.format


def identify(source: Source, *, limits: Limits = DEFAULT_LIMITS) -> Identity:
    """Say what a file is. Reads a few kilobytes, and the directory of a zip archive."""
    if source.size == 0:
        return Identity(
            kind="empty",
            title="an empty file (0 bytes)",
            next_step="The save or the download did not happen: save or fetch the file again.",
        )
    head = bytes(source.view(0, min(source.size, HEAD)))
    return (
        _identify_known(source, head, limits)
        or _identify_other(source, head, limits)
        or Identity(
            kind="unknown",
            title=f"a file of no format that firekeep knows; it starts with {head[:8].hex(' ')}",
            facts=(("first bytes", head[:16].hex(" ")),),
            next_step="Ask whoever made the file which program wrote it.",
        )
    )


def _identify_known(source: Source, head: bytes, limits: Limits) -> Identity | None:
    """Try what firekeep reads, surest sign first."""
    if head.startswith(_BURNPACK):
        return Identity(kind="burnpack", title="a burnpack file", format="burnpack")
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08", b"PK\x00\x00")):
        from firekeep.formats._named_zips import identify_zip

        return identify_zip(source, limits)
    if _is_safetensors(head):
        return Identity(kind="safetensors", title="a safetensors file", format="safetensors")
    if source.size >= _TAR_BLOCK:
        from firekeep.formats._packed import identify_tar

        if (tar := identify_tar(source)) is not None:
            return tar
    if any(magic in head[:_LEGACY_WITHIN] for magic in _LEGACY):
        return Identity(kind="pytorch", title="a PyTorch file (legacy stream)", format="pytorch")
    if head[0] == 0x80 and len(head) > 1 and head[1] <= _LAST_PROTOCOL:
        return _name_pickle(source)
    return None


def _name_pickle(source: Source) -> Identity:
    """Tell the data.pkl of an unpacked PyTorch file from a pickle that holds all it has."""
    start = bytes(source.view(0, min(source.size, _PICKLE_SEARCHED)))
    if b"torch.distributed.checkpoint.metadata" in start[:1024]:
        title = "the table of a checkpoint of torch.distributed.checkpoint (.metadata)"
        return Identity(kind="torch-distributed", title=title, format="pytorch", next_step=DISTRIBUTED)
    if not re.search(rb"(?:X\x07\0\0\0|[U\x8c]\x07)storage", start) or b"Storage" not in start:
        return Identity(kind="pytorch", title="a pickle", format="pytorch")
    step = "Take the whole file: the folder that it was unpacked from, with data/, or the .pt file itself."
    path = PurePath(source.path or "")
    if path.name == "data.pkl" and (Path(path.parent) / "data").is_dir() and path.parent.name:
        step = f"Pack the folder again: `cd {shlex.quote(str(path.parent.parent))} && zip -0 -r model.pt {shlex.quote(path.parent.name)}`."
    return Identity(
        kind="bare-data.pkl",
        title="the data.pkl of an unpacked PyTorch file, without the data it refers to",
        format="pytorch",
        next_step=step,
    )


def _is_safetensors(head: bytes) -> bool:
    """Tell the brace of a JSON object behind a header length, with white space before it or not.

    A length beyond 32 bits is damaged: then some word of the header must be there.
    """
    if not head[8:].lstrip(b" \t\r\n").startswith(b"{"):
        return False
    return head[4:8] == b"\0\0\0\0" or any(word in head[:512] for word in (b'"dtype"', b'"__metadata__"'))


def _identify_other(source: Source, head: bytes, limits: Limits) -> Identity | None:
    """Name what firekeep does not read, what it reads for those who arrive with it, and what no fixed bytes tell."""
    from firekeep.formats._named_binaries import identify_binary, identify_zeros
    from firekeep.formats._named_texts import identify_plain_text, identify_text
    from firekeep.formats._packed import identify_packed

    found = match_magic(source, head) or identify_packed(source, head) or identify_text(source, head)
    if found is not None:
        return found
    if _is_text_pickle(head):
        return Identity(kind="pytorch", title="a pickle", format="pytorch")
    found = identify_binary(source, head) or identify_plain_text(source, head) or identify_zeros(source)
    if found is not None:
        return found
    if _is_damaged_safetensors(source, head):
        return Identity(kind="safetensors", title="a safetensors file", format="safetensors")
    return _identify_zip_behind(source, limits)


def _is_text_pickle(head: bytes) -> bool:
    """Tell a pickle of protocol 0 or 1, which no fixed byte starts, by reading its first instructions."""
    if head[0] not in b"(}])cILFSUVXKMJGNTi":
        return False
    import pickletools

    seen, telling = 0, False
    try:
        for operation, argument, _ in pickletools.genops(head):
            if operation.name in ("GLOBAL", "INST") and not re.fullmatch(r"[\w.]+ [\w.]+", str(argument)):
                return False
            telling = telling or operation.name in ("GLOBAL", "INST", "PUT", "BINPUT", "STOP")
            seen += 1
            if operation.name == "STOP" or seen >= _INSTRUCTIONS_READ:
                return telling and seen >= 2
    except Exception as error:  # noqa: BLE001 - the disassembler of the standard library raises whatever it meets
        cut = any(word in str(error) for word in ("exhausted", "expected", "newline"))
        return cut and telling and seen >= 2
    return False


def _is_damaged_safetensors(source: Source, head: bytes) -> bool:
    """Tell a header whose first byte is damaged: its length is right if it ends the file, or if it ends with a brace."""
    length = int.from_bytes(head[:8], "little")
    if source.size < 9 or not 0 < length <= source.size - 8:
        return False
    return length == source.size - 8 or bytes(source.view(8, length)[-64:]).rstrip().endswith(b"}}")


def _identify_zip_behind(source: Source, limits: Limits) -> Identity | None:
    """Name a zip archive that stands behind other bytes."""
    from firekeep.formats._named_zips import identify_zip
    from firekeep.formats._zip_records import END_MAGIC, find_end

    tail = bytes(source.view(max(0, source.size - 65_557), min(source.size, 65_557)))
    if END_MAGIC not in tail:
        return None
    try:
        if find_end(source, stop=source.size) is None:
            return None
    except FormatError:
        return None
    found = identify_zip(source, limits)
    return None if found.error is not None else found
