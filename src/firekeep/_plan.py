"""A file before it exists: parts at their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from firekeep.blobs import Blob
from firekeep.errors import EntryError, FirekeepError


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes at a place in the file to be. `tensor` names whose they are; headers have none."""

    offset: int
    blob: Blob
    tensor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """A whole file, decided before a byte of it is drawn.

    Parts are in ascending order and do not overlap; what lies between them is zero. `nbytes` is the file's length.
    """

    nbytes: int
    parts: Sequence[Part] = field(repr=False)


def draw(part: Part) -> memoryview:
    """Draw a part's bytes and check their length; errors name the tensor."""
    try:
        view = part.blob.view()
    except FirekeepError as error:
        raise error.at(tensor=part.tensor)  # noqa: B904 - the same error, with its place
    except Exception as error:
        note_tensor(error, part)
        raise
    if view.nbytes != part.blob.nbytes:
        raise EntryError(f"{part.blob.nbytes} bytes were declared, {view.nbytes} came", tensor=part.tensor)
    return view


def note_tensor(error: Exception, part: Part) -> None:
    """Say in a foreign error, as a note, whose bytes were being drawn."""
    if part.tensor is not None:
        error.add_note(f"while the bytes of tensor {part.tensor!r} were drawn")
