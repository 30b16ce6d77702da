"""Opening a folder: which of the weights in it are meant, as the libraries of Hugging Face choose, or why none can be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from firekeep.errors import WrongFormatError
from firekeep.formats._protocol import Container, OpenOptions
from firekeep.formats._sets import (
    SUFFIX,
    TORCH_INDEX_SUFFIX,
    TORCH_SUFFIXES,
    Readers,
    files_in,
    open_index,
    open_single,
)
from firekeep.formats._union import FILES_OF
from firekeep.sources import Source

_LISTED = 10
_INDEX = re.compile(r"(?P<stem>.+)\.(?P<kind>safetensors|bin)\.index(?:\.(?P<variant>[^.]+))?\.json")
_FILE = re.compile(r"(?P<stem>.+)\.(?P<kind>safetensors|bin)")
_PIECE = re.compile(r"-(?P<number>\d{5,6})-of-(?P<total>\d{5,6})(?!\d)")
"""What the name of one file of several says."""
_VARIANTS = frozenset(("fp16", "bf16", "fp32", "fp8", "int8", "int4", "8bit", "4bit", "ema", "non_ema", "no_ema"))
"""Words by which weights of another kind are told from the plain ones, before the suffix; others where the plain ones are there."""
_WEIGHTS = re.compile(r"(?:.*[_.-])?(?:model|weights)")
"""How the stem of a .bin ends that holds weights; settings and optimizers are called so, too."""
_OTHER_SUFFIXES = (*TORCH_SUFFIXES, ".bpk", ".gguf", ".h5", ".keras", ".msgpack", ".npz", ".onnx", TORCH_INDEX_SUFFIX)
_ORBAX = ("_CHECKPOINT_METADATA", "manifest.ocdbt")
"""Files of which one lies in each directory that Orbax writes."""
_STEP = re.compile(r"step-[0-9]{8,19}")
"""A folder that a CheckpointManager has made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """A file of a folder that weights are opened by: an index, or one file of all; a piece is of a set, and opens none."""

    name: str
    stem: str
    format: Literal["safetensors", "pytorch"]
    is_index: bool
    is_variant: bool
    total: int = 1
    """How many files the set has that it is a piece of."""


def open_directory(place: Path, options: OpenOptions, readers: Readers) -> tuple[Container, Source]:
    """Open the weights that a directory holds; raises `WrongFormatError` naming them where several may be meant, or none is there.

    Plain weights go before variants (`model.fp16.safetensors`), safetensors before PyTorch files, a set with an index before single files
    of other names, and a single file before the set of its own name. What is passed over is noted.
    """
    names = files_in(place)
    found = list(_weights(names))
    whole = [one for one in found if one.total == 1]
    chosen = next((rank for rank in _ranks(whole) if rank), [])
    if len(chosen) != 1:
        raise _refuse_several(place, chosen) if chosen else _refuse(place, names, found)
    (one,) = chosen
    if one.is_index:
        opened = open_index(place / one.name, options, readers)
    else:
        opened = open_single(place / one.name, one.format, options, readers)
    if opened is None:
        raise _refuse(place, names, [])
    container, source = opened
    notes = tuple(_passed_over(one, found))
    return (replace(container, notes=(*container.notes, *notes)) if notes else container), source


def _weights(names: list[str]) -> Iterator[_Weights]:
    there = frozenset(names)
    for name in names:
        index = _INDEX.fullmatch(name)
        match = index or _FILE.fullmatch(name)
        if match is None:
            continue
        stem, kind, piece = match["stem"], match["kind"], _PIECE.search(match["stem"])
        if index is None and kind == "bin" and not _WEIGHTS.fullmatch(_plain(_PIECE.sub("", stem), kind, there)):
            continue
        yield _Weights(
            name=name,
            stem=stem,
            format="safetensors" if kind == "safetensors" else "pytorch",
            is_index=index is not None,
            is_variant=(index is not None and index["variant"] is not None) or _plain(stem, kind, there) != stem,
            total=1 if index is not None or piece is None else int(piece["total"]),
        )


def _plain(stem: str, kind: str, there: frozenset[str]) -> str:
    """Take the word for a variant off a stem, where it ends in one."""
    before, _, last = stem.rpartition(".")
    plain = f"{before}.{kind}"
    if before and (last in _VARIANTS or plain in there or f"{plain}.index.json" in there):
        return before
    return stem


