"""Naming a zip archive by its members."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath, PurePosixPath

from firekeep.errors import FormatError, TruncatedError, UnsupportedError
from firekeep.formats._signatures import DISTRIBUTED, OTHER_FILE, Identity, count_bytes, shell_name
from firekeep.formats._zip import ZipDirectory, ZipMember, read_directory
from firekeep.formats._zip_records import (
    FLAG_ENCRYPTED,
    FLAG_STRONG,
    LOCAL,
    LOCAL_MAGIC,
    LOCAL_SIZE,
    decode_name,
    find_end,
    find_odd_names,
    quote,
)
from firekeep.limits import Limits
from firekeep.sources import Source

_MODEL_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".th", ".safetensors", ".bpk", ".onnx", ".h5", ".gguf", ".npz")

_KERAS_WEIGHTS = "model.weights.h5"

_TOUCHED = 256
_SMALL = 1 << 20
_BY_NAME: tuple[tuple[str, tuple[str, ...], str, str | None], ...] = (
    (
        "torch-package",
        (r"(^|/)\.data/(extern_modules|\d+\.storage)$",),
        "a torch.package archive: Python code with pickles, not a plain state dict",
        "Ask its maker for the model's `state_dict()`: `torch.package.PackageImporter` reads this file, but runs the code in it.",
    ),
    (
        "torch-export",
        (r"(^|/)(archive_format|serialized_exported_program\.json)$",),
        "a torch.export program (.pt2)",
        "firekeep does not read it yet; `torch.export.load` does: save the `state_dict` of what it gives.",
    ),
    (
        "torchscript-v1",
        (r"(^|/)model\.json$", r"(^|/)(tensors/\d+|code/.+\.py)$"),
        "a TorchScript archive of PyTorch 1.0 to 1.3, with model.json instead of data.pkl",
        "Load it with `torch.jit.load` in the PyTorch 1.x that wrote it, and save the module's `state_dict()` there.",
    ),
    ("torchserve", (r"^MAR-INF/MANIFEST\.json$",), "a TorchServe model archive (.mar)", None),
    (
        "stable-baselines3",
        (r"^_stable_baselines3_version$|^policy\.pth$",),
        "a Stable-Baselines3 model: PyTorch files inside a zip archive",
        None,
    ),
    ("stable-baselines", (r"^parameter_list$",), "a Stable-Baselines model of TensorFlow times", None),
    ("tf-saved-model", (r"(^|/)saved_model\.pb(txt)?$",), "a zipped TensorFlow SavedModel", None),
    ("docx", (r"^word/document\.xml$",), "a Word document", OTHER_FILE),
    ("xlsx", (r"^xl/workbook\.xml$",), "an Excel workbook", OTHER_FILE),
    ("pptx", (r"^ppt/presentation\.xml$",), "a PowerPoint file", OTHER_FILE),
    ("opendocument", (r"^mimetype$",), "an OpenDocument file or an e-book", OTHER_FILE),
    ("wheel", (r"\.dist-info/WHEEL$",), "a Python wheel", OTHER_FILE),
    ("apk", (r"^AndroidManifest\.xml$",), "an Android package", OTHER_FILE),
    ("jar", (r"^META-INF/MANIFEST\.MF$",), "a Java archive", OTHER_FILE),
)
"""Kind, patterns that each match some member's name, title, next step (None: the command that unpacks it)."""


def identify_zip(source: Source, limits: Limits) -> Identity:
    """Name a zip archive by the members it has; a damaged one by what is wrong with it."""
    if _starts_like_torch(source):
        return Identity(kind="pytorch", title="a PyTorch file (zip)", format="pytorch")
    try:
        directory = read_directory(source, limits)
        troubles = _touch(directory)
    except TruncatedError as error:
        return Identity(kind="zip-truncated", title="a zip archive that is cut short", error=error)
    except UnsupportedError as error:
        return Identity(kind="zip-part", title="one part of a zip archive that is split", error=error)
    except FormatError as error:
        return Identity(kind="zip-damaged", title="a damaged zip archive", error=error)
    identity = replace(_name(source, directory), notes=directory.notes)
    if troubles and identity.kind in ("zip", "zip-of-models"):
        return replace(identity, title=f"{identity.title}; {troubles[0]}", next_step=OTHER_FILE)
    return identity


def _touch(directory: ZipDirectory) -> list[str]:
    """Look at the members, as many as are cheap, and say which cannot be read.

    Raises what `ZipDirectory.blob` raises for members that contradict the directory.
    """
    members = list(directory.members.values())[:_TOUCHED]
    small = sum(member.size for member in members) <= _SMALL
    troubles = []
    for member in members:
        try:
            directory.blob(member)
        except UnsupportedError as error:
            directory.data_offset(member)
            troubles.append(error.message)
            continue
        finding = directory.check(member) if small else None
        if finding is not None and finding.severity == "error":
            troubles.append(finding.message)
    return troubles


def _starts_like_torch(source: Source) -> bool:
    """Tell the files of `torch.save` by their first member, which saves a look at the directory of a large file.

    The archive must start the file: else there may be several.
    """
    head = bytes(source.view(0, min(source.size, 1024)))
    if len(head) < LOCAL_SIZE or not head.startswith(LOCAL_MAGIC):
        return False
    name = decode_name(head[LOCAL_SIZE : LOCAL_SIZE + LOCAL.unpack_from(head)[6]])
    if not is_torch_root(name):
        return False
    try:
        end = find_end(source, stop=source.size)
    except FormatError:
        return True  # the reader says the same
    return end is None or end.start == 0


def is_torch_root(name: str) -> bool:
    """Tell the pickle of a PyTorch file by its name; torch.package keeps others below `.data`."""
    return (name == "data.pkl" or name.endswith("/data.pkl")) and "/.data/" not in f"/{name}"


