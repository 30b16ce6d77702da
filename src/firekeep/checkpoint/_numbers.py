"""Numbers of steps: that of a state itself, and those that an earlier run has left in the directory."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from pathlib import Path

from firekeep.checkpoint._step import StepInfo
from firekeep.sections import Savable


class Numbers:
    """Keeps the `step` of a state at the number that it is saved under, where nobody else counts there.

    A state whose own step is 0, or is what it was when it was saved or restored last, has nobody who counts in it. One that counts
    batches and is saved by epochs is left alone. Several states, of several threads, are told apart.
    """

    def __init__(self) -> None:
        self._left_at: int | None = None
        self._of_each: dict[int, tuple[weakref.ref[Savable], int | None]] = {}

    def give(self, state: Savable, step: int) -> None:
        """Set the state's own step before it is saved as this one."""
        own = _own_step(state)
        if own is not None and own != step and own in (0, self._left(state)):
            with contextlib.suppress(AttributeError):  # one that cannot be set is the state's own affair
                state.step = step  # type: ignore[attr-defined]
        self.note(state, step)

    def note(self, state: Savable, step: int) -> None:
        """Remember where the state's own step stands, if it is the number of the step that was saved or restored."""
        self._left_at = step if _own_step(state) == step else None
        key, of_each = id(state), self._of_each
        with contextlib.suppress(TypeError):  # of states that cannot be referred to weakly, the last one is remembered
            of_each[key] = weakref.ref(state, lambda _: of_each.pop(key, None)), self._left_at

    def _left(self, state: Savable) -> int | None:
        """Give where the step of this state was left, or, of one that is not known yet, that of the one before it."""
        return self._of_each.get(id(state), (None, self._left_at))[1]


def _own_step(state: Savable) -> int | None:
    own = getattr(state, "step", None)
    return own if isinstance(own, int) and not isinstance(own, bool) else None


def higher_step(steps: Sequence[StepInfo], saved: StepInfo) -> int | None:
    """Find a higher step that lies there from before: most likely of another run, and it is what would be resumed."""
    return max((info.step for info in steps if info.step > saved.step and info.time < saved.time), default=None)


def note_of(higher: int) -> str:
    """Tell of such a step in the report of a save."""
    told = f"step {higher}, which was saved before, has a higher number, so that restore() would take it"
    return f"{told}; give each run a directory of its own"


def warning_of(step: int, *, directory: Path, higher: int) -> str:
    """Tell of such a step whoever does not see the reports."""
    return (
        f"step {step} was saved in {directory}, where step {higher} of an earlier run lies: restore() takes that one, and as the lower "
        "number this one is deleted first. Give each run a directory of its own, or restore the earlier run before training."
    )
