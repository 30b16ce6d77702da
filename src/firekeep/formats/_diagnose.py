"""Saying what any file is, whether it opens, what is wrong with it, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from firekeep.errors import (
    DigestError,
    FirekeepError,
    LimitError,
    TruncatedError,
    UnsafePickleError,
    UnsupportedError,
    WrongFormatError,
)
from firekeep.formats import FORMATS, open_path
from firekeep.formats._detect import identify
from firekeep.formats._protocol import Container, Finding, OpenOptions
from firekeep.formats._signatures import COPY_AGAIN, Identity, count_bytes, shell_name
from firekeep.formats._union import FILES_OF
from firekeep.showing import Shown
from firekeep.sources import Source
from firekeep.wording import middle, size

_FINDINGS_SHOWN = 20
_LONGEST_KEY = 40
_ALREADY_TOLD = ("metadata", "file_bytes", "data_bytes")
_RUNS_CODE = "would have run code"
"""What the PyTorch reader says of a pickle that an unpickler must not see."""
_CANNOT = " cannot be given: "
"""What it says of the tensors that have a problem."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diagnosis(Shown):
    """What a file is, in words. `str()` gives it as lines for people, `to_dict()` as plain data.

    `kind` is a short fixed name ("pytorch", "lfs-pointer", "zip-truncated"); `title` completes "this is ...". `opens` says
    whether `firekeep.open` takes it.
    """

    kind: str
    title: str
    opens: bool
    path: str | None = None
    facts: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()
    next_step: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give the diagnosis as data that `json` writes."""
        return {
            "path": self.path,
            "kind": self.kind,
            "title": self.title,
            "opens": self.opens,
            "facts": dict(self.facts),
            "findings": [
                {"severity": found.severity, "place": found.place, "message": found.message} for found in self.findings
            ],
            "next_step": self.next_step,
        }

    def __str__(self) -> str:
        lines = [f"{self.path or 'this'}: {self.title}" if self.path else f"this is {self.title}"]
        width = max((len(label) for label, _ in self.facts), default=0)
        lines += [f"  {label.ljust(width)}  {text}" for label, text in self.facts]
        for found in self.findings:
            place = f"{found.place}: " if found.place else ""
            lines.append(f"  {found.severity}: {place}{found.message}")
        lines.append("  firekeep opens it." if self.opens else "  firekeep does not open it.")
        if self.next_step:
            lines.append(f"  Next: {self.next_step}")
        return "\n".join(lines)


def _say_size(nbytes: int) -> str:
    """Say a size as the other reports do, and to the byte."""
    return size(nbytes) if nbytes < 1000 else f"{size(nbytes)} ({count_bytes(nbytes)})"


def diagnose(source: Source, options: OpenOptions | None = None) -> Diagnosis:
    """Say what a file is, from its content; a file that firekeep reads is opened, but no tensor is drawn.

    Raises nothing for what is in the file: damage is told in `findings`.
    """
    options = OpenOptions() if options is None else options
    try:
        identity = identify(source, limits=options.limits)
    except FirekeepError as error:
        return _refused(source, Identity(kind="unreadable", title="a file that cannot be read"), error)
    if identity.error is not None:
        return _refused(source, identity, identity.error)
    if identity.format is None:
        return Diagnosis(
            kind=identity.kind,
            title=identity.title,
            opens=False,
            path=source.path,
            facts=(("size", count_bytes(source.size)), *identity.facts),
            findings=tuple(Finding("note", "", note) for note in identity.notes),
            next_step=identity.next_step,
        )
    try:
        container = FORMATS[identity.format].reader()(source, options)
    except FirekeepError as error:
        return _refused(source, identity, error)
    try:
        return _opened(source, identity, container)
    finally:
        for further in container.sources:
            further.close()


def diagnose_set(path: str, options: OpenOptions | None = None) -> Diagnosis | None:
    """Say what a folder or an index is, as the set of files that it stands for; None for a path to any other file."""
    options = OpenOptions() if options is None else options
    is_folder = Path(path).is_dir()
    title = "a folder" if is_folder else "the index of a sharded set of files"
    try:
        opened = open_path(path, options)
    except FirekeepError as error:
        return Diagnosis(
            kind=error.kind if isinstance(error, WrongFormatError) else "sharded-set",
            title=title if isinstance(error, WrongFormatError) else f"{title} that is damaged or not complete",
            opens=False,
            path=path,
            findings=(Finding("error", error.tensor or "", error.message),),
            next_step=error.remedy,
        )
    if opened is None:
        return None
    container, source = opened
    try:
        return Diagnosis(
            kind=container.format if container.variant != "sharded" else "sharded-set",
            title=f"{title} of {FILES_OF[container.format]}" if is_folder else title,
            opens=True,
            path=path,
            facts=tuple(_describe(container)),
            findings=tuple(_find(container)),
            next_step=_advise(source, container),
        )
    finally:
        for held in (source, *container.sources):
            held.close()


def _opened(source: Source, identity: Identity, container: Container) -> Diagnosis:
    return Diagnosis(
        kind=identity.kind,
        title=identity.title,
        opens=True,
        path=source.path,
        facts=(("size", _say_size(source.size)), *_describe(container)),
        findings=(*_note_suffix(source, container.format), *_find(container)),
        next_step=identity.next_step or _advise(source, container),
    )


def _describe(container: Container) -> list[tuple[str, str]]:
    entries = list(container.entries.values())
    kinds = Counter("unknown" if entry.dtype is None else entry.dtype.name for entry in entries)
    facts = [("format", f"{container.format} {container.variant}".strip()), ("tensors", f"{len(entries):,}")]
    if entries:
        facts.append(("bytes of tensors", _say_size(sum(entry.nbytes for entry in entries))))
        facts.append(("dtypes", ", ".join(f"{name} ({count:,})" for name, count in kinds.most_common())))
    if container.metadata:
        facts.append(("metadata keys", _some_keys(container.metadata)))
    if container.scalars:
        facts.append(("scalars", _some_keys(container.scalars)))
    facts += [
        (label.replace("_", " "), str(value))
        for label, value in container.details.items()
        if isinstance(value, str | int | float) and label not in _ALREADY_TOLD
    ]
    if container.subtrees:
        facts.append(("models at", ", ".join(container.subtrees)))
    return facts


def _some_keys(keys: Iterable[str]) -> str:
    return ", ".join(middle(key, _LONGEST_KEY) for key in sorted(keys)[:10])


def _find(container: Container) -> list[Finding]:
    broken = [entry for entry in container.entries.values() if entry.problem is not None]
    findings = [
        Finding("warning" if _RUNS_CODE in note else "note", "", note)
        for note in container.notes
        if not (broken and _CANNOT in note)  # each of them is a finding of its own
    ]
    findings += [Finding("warning", entry.name, entry.problem or "") for entry in broken[:_FINDINGS_SHOWN]]
    if len(broken) > _FINDINGS_SHOWN:
        findings.append(Finding("warning", "", f"{len(broken) - _FINDINGS_SHOWN:,} more tensors give no bytes"))
    return findings


def _note_suffix(source: Source, found: str) -> list[Finding]:
    suffix = PurePath(source.path or "").suffix.lower()
    promised = next((row.name for row in FORMATS.values() if suffix in row.suffixes), found)
    if promised == found:
        return []
    return [
        Finding(
            "note",
            "",
            f"the name ends in {suffix}, as {promised} files do, and the content is {found}: firekeep goes by the content, "
            "other programs may go by the name",
        )
    ]


def _advise(source: Source, container: Container) -> str | None:
    if any(_RUNS_CODE in note for note in container.notes):
        return f"Load it with nothing else; see all that it would call: `firekeep scan {shell_name(source)}`."
    if len(container.subtrees) > 1:
        return f"To open one model of it alone, pass its place: top_level_key={container.subtrees[0]!r}."
    if container.entries:
        return f"Its table was read, and no tensor: `firekeep verify {shell_name(source)}` checks the bytes."
    return None


def _refused(source: Source, identity: Identity, error: FirekeepError) -> Diagnosis:
    facts = [("size", _say_size(source.size)), *identity.facts]
    title = identity.title
    kind = error.kind if isinstance(error, WrongFormatError) else identity.kind
    if identity.error is None and identity.next_step is None:
        title = f"{title} {_judge(error)}"
    if isinstance(error, TruncatedError) and error.limit is not None and error.actual is not None:
        missing = error.limit - error.actual
        if missing > 0:
            facts.append(
                ("missing", f"{'at least ' if 'zip archive is cut' in error.message else ''}{count_bytes(missing)}")
            )
    return Diagnosis(
        kind=kind,
        title=title,
        opens=False,
        path=source.path,
        facts=tuple(facts),
        findings=(Finding("error", error.tensor or "", error.message),),
        next_step=identity.next_step or error.remedy or _remedy(source, error),
    )


def _judge(error: FirekeepError) -> str:
    for kind, words in (
        (TruncatedError, "that is cut short"),
        (LimitError, "that asks for more than the limits allow"),
        (UnsupportedError, "of a kind that firekeep does not read"),
        (UnsafePickleError, "that is damaged, or asks for more than data"),
        (DigestError, "whose bytes do not match their checksum"),
        (WrongFormatError, "by its first bytes, but not inside"),
    ):
        if isinstance(error, kind):
            return words
    return "that is damaged or badly made"


def _remedy(source: Source, error: FirekeepError) -> str | None:
    if isinstance(error, TruncatedError):
        return COPY_AGAIN
    if isinstance(error, UnsafePickleError):
        return f"Load it nowhere else; see what it would call: `firekeep scan {shell_name(source)}`."
    if isinstance(error, LimitError | UnsupportedError):
        return None
    return "Fetch or save the file again; if it stays so, the program that wrote it is at fault."