def _name(source: Source, directory: ZipDirectory) -> Identity:
    members = directory.members
    facts = _describe_members(members)
    if directory.archives > 1:
        return _name_row(source, directory)
    if not members:
        return Identity(
            kind="zip-empty",
            title="an empty zip archive: it has no data.pkl and no other member",
            facts=facts,
            next_step="The save did not finish or had nothing to write: save the file again.",
        )
    if any(is_torch_root(name) for name in members):
        return Identity(kind="pytorch", title="a PyTorch file (zip)", format="pytorch")
    if _KERAS_WEIGHTS in members:
        return Identity(kind="keras", title="a Keras 3 model (.keras)", format="hdf5")
    for kind, patterns, title, step in _BY_NAME:
        if all(any(re.search(pattern, name) for name in members) for pattern in patterns):
            return Identity(
                kind=kind,
                title=title + _empty_model(members),
                facts=facts,
                next_step=step or advise_unzip(source, members),
            )
    return _name_by_all(source, directory, facts)


def _name_row(source: Source, directory: ZipDirectory) -> Identity:
    """Name several archives in a row: two saves to one open file, or the data of a distributed checkpoint."""
    shown = ", ".join(f"{start} to {stop}" for start, stop in directory.spans[:5])
    facts = (("archives", f"{directory.archives:,}"), ("at bytes", shown + (" ..." if directory.archives > 5 else "")))
    if PurePath(source.path or "").suffix == ".distcp":
        title = "a part of a checkpoint of torch.distributed.checkpoint"
        return Identity(kind="torch-distributed", title=title, facts=facts, next_step=DISTRIBUTED)
    file, out = shell_name(source), shell_name(source, unpacked=True)
    cuts = [
        f"`tail -c +{start + 1} {file} | head -c {stop - start} > {out}.{number}`"
        for number, (start, stop) in enumerate(directory.spans[:3], start=1)
    ]
    return Identity(
        kind="zip-row",
        title=f"{directory.archives:,} zip archives one after the other, as when two saves go to one open file",
        facts=facts,
        next_step=f"Cut them apart and open each: {', '.join(cuts)}{' ...' if directory.archives > 3 else '.'}",
    )


def _name_by_all(source: Source, directory: ZipDirectory, facts: tuple[tuple[str, str], ...]) -> Identity:
    members = directory.members
    files = [name for name in members if not name.endswith("/")]
    if files and all(name.endswith(".npy") for name in files):
        return Identity(kind="npz", title="a NumPy .npz archive", format="numpy")
    if any(re.search(r"(^|/)data/\d+$", name) for name in files) and any(
        name.endswith(("/version", "/byteorder")) for name in files
    ):
        return Identity(
            kind="pytorch-without-data.pkl",
            title="a PyTorch archive without its data.pkl: storages, and nothing that says what they are",
            facts=facts,
            next_step="The names and shapes of its tensors are lost with data.pkl: save or fetch the file again.",
        )
    if all(member.flags & (FLAG_ENCRYPTED | FLAG_STRONG) for member in members.values()):
        return Identity(
            kind="zip-encrypted",
            title="an encrypted zip archive",
            facts=facts,
            next_step="firekeep takes no passwords: unpack it with its own, and open what is in it.",
        )
    models = [name for name in files if name.lower().endswith(_MODEL_SUFFIXES)]
    if models:
        shown = ", ".join(quote(name) for name in models[:3]) + (" ..." if len(models) > 3 else "")
        return Identity(
            kind="zip-of-models",
            title=f"a zip archive with {shown} inside",
            facts=facts,
            next_step=advise_unzip(source, members) or OTHER_FILE,
        )
    return Identity(
        kind="zip",
        title="a zip archive without data.pkl, so not a PyTorch file",
        facts=facts,
        next_step=advise_unzip(source, members) or OTHER_FILE,
    )


def _describe_members(members: Mapping[str, ZipMember]) -> tuple[tuple[str, str], ...]:
    shown = ", ".join(f"{quote(name)} ({count_bytes(member.size)})" for name, member in list(members.items())[:5])
    more = f" and {len(members) - 5:,} more" if len(members) > 5 else ""
    facts = [("members", f"{len(members):,}"), ("first members", shown + more)] if members else [("members", "0")]
    locked = [name for name, member in members.items() if member.flags & FLAG_ENCRYPTED]
    if locked:
        facts.append(("encrypted members", f"{len(locked):,}"))
    return tuple(facts)


def _empty_model(members: Mapping[str, ZipMember]) -> str:
    empty = [name for name, member in members.items() if name.endswith(_MODEL_SUFFIXES) and member.size == 0]
    return f"; its {empty[0]!r} is empty (0 bytes)" if empty else ""


def advise_unzip(source: Source, members: Mapping[str, ZipMember]) -> str | None:
    """Advise the command that takes the largest model file out of an archive, if there is one with a harmless name."""
    odd = set(find_odd_names(dict(members)))
    found = [
        member
        for name, member in members.items()
        if name.lower().endswith(_MODEL_SUFFIXES)
        and member.size
        and name not in odd
        and not re.search(r"[\[\]*?\s'\"]|^-", name)
    ]
    if not found:
        locked = any(member.flags & FLAG_ENCRYPTED for member in members.values())
        return None if odd or locked else f"Unpack it and see what is in it: `unzip {shell_name(source)}`."
    preferred = [
        member for member in found if PurePosixPath(member.name).name in ("policy.pth", "model.pt", "weights.th")
    ]
    best = max(preferred or found, key=lambda member: member.size)
    return f"Take the file out and open it: `unzip {shell_name(source)} {best.name}`."
