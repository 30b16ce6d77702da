"""Seeds that follow from a seed, an epoch and a place, and from nothing else."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Self

from firekeep.training._rng import seeded


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """Give a seed of 64 bits for one sample of one epoch: the same on every machine, in every process and version.

    Example:
        >>> sample_seed(0, epoch=1, index=2) == sample_seed(0, epoch=1, index=2)
        True
    """
    return int.from_bytes(_digest(f"{int(seed)} {int(epoch)} {int(index)}", 8), "little")


def order_key(seed: int, epoch: int) -> int:
    """Give the key of 128 bits by which the samples of an epoch are ordered."""
    return int.from_bytes(_digest(f"order {int(seed)} {int(epoch)}", 16), "little")


def _digest(text: str, size: int) -> bytes:
    return blake2b(text.encode(), digest_size=size, person=b"firekeep").digest()


class EpochIndex(int):
    """The index of a sample that knows its epoch, so that workers which live through several are told it with each index."""

    epoch: int

    def __new__(cls, index: int, epoch: int) -> Self:
        """Make an index; it is equal to the plain one."""
        made = super().__new__(cls, index)
        made.epoch = epoch
        return made

    def __reduce__(self) -> tuple[type[Self], tuple[int, int]]:
        return type(self), (int(self), self.epoch)


class SeededDataset:
    """A dataset whose samples draw from `random`, NumPy and PyTorch (where it is imported) by seed, epoch and index alone.

    So a sample is the same whichever worker makes it, however many there are, and after whatever resume; and the generators of the
    process are left as they were. The epoch comes with the indices of a `ResumableSampler`; with another sampler `set_epoch` tells it,
    which workers that are kept from epoch to epoch (`persistent_workers=True`) do not hear of.

    Example:
        >>> loader = DataLoader(SeededDataset(dataset, seed=0), sampler=ResumableSampler(len(dataset), seed=0))  # doctest: +SKIP
    """

    def __init__(self, dataset: Any, *, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch it is, for indices that do not know theirs."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        epoch = index.epoch if isinstance(index, EpochIndex) else self.epoch
        with seeded(sample_seed(self.seed, epoch, index)):
            return self.dataset[int(index)]
