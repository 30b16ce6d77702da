"""Which convention the layers of a file follow, as far as the file says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from firekeep.errors import MetadataError, RuleError
from firekeep.folding import fold
from firekeep.formats import FORMATS
from firekeep.rules import KeyRemapper, Renaming
from firekeep.rules.layout import without_collections
from firekeep.slots import Convention, Layer
from firekeep.wording import quote

LAYOUT = "firekeep.layout"
"""The metadata key that names a layout which the file's format does not lead one to expect."""

COLUMNS = "firekeep.linear_col"
"""The metadata key that lists, as JSON, the linear layers of a file in Burn's layout whose weights lie as [out, in] (LinearLayout::Col)."""

UNTURNED = "firekeep.as_in_torch"
"""The metadata key that lists, as JSON, the matrices of a file in Burn's layout that lie as PyTorch had them."""

WEIGHTS = ("weight", "kernel", "embedding")
"""What the weights of linear layers and embeddings are called, by convention."""

_MOST_TEXT = 1 << 20

_STATS, _PARAMS = "batch_stats", "params"
_OF_STATS = ("mean", "var", "running_mean", "running_var")
"""What tensors of normalizations that are no parameters are called, in any layout."""

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


def met_by_collections(names: Iterable[str], remapper: KeyRemapper) -> bool:
    """Say whether rename rules are found by the collections of Linen's names, and mean these; without them they may be found, too."""
    names = list(names)
    bare = without_collections(names) if remapper else {}
    if all(old == new for old, new in bare.items()):
        return False
    before, after = remapper.rename(names), remapper.rename(bare.values())
    more = any(found > less for (_, found), (_, less) in zip(before.hits, after.hits, strict=True))
    return more or len(before.unmet) < len(after.unmet)


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


def move_columns(paths: Iterable[str], names: Mapping[str, str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Give the paths of such layers after renames, and the new names of weights that are no longer called so; `names` maps old to new."""
    found, lost = set(), []
    for path in paths:
        new = names.get(f"{path}.weight" if path else "weight")
        if new is None:
            continue
        parent, _, role = new.rpartition(".")
        if role == "weight":
            found.add(parent)
        else:
            lost.append(new)
    return frozenset(found), tuple(sorted(lost))


def write_columns(paths: Iterable[str]) -> str:
    """Spell linear layers that lie as [out, in] as text for the metadata."""
    return json.dumps(sorted(paths))


def kind_of_weight(name: str, shape: Sequence[int], kinds: Mapping[str, str]) -> str:
    """Give the kind of layer whose weight a tensor is: "" where nobody knows, "part" for other tensors of layers. `kinds` are by paths."""
    parent, _, role = name.rpartition(".")
    if parent in kinds:
        return kinds[parent] if role in WEIGHTS else "part"
    return "" if len(shape) == 2 and role != "kernel" else "part"  # a kernel is one of some layer around


def lies_across(kind: str, *, turned: bool, as_in_torch: bool) -> bool:
    """Say whether a matrix in Burn's layout lies otherwise than whoever reads it expects of a kind of layer.

    A linear layer's weight is expected to have been turned round, one of an embedding or of a class that nobody knows is not. The file
    says `as_in_torch` of what was not. What stands in a place that is `turned` round, being part of a known layer, is taken for what
    belongs there, whatever its class.
    """
    if kind == "linear" or (kind == "" and turned):
        return as_in_torch
    return kind in ("", "embedding") and not as_in_torch


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


@dataclass(frozen=True, slots=True)
class InCollections(KeyRemapper):
    """Rules that see names with the collections in front, and give names without those that they leave there."""

    collections: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The collection of each name of the source, by the name without it; "" of one in none."""

    def rename(self, names: Iterable[str]) -> Renaming:
        """Give every name its new one; raises `RuleError` naming both where two become one."""
        within = {name: self._collection(name) for name in names}
        seen = {name: f"{before}.{name}" if before else name for name, before in within.items()}
        made = KeyRemapper.rename(self, seen.values())
        new = {
            name: made.names[seen[name]].removeprefix(f"{before}." if before else "") for name, before in within.items()
        }
        first: dict[str, str] = {}
        for old, name in new.items():
            if (other := first.setdefault(name, old)) != old:
                raise RuleError(
                    f"the renames give {quote(seen[other])} and {quote(seen[old])} one name, {quote(name)}, without their collections",
                    remedy="Make the patterns narrower, or leave one of them out with exclude.",
                )
        return replace(made, names=new)

    def _collection(self, name: str) -> str:
        if (known := self.collections.get(name)) is not None:
            return known
        path, _, role = name.rpartition(".")
        return _STATS if role in _OF_STATS and any(self._has_stats(path, role) for role in _OF_STATS) else _PARAMS

    def _has_stats(self, path: str, role: str) -> bool:
        return self.collections.get(f"{path}.{role}" if path else role) == _STATS


def seen_by(remapper: KeyRemapper, names: Iterable[str]) -> KeyRemapper:
    """Give rules for names without collections that do what they would do with them; as they are where they are found without."""
    names = list(names)
    if not met_by_collections(names, remapper):
        return remapper
    bare = without_collections(names)
    collections = {new: "" if new == old else old.partition(".")[0] for old, new in bare.items()}
    return InCollections(remapper.rules, remapper.names, collections)
