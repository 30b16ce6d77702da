"""What a model holds that is no tensor, and that a file of tensors therefore does not."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from firekeep.rules import PathFilter
from firekeep.slots import Outline
from firekeep.wording import count, quote

_BESIDE = "state besides tensors"
_PLAIN = ("int", "float", "bool", "str")
_SHOWN = 4


class LeftOutWarning(UserWarning):
    """Values that a save left out, since they are no tensors: numbers, texts, functions and modules in dicts, lists and dataclasses.

    So is what modules keep besides tensors (`get_extra_state`), and, of a `TrainingState`, what hangs on an optimizer or a schedule.
    """


class LayoutWarning(UserWarning):
    """A file that Burn's readers expect to be Burn's, whose tensors lie as PyTorch has them."""


def warn_of_layout(path: str | os.PathLike[str]) -> None:
    """Warn whoever called a save that Burn itself would read other numbers."""
    warnings.warn(
        f"{os.fspath(path) or 'the file'} keeps the layout of PyTorch, since nothing tells which tensors are weights of Linear layers: "
        "firekeep knows by the metadata, and Burn itself would misread those. For Burn give the model in place of its state dict, or "
        "like=model; if PyTorch's layout is meant, layout='torch'.",
        LayoutWarning,
        stacklevel=4,  # as in warn_of_others
    )


@dataclass(frozen=True, slots=True)
class Other:
    """A value that is no tensor: its name, what it is, and the outermost container around it that holds none, or ""."""

    name: str
    what: str
    within: str


def others_of(outline: Outline, chosen: PathFilter) -> tuple[Other, ...]:
    """Give the values of a model that are no tensors, but for those that a filter leaves out by name."""
    beside = tuple(
        Other(path or "model", _BESIDE, "") for path in outline.stateful if _accepts(chosen, path or "model")
    )
    if not outline.others:
        return beside
    holding = {part for path in outline.paths() for part in _around(path)}
    return beside + tuple(
        Other(name, what, next((part for part in _around(name) if part not in holding), ""))
        for name, what in outline.others.items()
        if _accepts(chosen, name)
    )


def _around(name: str) -> Iterator[str]:
    """Give the names of all that a name lies in, the outermost first."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))


def _accepts(chosen: PathFilter, name: str) -> bool:
    try:
        return chosen.accepts(name)
    except Exception:  # noqa: BLE001 - a predicate is written for tensors, and may ask for what only these have
        return True


def warn_of_others(others: Sequence[Other], kept: Collection[str], *, path: str | os.PathLike[str]) -> None:
    """Warn whoever called a save of values that no file holds; `kept` names, or what is around them, are in its metadata or scalars."""
    lost = [one for one in others if one.name not in kept and all(part not in kept for part in _around(one.name))]
    if not lost:
        return
    groups = _grouped(lost)
    told = [_tell(name, members) for name, members in groups.items()]
    shown = ", ".join(told[:_SHOWN]) + (f" and {len(told) - _SHOWN:,} more" if len(told) > _SHOWN else "")
    are = "is no tensor and is" if len(lost) == 1 else "are no tensors and are"
    warnings.warn(
        f"{count(len(lost), 'value')} {are} not in {os.fspath(path) or 'the file'}: {shown}. {_remedy(groups)}",
        LeftOutWarning,
        stacklevel=4,  # whoever called `save`, which called `writing`, which called this
    )


def _grouped(lost: Sequence[Other]) -> dict[str, list[Other]]:
    """Put together what is in one container without tensors; one value alone is told by its own name."""
    groups: dict[str, list[Other]] = {}
    for one in lost:
        groups.setdefault(one.within or one.name, []).append(one)
    return {name if len(members) > 1 else members[0].name: members for name, members in groups.items()}


def _tell(name: str, members: Sequence[Other]) -> str:
    return f"{quote(name)} ({members[0].what if len(members) == 1 else count(len(members), 'value')})"


def _remedy(groups: Mapping[str, Sequence[Other]]) -> str:
    first = next(iter(groups))
    pattern = f"^{re.escape(first)}" + ("$" if len(groups[first]) == 1 else r"\.")
    spelled = f"{pattern!r}" if "'" in pattern else f"r'{pattern}'"
    quiet = f"What is not meant to be kept: exclude={f'[{spelled}, ...]' if len(groups) > 1 else spelled}."
    if any(one.what == _BESIDE for one in groups[first]):
        return f"What modules give by get_extra_state() is carried by a firekeep.TrainingState alone. {quiet}"
    for name, members in groups.items():
        if all(one.what in _PLAIN for one in members):
            text = "str(...)" if len(members) == 1 else "json.dumps(...)"
            return (
                f"metadata={{{name!r}: {text}}} keeps such beside the tensors as text, which firekeep.saved_metadata gives back; the "
                f"values of a run are for a firekeep.TrainingState. {quiet}"
            )
    return f"A file of tensors keeps no code and no objects. {quiet}"
