"""Writing a sharded set: several files and an index of which tensor is where."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from firekeep.disk import WritePlan
from firekeep.errors import RuleError
from firekeep.formats._protocol import Contents
from firekeep.formats.safetensors._ties import record_ties
from firekeep.formats.safetensors._write import Item, check_metadata, lay_out, prepare
from firekeep.garbage import collector_paused
from firekeep.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedPlan:
    """Files to be written side by side, by name; the index comes last, when all it names is there.

    `index` is None where one file is enough: it is then called STEM.safetensors and needs none.
    """

    files: Mapping[str, WritePlan]
    index_name: str
    index: bytes | None


def plan_shards(
    contents: Contents, *, max_shard_bytes: int, limits: Limits, stem: str = "model", empty_metadata: bool = False
) -> ShardedPlan:
    """Plan a set; see the package's `plan_shards`."""
    if max_shard_bytes < 1:
        raise RuleError(f"a shard cannot have at most {max_shard_bytes} bytes")
    with collector_paused():
        items, ties = prepare(contents)
        metadata = check_metadata(contents.metadata)
        record_ties(ties, metadata)  # a key that stands in the way is found before anything is planned
        shards = _fill(items, max_shard_bytes) or [[]]
        names = [_file_name(stem, number, len(shards)) for number in range(1, len(shards) + 1)]
        files = {}
        for name, shard in zip(names, shards, strict=True):
            here = {name for name, _, _, _ in shard}
            merged = record_ties({dropped: kept for dropped, kept in ties.items() if kept in here}, metadata)
            files[name] = lay_out(shard, merged if merged or empty_metadata else None, limits)
    index = _render_index(names, shards) if len(shards) > 1 else None
    return ShardedPlan(files=files, index_name=f"{stem}.safetensors.index.json", index=index)


def _file_name(stem: str, number: int, total: int) -> str:
    return f"{stem}.safetensors" if total == 1 else f"{stem}-{number:05d}-of-{total:05d}.safetensors"


def _fill(items: list[Item], most: int) -> list[list[Item]]:
    """Fill shards greedily, in the order and with the breaks of huggingface_hub's `split_state_dict_into_shards_factory`."""
    shards: list[list[Item]] = []
    current: list[Item] = []
    size = 0
    for item in items:
        nbytes = item[3].nbytes
        if nbytes > most:
            shards.append([item])
            continue
        if size + nbytes > most:
            shards.append(current)
            current, size = [], 0
        current.append(item)
        size += nbytes
    if current:
        shards.append(current)
    return shards


def _render_index(names: list[str], shards: list[list[Item]]) -> bytes:
    """Render the index as transformers does."""
    items = [item for shard in shards for item in shard]
    index = {
        "metadata": {
            "total_parameters": sum(math.prod(shape) for _, _, shape, _ in items),
            "total_size": sum(blob.nbytes for _, _, _, blob in items),
        },
        "weight_map": {item[0]: file for file, shard in zip(names, shards, strict=True) for item in shard},
    }
    return (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()
