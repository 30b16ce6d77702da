"""What a file tells of its layers that no tensor does, as text in its metadata: read by whoever has other layers of the same weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from firekeep.errors import MetadataError
from firekeep.rules.layout._facts import TIED
from firekeep.rules.layout._table import KINDS
from firekeep.slots import Layer

LAYERS = "firekeep.layers"
"""The key of the metadata that tells them: as JSON, kinds, facts, and the paths of the layers that have these."""

MOST_TEXT = 1 << 20
"""More than this is not told: metadata are read whole by everyone who opens the file."""

_FLAG = re.compile(r"True|False")
_SHAPE = re.compile(r"(\d{1,12}(,\d{1,12}){0,7})?", re.ASCII)
_VALUES: Mapping[str, tuple[type, re.Pattern[str]]] = {
    "transpose_kernel": (bool, _FLAG),
    "wrapped": (bool, _FLAG),
    "use_bias": (bool, _FLAG),
    TIED: (bool, _FLAG),
    "depthwise": (bool, _FLAG),
    "reset_after": (bool, _FLAG),
    "cell": (str, re.compile(r"optimized|")),
    "mode": (str, re.compile(r"batch|ema")),
    "momentum": (str, re.compile(r"0(\.\d{1,40})?|\d(\.\d{1,40})?e-\d{1,3}", re.ASCII)),
    "in_shape": (str, _SHAPE),
    "out_shape": (str, _SHAPE),
}
"""What each fact may be: its type, and its text."""


def write_layers(layers: Iterable[Layer]) -> str | None:
    """Spell layers and their facts as text for the metadata; None where there are none, or more than are told."""
    alike: dict[tuple[str, tuple[tuple[str, int | bool | str], ...]], list[str]] = {}
    for layer in layers:
        alike.setdefault((layer.kind, tuple(sorted(layer.facts.items()))), []).append(layer.path)
    told = [{"kind": kind, "facts": dict(facts), "paths": paths} for (kind, facts), paths in alike.items()]
    text = json.dumps(told, separators=(",", ":"))
    return text if told and len(text) <= MOST_TEXT else None


def read_layers(metadata: Mapping[str, str]) -> tuple[Layer, ...]:
    """Read layers out of metadata; an empty text tells of none. Raises `MetadataError` for what is not as it is written."""
    text = metadata.get(LAYERS, "")
    if not text:
        return ()
    if len(text) > MOST_TEXT:
        raise _fault(f"has {len(text):,} characters, and {MOST_TEXT:,} are the most")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        raise _fault("is no JSON") from None
    if not isinstance(told, list):
        raise _fault("is no list")
    found = [layer for one in told for layer in _layers(one)]
    paths = {layer.path for layer in found}
    if len(paths) < len(found):
        raise _fault("tells of one layer twice")
    return tuple(found)


def _layers(told: Any) -> Iterator[Layer]:
    if not isinstance(told, dict) or told.keys() != {"kind", "facts", "paths"}:
        raise _fault("has a part that is not of kind, facts and paths")
    kind, facts, paths = told["kind"], told["facts"], told["paths"]
    if kind not in KINDS:
        raise _fault(f"tells of a kind of layer that there is not, {_short(kind)}")
    if not isinstance(facts, dict):
        raise _fault(f"has no facts of a {kind}")
    for name, value in facts.items():
        known = _VALUES.get(name)
        if known is None or type(value) is not known[0] or not known[1].fullmatch(str(value)):
            raise _fault(f"says of a {kind} what it cannot be, {_short(name)}: {_short(value)}")
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise _fault(f"has no paths of a {kind}")
    for path in paths:
        yield Layer(kind=kind, path=path, facts=facts)


def _short(value: object) -> str:
    return repr(value)[:60] if isinstance(value, str | int | float) else f"a {type(value).__name__}"


def _fault(what: str) -> MetadataError:
    return MetadataError(
        f"the metadata key {LAYERS!r}, which tells of layers what no tensor does, {what}",
        remedy=f"Save the file again from its model; or make a copy that tells nothing, `firekeep convert FILE COPY --metadata {LAYERS}=`.",
    )
