"""A file before it exists: parts at their places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from firekeep.blobs import Blob
from firekeep.errors import EntryError, FirekeepError


# Not frozen, like TensorEntry: there are as many of them, and a frozen dataclass takes four times as long to make.
@dataclass(slots=True)
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
    except Exception as error:
        _name_tensor(error, part)
        raise
    if view.nbytes != part.blob.nbytes:
        raise _wrong_length(part, view.nbytes)
    return view


def draw_pieces(part: Part) -> Iterator[memoryview]:
    """Draw a part's bytes in pieces, as its blob gives them; checked and named as by `draw`."""
    drawn = 0
    pieces = part.blob.chunks()
    while True:
        try:
            piece = next(pieces, None)
        except Exception as error:
            _name_tensor(error, part)
            raise
        if piece is None:
            break
        drawn += piece.nbytes
        if drawn > part.blob.nbytes:
            raise _wrong_length(part, drawn)
        yield piece
        del piece  # the next piece is made when this one is gone
    if drawn != part.blob.nbytes:
        raise _wrong_length(part, drawn)


def _wrong_length(part: Part, came: int) -> EntryError:
    declared = part.blob.nbytes
    return EntryError(f"{declared} bytes were declared, {came} came", tensor=part.tensor, limit=declared, actual=came)


def _name_tensor(error: Exception, part: Part) -> None:
    if isinstance(error, FirekeepError):
        error.at(tensor=part.tensor)
    elif part.tensor is not None:
        error.add_note(f"while the bytes of tensor {part.tensor!r} were drawn")
