"""Is a file whole: its structure, its checksums, its digests, and, on request, its numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from firekeep import digests
from firekeep.blobs import StridedBlob
from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, FormatError, MetadataError, WrongFormatError
from firekeep.formats import Finding, OpenOptions, open_source
from firekeep.formats._zip import read_directory
from firekeep.opened import OpenedFile, Readable, open_file
from firekeep.saving import Meter, Progress
from firekeep.showing import Shown
from firekeep.sources import Source
from firekeep.wording import count, lines, quote, size, some

_SHOWN = 50
_EMPTY = "empty"
"""The kind of a file without a byte: what a save leaves that did not happen."""
_ARCHIVES = ("zip", "torchscript", "npz", "keras-archive")
"""Variants that are zip archives."""


class Judged(Shown):
    """What a check found, as findings: one that is an error is a no."""

    __slots__ = ()
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found that is an error."""
        return not any(finding.severity == "error" for finding in self.findings)

    def __bool__(self) -> bool:
        return self.ok

    def told_findings(self) -> list[dict[str, str]]:
        """Give the findings as data that `json` writes."""
        return [{"severity": found.severity, "place": found.place, "message": found.message} for found in self.findings]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class VerificationReport(Judged):
    """What `verify` found. `ok` is False when any finding is an error; `bool(report)` is `ok`.

    `digests` is the number of tensors whose digest was checked, `values` says whether the numbers were looked at.
    """

    path: str | None
    format: str
    variant: str = ""
    tensors: int = 0
    nbytes: int = 0
    digests: int = 0
    values: bool = False
    checksums: bool = False
    """Whether the file, or each of a set, is an archive that keeps checksums, which were compared."""
    manifest: bool = False
    """Whether the file was compared with the digest in the manifest of the step that it is a file of."""
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Give the report as data that `json` writes."""
        return {
            "path": self.path,
            "ok": self.ok,
            "format": self.format,
            "variant": self.variant,
            "tensors": self.tensors,
            "bytes": self.nbytes,
            "digests_checked": self.digests,
            "values_checked": self.values,
            "manifest_checked": self.manifest,
            "findings": self.told_findings(),
        }

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "NOT OK"
        kind = f"{self.format} {self.variant}".strip()
        head = f"{self.path or 'the file'}: {verdict}" + (f" ({kind})" if kind else "")
        return "\n".join((head, *lines(self._told())))

    def _told(self) -> Iterator[str]:
        if self.tensors:
            checked = ["structure", "checksums of the archive"] if self.checksums else ["structure"]
            checked += [f"{count(self.digests, 'digest')}"] if self.digests else []
            checked += ["the manifest's digest of the file"] if self.manifest else []
            checked += ["values"] if self.values else []
            yield f"{count(self.tensors, 'tensor')}, {size(self.nbytes)}; checked: {', '.join(checked)}"
        for found in self.findings[:_SHOWN]:
            place = f"{quote(found.place)}: " if found.place else ""
            yield f"{found.severity}: {place}{found.message}"
        if len(self.findings) > _SHOWN:
            yield f"and {len(self.findings) - _SHOWN:,} more findings"


def verify(source: Readable, options: OpenOptions, *, values: bool, progress: Progress | None) -> VerificationReport:
    """Check a file; see `firekeep.verify`."""
    try:
        opened = open_file(source, options)
    except FormatError as error:
        if (
            isinstance(error, WrongFormatError) and error.kind != _EMPTY
        ):  # of no kind that could be whole; nothing at all is damage
            raise
        return _refused(error)
    with opened:
        findings = _name_tensors(opened, options, list(_check_structure(opened)))
        known, faults = read_digests(opened, options)
        findings += [Finding("error", "", fault) for fault in faults]
        if digests.KEY in opened.metadata and not known and not faults:
            findings.append(Finding("note", "", "its table of digests names no tensor, so no digest was compared"))
        wanted = [entry for entry in opened.entries.values() if entry.problem is None]
        if not values:
            wanted = [entry for entry in wanted if entry.name in known]
        meter = Meter(sum(entry.nbytes for entry in wanted), progress)
        for entry in wanted:
            findings += _check_tensor(entry, known.get(entry.name), values=values, meter=meter)
        findings += _missing_digests(opened, known)
        return VerificationReport(
            path=opened.path,
            format=opened.format,
            variant=opened.variant,
            tensors=len(opened),
            nbytes=sum(entry.nbytes for entry in opened.entries.values()),
            digests=sum(entry.name in known for entry in wanted),
            values=values,
            checksums=set(_variants(opened)) <= set(_ARCHIVES),
            findings=tuple(findings),
        )


def _variants(opened: OpenedFile) -> list[str]:
    """Give the kind of the file, or those of the files of a set."""
    found: list[str] = opened.details.get("shard_variants") or [opened.variant]
    return found


def _refused(error: FormatError) -> VerificationReport:
    message = FirekeepError(error.message, remedy=error.remedy)
    return VerificationReport(
        path=error.path, format="", findings=(Finding("error", error.tensor or "", str(message)),)
    )


def _check_structure(opened: OpenedFile) -> Iterator[Finding]:
    """Run the format's own checks, and tell of tensors that have no bytes unless they did."""
    told: set[str] = set()
    try:
        for finding in opened.container.check():
            told.update((finding.place, finding.message))
            yield finding
    except FirekeepError as error:
        yield Finding("error", error.tensor or "", error.message)
    broken = [entry for entry in opened.entries.values() if entry.problem is not None]
    for entry in broken:
        if entry.name not in told:
            yield Finding("warning", entry.name, f"no bytes can be given for it: {entry.problem}")
    for note in opened.notes:
        if note not in told and not (broken and " cannot be given: " in note):  # each of them is a finding of its own
            yield Finding("note", "", note)


