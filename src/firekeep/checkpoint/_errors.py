"""What can go wrong with checkpoints, besides their files."""

from __future__ import annotations

from firekeep.errors import ExistsError, FirekeepError


class StepExistsError(ExistsError):
    """The step has been saved already, here or by another process, and overwriting was not allowed."""


class CheckpointWarning(UserWarning):
    """A step was saved, and not as it seems: `restore()` would take another one, of an earlier run, or no metric tells the best step."""


class NoStepError(FirekeepError, LookupError):
    """There is no complete step of the kind asked for; the message says what there is."""

    __str__ = FirekeepError.__str__


class DirectoryBusyError(FirekeepError, TimeoutError):
    """Another process has held the directory's lock for too long, or kept replacing the step that was to be read."""

    __str__ = FirekeepError.__str__
