"""Training runs that go on as if they had never stopped: the state of one, the order of its data, its random numbers."""

from firekeep.training._loader import ResumableLoader
from firekeep.training._report import RestoreError, RestoreReport
from firekeep.training._sampler import ResumableSampler
from firekeep.training._seeds import SeededDataset, sample_seed
from firekeep.training._state import TrainingState

__all__ = [
    "RestoreError",
    "RestoreReport",
    "ResumableLoader",
    "ResumableSampler",
    "SeededDataset",
    "TrainingState",
    "sample_seed",
]
