"""Types: the casts that were asked for, and what the new format can hold."""

from __future__ import annotations

from collections.abc import Mapping

from firekeep.conversion._job import Plan
from firekeep.dtypes import BY_NAME, DType
from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, UnsupportedError
from firekeep.formats import FORMATS, Contents, Format
from firekeep.limits import Limits
from firekeep.loading import exclusion
from firekeep.rules import can_cast, cast
from firekeep.wording import count, some

_STAND_INS = {"FLEX32": "F32", "BOOL_U8": "BOOL", "BOOL_U32": "BOOL"}
"""Burn's own types, which a format without them holds as the plain ones."""


def cast_all(plan: Plan, target: DType | None) -> None:
    """Cast the floats that can be, and note those that cannot."""
    if target is None:
        return
    left = [entry.name for entry in plan.entries if _is_other_float(entry, target)]
    if left:
        plan.notes.append(f"packed floats and their scales are left as they are: {some(left)}")
    for place, entry in enumerate(plan.entries):
        if can_cast(entry, target):
            plan.casts[f"{entry.dtype} -> {target}"] += 1
            plan.entries[place] = cast(entry, target, plan.losses)


def _is_other_float(entry: TensorEntry, target: DType) -> bool:
    dtype = entry.require()
    return dtype.kind == "float" and dtype is not target and not can_cast(entry, target)


def require_dtypes(plan: Plan, limits: Limits) -> None:
    """Ask the format about each type that occurs, so that all tensors it cannot hold are named at once."""
    by_type: dict[DType, list[TensorEntry]] = {}
    for entry in plan.entries:
        by_type.setdefault(entry.require(), []).append(entry)
    refused = {dtype: group for dtype, group in by_type.items() if not _holds(plan.row, group[0], limits)}
    if refused:
        shown = "; ".join(f"{dtype} ({some([entry.name for entry in group])})" for dtype, group in refused.items())
        raise UnsupportedError(
            f"{plan.row.name} files cannot hold {count(sum(map(len, refused.values())), 'tensor')}: {shown}",
            remedy=_remedy(plan.row, refused, limits),
        )
    if plan.row.name == "safetensors":
        for dtype, group in by_type.items():
            if dtype.name in _STAND_INS:
                plan.notes.append(f"{count(len(group), 'tensor')} of {dtype} stored as {_STAND_INS[dtype.name]}")


def _holds(row: Format, entry: TensorEntry, limits: Limits) -> bool:
    try:
        row.writer()(Contents(entries=[entry.renamed("probe")]), limits)
    except UnsupportedError:
        return False
    except FirekeepError:
        return True  # the type is not what is wrong with it: the real plan will say what is
    return True


def _remedy(row: Format, refused: Mapping[DType, list[TensorEntry]], limits: Limits) -> str:
    """Say what would help, and nothing that would not."""
    ways = []
    if all(dtype.block is not None for dtype in refused):  # as GGUF has them
        ways.append("compute their float32 values with dequantize=True")
    if all(can_cast(group[0], BY_NAME["BF16"]) for group in refused.values()):
        ways.append("cast all floats with dtype='bf16'")
    others = [other for other in FORMATS.values() if other.writes and other is not row]
    ways += [
        f"write {other.suffixes[0]}"
        for other in others
        if all(_holds(other, group[0], limits) for group in refused.values())
    ]
    ways.append(f"leave them out with {exclusion([entry.name for group in refused.values() for entry in group])}")
    text = ", or ".join(ways)
    return f"{text[0].upper()}{text[1:]}."
