"""Two files compared: names, shapes, dtypes, and the numbers themselves, one tensor at a time."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from firekeep import digests
from firekeep.blobs import MemoryBlob
from firekeep.entry import TensorEntry, tie_key
from firekeep.errors import EntryError, FirekeepError, RuleError
from firekeep.formats import FORMATS, OpenOptions
from firekeep.layouts import CONVENTIONS, layout_of
from firekeep.opened import OpenedFile, Readable, narrow, open_file
from firekeep.rules import PathFilter
from firekeep.saving import Meter, Progress
from firekeep.showing import Shown
from firekeep.wording import count, headline, lines, quote, size, some

if TYPE_CHECKING:
    from firekeep.arrays import Array

_NUMBERS = 1 << 20
"""Numbers compared at a time, a multiple of eight: so many of any dtype are whole bytes."""
_SHOWN = 50
_TURNED = ("burn", "flax", "linen")
"""Layouts of files that another one of the same model, in PyTorch's, tells to turn."""
_FREE_BYTES = 512 << 20
_TIMES = 8
"""How many times over the files their tensors may be read for a comparison, and how much is read of any: views of one storage may
overlap without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorChange:
    """A tensor that both files have, and that is not the same in both.

    `differing` counts the elements that are unequal (NaN equals NaN), `max_abs` is the largest difference of two finite numbers,
    `cosine` the cosine of the angle between the two tensors, over the places where both are finite; None where there is none to be had:
    shapes differ, values were not compared, or all is 0. `only_nan` counts places where one side alone is NaN or infinite.
    """

    name: str
    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    numel: int
    differing: int | None = None
    max_abs: float | None = None
    cosine: float | None = None
    only_nan: int = 0
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give it as data that `json` writes."""
        return {
            "name": self.name,
            "dtypes": list(self.dtypes),
            "shapes": [list(shape) for shape in self.shapes],
            "numel": self.numel,
            "differing": self.differing,
            "max_abs": self.max_abs,
            "cosine": self.cosine,
            "only_nan": self.only_nan,
            "problem": self.problem,
        }

    def __str__(self) -> str:
        parts = []
        if self.shapes[0] != self.shapes[1]:
            parts.append(f"shape {list(self.shapes[0])} -> {list(self.shapes[1])}")
        if self.dtypes[0] != self.dtypes[1]:
            parts.append(f"{self.dtypes[0]} -> {self.dtypes[1]}")
        if self.differing is not None:
            parts.append(f"{self.differing:,} of {self.numel:,} differ" if self.differing else "equal values")
        if self.max_abs:
            parts.append(f"max |difference| {self.max_abs:.3g}")
        if self.cosine is not None and self.differing:
            parts.append(f"cosine {self.cosine:.9f}")
        if self.only_nan:
            parts.append(f"{self.only_nan:,} NaN or infinite on one side only")
        if self.problem:
            parts.append(self.problem)
        return f"{quote(self.name)}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Shown):
    """What `diff` found. `equal` is True when both files hold the same tensors: names, dtypes, shapes and every element.

    Metadata is listed and never counts; scalars count where both formats can hold them. Ties are listed and do not count: a tensor
    stored once under two names equals one stored twice.
    """

    a: str | None
    b: str | None
    formats: tuple[str, str]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    changed: tuple[TensorChange, ...] = ()
    identical: int = 0
    """Tensors that are the same in both files, in dtype, shape and every element."""
    equal_bytes: int = 0
    """The bytes of these."""
    values: bool = True
    metadata: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    scalars: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    scalars_count: bool = False
    ties: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    layouts: tuple[str, str] | None = None
    """How the layers of the two lie, where that may be all the difference."""
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether the two hold the same tensors (and scalars, where both could)."""
        return not (self.only_a or self.only_b or self.changed or (self.scalars_count and self.scalars))

    def __bool__(self) -> bool:
        return self.equal

    def to_dict(self) -> dict[str, Any]:
        """Give the comparison as data that `json` writes."""
        return {
            "a": self.a,
            "b": self.b,
            "formats": list(self.formats),
            "layouts": None if self.layouts is None else list(self.layouts),
            "equal": self.equal,
            "values_compared": self.values,
            "identical": self.identical,
            "equal_bytes": self.equal_bytes,
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "changed": [change.to_dict() for change in self.changed],
            "metadata": {key: list(pair) for key, pair in self.metadata.items()},
            "scalars": {key: list(pair) for key, pair in self.scalars.items()},
            "ties": {key: list(pair) for key, pair in self.ties.items()},
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        verdict = "equal" if self.equal else "DIFFERENT"
        if not self.values:
            verdict += " in names, dtypes and shapes (values were not compared)"
        head = headline(f"{verdict}: {self.a or 'a'} ({self.formats[0]})", f"and {self.b or 'b'} ({self.formats[1]})")
        return "\n".join((head, *lines(self._told())))

    def _told(self) -> Iterator[str]:
        if self.layouts is not None:
            yield from _across(self.layouts, self.a, self.b)
        yield f"{count(self.identical, 'tensor')} the same ({size(self.equal_bytes)})"
        for names, where in ((self.only_a, "first"), (self.only_b, "second")):
            if names:
                yield f"only in the {where}: {count(len(names), 'tensor')} ({some(names, 10)})"
        if self.changed:
            yield f"{count(len(self.changed), 'tensor')} changed:"
            yield from map(str, self.changed[:_SHOWN])
            if len(self.changed) > _SHOWN:
                yield f"and {len(self.changed) - _SHOWN:,} more"
        for what, table in (("scalar", self.scalars), ("metadata", self.metadata), ("tie", self.ties)):
            for key, (first, second) in list(table.items())[:_SHOWN]:
                yield f"{what} {quote(key)}: {_side(first)} -> {_side(second)}"
        yield from (f"note: {note}" for note in self.notes)


def _across(layouts: tuple[str, str], a: str | None, b: str | None) -> Iterator[str]:
    """Say that layouts differ, and what compares across them."""
    first, second = (shlex.quote(path) if path is not None else name for path, name in ((a, "A"), (b, "B")))
    yield (
        f"the layouts differ, {layouts[0]!r} and {layouts[1]!r}: the same weights may lie, and be called, otherwise in "
        "them, and what follows takes them as they are"
    )
    yield f"names and shapes across layouts: `firekeep match {first} --like {second}`"
    if "torch" in layouts and not {*layouts}.isdisjoint(_TURNED):
        one, other = (second, first) if layouts[0] == "torch" else (first, second)
        yield f"numbers: `firekeep convert {one} OUT.safetensors --layout torch --like {other}`,"
        yield f"then `firekeep diff {other} OUT.safetensors`"


def _side(text: str | None) -> str:
    if text is None:
        return "none"
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}... ({len(text):,} characters)"


def diff(
    a: Readable,
    b: Readable,
    options: OpenOptions,
    *,
    chosen: PathFilter,
    values: bool,
    progress: Progress | None,
) -> Comparison:
    """Compare two files; see `firekeep.diff`."""
    with open_file(a, options) as first, open_file(b, options) as second:
        first, second, notes = _align(first, second, options)
        left, right = _chosen(first, chosen), _chosen(second, chosen)
        if chosen and not left and not right and (len(first) or len(second)):
            raise RuleError(
                f"none of the {len(first)} and {len(second)} tensors is left after include and exclude",
                remedy="Patterns are searched in the names as they stand in the files.",
            )
        common = [name for name in left if name in right]
        meter = Meter(sum(left[name].nbytes + right[name].nbytes for name in common) if values else 0, progress)
        room = _FREE_BYTES + _TIMES * (_held(first) + _held(second))
        comparer = _Comparer(values=values, meter=meter, room=room)
        changes = {name: comparer.compare(left[name], right[name]) for name in common}
        same = [name for name in common if changes[name] is None]
        lost = len(common) < max(len(left), len(right))
        turned = lost or any(change is not None and len(left[name].shape) > 1 for name, change in changes.items())
        return Comparison(
            a=first.path,
            b=second.path,
            formats=(first.format, second.format),
            only_a=tuple(name for name in left if name not in right),
            only_b=tuple(name for name in right if name not in left),
            changed=tuple(change for change in changes.values() if change is not None),
            identical=len(same),
            equal_bytes=sum(left[name].nbytes for name in same),
            values=values,
            metadata=_differences(*(_described(opened) for opened in (first, second))),
            scalars=_differences(_spelled(first), _spelled(second)),
            scalars_count=FORMATS[first.format].holds_scalars and FORMATS[second.format].holds_scalars,
            ties=_differences(first.ties, second.ties),
            layouts=_layouts(first, second) if turned else None,
            notes=tuple(notes),
        )


def _align(first: OpenedFile, second: OpenedFile, options: OpenOptions) -> tuple[OpenedFile, OpenedFile, list[str]]:
    """Take only the model of a checkpoint where the other file is that model alone: when more names agree so."""
    notes = []
    for place in (0, 1):
        one, other = (first, second) if place == 0 else (second, first)
        if len(one.subtrees) != 1:
            continue
        part = narrow(one, replace(options, top_level_key=one.subtrees[0]))
        names = set(other.filled())
        if len(names & set(part.filled())) > len(names & set(one.filled())):
            notes.append(f"of {one.path or 'the checkpoint'}, what lies under {quote(one.subtrees[0])} was compared")
            first, second = (part, second) if place == 0 else (first, part)
    return first, second, notes


def _layouts(first: OpenedFile, second: OpenedFile) -> tuple[str, str] | None:
    """Give the layouts of two files, where they are two known ones."""
    one, other = (layout_of(it.format, it.metadata, content=it.container.layout).name for it in (first, second))
    return (one, other) if one != other and {one, other} <= {*CONVENTIONS} else None


def _chosen(opened: OpenedFile, chosen: PathFilter) -> dict[str, TensorEntry]:
    return {name: entry for name, entry in opened.filled().items() if chosen.accepts(name)}


def _described(opened: OpenedFile) -> dict[str, str]:
    """Give the metadata, without digests: they say what the comparison says."""
    return {key: value for key, value in opened.metadata.items() if key != digests.KEY}


def _spelled(opened: OpenedFile) -> dict[str, str]:
    return {name: str(scalar) for name, scalar in opened.scalars.items()}


def _differences(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    pairs = {key: (first.get(key), second.get(key)) for key in {**first, **second}}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _held(opened: OpenedFile) -> int:
    """Say how many bytes a file, or all files of a set, have."""
    return opened.source.size + sum(source.size for source in opened.container.sources)


class _Comparer:
    """Compares tensors one after the other: tied ones once, and no more bytes than `room` in all."""

    def __init__(self, *, values: bool, meter: Meter, room: int) -> None:
        self._values = values
        self._meter = meter
        self._room = room
        self._known: dict[tuple[object, object], TensorChange] = {}

    def compare(self, a: TensorEntry, b: TensorEntry) -> TensorChange | None:
        """Compare one tensor; None when it is the same in both."""
        change = TensorChange(
            name=a.name,
            dtypes=(str(a.dtype), str(b.dtype)),
            shapes=(a.shape, b.shape),
            numel=a.numel,
            problem=next(
                (f"cannot be compared: {entry.problem}" for entry in (a, b) if entry.problem is not None), None
            ),
        )
        alike = a.dtype == b.dtype and a.shape == b.shape
        if change.problem is not None or a.shape != b.shape or not self._values:
            self._meter.step(a.nbytes + b.nbytes if self._values else 0)
            return None if alike and change.problem is None else change
        change = self._measure_once(change, a, b)
        self._meter.step(a.nbytes + b.nbytes)
        return None if alike and change.differing == 0 else change

    def _measure_once(self, change: TensorChange, a: TensorEntry, b: TensorEntry) -> TensorChange:
        one, other = tie_key(a), tie_key(b)
        known = self._known.get((one, other)) if one and other else None
        if known is not None:
            return replace(known, name=change.name)
        nbytes = a.nbytes + b.nbytes
        if nbytes > self._room:
            reason = f"{size(nbytes)} would have to be read, and the tensors before it took most of what files of this size are read for"
            return replace(change, problem=f"cannot be compared: {reason}")
        self._room -= nbytes
        try:
            change = _measure(change, a, b)
        except FirekeepError as error:
            change = replace(change, problem=f"cannot be compared: {error.message}")
        if one and other:
            self._known[one, other] = change
        return change


def _measure(change: TensorChange, a: TensorEntry, b: TensorEntry) -> TensorChange:
    if a.dtype == b.dtype and all(_same(first, second) for first, second in _pairs(a, b)):
        return replace(change, differing=0, max_abs=0.0)
    if a.require().numpy is None or b.require().numpy is None:
        return replace(change, problem="not numbers NumPy can compute with; the bytes differ")
    tally = _Tally()
    for first, second in _pairs(a, b):
        tally.add(_unpacked(a, first), _unpacked(b, second))
    return replace(
        change,
        differing=tally.differing,
        max_abs=tally.max_abs,
        cosine=tally.cosine(),
        only_nan=tally.lone,
    )


def _same(first: memoryview, second: memoryview) -> bool:
    import numpy as np

    return np.array_equal(np.frombuffer(first, np.uint8), np.frombuffer(second, np.uint8))


def _pairs(a: TensorEntry, b: TensorEntry) -> Iterator[tuple[memoryview, memoryview]]:
    """Give the bytes of two tensors of one shape in step: of the same `_NUMBERS` elements each time."""
    return zip(*(_pieces(entry, entry.require().bits * _NUMBERS // 8) for entry in (a, b)), strict=True)


def _pieces(entry: TensorEntry, size: int) -> Iterator[memoryview]:
    """Give a tensor's bytes in pieces of exactly `size`, whatever pieces they come in; the last may be shorter."""
    held = bytearray()
    drawn = 0
    for chunk in entry.blob.chunks():
        drawn += chunk.nbytes
        at = 0
        if held:
            at = min(size - len(held), chunk.nbytes)
            held += chunk[:at]
            if len(held) == size:
                yield memoryview(held)
                held = bytearray()
        while chunk.nbytes - at >= size:
            yield chunk[at : at + size]
            at += size
        held += chunk[at:]
        del chunk  # the next piece is made when this one is gone
    if drawn != entry.nbytes:
        raise EntryError(f"{entry.nbytes} bytes were declared, {drawn} came", tensor=entry.name)
    if held:
        yield memoryview(held)


