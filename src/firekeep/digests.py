"""Digests of tensors, kept in a file's own metadata, so that `verify` can tell whether a byte changed.

One metadata key holds them all, as compact sorted JSON: `{"algorithm":"xxh3-128","tensors":{NAME:HEX}}`. They guard against damage, not
against somebody who changes tensor and digest together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from firekeep.errors import MetadataError

if TYPE_CHECKING:
    import xxhash

KEY = "firekeep.digests"
ALGORITHM = "xxh3-128"
_HEX = 32


def new_digest() -> xxhash.xxh3_128:
    """Start a digest: give it bytes with `update`, take `hexdigest`."""
    import xxhash

    return xxhash.xxh3_128()


def render(digests: Mapping[str, str]) -> str:
    """Spell digests as the metadata value."""
    document = {"algorithm": ALGORITHM, "tensors": digests}
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def placeholder(names: Iterable[str]) -> str:
    """Spell a value of the length that the digests of these tensors will have."""
    return render(dict.fromkeys(names, "0" * _HEX))


def parse(text: str) -> dict[str, str]:
    """Read the metadata value; raises `MetadataError` where it is not what `render` writes."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise MetadataError(f"the metadata key {KEY!r} is not JSON") from None
    tensors: Any = document.get("tensors") if isinstance(document, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(value, str) for value in tensors.values()):
        raise MetadataError(f"the metadata key {KEY!r} holds no table of digests")
    algorithm = document.get("algorithm")
    if algorithm != ALGORITHM:
        raise MetadataError(f"the digests are of the algorithm {str(algorithm)[:40]!r}; {ALGORITHM!r} is known")
    return tensors


class Digester:
    """Digests tensors while they are written: `observe` takes their bytes as they pass, in one piece or several."""

    def __init__(self, names: Iterable[str]) -> None:
        self._digests: dict[str, xxhash.xxh3_128 | None] = dict.fromkeys(names)

    def observe(self, name: str, view: memoryview) -> None:
        """Take more bytes of a tensor."""
        digest = self._digests[name]
        if digest is None:
            digest = self._digests[name] = new_digest()
        digest.update(view)

    def finish(self) -> str:
        """Spell the digests of all tensors; one of which no bytes came is empty."""
        return render({name: (digest or new_digest()).hexdigest() for name, digest in self._digests.items()})
