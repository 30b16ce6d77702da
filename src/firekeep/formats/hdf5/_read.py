"""Opening a file: a walk over its groups, and the names that its arrays get."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, LimitError, MetadataError, WrongFormatError
from firekeep.formats._absent import check_bools, tell_absent
from firekeep.formats._protocol import Container, Finding, OpenOptions
from firekeep.formats._zip import InflatedBlob, ZipDirectory, read_directory
from firekeep.formats.hdf5._chunks import ChunkedBlob
from firekeep.formats.hdf5._datasets import Dataset, is_dataset, read_attributes, read_dataset
from firekeep.formats.hdf5._file import Hdf5
from firekeep.formats.hdf5._groups import is_group, list_links
from firekeep.formats.hdf5._headers import Messages
from firekeep.formats.hdf5._keras import VARIABLES, is_keras_2, name_layer, name_variables, name_written_out
from firekeep.garbage import collector_paused
from firekeep.limits import Limits
from firekeep.sources import MemorySource, Source

_WEIGHTS, _TEXTS = "model.weights.h5", ("config.json", "metadata.json")
_ZIP = b"PK"


def open_container(source: Source, options: OpenOptions) -> Container:
    """Read the groups of an HDF5 file, or of the weights in a `.keras` archive, and no array.

    Arrays are windows of the file where they lie in one piece, else they are put together when drawn. The variables of Keras's layers are
    named by what they are (`layers.conv2d.kernel`), others by their path. The configuration of a model is `values()`: text, never acted on.
    """
    if bytes(source.view(0, min(source.size, len(_ZIP)))) == _ZIP:
        return _open_archive(source, options.limits)
    return _open_file(Hdf5(source, 0, source.size, options.limits))


def _open_archive(source: Source, limits: Limits) -> Container:
    directory = read_directory(source, limits)
    member = directory.members.get(_WEIGHTS)
    if member is None or directory.archives > 1:
        raise WrongFormatError(f"this is a zip archive without one {_WEIGHTS!r}, so no model of Keras", kind="zip")
    blob = directory.blob(member)
    if isinstance(blob, InflatedBlob):
        most = limits.expanded_bytes + 8 * source.size
        if member.size > most:
            raise LimitError(f"{_WEIGHTS!r} inflates to {member.size} bytes", limit=most, actual=member.size)
        file = Hdf5(MemorySource(blob.inflate()), 0, member.size, limits)
    else:
        file = Hdf5(source, directory.data_offset(member), member.size, limits)
    inside = _open_file(file)
    texts = {name: _read_json(directory, name, limits) for name in _TEXTS}
    config, about = texts["config.json"], texts["metadata.json"]
    told = {"model": config.get("class_name"), **{key: about.get(key) for key in ("keras_version", "date_saved")}}
    return replace(
        inside,
        variant="keras-archive",
        layout="keras",
        notes=(*directory.notes, *inside.notes),
        details={**inside.details, **{key: value for key, value in told.items() if isinstance(value, str)}},
        values=lambda: {name.removesuffix(".json"): value for name, value in texts.items() if value},
        check=lambda: itertools.chain(_check_members(directory), inside.check()),
        attest=lambda _entry: directory.attest(member),
    )


def _read_json(directory: ZipDirectory, name: str, limits: Limits) -> dict[str, Any]:
    """Read what an archive says of its model, as plain data; {} where it says nothing, or nothing readable."""
    member = directory.members.get(name)
    if member is None:
        return {}
    try:
        found = json.loads(directory.read(member, limit=limits.text_bytes))
    except (ValueError, RecursionError) as error:
        if isinstance(error, FirekeepError):
            raise
        return {}
    return found if isinstance(found, dict) else {}


def _check_members(directory: ZipDirectory) -> Iterator[Finding]:
    for member in directory.members.values():
        if (finding := directory.check(member)) is not None:
            yield finding


@dataclass(slots=True)
class _Found:
    """What a walk found: datasets by their paths, the attributes of groups, and how many links were left aside."""

    datasets: dict[tuple[str, ...], Dataset] = field(default_factory=dict)
    attributes: dict[tuple[str, ...], Mapping[str, Any]] = field(default_factory=dict)
    groups: dict[int, tuple[str, ...]] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    spelled: int = 0


def _open_file(file: Hdf5) -> Container:
    with collector_paused():
        found = _walk(file)
        variant, names = _name(found)
    entries = _rename(found, names)
    notes = list(tell_absent(entries))
    if found.elsewhere:
        notes.append(
            f"{len(found.elsewhere)} links lead to other places or files and were left aside: {_some(found.elsewhere)}"
        )
    if found.again:
        notes.append(f"{len(found.again)} groups are there under a second name, and listed once: {_some(found.again)}")
    if file.trailing:
        notes.append(f"{file.trailing} bytes follow the end of the HDF5 file and were left aside")
    layers = {
        ".".join(name_layer(path[:-1])): name
        for path, held in found.attributes.items()
        if path and path[-1] == VARIABLES and isinstance(name := held.get("name"), str)
    }
    root = found.attributes.get((), {})
    return Container(
        format="hdf5",
        variant=variant,
        layout="keras" if variant else "",
        entries={entry.name: entry for entry in entries},
        metadata={key: value for key, value in root.items() if isinstance(value, str)},
        notes=tuple(notes),
        details={
            "superblock": file.version,
            "groups": len(found.groups),
            **({"layer_names": layers} if layers else {}),
            "file_bytes": file.source.size,
        },
        check=lambda: itertools.chain(_check_chunks(entries), check_bools(entries)),
    )


def _walk(file: Hdf5) -> _Found:
    """Visit every group once, and look at every dataset."""
    found = _Found()
    waiting: list[tuple[tuple[str, ...], int]] = [((), file.root)]
    while waiting:
        path, address = waiting.pop()
        try:
            _visit(file, found, waiting, path, address)
        except FirekeepError as error:
            raise error.at(tensor="/".join(path) or None)  # noqa: B904 - the same error, with its place
    return found


def _visit(
    file: Hdf5, found: _Found, waiting: list[tuple[tuple[str, ...], int]], path: tuple[str, ...], address: int
) -> None:
    if address in found.groups:
        found.again.append("/".join(path))
        return
    messages = Messages(file, address)
    if is_dataset(messages):
        _count(file.limits, len(found.datasets) + 1)
        found.datasets[path] = read_dataset(file, messages, ".".join(path))
        return
    if not is_group(messages):
        return  # a datatype under a name of its own
    found.groups[address] = path
    if len(path) >= file.limits.pickle_depth:
        raise LimitError("groups nest too deep", limit=file.limits.pickle_depth, actual=len(path) + 1)
    if attributes := read_attributes(file, messages):
        found.attributes[path] = attributes
    links = list_links(file, messages)
    _count(file.limits, len(found.groups) + len(found.datasets) + len(waiting) + len(links))
    _spell(found, file.limits, len(links) * sum(map(len, path)) + sum(len(link.name) for link in links))
    if len({link.name for link in links}) < len(links):
        raise MetadataError("a group has one name twice")
    found.elsewhere += ["/".join((*path, link.name)) for link in links if link.address is None]
    waiting += [((*path, link.name), link.address) for link in reversed(links) if link.address is not None]


def _count(limits: Limits, number: int) -> None:
    if number > limits.archive_members:
        raise LimitError(
            f"the file holds more than {limits.archive_members} groups and datasets",
            limit=limits.archive_members,
            actual=number,
        )


def _spell(found: _Found, limits: Limits, length: int) -> None:
    """Count the bytes of names: one long name of a group stands before those of all that is in it."""
    found.spelled += length
    if found.spelled > limits.text_bytes:
        raise LimitError(
            f"the names of the arrays have more than {limits.text_bytes} bytes",
            limit=limits.text_bytes,
            actual=found.spelled,
        )


def _name(found: _Found) -> tuple[str, dict[tuple[str, ...], str]]:
    """Tell files of Keras, and name the datasets as it would."""
    groups = [path[0] for path in found.groups.values() if len(path) == 1]
    if is_keras_2(found.attributes.get((), {}), groups):
        return "keras-2", {path: name_written_out(path) for path in found.datasets}
    is_keras = any(path and path[-1] == VARIABLES and "name" in held for path, held in found.attributes.items())
    if not is_keras:
        return "", {path: ".".join(path) for path in found.datasets}
    numbered: dict[tuple[str, ...], dict[str, tuple[int, ...]]] = {}
    names = {}
    for path, dataset in found.datasets.items():
        if len(path) > 1 and path[-2] == VARIABLES:
            numbered.setdefault(path[:-2], {})[path[-1]] = dataset.entry.shape
        else:
            names[path] = ".".join(path)
    for layer, shapes in numbered.items():
        given = name_variables(layer, shapes)
        names.update({(*layer, VARIABLES, number): name for number, name in given.items()})
    return "keras", names


def _rename(found: _Found, names: Mapping[tuple[str, ...], str]) -> list[TensorEntry]:
    """Give the entries under their names, in the order their data lie; raises `MetadataError` for two of one name."""
    taken: dict[str, tuple[str, ...]] = {}
    for path, name in names.items():
        if taken.setdefault(name, path) != path:
            raise MetadataError(f"the datasets {'/'.join(taken[name])} and {'/'.join(path)} have one name", tensor=name)
    placed = sorted(found.datasets.items(), key=lambda pair: (pair[1].place is None, pair[1].place or 0))
    return [dataset.entry.renamed(names[path]) for path, dataset in placed]


def _check_chunks(entries: list[TensorEntry]) -> Iterator[Finding]:
    """Unpack what is in chunks: their checksums and compressed data can be wrong."""
    for entry in entries:
        if isinstance(entry.blob, ChunkedBlob):
            try:
                entry.read()
            except FirekeepError as error:
                yield Finding("error", entry.name, error.message)


def _some(names: list[str]) -> str:
    return ", ".join(name[:60] for name in names[:3]) + (" ..." if len(names) > 3 else "")
