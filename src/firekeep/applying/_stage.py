"""All bytes drawn before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from firekeep.blobs import MemoryBlob
from firekeep.bridges import Filling
from firekeep.entry import TensorEntry
from firekeep.reading import read_windows
from firekeep.sources import Source


def stage(fillings: Sequence[Filling]) -> list[Filling]:
    """Draw every tensor into memory; errors name the tensor, and nothing was touched."""
    windows: list[tuple[Source, int, int]] = []
    lying: list[int] = []
    staged: list[Filling] = list(fillings)
    for place, filling in enumerate(fillings):
        window = filling.entry.blob.window()
        if window is None:
            staged[place] = replace(filling, entry=_held(filling.entry, memoryview(bytes(filling.entry.read()))))
        else:
            windows.append((*window, filling.entry.nbytes))
            lying.append(place)
    for place, view in zip(lying, read_windows(windows) if windows else (), strict=True):
        staged[place] = replace(fillings[place], entry=_held(fillings[place].entry, view))
    return staged


def _held(entry: TensorEntry, view: memoryview) -> TensorEntry:
    return replace(entry, blob=MemoryBlob(view))
