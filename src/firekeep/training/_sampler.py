"""The order of samples, which follows from a seed and an epoch and can be taken up anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from firekeep.errors import RuleError
from firekeep.training._seeds import EpochIndex, order_key
from firekeep.wording import count

_ORDER = {
    "length": "the length of the dataset",
    "seed": "the seed of the order",
    "shuffle": "shuffle",
    "num_replicas": "num_replicas",
    "drop_last": "drop_last of the sampler",
}
"""What the order of samples follows from, besides the epoch, and how it is told."""


class ResumableSampler:
    """The indices of a dataset, in an order of their own for each epoch: for `DataLoader(sampler=...)`, or by itself.

    The order follows from `seed` and the epoch, and from nothing else, so it is the same in every process, on every machine and in
    every version. With `num_replicas` each `rank` gets its share of it; `drop_last` drops the tail that does not divide, which is
    otherwise filled up from the start.

    `state_dict` counts the indices that were given out. A loader with workers asks ahead of the loop: wrap it in a `ResumableLoader`,
    which counts what the loop has got, and keep the state of that.

    Example:
        >>> list(ResumableSampler(3, seed=0, shuffle=False))
        [0, 1, 2]
    """

    def __init__(
        self,
        length: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        num_replicas: int = 1,
        rank: int = 0,
        drop_last: bool = False,
    ) -> None:
        if length < 0 or num_replicas < 1 or not 0 <= rank < num_replicas:
            raise RuleError(f"there is no share {rank} of {num_replicas} in {count(length, 'sample')}")
        self.length = length
        self.seed = seed
        self.shuffle = shuffle
        self.num_replicas = num_replicas
        self.rank = rank
        self.drop_last = drop_last
        self._epoch = 0
        self._given = 0
        self._resume = False

    @property
    def epoch(self) -> int:
        """The epoch whose order is given out."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; a state that was just loaded for this same epoch keeps its place in it."""
        if epoch != self._epoch or not self._resume:
            self.start_at(0, epoch=epoch)

    def start_at(self, position: int, *, epoch: int) -> None:
        """Have the next iteration begin behind so many samples of an epoch."""
        if position < 0:
            raise RuleError(f"there is no place {position} in an epoch")
        self._epoch, self._given, self._resume = epoch, position, position > 0

    def order(self, epoch: int) -> list[int]:
        """Give the whole order of an epoch, or this rank's share of it."""
        import numpy as np

        if self.shuffle:
            # The raw output of a bit generator is what NumPy promises never to change; of its permutations it does not.
            keys = np.random.Philox(key=order_key(self.seed, epoch)).random_raw(self.length)
            whole = np.argsort(keys, kind="stable")
        else:
            whole = np.arange(self.length)
        total = len(self) * self.num_replicas
        share = np.resize(whole, total) if total > self.length > 0 else whole[:total]
        found: list[int] = share[self.rank :: self.num_replicas].tolist()
        return found

    def __len__(self) -> int:
        each, rest = divmod(self.length, self.num_replicas)
        return each + (1 if rest and not self.drop_last else 0)

    def __iter__(self) -> Iterator[int]:
        if not self._resume:
            self._given = 0
        self._resume = False
        epoch = self._epoch
        for index in self.order(epoch)[self._given :]:
            self._given += 1
            yield EpochIndex(index, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Give the epoch, the place in it, and what the order follows from."""
        return {
            "epoch": self._epoch,
            "consumed": self._given,
            "length": self.length,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "num_replicas": self.num_replicas,
            "drop_last": self.drop_last,
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise `RuleError` for a state of another order: its place in it would mean nothing here."""
        mine = self.state_dict()
        if missing := [key for key in mine if key not in state]:
            raise RuleError(f"the state of the sampler lacks {', '.join(map(repr, missing))}")
        if not all(isinstance(state[key], int) and state[key] >= 0 for key in ("epoch", "consumed")):
            raise RuleError(f"the sampler cannot be at place {state['consumed']!r} of epoch {state['epoch']!r}")
        for key in _ORDER:
            if state[key] != mine[key] and (state["consumed"] or key == "seed"):
                raise RuleError(
                    f"the sampler was one of {key}={state[key]!r}, and has {key}={mine[key]!r} now",
                    remedy=f"Make it with {key}={state[key]!r}, or begin an epoch anew by leaving its state out.",
                )

    def changes(self, state: Mapping[str, Any]) -> tuple[str, ...]:
        """Say what makes the epochs to come other ones than those of the run that the state is of, though the state can be taken."""
        mine = self.state_dict()
        return tuple(
            f"{_ORDER[key]} was {state[key]!r}, and is {mine[key]!r} now" for key in _ORDER if state[key] != mine[key]
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the place of a state; raises `RuleError` for one of another order, and is then where it was."""
        self.check_state(state)
        self.start_at(state["consumed"], epoch=state["epoch"])
