"""What goes wrong with a learning rate schedule."""

from __future__ import annotations

from firekeep.errors import FirekeepError


class SchedulerError(FirekeepError, ValueError):
    """A schedule is built, loaded or used in a way that it cannot be."""
