"""What a conversion did, or would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from firekeep.showing import Shown
from firekeep.wording import count, headline, lines, quote, size, some


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """What the source holds and the new file cannot: names of scalars, metadata keys, and keys of other values; a number of ids."""

    scalars: tuple[str, ...] = ()
    param_ids: int = 0
    metadata: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = [
            f"{count(len(self.scalars), 'scalar')} ({some(self.scalars)})" if self.scalars else "",
            f"the {count(self.param_ids, 'parameter id')}" if self.param_ids else "",
            f"the metadata {some(self.metadata)}" if self.metadata else "",
            f"values that are no tensors, under {some(self.values)}" if self.values else "",
        ]
        return "; ".join(filter(None, told))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConversionReport(Shown):
    """What `convert` did, tensor by tensor where something was done to it; `str()` tells it, `to_dict()` gives it as plain data.

    `nbytes` are those of the files, `destinations` the files, an index last. `left_out` are tensors outside the one part of a
    PyTorch file that was taken (`part`), `excluded` those that `include` and `exclude` took away, both by their names in the source.
    `overflowed` and `vanished` count, by tensor, the numbers that a cast made infinite (or NaN) and 0; after a dry run they are
    empty, since no tensor was read.
    """

    source: str | None
    source_format: str
    destinations: tuple[str, ...]
    format: str
    layout: str
    tensors: int
    nbytes: int
    dry_run: bool = False
    part: str | None = None
    left_out: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    renamed: int = 0
    renames: tuple[tuple[str, int], ...] = ()
    casts: Mapping[str, int] = field(default_factory=dict)
    """"F32 -> BF16": how many tensors."""
    overflowed: Mapping[str, int] = field(default_factory=dict)
    vanished: Mapping[str, int] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    """Names stored as another name of the same tensor."""
    digests: bool = False
    """Whether the new file has digests: on request, or because the source has."""
    checked: int = 0
    """Tensors that were compared with the digests the source has of them."""
    attested: int = 0
    """Tensors that were compared with the checksums of the archive they lie in: when digests are written."""
    dropped: Dropped = field(default_factory=Dropped)
    removed: tuple[str, ...] = ()
    """Files of an older set under the same name, which the new one does not use."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Give the report as data that `json` writes."""
        return {
            "source": self.source,
            "source_format": self.source_format,
            "destinations": list(self.destinations),
            "format": self.format,
            "layout": self.layout,
            "tensors": self.tensors,
            "bytes": self.nbytes,
            "dry_run": self.dry_run,
            "part": self.part,
            "left_out": list(self.left_out),
            "excluded": list(self.excluded),
            "renamed": self.renamed,
            "renames": [{"rule": rule, "hits": hits} for rule, hits in self.renames],
            "casts": dict(self.casts),
            "overflowed": dict(self.overflowed),
            "vanished": dict(self.vanished),
            "ties": dict(self.ties),
            "digests": self.digests,
            "checked": self.checked,
            "attested": self.attested,
            "dropped": {
                "scalars": list(self.dropped.scalars),
                "param_ids": self.dropped.param_ids,
                "metadata": list(self.dropped.metadata),
                "values": list(self.dropped.values),
            },
            "removed": list(self.removed),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        verb = "would become" if self.dry_run else "became"
        files = self.destinations[0] if len(self.destinations) == 1 else f"{len(self.destinations)} files"
        head = headline(f"{self.source or 'the source'} ({self.source_format})", f"{verb} {files} ({self.format})")
        return "\n".join((head, *lines(self._told())))

    def _told(self) -> Iterator[str]:
        extra = ", with digests" if self.digests else ""
        yield f"{count(self.tensors, 'tensor')}, {size(self.nbytes)}, {self.layout} layout{extra}"
        if self.checked:
            yield f"compared with the source's digests: {count(self.checked, 'tensor')}"
        if self.attested:
            of_all = "" if self.attested == self.tensors else f"{self.attested:,} of "
            yield f"compared with the checksums of the source's archive: {of_all}{count(self.tensors, 'tensor')}"
        if len(self.destinations) > 1:
            yield f"files: {', '.join(self.destinations)}"
        if self.left_out:
            yield (
                f"ATTENTION: only the model under {self.part!r} was taken, {count(len(self.left_out), 'tensor')} outside it "
                f"left out ({some(self.left_out, 3)}). To take all: top_level_key=''"
            )
        elif self.part:
            yield f"what lies under {self.part!r}, without that prefix"
        if self.excluded:
            yield f"left out by include and exclude: {count(len(self.excluded), 'tensor')} ({some(self.excluded, 3)})"
        if self.renames:
            rules = ", ".join(f"{quote(rule)} in {hits:,}" for rule, hits in self.renames)
            yield f"renamed {count(self.renamed, 'tensor')}; found: {rules}"
        for pair, number in self.casts.items():
            yield f"cast {count(number, 'tensor')} {pair}"
        yield from _losses(self.overflowed, "became infinite or NaN")
        yield from _losses(self.vanished, "became 0")
        if self.ties:
            dropped, kept = next(iter(self.ties.items()))
            more = ", ..." if len(self.ties) > 1 else ""
            yield f"tied, stored once: {count(len(self.ties), 'name')} ({quote(dropped)} as {quote(kept)}{more})"
        if told := str(self.dropped):
            yield f"not carried over: {told}"
        if self.removed:
            yield f"removed files of the older set: {', '.join(self.removed)}"
        yield from (f"note: {note}" for note in self.notes)


def _losses(counts: Mapping[str, int], what: str) -> Iterator[str]:
    if counts:
        worst = sorted(counts, key=lambda name: -counts[name])
        shown = ", ".join(f"{quote(name)} {counts[name]:,}" for name in worst[:3])
        more = f" and {len(worst) - 3:,} more tensors" if len(worst) > 3 else ""
        yield f"WARNING: {count(sum(counts.values()), 'number')} {what} in the cast: {shown}{more}"
