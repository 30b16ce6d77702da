"""Pausing the garbage collector while tens of thousands of small objects are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 1_000


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cyclic collector from running inside the block.

    Making 20,000 entries triggers collections that walk every object of every imported framework: five to ten times the work.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if gc.get_count()[0] > _MANY and gc.get_freeze_count() == 0:
                # Hand what was made to the oldest generation: else the next two collections walk all of it for nothing.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
