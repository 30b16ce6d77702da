"""What every format gives and takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from firekeep.disk import WritePlan
from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.scalars import Scalar
from firekeep.slots import Layer
from firekeep.sources import Source

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a check found. `place` is a tensor, a member of an archive or "" for the file."""

    severity: Severity
    place: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """How a file is to be opened; each format takes what concerns it."""

    limits: Limits = DEFAULT_LIMITS
    top_level_key: str | None = None
    """PyTorch: show only what lies under this dotted path, without the prefix."""
    allow_trailing: bool = False
    """Safetensors: take bytes after the last tensor for granted (and report them) instead of refusing the file."""
    private: bool = False
    """Map further files (shards) copy-on-write, as the caller has mapped the first one."""
    dequantize: bool = False
    """GGUF: give tensors that are quantized in blocks as F32, computed when they are drawn."""

    def __post_init__(self) -> None:
        if self.top_level_key is not None and not isinstance(self.top_level_key, str):
            raise RuleError(
                f"top_level_key: {self.top_level_key!r} is {type(self.top_level_key).__name__}, where a dotted path is due",
                remedy="Give it as text, with dots between its levels: 'model', or '0' for the first of a list.",
            )
        if not isinstance(self.limits, Limits):
            raise RuleError(
                f"limits: {self.limits!r} is {type(self.limits).__name__}, where firekeep.Limits is due",
                remedy="Give limits=firekeep.Limits(...), naming what is to be larger or smaller.",
            )


def _no_values() -> Any:
    return {}


def _no_findings() -> Iterator[Finding]:
    return iter(())


def _no_checksum(_entry: TensorEntry) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """An open file: entries in the order their data lie, and what stands beside them.

    `check` runs the checks that cost a pass over the data (CRC of archive members, padding); what an open can check cheaply it has
    checked before a Container exists. `values` gives what a file holds besides tensors. `ties` maps names that the file
    does not hold to the ones that stand for them (safetensors' `__metadata__` convention).
    """

    format: str
    variant: str = ""
    layout: str = ""
    """How layers lie, where the content tells it; "" where the format's own habit has to do."""
    entries: Mapping[str, TensorEntry]
    metadata: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    subtrees: tuple[str, ...] = ()
    """PyTorch: dotted paths of the subtrees that look like a model's state dict, when they are not the whole file."""
    layers: tuple[Layer, ...] = ()
    """PyTorch: the layers of a whole model whose kinds its classes tell, in PyTorch's convention; each before those inside it."""
    submodules: frozenset[str] = frozenset()
    """PyTorch: paths of modules that the file knows of, those without tensors too; the model's own, "", is not among them."""
    values: Callable[[], Any] = _no_values
    check: Callable[[], Iterator[Finding]] = _no_findings
    attest: Callable[[TensorEntry], bool] = _no_checksum
    """Compare what the bytes of one of its tensors are made of with the checksum that the file keeps of it, at most once for each
    checksum; False where there is none. Raises `FormatError`, mostly `DigestError`."""
    taken: Mapping[str, int] = field(default_factory=dict)
    """PyTorch: what the file took of the limits that the files of a set share, by their names in `Limits`."""
    sources: tuple[Source, ...] = ()
    """Files this container opened besides the one it was given (shards)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What is to be written: entries in the order their data shall lie, string metadata and scalars."""

    entries: Iterable[TensorEntry]
    metadata: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)


class Reader(Protocol):
    """Open a source as a container."""

    def __call__(self, source: Source, options: OpenOptions) -> Container:
        """Read the table of the file and no tensor; raises `FormatError` with the cause."""
        ...


class Writer(Protocol):
    """Plan a file, before it exists."""

    def __call__(self, contents: Contents, limits: Limits) -> WritePlan:
        """Decide every offset from declared lengths; draws no tensor. Raises `FormatError` naming the tensor at fault."""
        ...


class Shards(Protocol):
    """Files to be written side by side, by name; `index`, named `index_name`, comes last. None where one file is enough."""

    @property
    def files(self) -> Mapping[str, WritePlan]:
        """The files, in order."""
        ...

    @property
    def index_name(self) -> str:
        """The name of the index."""
        ...

    @property
    def index(self) -> bytes | None:
        """The content of the index."""
        ...


class Sharder(Protocol):
    """Plan a set of files."""

    def __call__(
        self,
        contents: Contents,
        *,
        max_shard_bytes: int,
        limits: Limits,
        stem: str = "model",
        empty_metadata: bool = False,
    ) -> Shards:
        """Decide which tensor is in which file; draws no tensor. Raises as a `Writer` does."""
        ...
