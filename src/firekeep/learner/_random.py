"""Random numbers: seeding, and a block that leaves them as they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_all(seed: int) -> None:
    """Seed Python, NumPy and PyTorch."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Leave all generators as they were: a validation, whole, cut short or left out, must not change the training after it."""
    python, cpu = random.getstate(), torch.get_rng_state()
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if in_use else None
    numpy = sys.modules.get("numpy")
    legacy = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        if numpy is not None:
            numpy.random.set_state(legacy)