def _unpacked(entry: TensorEntry, piece: memoryview) -> Array:
    """Give a piece of a tensor's bytes as numbers in a row."""
    from firekeep.arrays import as_array

    dtype = entry.require()
    return as_array(replace(entry, shape=(piece.nbytes * 8 // dtype.bits,), blob=MemoryBlob(piece)))


class _Tally:
    """Adds up what differs between two rows of numbers, piece by piece."""

    def __init__(self) -> None:
        self.differing = 0
        self.lone = 0
        self.max_abs: float | None = None
        self._dot = self._first = self._second = 0.0

    def add(self, left: Array, right: Array) -> None:
        """Take the next piece."""
        import numpy as np

        x, y = _wide(left), _wide(right)
        with np.errstate(all="ignore"):
            unequal = (x != y) & ~(np.isnan(x) & np.isnan(y))
            finite = np.isfinite(x) & np.isfinite(y)
            self.differing += int(np.count_nonzero(unequal))
            self.lone += int(np.count_nonzero(unequal & (np.isfinite(x) != np.isfinite(y))))
            if not finite.all():
                x, y = x[finite], y[finite]
            if x.size:
                self.max_abs = max(self.max_abs or 0.0, float(np.abs(x - y).max()))
                self._dot += float(np.vdot(x, y).real)
                self._first += float(np.vdot(x, x).real)
                self._second += float(np.vdot(y, y).real)

    def cosine(self) -> float | None:
        """Give the cosine, if both rows have a length."""
        length = math.sqrt(self._first) * math.sqrt(self._second)
        if not length or not math.isfinite(length) or not math.isfinite(self._dot):
            return None
        return max(-1.0, min(1.0, self._dot / length))


def _wide(numbers: Array) -> Array:
    """Give numbers in a type in which differences are exact enough: 64-bit integers need the longest float there is."""
    import numpy as np

    kind = numbers.dtype.kind
    if kind == "c":
        return numbers.astype(np.complex128)
    return numbers.astype(np.longdouble if kind in "iu" and numbers.dtype.itemsize == 8 else np.float64)
