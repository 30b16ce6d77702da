"""Which convention the layers of a file follow, as far as the file says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from firekeep.errors import MetadataError, RuleError
from firekeep.folding import fold
from firekeep.formats import FORMATS
from firekeep.slots import Convention, Layer
from firekeep.wording import quote

LAYOUT = "firekeep.layout"
"""The metadata key that names a layout which the file's format does not lead one to expect."""

COLUMNS = "firekeep.linear_col"
UNTURNED = "firekeep.as_in_torch"
_MOST_TEXT = 1 << 20
"""The metadata key that lists, as JSON, the linear layers of a file in Burn's layout whose weights lie as [out, in] (LinearLayout::Col)."""

UNSPECIFIED = "unspecified"
"""The layout of tensors of which nobody said what layers they belong to: a tree of arrays."""

CONVENTIONS: tuple[Convention, ...] = get_args(Convention)

BURNS: tuple[Convention, ...] = ("torch", "burn")
"""The conventions of files that Burn writes, which do not say which of them it is."""

_FOREIGN = frozenset(("flax", "tf", "mlx"))
"""Values of a safetensors file's `format` by which other frameworks say that they wrote it."""


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The layout of a file. `said` is False where it is only what such files usually have."""

    name: str
    said: bool


def layout_of(format: str, metadata: Mapping[str, str], *, content: str = "") -> FileLayout:
    """Say how layers lie in a file: one of `CONVENTIONS`, or the name of another framework.

    A file may say so itself, under `firekeep.layout`, or by its `content`, as its container has it. A safetensors file that Burn wrote
    usually has Burn's layout, since Burn's store writes modules as they are by default.
    """
    if said := metadata.get(LAYOUT):
        return FileLayout(said, said=True)
    if content:
        return FileLayout(content, said=True)
    if format == "safetensors":
        framework = metadata.get("format")
        if framework in _FOREIGN:
            return FileLayout(str(framework), said=True)
        if metadata.get("producer") == "burn":
            return FileLayout("burn", said=False)
    return FileLayout(FORMATS[format].layout, said=format != "safetensors")


def tell_steps(steps: Iterable[str], *, source: str | None, target: str | None) -> str | None:
    """Sum up what a translation did to tensors: how many were transposed, renamed, split, joined."""
    parts = (part for step in steps for part in (step.split(" and ", 1) if step.startswith("renamed and ") else [step]))
    times = Counter(part.split()[0].rstrip(",") for part in parts)
    if not times:
        return None
    told = ", ".join(f"{number:,} {what}" for what, number in times.items())
    return f"from the layout {source!r} to {target!r}: {told}"


def tell_sums(steps: Mapping[str, str]) -> Iterator[str]:
    """Name what a translation made of biases that are two on one side, and their sum on the other: it does not come back as it was."""
    added = [name for name, step in steps.items() if step.startswith("summed")]
    parted = [name for name, step in steps.items() if "sum of two" in step or "two summed" in step]
    if added:
        yield f"the sums of two biases each, which they do not tell apart: {_named(added)}"
    if parted:
        yield f"of each sum of two biases one has all, and the other zeros: {_named(parted)}"


def _named(names: Iterable[str]) -> str:
    return ", ".join(quote(one.label) for one in fold(names))


def columns_of(layers: Iterable[Layer]) -> frozenset[str]:
    """Give the paths of linear layers that keep their weights as [out, in] in Burn's layout."""
    return frozenset(layer.path for layer in layers if layer.kind == "linear_col")


def columns_said(metadata: Mapping[str, str]) -> frozenset[str] | None:
    """Give those layers as a file names them; None where the writer may have had such and did not say."""
    if (said := _names_said(metadata, COLUMNS)) is not None:
        return said
    return frozenset() if metadata.get("producer") == "firekeep" else None


def unturned_said(metadata: Mapping[str, str]) -> frozenset[str] | None:
    """Give the matrices of a file in Burn's layout that lie as PyTorch had them; None where it does not tell: it is not from PyTorch.

    A class of one's own may be a linear layer or anything else. Where its weight is put into a class that is known, or the other way
    round, only this tells whether it was turned round on its way into the file.
    """
    return _names_said(metadata, UNTURNED)


def write_unturned(names: Iterable[str] | None) -> str | None:
    """Spell them as text for the metadata; None where it is not to be told, or is more than metadata are for."""
    text = "" if names is None else json.dumps(sorted(names), separators=(",", ":"))
    return text if 0 < len(text) <= _MOST_TEXT else None


def _names_said(metadata: Mapping[str, str], key: str) -> frozenset[str] | None:
    if (said := metadata.get(key)) is None:
        return None
    try:
        names = json.loads(said)
    except (ValueError, RecursionError):
        names = None
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return frozenset(names)
    raise MetadataError(f"the metadata key {key!r} is no list of names")


def check_layout(name: str) -> Convention:
    """Give a convention by its name; raises `RuleError` listing those there are."""
    for known in CONVENTIONS:
        if known == name:
            return known
    raise RuleError(f"there is no layout {name!r}: one of {', '.join(CONVENTIONS)}")
