"""Safetensors: a JSON table of tensors, then their bytes; single files, and sets of them written.

The layout: 8 bytes of little-endian header length, the header (a JSON object, padded with spaces to a multiple of 8), then the
data. Offsets count from the end of the header; the data must be covered without hole or overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firekeep.disk import WritePlan
from firekeep.formats._protocol import Container, Contents, OpenOptions
from firekeep.limits import Limits
from firekeep.sources import Source

if TYPE_CHECKING:
    from firekeep.formats.safetensors._split import ShardedPlan

__all__ = ["open_container", "plan", "plan_shards"]


def open_container(source: Source, options: OpenOptions) -> Container:
    """Read the header of a safetensors file and check it whole; no tensor is read.

    `details` say `header_bytes`, `data_offset`, `data_bytes`, `file_bytes`, and `metadata`: "absent", "empty" or "present", for a
    file may have an empty `__metadata__`. A dtype unknown to firekeep makes only its own tensor unreadable. Raises `FormatError`
    with the cause.
    """
    from firekeep.formats.safetensors import _read

    return _read.open_container(source, options)


def plan(contents: Contents, limits: Limits, *, empty_metadata: bool = False) -> WritePlan:
    """Plan a file: the order of data, the header and its padding are the safetensors library's.

    Tied tensors (entries that share their bytes, dtype and shape) are stored once, under the name that sorts first, with a record
    in the metadata; `firekeep.entry.untied` makes an entry that is written in full. Flex32 is written as F32 and Burn's wide
    booleans as BOOL. `empty_metadata` writes `__metadata__` even if there is none. Metadata keys are sorted.

    Raises `UnsupportedError` naming the tensor for dtypes the format lacks, `MetadataError` for names and metadata it cannot hold,
    `LimitError` for a header that readers would refuse.
    """
    from firekeep.formats.safetensors import _write

    return _write.plan(contents, limits, empty_metadata=empty_metadata)


def plan_shards(
    contents: Contents, *, max_shard_bytes: int, limits: Limits, stem: str = "model", empty_metadata: bool = False
) -> ShardedPlan:
    """Plan a set as Hugging Face's tools write it: `model-00001-of-00002.safetensors` ..., `model.safetensors.index.json`.

    Tensors keep the order given and fill one shard after another up to `max_shard_bytes` of data (headers not counted); a tensor
    larger than that has a shard of its own. Every shard has the metadata, an empty one with `empty_metadata`; a tie is recorded beside
    the tensor that was kept. Raises as `plan` does.
    """
    from firekeep.formats.safetensors import _split

    return _split.plan_shards(
        contents, max_shard_bytes=max_shard_bytes, limits=limits, stem=stem, empty_metadata=empty_metadata
    )
