"""The arguments of the doors of models, checked and made into jobs."""

from __future__ import annotations

import errno
import io
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from firekeep.errors import FirekeepError, WrongTypeError
from firekeep.formats import OpenOptions
from firekeep.limits import Limits
from firekeep.opened import OpenedFile, Readable, is_readable, no_file
from firekeep.wording import kind

if TYPE_CHECKING:
    from firekeep.applying import Hint, LoadJob
    from firekeep.rules import DTypeLike
    from firekeep.slots import Outline
    from firekeep.supply import Supply


_ONE_FILE = "One file is read at a time; a set of shards is opened by its folder or its index."
_LONGEST_PATH = 4096
"""Bytes that may be a path; what is a file of tensors may be as short, and is no path of one that is there."""


def supply_of(source: Any) -> Supply:
    """Offer the tensors of another model, or of a `Collection`."""
    from firekeep.collecting import Collection
    from firekeep.supply import supply_of_entries, supply_of_object

    if not isinstance(source, Collection):
        return supply_of_object(source)
    supply = supply_of_entries(
        source.entries,
        layout=source.layout,
        layers=source.layers,
        scalars=source.scalars,
        constants=source.constants,
        told=source.told,
        unturned=source.unturned,
    )
    return replace(supply, columns=(supply.columns or frozenset()) | source.columns) if source.columns else supply


def require_file(obj: Any, given: Any, job: LoadJob, *, like: Any, limits: Limits, call: str) -> None:
    """Raise `WrongTypeError` for an object where a file is due, with what takes it instead: tried, as all remedies are."""
    _refuse_odd(given)
    if is_readable(given):
        return
    if isinstance(given, OpenedFile):
        raise no_file(given, remedy=f"Give its path: firekeep.{call}(obj, {given.path!r})." if given.path else None)
    try:
        supply = supply_of(given)
    except FirekeepError:
        raise no_file(given, remedy=None) from None
    if not supply.entries:
        paths = isinstance(given, list | tuple) and any(isinstance(one, str | os.PathLike) for one in given)
        raise no_file(given, remedy=_ONE_FILE if paths else None)
    raise no_file(given, remedy=_remedy(obj, supply, job, like=like, limits=limits, call=call))


def _remedy(obj: Any, supply: Supply, job: LoadJob, *, like: Any, limits: Limits, call: str) -> str | None:
    from firekeep import applying

    try:
        tried = with_telling(replace(job, dry_run=True), like, supply, limits)
        report = applying.load_into(obj, supply, tried)
    except FirekeepError as error:
        why = error.message
    else:
        why = "" if report.ok else ", ".join(report.refusals)
    if not why:
        how = ", changing it in place" if call == "load_as" else ""
        return f"firekeep.apply(obj, other) puts the tensors of one object into another{how}."
    if call == "load_as":
        return "Write it to a file first: firekeep.save(other, path)."
    return f"The door for the tensors of another object is firekeep.apply(obj, other), which would refuse these: {why}."


def require_path(path: Any, *, call: str = "save") -> str | os.PathLike[str]:
    """Give the path of a file to write, as text where it was bytes; raises `WrongTypeError` for an object where it is due."""
    if isinstance(path, str | os.PathLike | bytes):
        if not (given := _spelled(path)):
            raise FileNotFoundError(errno.ENOENT, "an empty path is not a file's", given)
        return os.fsdecode(given) if isinstance(given, bytes) or isinstance(path, bytes) else path
    after = {"save": " after the object", "convert": " after the file", "save_file": " after the tensors"}[call]
    raise WrongTypeError(f"a path is due{after}, not {kind(path)}", remedy=_remedy_for_path(path, call))