def _name_tensors(opened: OpenedFile, options: OpenOptions, findings: list[Finding]) -> list[Finding]:
    """Say of what is wrong with a storage, or with a member of an archive, which tensors it is wrong with."""
    problems: dict[str, list[str]] = {}
    for entry in opened.entries.values():
        if entry.problem is not None:
            problems.setdefault(entry.problem, []).append(entry.name)
    members = _members(opened, options) if any(found.severity == "error" for found in findings) else {}
    named: list[Finding] = []
    for found in findings:
        names = members.get(found.place) or (problems.get(found.message) if found.severity == "error" else None)
        if names:
            more = f" ({some(names[1:])} too)" if len(names) > 1 else ""
            named.append(replace(found, place=names[0], message=f"{found.message}{more}"))
        else:
            named.append(found)
    lost = {name for found in named if found.severity == "error" for name in problems.get(found.message, ())}
    lost |= {found.place for found in named if found.severity == "error"}
    return [found for found in named if found.severity != "warning" or found.place not in lost]


def _members(opened: OpenedFile, options: OpenOptions) -> dict[str, list[str]]:
    """Name the tensors whose bytes lie in each member of a zip archive, as far as they lie there as they are."""
    if not set(_variants(opened)) & set(_ARCHIVES):
        return {}
    files = opened.container.sources or (opened.source,)
    prefixes = [f"{name}/" for name in opened.details.get("shards", ())] or [""]
    spans = {id(file): _spans(file, prefix, options) for file, prefix in zip(files, prefixes, strict=True)}
    found: dict[str, list[str]] = {}
    for entry in opened.entries.values():
        blob = entry.blob.base if isinstance(entry.blob, StridedBlob) else entry.blob
        place = None
        with suppress(FirekeepError):
            place = blob.window() if entry.problem is None and entry.nbytes else None
        if place is None or not (here := spans.get(id(place[0]))):
            continue
        _, end, member_name = here[max(0, bisect_right(here, place[1], key=itemgetter(0)) - 1)]
        if place[1] < end:
            found.setdefault(member_name, []).append(entry.name)
    return found


