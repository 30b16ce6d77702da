"""Ids of tensors that only one layout has: the parts of a fused projection, the whole of separate gates."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from firekeep.entry import TensorEntry
from firekeep.ids import ParamId


def derive_ids(
    entries: Sequence[TensorEntry], origins: Mapping[str, tuple[str, ...]], ids: Mapping[str, ParamId | None]
) -> list[TensorEntry]:
    """Give tensors without an id one that follows from the ids of what they were made of: the same in every file of one model.

    So the moments of a part of a fused weight find the part again. A tensor of which nothing has an id gets a random one.
    """
    counts: dict[tuple[str, ...], int] = {}
    made = []
    for entry in entries:
        if entry.param_id is None:
            sources = origins.get(entry.name, ())
            place = counts[sources] = counts.get(sources, -1) + 1
            known = [found for name in sources if (found := ids.get(name)) is not None]
            entry = replace(entry, param_id=_derive(known, place) if known else ParamId.fresh())
        made.append(entry)
    return made


def _derive(sources: Sequence[ParamId], place: int) -> ParamId:
    text = ",".join(str(int(one)) for one in sources) + f"#{place}"
    return ParamId(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))