def _remedy_for_path(path: Any, call: str) -> str:
    if hasattr(path, "write"):
        return {
            "save": "A store keeps a file in memory: store = firekeep.SafetensorsStore(), store.save(obj), and store.data are its bytes.",
            "convert": "Write a file, and take its bytes: firekeep.convert(src, path), and pathlib.Path(path).read_bytes().",
            "save_file": "firekeep.save_bytes(tensors, format='safetensors') gives the bytes of a file.",
        }[call]
    if call == "convert" and _holds_tensors(path):
        return "firekeep.load_into(obj, path) puts the tensors of a file into an object."
    return {
        "save": "firekeep.save(obj, 'model.safetensors') writes a file.",
        "convert": "firekeep.convert(src, 'model.safetensors') writes a file.",
        "save_file": "The tensors come first, and the path after them: firekeep.save_file(tensors, 'model.safetensors').",
    }[call]


def require_source(source: Any, *, call: str) -> Readable:
    """Give a file to read, as it is but for paths that are bytes; raises `WrongTypeError` for another object, with what takes it."""
    if not isinstance(source, str):
        _refuse_odd(source)
        if not is_readable(source):
            raise no_file(source, remedy=_remedy_for_source(source, call))
        if isinstance(source, os.PathLike) and isinstance(spelled := os.fspath(source), bytes):
            return os.fsdecode(spelled)
    return source  # type: ignore[no-any-return]


def _refuse_odd(source: Any) -> None:
    """Refuse what looks like a file and cannot be read as one: paths that are none, text, the name of a file in place of its content."""
    if isinstance(source, os.PathLike):
        _spelled(source)
    elif isinstance(source, io.TextIOBase):
        raise WrongTypeError("the file is open in text mode: open it with 'rb'")
    elif isinstance(source, bytes | bytearray) and 0 < len(source) <= _LONGEST_PATH and os.path.lexists(bytes(source)):
        path = os.fsdecode(bytes(source))
        raise WrongTypeError(
            f"bytes are taken for the content of a file, and these are the path of one, {path!r}",
            remedy=f"Give it as text: {path!r}.",
        )


def _spelled(path: str | bytes | os.PathLike[Any]) -> str | bytes:
    """Give a path as text or bytes; raises `WrongTypeError` for an object that promises one and gives none."""
    try:
        given: str | bytes = os.fspath(path)
    except TypeError as error:
        raise WrongTypeError(f"a path is due, and {kind(path)} gives none: {error}") from None
    return given


def _remedy_for_source(source: Any, call: str) -> str | None:
    if isinstance(source, OpenedFile):
        if source.path is None:
            return "It is open already: ask it, or give the bytes that it was opened from."
        return f"It is open already: ask it, or give its path, {source.path!r}, to firekeep.{call}."
    if isinstance(source, list | tuple | set) and any(isinstance(one, str | os.PathLike) for one in source):
        return _ONE_FILE
    if not _holds_tensors(source):
        return None
    if call == "preview":
        return "With objects at hand: firekeep.load_into(obj, path, dry_run=True), or firekeep.apply(obj, other, dry_run=True)."
    if call == "convert":
        return "firekeep.save(obj, path) writes the tensors of an object, and takes layout=, like=, rename= and dtype= as convert does."
    return (
        "firekeep.entries_of(obj) lists the tensors of an object, and firekeep.save(obj, path) writes a file of them."
    )


def _holds_tensors(obj: Any) -> bool:
    from firekeep.bridges import entries_of

    try:
        return any(entry.problem is None for entry in entries_of(obj))
    except FirekeepError:
        return False


def open_options(limits: Limits, top_level_key: str | None, *, dequantize: bool) -> OpenOptions:
    """Say how the file of a load is opened."""
    return OpenOptions(limits=limits, top_level_key=top_level_key, dequantize=dequantize)


