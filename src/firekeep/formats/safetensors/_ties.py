"""Tied tensors: stored once, with `{dropped: kept}` in `__metadata__`.

`safetensors.torch.save_model` writes such records among the other metadata, without a mark. They are told from ordinary metadata
by their form; records whose form would not tell are written once more under a key of their own, `firekeep.ties`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from firekeep.errors import FirekeepError, MetadataError
from firekeep.formats._json import parse_object, require_text

TIES_KEY = "firekeep.ties"
_FEW = 4
_ORDINARY_KEYS = frozenset({"format", "framework", "name", "producer", "version"})
_ORDINARY_PREFIXES = ("firekeep.", "modelspec.", "general.")


def looks_like_tie(key: str, value: str) -> bool:
    """Say whether a metadata pair is a tie by its form, given that `value` is a tensor and `key` is not.

    The key has to look like a tensor's name: a dotted path, or the same last segment as the tensor it would stand for. The keys
    that other programs use for descriptions never count.
    """
    if key in _ORDINARY_KEYS or key.startswith(_ORDINARY_PREFIXES):
        return False
    return "." in key or key == value.rpartition(".")[2]


def read_ties(metadata: Mapping[str, str], names: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Find the ties recorded in metadata, and notes on records that make no sense."""
    records = {key: value for key, value in metadata.items() if looks_like_tie(key, value)}
    notes = []
    try:
        for key, value in _marked_ties(metadata).items():
            require_text(key, "the tensor name")
            if isinstance(value, str):
                records[key] = value
    except FirekeepError as error:
        notes.append(f"the metadata key {TIES_KEY!r} is not understood and was left aside: {error.message}")
    known = set(names) if len(records) > _FEW else names
    return {key: value for key, value in records.items() if value in known and key not in known}, notes


def record_ties(ties: Mapping[str, str], metadata: Mapping[str, str]) -> dict[str, str]:
    """Add the records of ties (dropped name -> kept name) to metadata.

    Raises `MetadataError` when a key of the caller's stands where a record has to.
    """
    merged = dict(metadata)
    unmarked = {}
    for dropped, kept in ties.items():
        if merged.setdefault(dropped, kept) != kept:
            raise MetadataError(
                f"it is tied to {kept!r}, which the metadata key {dropped!r} has to record, and that key says {merged[dropped]!r}",
                tensor=dropped,
                remedy='Rename the metadata key, or pass ties="expand" to write both tensors.',
            )
        if not looks_like_tie(dropped, kept):
            unmarked[dropped] = kept
    if unmarked:
        with suppress(FirekeepError):
            unmarked = {**_marked_ties(metadata), **unmarked}
        merged[TIES_KEY] = json.dumps(unmarked, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return merged


def _marked_ties(metadata: Mapping[str, str]) -> dict[str, Any]:
    return parse_object(metadata[TIES_KEY].encode(), TIES_KEY) if TIES_KEY in metadata else {}
