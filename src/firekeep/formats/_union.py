"""Several files as one: the shards of a set compared with their index and joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from firekeep.entry import TensorEntry
from firekeep.errors import MetadataError
from firekeep.formats._protocol import Container, Finding
from firekeep.sources import Source

_OF_EACH_FILE = frozenset(("firekeep.digests", "firekeep.ties"))
"""Metadata that speaks of the tensors of its own file, and so of no set."""
FILES_OF = {"safetensors": "safetensors files", "pytorch": "PyTorch files"}
"""What the files of a set are called, by their format."""
_OF_ONE_SAVE = "Fetch the index and its files again, all of one save. Each of the files opens by its own path."


@dataclass(frozen=True, slots=True)
class Index:
    """What an index says: the file of each tensor, its metadata as it stands, and the format of the files."""

    weight_map: dict[str, str]
    metadata: dict[str, Any]
    format: str = "safetensors"


@dataclass(frozen=True, slots=True)
class Shard:
    """An open file of a set."""

    name: str
    container: Container
    source: Source


class JoinedEntries(Mapping[str, TensorEntry]):
    """The tensors of all shards, one shard after another; each shard makes its own entries."""

    def __init__(self, shards: list[Shard], homes: Mapping[str, int]) -> None:
        self._parts = [shard.container.entries for shard in shards]
        self._homes = homes

    def __getitem__(self, name: str) -> TensorEntry:
        return self._parts[self._homes[name]][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)

    def __contains__(self, name: object) -> bool:
        return name in self._homes


def join_shards(index: Index, shards: list[Shard], missing: list[str]) -> Container:
    """Compare the shards with their index, both ways, and give them as one container.

    With files `missing`, the shards are whatever else is there: they stand for the set only if they hold all of it.
    """
    if missing:
        shards, homes = _stand_ins(index, shards)
        note = _excuse_missing(index, shards, homes, missing)
    else:
        note, homes = None, _find_homes(shards)
        _require_listed(index, shards, homes)
    warnings = [*([note] if note else []), *_compare(index, shards, homes)]
    containers = [shard.container for shard in shards]
    return Container(
        format=index.format,
        variant="sharded",
        entries=JoinedEntries(shards, homes),
        metadata=_join_metadata(shards),
        notes=(*warnings, *(f"{shard.name}: {text}" for shard in shards for text in shard.container.notes)),
        details={
            "shards": [shard.name for shard in shards],
            **_JOINED_DETAILS[index.format](shards),
            "index_metadata": index.metadata,
        },
        ties={
            dropped: kept for shard in shards for dropped, kept in shard.container.ties.items() if dropped not in homes
        },
        submodules=frozenset().union(*(container.submodules for container in containers)),
        values=lambda: _join_values(containers),
        check=_checker(shards, warnings, index.format),
        attest=lambda entry: containers[homes[entry.name]].attest(entry),
        sources=tuple(shard.source for shard in shards),
    )


def _safetensors_details(shards: list[Shard]) -> dict[str, Any]:
    metadata = _join_metadata(shards)
    empty = any(shard.container.details["metadata"] == "empty" for shard in shards)
    return {
        "header_bytes": sum(shard.container.details["header_bytes"] for shard in shards),
        "file_bytes": sum(shard.container.details["file_bytes"] for shard in shards),
        "metadata": "present" if metadata else "empty" if empty else "absent",
    }


def _pytorch_details(shards: list[Shard]) -> dict[str, Any]:
    details = [shard.container.details for shard in shards]
    joined: dict[str, Any] = {
        "file_bytes": sum(shard.source.size for shard in shards),
        "storages": sum(each["storages"] for each in details),
        "globals": sorted({name for each in details for name in each["globals"]}),
        "shard_variants": sorted({shard.container.variant for shard in shards}),
    }
    said: dict[str, Any] = {}
    for each in details:
        said.update(each.get("state_dict_metadata", {}))
    return {**joined, "state_dict_metadata": said} if said else joined


_JOINED_DETAILS: dict[str, Callable[[list[Shard]], dict[str, Any]]] = {
    "safetensors": _safetensors_details,
    "pytorch": _pytorch_details,
}


def _join_values(containers: list[Container]) -> Any:
    """Put together what the files hold as one dictionary, as far as each of them is one."""
    joined: dict[Any, Any] = {}
    for container in containers:
        if isinstance(values := container.values(), Mapping):
            joined.update(values)
    return joined


def _stand_ins(index: Index, shards: list[Shard]) -> tuple[list[Shard], dict[str, int]]:
    """Take all files there for what an index lists, or those it names where others (variants) hold the same tensors again."""
    try:
        return shards, _find_homes(shards)
    except MetadataError:
        files = set(index.weight_map.values())
        named = [shard for shard in shards if shard.name in files]
        if not named:
            raise
        return named, _find_homes(named)


def _find_homes(shards: list[Shard]) -> dict[str, int]:
    homes: dict[str, int] = {}
    for number, shard in enumerate(shards):
        for name in shard.container.entries:
            if homes.setdefault(name, number) != number:
                raise MetadataError(
                    f"it is in two shards, {shards[homes[name]].name} and {shard.name}: which of the two counts is not defined",
                    tensor=name,
                    remedy=_OF_ONE_SAVE,
                )
    return homes


def _excuse_missing(index: Index, shards: list[Shard], homes: Mapping[str, int], missing: list[str]) -> str:
    """Say that the index is out of date, if the files there are hold all it lists; else raise, naming the missing files."""
    total = len(set(index.weight_map.values()))
    held = sum(name in homes for name in index.weight_map)
    if shards and held == len(index.weight_map) == len(homes):
        return (
            f"index stale, headers complete: {len(missing)} of the {total} files it names are not there, and the "
            f"{len(shards)} {FILES_OF[index.format]} beside it hold all its {held} tensors"
        )
    raise MetadataError(
        f"{len(missing)} of the {total} files that the index names are missing ({_first(missing, 10)}); "
        f"the {FILES_OF[index.format]} there hold {held} of its {len(index.weight_map)} tensors",
        limit=total,
        actual=total - len(missing),
        remedy="Fetch the missing files. What the others hold opens by their own paths.",
    )


def _require_listed(index: Index, shards: list[Shard], homes: Mapping[str, int]) -> None:
    wrong = []
    for name, file in index.weight_map.items():
        home = homes.get(name)
        if home is None:
            wrong.append(f"{name!r} is not in {file}")
        elif shards[home].name != file:
            wrong.append(f"{name!r} is in {shards[home].name}, not in {file}")
    if wrong:
        raise MetadataError(
            f"{len(wrong)} of the {len(index.weight_map)} tensors are not where the index says: {_first(wrong)}",
            limit=len(index.weight_map),
            actual=len(index.weight_map) - len(wrong),
            remedy=_OF_ONE_SAVE,
        )


def _compare(index: Index, shards: list[Shard], homes: Mapping[str, int]) -> Iterator[str]:
    unlisted = [name for name in homes if name not in index.weight_map]
    if unlisted:
        yield f"{len(unlisted)} tensors of the shards are not in the index: {_first(list(map(repr, unlisted)))}"
    total = index.metadata.get("total_size")
    if isinstance(total, int | float) and total not in (held := _held_bytes(index, shards)):
        yield f"the index gives a total_size of {total} bytes, the shards hold {held[0]}"
    for key in sorted({key for shard in shards for key in shard.container.metadata} - _OF_EACH_FILE):
        values = {shard.container.metadata[key] for shard in shards if key in shard.container.metadata}
        if len(values) > 1:
            yield f"the shards disagree on the metadata key {key!r}: the first one's value is shown"


def _held_bytes(index: Index, shards: list[Shard]) -> list[int]:
    """Give the bytes of all tensors; PyTorch's as well with tied ones counted once, which is how most writers of an index count."""
    if index.format == "safetensors":
        return [sum(shard.container.details["data_bytes"] for shard in shards)]
    entries = [entry for shard in shards for entry in shard.container.entries.values()]
    places = [(entry.blob.identity(), entry) for entry in entries]
    once = {entry.name if place is None else place: entry.nbytes for place, entry in places}
    return [sum(entry.nbytes for entry in entries), sum(once.values())]


def _join_metadata(shards: list[Shard]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for shard in reversed(shards):
        joined.update(shard.container.metadata)
    return {key: value for key, value in joined.items() if key not in _OF_EACH_FILE}


def _checker(shards: list[Shard], warnings: list[str], format: str) -> Callable[[], Iterator[Finding]]:
    def check() -> Iterator[Finding]:
        yield from (Finding("warning", "", warning) for warning in warnings)
        for shard in shards:
            for found in shard.container.check():
                # What is no tensor, the member of an archive or a storage, has a name in its own file only.
                yield replace(found, place=f"{shard.name}/{found.place}") if format == "pytorch" else found

    return check


def _first(texts: list[str], most: int = 3) -> str:
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")
