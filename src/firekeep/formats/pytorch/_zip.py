"""The zip layout of PyTorch 1.6 and later, and TorchScript archives.

ROOT/data.pkl   ROOT/data/KEY, one member a storage   ROOT/byteorder   ROOT/version   ROOT/.format_version   ...
TorchScript beside: ROOT/constants.pkl   ROOT/code/   ROOT/bytecode.pkl for mobile
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from firekeep.blobs import Blob
from firekeep.errors import MetadataError, UnsupportedError, WrongFormatError
from firekeep.formats._protocol import Finding, OpenOptions
from firekeep.formats._zip import ZipDirectory, ZipMember, read_directory
from firekeep.formats.pytorch._blobs import MemberBlob
from firekeep.formats.pytorch._found import Found
from firekeep.formats.pytorch._inert import StorageRef
from firekeep.formats.pytorch._machine import Machine
from firekeep.formats.pytorch._script import ScriptCode
from firekeep.formats.pytorch._storages import StorageTable
from firekeep.sources import Source

_PICKLE = "data.pkl"
_TEXT_BYTES = 4096
_SCRAMBLED = 0x2061
"""Flags of members that are encrypted, or patches of other files."""
_SCRIPT_FOLDERS = ("code/", "constants/", "bytecode/", "extra/", "traced_inputs/", "xl_model_weights/", "backend/")
_SCRIPT_MEMBERS = ("constants.pkl", "bytecode.pkl", "attributes.pkl", "traced_inputs.pkl", "model.json")
_OWN_MEMBERS = frozenset(
    (
        _PICKLE,
        "byteorder",
        "version",
        ".format_version",
        ".storage_alignment",
        ".data/serialization_id",
        ".data/version",
    )
)


class ZipStorages(StorageTable):
    """Storages that are members of the archive."""

    def __init__(self, source: Source, directory: ZipDirectory, root: str, *, swap: bool) -> None:
        super().__init__()
        self._source = source
        self.swap = swap
        self._directory = directory
        self._root = root

    def locate(self, ref: StorageRef, nbytes: int) -> Blob | str:
        """Give the bytes of a storage; a member that is missing or packed in an unknown way costs only its own tensors."""
        name = f"{self._root}data/{ref.key}"
        member = self._directory.members.get(name)
        if member is None:
            return f"its storage {name!r} is not in the file"
        if member.size != nbytes:
            raise MetadataError(
                f"storage {name!r} has {member.size} bytes, the pickle says {nbytes}", limit=nbytes, actual=member.size
            )
        if member.method == 0 and not member.flags & _SCRAMBLED:
            return MemberBlob(self._source, self._directory, member, 0, nbytes)
        try:
            return self._directory.blob(member)
        except UnsupportedError as error:
            return error.message


def read_zip(source: Source, options: OpenOptions) -> Found:
    """Read the archive's directory and its pickle.

    Raises `WrongFormatError` for archives of other kinds, saying which, and `MetadataError` for several archives in one file.
    """
    limits = options.limits
    directory = read_directory(source, limits)
    if directory.archives > 1:
        raise MetadataError(
            f"the file holds {directory.archives} archives one after the other, as when two saves go to one open file",
            remedy="Cut it into its parts, and open one of them.",
        )
    root = _find_root(directory)
    swap, order = _byte_order(directory, root)
    storages = ZipStorages(source, directory, root, swap=swap)
    name = f"{root}{_PICKLE}"
    data = directory.read(directory.members[name], limit=limits.pickle_bytes)
    machine = Machine(data, limits=limits, place=f"the pickle {name!r}", persistent=storages.persistent)
    value = machine.run()
    notes = []
    if machine.position < len(data):
        notes.append(f"{len(data) - machine.position} bytes follow the pickle in {name!r}")
    scripted = any(f"{root}{member}" in directory.members for member in ("constants.pkl", "bytecode.pkl"))
    details = _details(directory, root, order)
    details["pickle_protocol"] = machine.protocol
    return Found(
        variant="torchscript" if scripted else "zip",
        root=value,
        storages=storages,
        globals=machine.globals,
        details=details,
        notes=notes,
        later_notes=lambda: directory.notes,
        classes=ScriptCode(directory, root) if scripted else None,
        taken={**machine.taken(), "archive_members": len(directory.members)},
        check=lambda: _check(directory, root, storages, scripted=scripted),
    )


def _find_root(directory: ZipDirectory) -> str:
    """Find the folder that holds `data.pkl`: the one nearest to the top."""
    names = [name for name in directory.members if name == _PICKLE or name.endswith(f"/{_PICKLE}")]
    if any("/.data/ts_code/" in name or name.endswith("/.data/extern_modules") for name in directory.members):
        raise WrongFormatError(
            "this is a torch.package archive: Python code with its own pickles, not one saved object",
            kind="torch-package",
            remedy="Save the model's state_dict() with torch.save where the package's code is at hand.",
        )
    if not names:
        raise _refuse(directory)
    depth = min(name.count("/") for name in names)
    nearest = [name for name in names if name.count("/") == depth]
    if len(nearest) > 1:
        shown = ", ".join(repr(name[:80]) for name in nearest[:4])
        raise MetadataError(
            f"the archive has {len(nearest)} pickles at the same place, {shown}: which is meant is unknown"
        )
    return nearest[0].removesuffix(_PICKLE)


def _refuse(directory: ZipDirectory) -> WrongFormatError:
    """Say what an archive without a `data.pkl` is."""
    names = list(directory.members)
    if not names:
        return WrongFormatError("the archive is empty: it has no data.pkl; the save did not finish", kind="zip")
    inner = [name for name in names if name.endswith((".pth", ".pt", ".ckpt", ".bin", ".safetensors", ".bpk"))]
    shown = ", ".join(repr(name[:60]) for name in names[:5]) + (", ..." if len(names) > 5 else "")
    return WrongFormatError(
        f"the archive has no data.pkl, so it is not one that PyTorch saved: its {len(names)} members are {shown}",
        kind="zip",
        remedy=f"Unpack the archive and open {inner[0][:80]!r}." if inner else None,
    )


def _byte_order(directory: ZipDirectory, root: str) -> tuple[bool, str]:
    text = _text(directory, f"{root}byteorder")
    if text is None:
        return False, "little (not said)"
    if text not in ("little", "big"):
        raise MetadataError(f"the byte order of the file is {text[:40]!r}, neither little nor big")
    return text == "big", text


def _text(directory: ZipDirectory, name: str) -> str | None:
    member = directory.members.get(name)
    if member is None:
        return None
    return directory.read(member, limit=_TEXT_BYTES).decode("utf-8", "replace").strip()


def _details(directory: ZipDirectory, root: str, order: str) -> dict[str, Any]:
    details: dict[str, Any] = {"root": root, "byte_order": order, "members": len(directory.members)}
    for key, member in (
        ("archive_version", "version"),
        ("format_version", ".format_version"),
        ("storage_alignment", ".storage_alignment"),
    ):
        text = _text(directory, f"{root}{member}")
        if text is not None:
            details[key] = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text
    return details


def _check(directory: ZipDirectory, root: str, storages: ZipStorages, *, scripted: bool) -> Iterator[Finding]:
    """Read every member through, and name those that nothing refers to."""
    known = {f"{root}data/{key}" for key in storages.refs}
    for member in directory.members.values():
        finding = directory.check(member)
        if finding is not None:
            yield finding
        if member.name not in known and not _is_own(member, root, scripted=scripted):
            yield Finding("warning", member.name, _describe_stranger(directory, member))


def _is_own(member: ZipMember, root: str, *, scripted: bool) -> bool:
    if not member.name.startswith(root):
        return False
    name = member.name[len(root) :]
    if name in _OWN_MEMBERS or (name.endswith("/") and member.size == 0):
        return True
    return scripted and (name in _SCRIPT_MEMBERS or name.startswith(_SCRIPT_FOLDERS))


def _describe_stranger(directory: ZipDirectory, member: ZipMember) -> str:
    from firekeep.formats.pytorch._tokens import looks_like_pickle

    try:
        data = directory.read(member, limit=1 << 20, verify=False)
    except ValueError:
        data = b""
    what = "it is a pickle of" if looks_like_pickle(data) else "it has"
    return f"{what} {member.size} bytes that nothing in the archive refers to"
