"""The report of a load, and the error that carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from firekeep.errors import FirekeepError
from firekeep.matching import Ambiguity, Remedy, Suggestion, Via
from firekeep.report import _text
from firekeep.showing import Shown
from firekeep.wording import quote

ProblemKind = Literal["shape", "kind", "read", "duplicate", "tie"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why one place of the model was not filled as it should be.

    `name` is the model's name for it, `file_name` the file's; `expected` and `found` are shapes or dtypes as text, where there are any.
    """

    kind: ProblemKind
    name: str
    message: str
    file_name: str | None = None
    expected: str | None = None
    found: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give it as data that `json` writes."""
        return {
            "kind": self.kind,
            "name": self.name,
            "message": self.message,
            "file_name": self.file_name,
            "expected": self.expected,
            "found": self.found,
        }

    def __str__(self) -> str:
        other = f" ({quote(self.file_name)} in the file)" if self.file_name not in (None, self.name) else ""
        return f"{quote(self.name)}{other}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantDifference:
    """A constant that two models do not agree on: no tensor holds it, and a load changes none.

    `path` is the part's name in the model, `source_path` that in the other; `model` and `source` are the two values.
    """

    path: str
    source_path: str
    constant: str
    model: int | float | bool | str
    source: int | float | bool | str

    def to_dict(self) -> dict[str, Any]:
        """Give it as data that `json` writes."""
        return {
            "path": self.path,
            "source_path": self.source_path,
            "constant": self.constant,
            "model": self.model,
            "source": self.source,
        }

    def __str__(self) -> str:
        return f"{quote(self.path) if self.path else 'the model'}: {self.told()}"

    def told(self) -> str:
        """Say it without the path."""
        name = "" if self.constant == "function" else f"{self.constant} "
        return f"{name}{_number(self.model)} in the model, {_number(self.source)} in the source"


@dataclass(frozen=True, slots=True)
class Renamed:
    """A tensor that has one name in the file and another in the model, and all that lies between the two."""

    file_name: str
    name: str
    via: tuple[Via | Literal["rename", "layout"], ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadReport(Shown):
    """What a load did with each tensor of the model and of the file; `str()` tells it, `to_dict()` gives it as plain data.

    Names of `applied`, `missing` and `skipped` are the model's, those of `unused` the file's, all in natural order. `skipped` are places
    that a filter left out, `no_counterpart` tensors that the other side's kind of layer cannot have: neither is missing or unused.
    After a dry run `applied` are those that would be. A refused load changed nothing, and `refusals` says why. After a `failed` one,
    whose reading broke off, `applied` are those that had been set.

    It is true when it is `exact`: every place filled, every tensor used, no errors.
    """

    source: str | None = None
    target: str | None = None
    applied: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    no_counterpart: tuple[str, ...] = ()
    errors: tuple[Problem, ...] = ()
    renamed: tuple[Renamed, ...] = ()
    steps: tuple[str, ...] = ()
    casts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By the model's name: the dtype in the file, the dtype in the model."""
    losses: Mapping[str, int] = field(default_factory=dict)
    """By the model's name: how many numbers became infinite or NaN in the cast."""
    ids_restored: int = 0
    dry_run: bool = False
    refusals: tuple[str, ...] = ()
    nothing_matched: bool = False
    failed: bool = False
    suggestions: Mapping[str, Suggestion] = field(default_factory=dict)
    """By the model's name of a missing tensor: the unused name of the file, after the renames, that is nearest."""
    ambiguities: tuple[Ambiguity, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()
    missing_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    unused_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    unused_renamed: Mapping[str, str] = field(default_factory=dict)
    """By the file's name of an unused tensor that rules renamed: the name that was looked for in the model."""
    constants: tuple[ConstantDifference, ...] = ()
    """Where the tensors came from another model: what the two compute with, and do not agree on (epsilon, padding, the form of a GELU)."""
    wanted: int = 0
    """Places of the model that were asked for."""
    offered: int = 0
    """Tensors of the file."""

    @property
    def refused(self) -> bool:
        """Whether nothing was changed because the policy, or the file, does not allow it."""
        return bool(self.refusals)

    @property
    def ok(self) -> bool:
        """Whether the load did what its policy asks for, or would do."""
        return not self.refusals and not self.failed

    @property
    def complete(self) -> bool:
        """Whether every place that was asked for is filled."""
        return self.ok and not self.missing and not self.errors

    @property
    def exact(self) -> bool:
        """Whether every place is filled, and every tensor of the file was used."""
        return self.complete and not self.unused

    def __bool__(self) -> bool:
        return self.exact

    def error(self) -> LoadError:
        """Give the error to raise with this report in it."""
        return (NothingMatchedError if self.nothing_matched else LoadError)(self)

    def raise_if(self, *, missing: bool = True, unused: bool = True, errors: bool = True) -> None:
        """Raise `LoadError` with this report in it if there is any of what is asked about; a refusal or failure counts as an error."""
        if (missing and self.missing) or (unused and self.unused) or (errors and (self.errors or not self.ok)):
            raise self.error()

    def to_dict(self) -> dict[str, Any]:
        """Give the report as data that `json` writes, nothing left out."""
        return {
            "source": self.source,
            "target": self.target,
            "ok": self.ok,
            "complete": self.complete,
            "exact": self.exact,
            "dry_run": self.dry_run,
            "refusals": list(self.refusals),
            "failed": self.failed,
            "wanted": self.wanted,
            "offered": self.offered,
            "applied": list(self.applied),
            "missing": [
                {"name": name, "shape": _shape(self.missing_shapes, name), "near": _near(self.suggestions.get(name))}
                for name in self.missing
            ],
            "unused": [
                {"name": name, "shape": _shape(self.unused_shapes, name), "renamed": self.unused_renamed.get(name)}
                for name in self.unused
            ],
            "skipped": list(self.skipped),
            "no_counterpart": list(self.no_counterpart),
            "errors": [problem.to_dict() for problem in self.errors],
            "renamed": [{"file": one.file_name, "model": one.name, "via": list(one.via)} for one in self.renamed],
            "steps": list(self.steps),
            "casts": {name: list(pair) for name, pair in self.casts.items()},
            "losses": dict(self.losses),
            "ids_restored": self.ids_restored,
            "ambiguities": [
                {"want": one.want, "candidates": list(one.candidates), "reason": one.reason} for one in self.ambiguities
            ],
            "remedies": [
                {"reason": one.reason, "python": one.python, "cli": one.cli, "gain": one.gain} for one in self.remedies
            ],
            "constants": [one.to_dict() for one in self.constants],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return _text.tell(self)


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str) -> list[int] | None:
    return list(shapes[name]) if name in shapes else None


def _near(suggestion: Suggestion | None) -> dict[str, Any] | None:
    if suggestion is None:
        return None
    return {"name": suggestion.name, "score": suggestion.score, "same_shape": suggestion.same_shape}


class LoadError(FirekeepError, RuntimeError):
    """A load was refused, or broke off; `report` is the whole report, and `str()` of the error tells it."""

    def __init__(self, report: LoadReport) -> None:
        super().__init__(_text.verdict(report), path=report.source)
        self.report = report

    def __str__(self) -> str:
        return str(self.report)

    def __reduce__(self) -> tuple[type[LoadError], tuple[LoadReport]]:
        return type(self), (self.report,)


class NothingMatchedError(LoadError):
    """Not one tensor that the model wants was found: it is the wrong file, or the wrong part of it."""