def _ranks(whole: list[_Weights]) -> Iterator[list[_Weights]]:
    """Give what can be meant, what goes before first: a file in the place of the index of its name."""
    for format in ("safetensors", "pytorch"):
        here = [one for one in whole if one.format == format and not one.is_variant]
        singles = {one.stem: one for one in here if not one.is_index}
        yield [singles.get(one.stem, one) for one in here if one.is_index]
        yield list(singles.values())
    for format in ("safetensors", "pytorch"):
        yield [one for one in whole if one.format == format and one.is_variant]


def _passed_over(chosen: _Weights, found: list[_Weights]) -> Iterator[str]:
    others = [one for one in found if one is not chosen and one.total == 1]
    plain = [one for one in others if not one.is_variant]
    if chosen.format == "safetensors":
        sets, files = (
            [one.name for one in plain if one.format == "pytorch" and one.is_index is yes] for yes in (True, False)
        )
        if sets:
            yield f"the directory holds a set of PyTorch files, too, which was passed over: {_list(sets)}"
        if files:
            yield f"the directory holds PyTorch files, too, which were passed over: {_list(files)}"
    if same := [one.name for one in plain if one.format == chosen.format]:
        yield f"the directory holds other weights, too, which were passed over: {_list(same)}"
    if variants := [one.name for one in others if one.is_variant and not chosen.is_variant]:
        yield f"the directory holds variants, too, which are opened by their paths: {_list(variants)}"
    if not chosen.is_index and (pieces := [one.name for one in found if one.total > 1 and one.format == chosen.format]):
        yield f"the directory holds files of a set, too, which were passed over: {_list(pieces)}"


def _refuse_several(place: Path, several: list[_Weights]) -> WrongFormatError:
    if all(one.is_variant for one in several):
        kind = "variants of weights and no plain ones"
    elif several[0].is_index:
        kind = "indexes"
    else:
        kind = f"{FILES_OF[several[0].format]} and no index"
    message = f"the directory holds {len(several)} {kind}: {_list([one.name for one in several])}"
    return WrongFormatError(message, kind="directory", path=place, remedy="Open one of them by its path.")


def _refuse(place: Path, names: list[str], found: list[_Weights]) -> WrongFormatError:
    """Say what a directory holds instead of weights that can be opened."""
    others = [name for name in names if name.endswith(_OTHER_SUFFIXES)]
    if pieces := [one for one in found if one.total > 1]:
        first = pieces[0]
        pieces = [one for one in pieces if one.format == first.format]
        if len(pieces) == 1:
            message = f"the directory holds one of the {first.total} files of a set, {first.name}, and no index"
        else:
            message = f"the directory holds {len(pieces)} {FILES_OF[first.format]} and no index: {_list([one.name for one in pieces])}"
        kind = SUFFIX if first.format == "safetensors" else ".bin"
        index = f"{_PIECE.split(first.stem)[0].removesuffix(kind)}{kind}.index.json"
        remedy = f"Fetch what is missing of the set, with its index ({index}). Open one of them by its path to see that file alone."
    elif others:
        message = f"the directory holds no safetensors file, but {_list(others)}"
        remedy = "Open one of them by its path."
    elif steps := sorted(one.name for one in place.iterdir() if _STEP.fullmatch(one.name) and one.is_dir()):
        message = f"the directory holds the steps of a training run: {_list(steps)}"
        remedy = f"Open a file of a step, such as {steps[-1]}/model.bpk; `firekeep checkpoints` lists the steps."
    elif _is_orbax(place) or any(_is_orbax(one) for one in place.iterdir()):
        message = "the directory holds checkpoints of Orbax, arrays in pieces that firekeep does not read"
        remedy = "Restore one with orbax.checkpoint, and save it with firekeep.save or as a TrainingState."
    else:
        message = "the directory holds no safetensors file and no safetensors.index.json"
        remedy = "Open a file by its path."
    return WrongFormatError(message, kind="directory", path=place, remedy=remedy)


def _is_orbax(place: Path) -> bool:
    return any((place / name).is_file() for name in _ORBAX)


def _list(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f", ... ({len(names)} in all)" if len(names) > _LISTED else "")