def _spans(file: Source, prefix: str, options: OpenOptions) -> list[tuple[int, int, str]]:
    """Give the members of an archive in the order of their bytes; none of another file."""
    spans: list[tuple[int, int, str]] = []
    with suppress(FirekeepError):  # told by the check of the archive
        directory = read_directory(file, options.limits)
        for member in directory.members.values():
            with suppress(FirekeepError):
                start = directory.data_offset(member)
                spans.append((start, start + member.compressed, f"{prefix}{member.name}"))
    return sorted(spans)


def read_digests(opened: OpenedFile, options: OpenOptions) -> tuple[dict[str, str], list[str]]:
    """Give the digests that a file, or each file of a set, holds of its own tensors, and what is wrong with tables of them."""
    known: dict[str, str] = {}
    faults: list[str] = []
    files = opened.container.sources if opened.format == "safetensors" else ()
    metadata = [open_source(source, options).metadata for source in files] if files else [opened.metadata]
    for held in metadata:
        try:
            known.update(digests.parse(held[digests.KEY]) if digests.KEY in held else {})
        except MetadataError as error:
            faults.append(error.message)
    return known, faults


def _missing_digests(opened: OpenedFile, known: Mapping[str, str]) -> Iterator[Finding]:
    for name in known:
        if name not in opened.entries:
            yield Finding("error", name, "there is a digest of it, and no tensor of this name")
    ties = opened.ties
    without = [name for name in opened.entries if name not in known and ties.get(name) not in known]
    if known and without:
        yield Finding("warning", "", f"{count(len(without), 'tensor')} without a digest: {some(without)}")


def _check_tensor(entry: TensorEntry, digest: str | None, *, values: bool, meter: Meter) -> Iterator[Finding]:
    """Read a tensor once, for its digest and its numbers."""
    running = digests.new_digest() if digest is not None else None
    scan = _Scan(entry.require()) if values else None
    try:
        for chunk in entry.blob.chunks():
            if running is not None:
                running.update(chunk)
            if scan is not None:
                scan.look(chunk)
            meter.step(chunk.nbytes)
    except FirekeepError as error:
        yield Finding("error", entry.name, error.message)
        return
    if running is not None and running.hexdigest() != digest:
        yield Finding(
            "error", entry.name, f"its bytes are not those it was saved with: {running.hexdigest()}, not {digest}"
        )
    if scan is not None:
        yield from scan.findings(entry)


class _Scan:
    """Counts NaN and infinite numbers, and sees whether anything is not zero."""

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype
        self._is_float = dtype.kind in ("float", "complex") and dtype.numpy is not None and dtype.bits >= 8
        self._nan = self._infinite = 0
        self._all_zero = True

    def look(self, chunk: memoryview) -> None:
        """Take the next bytes."""
        import numpy as np

        from firekeep import floats
        from firekeep.arrays import numpy_dtype

        if not self._is_float:
            return
        numbers = np.frombuffer(chunk, numpy_dtype(self._dtype))
        if self._all_zero and floats.count_nonzero(numbers):
            self._all_zero = False
        finite = floats.is_finite(numbers)
        if not finite.all():
            nan = int(np.count_nonzero(floats.is_nan(numbers)))
            self._nan += nan
            self._infinite += finite.size - int(np.count_nonzero(finite)) - nan

    def findings(self, entry: TensorEntry) -> Iterator[Finding]:
        """Say what was seen."""
        if self._nan:
            yield Finding("error", entry.name, f"{self._nan:,} of {count(entry.numel, 'number')} are NaN")
        if self._infinite:
            yield Finding("warning", entry.name, f"{self._infinite:,} of {count(entry.numel, 'number')} are infinite")
        if self._all_zero and self._is_float and entry.nbytes:
            yield Finding("note", entry.name, f"all {count(entry.numel, 'number')} are zero")
