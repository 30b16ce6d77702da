"""Writing tensors: from a mapping of arrays, or from entries, into one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from firekeep import digests
from firekeep.disk import WritePlan, to_bytes, write_file
from firekeep.entry import TensorEntry, untied
from firekeep.errors import (
    FirekeepError,
    LimitError,
    MetadataError,
    RuleError,
    ScalarError,
    UnsupportedError,
    WrongTypeError,
)
from firekeep.formats import FORMATS, Contents, Format, format_for_suffix
from firekeep.garbage import collector_paused
from firekeep.ids import ParamId
from firekeep.limits import Limits
from firekeep.opened import OpenedFile, require_name
from firekeep.scalars import Scalar
from firekeep.tensors import describe
from firekeep.wording import kind, some

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""

Id = int | str
Seal = Callable[[], bytes]
Prepared = tuple[WritePlan, Callable[[str, memoryview], None] | None, Seal | None]
"""A plan, who watches its bytes go by, and who gives the final header: what `prepare` makes and `publish` takes."""


class Meter:
    """Adds up steps for a caller who wants to know how far it is."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done = 0
        self._total = total
        self._progress = progress

    def step(self, nbytes: int) -> None:
        """Tell that so many more bytes are done."""
        self._done = min(self._done + nbytes, self._total)
        if self._progress is not None:
            self._progress(self._done, self._total)

    def finish(self) -> None:
        """Tell that all is done: what lies between tensors may not have been counted."""
        if self._done < self._total:
            self.step(self._total)


def save_file(
    tensors: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, str] | None,
    scalars: Mapping[str, Any] | None,
    param_ids: Mapping[str, Id] | None,
    format: str | None,
    ties: str,
    digest: bool,
    overwrite: bool,
    durable: bool,
    progress: Progress | None,
    limits: Limits,
) -> Path:
    """Write a mapping of tensors to a file; see `firekeep.save_file`."""
    row = choose_format(path, format)
    try:
        contents = gather(tensors, row, metadata=metadata, scalars=scalars, param_ids=param_ids, ties=ties)
        prepared = prepare(contents, row, digest=digest, limits=limits)
    except FirekeepError as error:
        raise error.at(path=path)  # noqa: B904 - the same error, with its place
    return publish(path, prepared, overwrite=overwrite, durable=durable, progress=progress)


def publish(
    path: str | os.PathLike[str], prepared: Prepared, *, overwrite: bool, durable: bool, progress: Progress | None
) -> Path:
    """Write a prepared file, whole or not at all, and give the path written."""
    plan, observe, seal = prepared
    meter = Meter(plan.nbytes, progress)
    written = write_file(
        path,
        plan,
        overwrite=overwrite,
        durable=durable,
        progress=meter.step if progress is not None else None,
        observe=observe,
        seal=seal,
    )
    meter.finish()
    return written


def save_bytes(
    tensors: Mapping[str, Any],
    *,
    format: str,
    metadata: Mapping[str, str] | None,
    scalars: Mapping[str, Any] | None,
    param_ids: Mapping[str, Id] | None,
    ties: str,
    digest: bool,
    limits: Limits,
) -> bytes:
    """Make the file in memory; see `firekeep.save_bytes`."""
    row = choose_format("", format)
    contents = gather(tensors, row, metadata=metadata, scalars=scalars, param_ids=param_ids, ties=ties)
    plan, observe, seal = prepare(contents, row, digest=digest, limits=limits)
    try:
        return to_bytes(plan, observe=observe, seal=seal)
    except MemoryError:
        raise LimitError(
            f"{plan.nbytes} bytes of memory are needed for the file, and the system refuses them",
            actual=plan.nbytes,
            remedy="Write it to disk with save_file, which needs memory for one tensor at a time.",
        ) from None


def choose_format(path: str | os.PathLike[str], format: str | None) -> Format:
    """Give the format that a file is to be written in, by its name or else by the path's suffix, once it is known to be written."""
    require_name(path)
    if format is None:
        row = format_for_suffix(path)
    elif format in FORMATS:
        row = FORMATS[format]
    else:
        known = ", ".join(row.name for row in FORMATS.values() if row.writes)
        raise UnsupportedError(f"there is no format {format!r} to write: one of {known}")
    try:
        row.writer()
    except FirekeepError as error:
        raise error.at(path=path or None)  # noqa: B904 - the same error, with its place
    return row


def _remedy_for_tensors(given: Any) -> str | None:
    """Say what takes an object that was given where a mapping is due, if anything does."""
    from firekeep.bridges import entries_of

    if isinstance(given, str | os.PathLike):
        return "The tensors come first, and the path after them: firekeep.save_file(tensors, path)."
    if isinstance(given, OpenedFile):
        return "firekeep.convert(path, other) writes what a file holds to another."
    try:
        held = entries_of(given)
    except FirekeepError:
        return None
    return (
        "firekeep.save(obj, path) writes the tensors of an object."
        if any(one.problem is None for one in held)
        else None
    )


