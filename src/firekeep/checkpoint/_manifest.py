"""The manifest of a step: the file that is written last, and makes the step complete."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firekeep._version import __version__
from firekeep.checkpoint._names import MAX_STEP, section_of
from firekeep.checkpoint._step import Fact, StepFile, StepInfo, plain
from firekeep.errors import MetadataError, RuleError
from firekeep.sections import SECTION_NAME
from firekeep.wording import quote

KIND = "firekeep checkpoint"
VERSION = 1
MAX_BYTES = 16 << 20
_TIMES = (-62_135_596_800.0, 253_402_300_800.0)
"""The years 1 to 9999, of which Python has dates. A clock that is wrong, even before 1970, must not make a step unreadable."""
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def check_step(step: Any) -> int:
    """Give a step's number, or refuse what is none."""
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise RuleError(f"step={step!r}: a whole number is needed, not {type(step).__name__}")
    number = int(step.__index__())
    if not 0 <= number < MAX_STEP:
        told = number if number.bit_length() <= 128 else f"a number of {number.bit_length():,} bits"
        raise RuleError(f"step={told}: a number from 0 to {MAX_STEP - 1} is needed")
    return number


def check_metrics(metrics: Mapping[Any, Any] | None) -> dict[str, float]:
    """Give metrics as floats: NaN and infinities are fine, what is no number is refused by name."""
    checked = {}
    for name, value in (metrics or {}).items():
        if not isinstance(name, str):
            raise RuleError(f"the metric name {name!r} is {type(name).__name__}, where text is due")
        try:
            if isinstance(value, str | bytes | None):
                raise TypeError
            checked[name] = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            raise RuleError(
                f"the metric {quote(name)} is {type(value).__name__}, where a number is due",
                remedy="Leave it out, or keep what is no number in the state.",
            ) from None
    return checked


def check_facts(facts: Mapping[Any, Any]) -> dict[str, Fact]:
    """Give facts as they are, or refuse by name what is neither text nor a number."""
    for name, value in facts.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float):
            raise RuleError(f"the fact {name!r} is {type(value).__name__}, where text or a number is due")
    return dict(facts)


def render(info: StepInfo) -> bytes:
    """Spell a manifest: JSON that any reader takes, with 'nan', 'inf' and '-inf' as text."""
    document = {
        "kind": KIND,
        "manifest": VERSION,
        "firekeep": __version__,
        "step": info.step,
        "time": info.time,
        "metrics": {name: plain(value) for name, value in info.metrics.items()},
        "facts": {name: plain(value) for name, value in info.facts.items()},
        "files": {
            file.name: {"nbytes": file.nbytes}
            | ({"xxh3": file.xxh3} if file.xxh3 else {})
            | ({"section": file.section} if file.section != section_of(file.name) else {})
            for file in info.files
        },
    }
    return json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False).encode() + b"\n"


def parse(data: bytes, *, folder: Path, step: int) -> StepInfo:
    """Read a manifest, believing nothing; raises `MetadataError` saying what is wrong with it."""
    document = _object(_load(data), "it")
    if document.get("kind") != KIND:
        raise MetadataError(f"it is not the manifest of a checkpoint: its kind is {quote(str(document.get('kind')))}")
    if document.get("manifest") != VERSION:
        raise MetadataError(f"it is of version {str(document.get('manifest'))[:20]}, and {VERSION} is known")
    if _number(document.get("step"), "step") != step:
        raise MetadataError(f"it is that of step {document['step']}, not {step}")
    version = document.get("firekeep")
    return StepInfo(
        step=step,
        folder=folder,
        files=_files(_object(document.get("files"), "files")),
        time=_time(document.get("time")),
        metrics={name: _float(value, name) for name, value in _object(document.get("metrics"), "metrics").items()},
        facts={name: _fact(value, name) for name, value in _object(document.get("facts", {}), "facts").items()},
        version=version if isinstance(version, str) else None,
    )


def _load(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise MetadataError("it is not JSON, so it was cut short or changed") from None


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MetadataError(f"{name} is not a JSON object")
    return value


def _number(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MetadataError(f"{quote(name)} is no whole number")
    return value


def _float(value: Any, name: str) -> float:
    if isinstance(value, str) and value in _NUMBERS:
        return _NUMBERS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MetadataError(f"{quote(name)} is no number")
    try:
        return float(value)
    except OverflowError:
        raise MetadataError(f"{quote(name)} is too large a number") from None


def _fact(value: Any, name: str) -> Fact:
    if isinstance(value, str | int | float):
        return value
    raise MetadataError(f"the fact {quote(name)} is neither text nor a number")


def _time(value: Any) -> float:
    time = _float(value, "time")
    if not _TIMES[0] <= time < _TIMES[1]:
        raise MetadataError("'time' is no date")
    return time


def _files(listed: Mapping[str, Any]) -> tuple[StepFile, ...]:
    files = tuple(_file(name, value) for name, value in listed.items())
    if not files:
        raise MetadataError("it names no files")
    if len({file.section for file in files}) < len(files):
        raise MetadataError("it has two files for one section")
    return files


def _file(name: str, value: Any) -> StepFile:
    if (named := section_of(name)) is None:
        raise MetadataError(f"{quote(name)} is no name of a file of a step")
    fields = _object(value, name)
    digest = fields.get("xxh3")
    if digest is not None and not isinstance(digest, str):
        raise MetadataError(f"the digest of {quote(name)} is no text")
    section = fields.get("section", named)
    if section is not named and (not isinstance(section, str) or SECTION_NAME.fullmatch(section) is None):
        raise MetadataError(f"the section of {quote(name)} has no name that one can have")
    return StepFile(section=section, name=name, nbytes=_number(fields.get("nbytes"), name), xxh3=digest)
