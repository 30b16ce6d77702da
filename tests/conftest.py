"""What holds for all tests: their order, which is not that of the files, and hypothesis' examples are the same in each run.

What passes here then passes elsewhere, however slow the machine. To look for more: `pytest --randomly-seed=N` runs the tests in another
order, `--hypothesis-profile=explore` makes other examples each time, and more of them.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, max_examples=500, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the order, unless the command line does."""
    if config.getoption("randomly_seed", None) == "default":
        config.option.randomly_seed = 1


@pytest.fixture
def quiet_libraries() -> Iterator[None]:
    """Silence the advice that Transformers and its Trainer give, as warnings and in their logs."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)
