"""L-BFGS, which keeps vectors over all parameters at once: in a file they lie in the order of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firekeep.bridges._states import OptimizerState, ParamState
from firekeep.entry import TensorEntry
from firekeep.errors import FormatError
from firekeep.records._file_params import FileLayout
from firekeep.records._stand_ins import as_number, number, put_back, take_out
from firekeep.scalars import Scalar
from firekeep.views import joined, reshaped, sliced

_LISTS = {"old_stps": "history_s", "old_dirs": "history_y"}
_VECTORS = ("d", "prev_flat_grad")
_VECTORS_KEPT = (*_LISTS, *_VECTORS)


@dataclass(frozen=True, slots=True)
class Piece:
    """A parameter within a flat vector."""

    name: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many numbers it has."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total


def write(
    taken: OptimizerState, files: FileLayout, scalars: dict[str, Scalar]
) -> tuple[list[TensorEntry], dict[str, Any]]:
    """Give the vectors under Burn's names and the rest as plain data; numbers that Burn keeps are added to `scalars`."""
    state: dict[str, Any] = dict(next((one.state for one in taken.params if one.state), {}))
    pieces = [Piece(one.path, one.shape) for one in in_order(taken.params)]
    entries: list[TensorEntry] = []

    def add(name: str, entry: TensorEntry) -> None:
        entries.append(_lay_out(entry, pieces, files).renamed(name))

    for key, name in _LISTS.items():
        vectors = state.get(key) or []
        scalars[f"{name}.len"] = Scalar("uint", len(vectors))
        for place, entry in enumerate(vectors):
            add(f"{name}.{place}", entry)
    for key in _VECTORS:
        if isinstance(state.get(key), TensorEntry):
            add(key, state[key])
    for key in ("t", "prev_loss"):
        if (value := as_number(state.get(key))) is not None:
            scalars[key] = Scalar("float", float(value))
    scalars["g_iter"] = Scalar("uint", int(as_number(state.get("n_iter")) or 0))
    names = {id(entry): name for name, entry in _kept(state)}
    rest = take_out(state, "", lambda _path, entry: names.get(id(entry)))
    order = [int(one.param_id) for one in files.params]
    return entries, {"global": rest, "order": order}


def _kept(state: Mapping[str, Any]) -> Iterator[tuple[str, TensorEntry]]:
    for key, name in _LISTS.items():
        yield from ((f"{name}.{place}", entry) for place, entry in enumerate(state.get(key) or []))
    yield from ((key, state[key]) for key in _VECTORS if isinstance(state.get(key), TensorEntry))


def in_order(params: Sequence[ParamState]) -> list[ParamState]:
    return sorted(params, key=lambda one: one.position)


def _lay_out(entry: TensorEntry, pieces: Sequence[Piece], files: FileLayout) -> TensorEntry:
    parts = {one.name: one for one in files.lay_out(_cut(entry, pieces))}
    return _join([parts[one.name] for one in files.params], entry.name)


def _cut(entry: TensorEntry, pieces: Sequence[Piece]) -> list[TensorEntry]:
    parts, start = [], 0
    for piece in pieces:
        part = sliced(entry, axis=0, start=start, stop=start + piece.count)
        parts.append(reshaped(part, piece.shape).renamed(piece.name))
        start += piece.count
    return parts


def _join(parts: Sequence[TensorEntry], name: str) -> TensorEntry:
    flat = [reshaped(one, (one.numel,)) for one in parts]
    return joined(flat, axis=0, name=name) if len(flat) > 1 else flat[0].renamed(name)


def read(
    tensors: Mapping[str, TensorEntry],
    scalars: Mapping[str, Scalar],
    rest: Any,
    file_pieces: Sequence[Piece],
    live: Sequence[ParamState],
    files: FileLayout,
) -> dict[str, Any]:
    """Give the state of a live optimizer; `file_pieces` are the parameters in the order of the file, under their names there now.

    Raises `FormatError` where vectors are of another length than the parameters together.
    """
    total = sum(piece.count for piece in file_pieces)
    order = [one.path for one in in_order(live)]

    def find(name: str) -> TensorEntry | None:
        entry = tensors.get(name)
        if entry is None:
            return None
        if entry.shape != (total,):
            raise FormatError(
                f"its vector {name!r} has shape {list(entry.shape)}, and the parameters {total:,} numbers"
            )
        back, problems = files.take_back(_cut(entry, file_pieces))
        parts = {one.name: one for one in back}
        if problems or set(order) - set(parts):
            raise FormatError(f"its vector {name!r} cannot be cut into the parameters of the model")
        return _join([parts[path] for path in order], name)

    if rest is not None:
        made = put_back(rest, find)
        if not isinstance(made, dict):
            raise FormatError("what the record keeps of L-BFGS is no state")
        return made
    return _of_burn(scalars, find)


def _of_burn(scalars: Mapping[str, Scalar], find: Any) -> dict[str, Any]:
    """Make a state of what Burn keeps; the rest follows from the pairs of steps and differences."""
    lists: dict[str, list[TensorEntry]] = {}
    for key, name in _LISTS.items():
        found: list[TensorEntry] = []
        while (entry := find(f"{name}.{len(found)}")) is not None:
            found.append(entry)
        if len(found) != int(scalars[f"{name}.len"]):
            raise FormatError(f"it has {len(found)} of {int(scalars[f'{name}.len'])} vectors {name}")
        lists[key] = found
    direction, gradient = find("d"), find("prev_flat_grad")
    if direction is None or gradient is None:
        return {}
    state: dict[str, Any] = {"func_evals": 0, "n_iter": int(scalars["g_iter"]) if "g_iter" in scalars else 0}
    ratios, scale = _curvatures(lists["old_stps"], lists["old_dirs"], direction)
    return {
        **state,
        "d": direction,
        "t": float(scalars["t"]) if "t" in scalars else 1.0,
        **{key: lists[key] for key in ("old_dirs", "old_stps")},
        "ro": ratios,
        "H_diag": scale,
        "prev_flat_grad": gradient,
        "prev_loss": float(scalars["prev_loss"]) if "prev_loss" in scalars else None,
    }


def _curvatures(
    steps: Sequence[TensorEntry], differences: Sequence[TensorEntry], like: TensorEntry
) -> tuple[list[TensorEntry], TensorEntry | int]:
    import numpy as np

    from firekeep.arrays import as_array

    name, ratios = like.require().name, []
    scale: TensorEntry | int = 1
    for step, difference in zip(steps, differences, strict=True):
        s, y = as_array(step).astype(np.float64), as_array(difference).astype(np.float64)
        product = float(y @ s)
        ratios.append(number(1.0 / product, name))
        scale = number(product / float(y @ y), name)
    return ratios, scale
