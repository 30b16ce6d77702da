"""A compact training loop for PyTorch that can be killed at any moment, and goes on where it was."""

from __future__ import annotations

from firekeep.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401 - looked for here, so that who lacks it is told how to get it
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtraError(
        "firekeep.learner trains models of PyTorch, which is not installed", remedy="pip install 'firekeep[torch]'"
    ) from None

from firekeep.learner._early import EarlyStopping
from firekeep.learner._history import read_history
from firekeep.learner._learner import Learner
from firekeep.learner._report import FitReport

__all__ = ["EarlyStopping", "FitReport", "Learner", "read_history"]
