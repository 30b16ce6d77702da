"""What a burnpack file is a record of, told by what it says and by its names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from firekeep.scalars import Scalar

RecordKind = Literal["module", "optimizer", "scheduler", "nothing"]

RECORD = "firekeep.record"
"""The metadata key that says it of records that firekeep writes."""

RANK = "__rank"


def kind_of(names: Collection[str], metadata: Mapping[str, str], scalars: Mapping[str, Scalar]) -> RecordKind:
    """Say what a file is a record of. Burn's files do not say it: an optimizer's keep a rank for each id, a scheduler's no tensors."""
    said = metadata.get(RECORD)
    if said in ("module", "optimizer", "scheduler"):
        return said  # type: ignore[return-value]
    if any(name.partition(".")[0].isdecimal() and name.partition(".")[2] == RANK for name in scalars):
        return "optimizer"
    if names:
        return "optimizer" if "history_s.len" in scalars else "module"
    if not scalars:
        return "nothing"
    return "optimizer" if "history_s.len" in scalars else "scheduler"