def with_telling(job: LoadJob, like: Any, supply: Supply, limits: Limits) -> LoadJob:
    """Add what tells the layers of a tree: what it is like, else, for variables of Linen, what the tensors come from."""
    from firekeep.layouts import CONVENTIONS
    from firekeep.likeness import Likeness, likeness_of, telling_of

    if like is not None:
        return replace(job, telling=telling_of(likeness_of(like, OpenOptions(limits=limits)), job))
    if not supply.live:
        job = replace(job, hint=_hint(job, supply, limits))
    said = None if supply.layout is None else supply.layout.name
    layout = next((known for known in CONVENTIONS if known == said), None)
    if not supply.layers or layout is None:
        return job
    known = Likeness(
        what="the source",
        entries=tuple(entry for entry in supply.entries.values() if entry.problem is None),
        layout=layout,
        layers=supply.layers,
        told=True,
    )
    return replace(job, telling=telling_of(known, job, linen_only=True))


def _hint(job: LoadJob, supply: Supply, limits: Limits) -> Hint:
    """Say that like= may be given, and try the file itself, where it is PyTorch's and has a path."""
    from firekeep.applying import Hint
    from firekeep.likeness import likeness_of, telling_of

    if supply.where is None or supply.layers or supply.layout is None or supply.layout.name != "torch":
        return Hint()

    def tell(outline: Outline) -> Outline:
        return telling_of(likeness_of(supply.where, OpenOptions(limits=limits)), job)(outline)

    return Hint(telling=tell, spelled=f"like={supply.where!r}")


def collect_job(
    *,
    layout: str | None,
    like: Any,
    rename: Any,
    surgery: Any,
    include: Any,
    exclude: Any,
    dtype: DTypeLike | None,
    ties: str,
    limits: Limits,
) -> Any:
    """Make the `CollectJob` of a save."""
    from firekeep.collecting import CollectJob
    from firekeep.layouts import check_layout
    from firekeep.likeness import likeness_of
    from firekeep.rules import KeyRemapper, PathFilter, cast_target, name_dtype
    from firekeep.rules.surgery import Surgery

    return CollectJob(
        chosen=PathFilter.of(include=include, exclude=exclude),
        layout=None if layout is None else check_layout(layout),
        dtype=None if dtype is None else cast_target(name_dtype(dtype)),
        remapper=KeyRemapper.of(rename),
        surgery=Surgery.of(surgery),
        like=None if like is None else likeness_of(like, OpenOptions(limits=limits)),
        ties=ties,
    )


def load_job(
    *,
    strict: bool,
    match: Literal["auto", "exact"],
    rename: Any,
    surgery: Any,
    include: Any,
    exclude: Any,
    dtype: DTypeLike,
    layout: str | None,
    allow_missing: bool | None,
    allow_unused: bool | None,
    allow_mismatched: bool | None,
    stage: bool,
    dry_run: bool,
) -> Any:
    """Make the `LoadJob` of a load; raises `RuleError` for what makes no sense."""
    from firekeep.applying import LoadJob
    from firekeep.errors import RuleError
    from firekeep.layouts import check_layout
    from firekeep.matching import Policy
    from firekeep.rules import KeyRemapper, PathFilter
    from firekeep.rules.surgery import Surgery
    from firekeep.stores import held

    if match not in ("auto", "exact"):
        raise RuleError(f"match={match!r}: 'auto' finds names by certain steps, 'exact' takes equal names only")

    def verdict(*, allowed: bool | None) -> Literal["error", "allow"]:
        return "allow" if (not strict if allowed is None else allowed) else "error"

    return LoadJob(
        policy=Policy(
            missing=verdict(allowed=allow_missing),
            unused=verdict(allowed=allow_unused),
            shape=verdict(allowed=allow_mismatched),
        ),
        match=match,
        remapper=KeyRemapper.of(rename),
        surgery=Surgery.of(surgery),
        chosen=PathFilter.of(include=include, exclude=exclude),
        dtype=held(dtype),
        layout=None if layout is None else check_layout(layout),
        stage=stage,
        dry_run=dry_run,
        switches={"missing": "allow_missing=True", "unused": "allow_unused=True", "shape": "allow_mismatched=True"},
    )