def gather(
    tensors: Mapping[str, Any],
    row: Format,
    *,
    metadata: Mapping[str, str] | None = None,
    scalars: Mapping[str, Any] | None = None,
    param_ids: Mapping[str, Id] | None = None,
    ties: str = "keep",
) -> Contents:
    """Check everything that is to be written, and describe it; nothing is copied."""
    if not isinstance(tensors, Mapping):
        raise WrongTypeError(
            f"a mapping of names to tensors is needed, not {kind(tensors)}", remedy=_remedy_for_tensors(tensors)
        )
    with collector_paused():
        entries = [_entry(name, value) for name, value in tensors.items()]
    if param_ids:
        entries = _identify(entries, param_ids, row)
    return Contents(
        entries=tie(entries, ties),
        metadata=check_metadata(metadata or {}),
        scalars=gather_scalars(scalars or {}),
    )


def gather_scalars(scalars: Mapping[str, Any]) -> dict[str, Scalar]:
    """Give numbers the kinds they are stored as; raises `ScalarError`, naming it, for what is none."""
    return {name: _scalar(name, value) for name, value in scalars.items()}


def tie(entries: list[TensorEntry], ties: str) -> list[TensorEntry]:
    """Give entries as they are to be stored: tied ones once ("keep") or each in full ("expand")."""
    if ties not in ("keep", "expand"):
        raise RuleError(f"ties={ties!r}: 'keep' stores tied tensors once, 'expand' each in full")
    return entries if ties == "keep" else [untied(entry) for entry in entries]


def check_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Refuse metadata that is not text, naming the key; digests of another file are dropped."""
    if not isinstance(metadata, Mapping):
        raise MetadataError(f"metadata is a mapping of text to text, not {type(metadata).__name__}")
    for key, value in metadata.items():
        if not isinstance(key, str):
            raise MetadataError(f"the metadata key {key!r} is {type(key).__name__}, where text is due")
        if not isinstance(value, str):
            raise MetadataError(
                f"the metadata value of {key!r} is {type(value).__name__}, where text is due",
                remedy="Give str(...) or json.dumps(...) of it.",
            )
    return {key: value for key, value in metadata.items() if key != digests.KEY}


def prepare(contents: Contents, row: Format, *, digest: bool, limits: Limits, empty_metadata: bool = False) -> Prepared:
    """Plan a file, with digests if they are wanted: room is left for them, and they are filled in once all bytes were seen.

    `empty_metadata` is for safetensors alone: an empty `__metadata__` is written where there would be none.
    """
    write = row.writer()
    if empty_metadata:
        write = partial(cast("Callable[..., WritePlan]", write), empty_metadata=True)
    contents = replace(contents, entries=list(contents.entries))
    plan = write(contents, limits)
    if not digest:
        return plan, None, None
    names = [part.tensor for part in plan.parts if part.tensor is not None]

    def plan_with(value: str) -> WritePlan:
        return write(replace(contents, metadata={**contents.metadata, digests.KEY: value}), limits)

    digester = digests.Digester(names)
    plan = plan_with(digests.placeholder(names))

    def seal() -> bytes:
        return bytes(plan_with(digester.finish()).parts[0].blob.view())

    return plan, digester.observe, seal


def _entry(name: Any, value: Any) -> TensorEntry:
    if not isinstance(name, str):
        raise MetadataError(
            f"the tensor name {name!r} is {type(name).__name__}, where text is due", remedy="Give str(...) of it."
        )
    if isinstance(value, TensorEntry):
        return value if value.name == name else value.renamed(name)
    return describe(name, value)


def _identify(entries: list[TensorEntry], param_ids: Mapping[str, Id], row: Format) -> list[TensorEntry]:
    if not row.holds_param_ids:
        able = ", ".join(suffix for row in FORMATS.values() if row.holds_param_ids for suffix in row.suffixes)
        raise UnsupportedError(f"{row.name} files hold no parameter ids", remedy=f"Write {able}, which keeps them.")
    known = {entry.name for entry in entries}
    strange = [name for name in param_ids if name not in known]
    if strange:
        raise RuleError(f"param_ids names {some(strange)}, which no tensor is called")
    return [
        replace(entry, param_id=_param_id(entry.name, param_ids[entry.name])) if entry.name in param_ids else entry
        for entry in entries
    ]


def _param_id(name: str, value: Any) -> ParamId:
    try:
        if isinstance(value, str):
            return ParamId.parse(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return ParamId(value)
    except FirekeepError as error:
        raise error.at(tensor=name)  # noqa: B904 - the same error, with its place
    raise RuleError(f"its parameter id {value!r} is neither an integer nor the text of one", tensor=name)


def _scalar(name: Any, value: Any) -> Scalar:
    if not isinstance(name, str):
        raise MetadataError(f"the scalar name {name!r} is {type(name).__name__}, where text is due")
    try:
        return Scalar.of(value)
    except ScalarError as error:
        raise ScalarError(f"scalar {name!r}: {error.message}") from None
