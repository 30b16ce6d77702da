"""A loader of batches that can be taken up in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import count as counting
from typing import Any

from firekeep.errors import RuleError
from firekeep.training._rng import seeded
from firekeep.training._sampler import ResumableSampler
from firekeep.training._seeds import SeededDataset, sample_seed
from firekeep.wording import quote

_PLACES = ("consumed", "yielded", "position")
"""What samplers with a state call the number of samples they have given out."""

_REMEDY = (
    "Make the loader with sampler=ResumableSampler(len(dataset), seed=...), which also shuffles, and no shuffle=True."
)


class ResumableLoader:
    """A loader that knows how many batches the loop has got, and can go on behind them in another process.

    It takes a `DataLoader` of any number of workers whose sampler can begin anywhere: a `ResumableSampler`, or one with a state that
    counts samples. Batches that workers have made and the loop has not got yet are not counted, and nothing is read to get past those
    that were: the sampler begins behind them. Starting workers takes nothing from the random generators of the process. Any other
    iterable of batches will do too; what was consumed of it is read again and thrown away. So an `IterableDataset` has to give the same
    samples in the same order whenever it is gone through, or, where it has a `set_epoch`, whenever it is in the same epoch. What it draws
    from the random generators of the process follows from the seed, the epoch and the batch. Workers that are kept from epoch to epoch
    hear of no `set_epoch`, and are started anew where there is one, unless indices of a `ResumableSampler` tell a `SeededDataset`.

    An epoch that was gone through to its end is over: the next loop is the next epoch. A loop that was broken off stands where it
    stopped in `state_dict`; a new loop in the same process begins the epoch anew.

    Example:
        >>> loader = ResumableLoader(DataLoader(data, batch_size=32, sampler=ResumableSampler(len(data))))  # doctest: +SKIP
        >>> state = TrainingState(model=model, optimizer=optimizer, data=loader)  # doctest: +SKIP
    """

    def __init__(self, loader: Iterable[Any], *, sampler: Any = None, seed: int | None = None) -> None:
        self.loader = loader
        self.sampler = _find_sampler(loader) if sampler is None else sampler
        self.seed = int(getattr(self.sampler, "seed", 0)) if seed is None else seed
        self._batch_size = _batch_size(loader, self.sampler)
        self._epoch = int(getattr(self.sampler, "epoch", 0))
        self._batches = 0
        self._resume = False
        self._told: int | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the loop is in, or that the next one is."""
        return self._epoch

    @property
    def batches(self) -> int:
        """How many batches of the epoch the loop has got."""
        return self._batches

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; a state that was just loaded for this same epoch keeps its place in it."""
        if epoch != self._epoch or not self._resume:
            self._epoch, self._batches, self._resume = epoch, 0, False

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        epoch, skipped = self._epoch, self._batches if self._resume else 0
        self._batches, self._resume = skipped, False
        for batch in self._open(epoch, skipped):
            self._batches += 1
            yield batch
        self._epoch, self._batches = epoch + 1, 0

    def _open(self, epoch: int, skipped: int) -> Iterator[Any]:
        # A DataLoader draws a seed for its workers: it gets one that follows from the epoch, whoever has drawn before.
        with self._seeded(epoch, -1):
            self._tell(epoch)
            if self.sampler is None:
                return self._go_through(iter(self.loader), epoch, skipped)
            self._place(epoch, skipped)
            return iter(self.loader)

    def _tell(self, epoch: int) -> None:
        """Tell the loader and its dataset which epoch it is, and workers that would go on without hearing of it."""
        dataset: Any = getattr(self.loader, "dataset", None)
        heard = [one for one in (self.loader, dataset) if hasattr(one, "set_epoch")]
        for one in heard:
            one.set_epoch(epoch)
        by_index = isinstance(dataset, SeededDataset) and isinstance(self.sampler, ResumableSampler)
        if (
            heard
            and not by_index
            and self._told not in (None, epoch)
            and getattr(self.loader, "_iterator", None) is not None
        ):
            self.loader._iterator = None  # type: ignore[attr-defined] # noqa: SLF001 - where a DataLoader keeps its workers
        self._told = epoch

    def _go_through(self, batches: Iterator[Any], epoch: int, skipped: int) -> Iterator[Any]:
        """Give the batches of what can only be gone through, each drawn by a seed of its own, but for those to be left out."""
        is_apart = isinstance(self.loader, list | tuple) or getattr(self.loader, "num_workers", 0) > 0
        for number in counting():
            with nullcontext() if is_apart else self._seeded(epoch, -2 - number):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            if number >= skipped:
                yield batch

    def _seeded(self, epoch: int, place: int) -> AbstractContextManager[None]:
        generator = getattr(self.loader, "generator", None)
        return seeded(sample_seed(self.seed, epoch, place), generator=generator)

    def _place(self, epoch: int, skipped: int) -> None:
        if hasattr(self.sampler, "start_at"):
            self.sampler.start_at(skipped * self._batch_size, epoch=epoch)
            return
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        if skipped:
            state = dict(self.sampler.state_dict())
            self.sampler.load_state_dict({**state, _place_in(state, self.sampler): skipped * self._batch_size})

    def state_dict(self) -> dict[str, Any]:
        """Give the epoch, the batches of it that the loop has got, and what the order of samples follows from."""
        state: dict[str, Any] = {"epoch": self._epoch, "batches": self._batches, "batch_size": self._batch_size}
        if self.sampler is not None:
            state["sampler"] = {
                **self.sampler.state_dict(),
                "epoch": self._epoch,
                _place_in(self.sampler.state_dict(), self.sampler): self._batches * self._batch_size,
            }
        return state

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise `RuleError` for a state of another loader: other batches or another order."""
        if missing := [key for key in ("epoch", "batches", "batch_size") if key not in state]:
            raise RuleError(f"the state of the loader lacks {', '.join(map(repr, missing))}")
        if not all(isinstance(state[key], int) and state[key] >= 0 for key in ("epoch", "batches")):
            raise RuleError(f"the loader cannot be at batch {state['batches']!r} of epoch {state['epoch']!r}")
        if state["batches"] and state["batch_size"] != self._batch_size:
            raise RuleError(
                f"the loader had batches of {state['batch_size']}, and has batches of {self._batch_size} now; "
                f"the loop had got {state['batches']} of them in this epoch",
                remedy=f"Make it with batch_size={state['batch_size']}, or begin an epoch anew by leaving its state out.",
            )
        if (self.sampler is None) != ("sampler" not in state):
            raise RuleError("the loader had a sampler that can begin anywhere, or has one now, and not both")
        if hasattr(self.sampler, "check_state"):
            self.sampler.check_state(state["sampler"])

    def changes(self, state: Mapping[str, Any]) -> tuple[str, ...]:
        """Say what makes the epochs to come other ones than those of the run that the state is of, though the state can be taken."""
        told: tuple[str, ...] = ()
        if state["batch_size"] != self._batch_size:
            told = (f"batches were of {state['batch_size']}, and are of {self._batch_size} now",)
        if hasattr(self.sampler, "changes") and "sampler" in state:
            told = (*told, *self.sampler.changes(state["sampler"]))
        return told

    def remarks(self, state: Mapping[str, Any]) -> tuple[str, ...]:
        """Say what the next loop does that may surprise, though it is what the run would have done."""
        try:
            whole = len(self)
        except TypeError:  # an iterable without a length
            return ()
        if not 0 < whole <= state["batches"]:
            return ()
        done = f"the loop had got all {state['batches']:,} batches of epoch {state['epoch']:,}"
        return (f"{done}: the next one has none left, and what follows it is due",)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next loop go on where the state was taken; raises `RuleError` for one of another loader."""
        self.check_state(state)
        if self.sampler is not None and not hasattr(self.sampler, "start_at"):
            self.sampler.load_state_dict(state["sampler"])
        self._epoch, self._batches, self._resume = state["epoch"], state["batches"], state["batches"] > 0


def _find_sampler(loader: Any) -> Any:
    """Find the sampler of a DataLoader; None where there is none to be found: what is no DataLoader, or has no order of indices."""
    found = _samplers(loader)
    for one in found:
        if hasattr(one, "start_at") or (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
            return one
    dataset = getattr(loader, "dataset", None)
    if not found or dataset is None or type(found[0]).__name__ == "_InfiniteConstantSampler":
        return None  # a dataset that is only gone through
    raise RuleError(
        f"the loader draws its order from a {type(found[0]).__name__}, which cannot begin in the middle of an epoch",
        remedy=_REMEDY,
    )


def _samplers(loader: Any) -> list[Any]:
    """List what decides the order; the sampler within a batch sampler only where that makes batches of one size."""
    batches, sampler = getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)
    if type(batches).__name__ == "BatchSampler":
        sampler = getattr(batches, "sampler", None)
    elif batches is not None:
        sampler = None  # PyTorch gives the loader one that nobody asks
    return [one for one in (sampler, batches) if one is not None]


def _batch_size(loader: Any, sampler: Any) -> int:
    """Say how many steps of the sampler make a batch."""
    batches: Any = getattr(loader, "batch_sampler", None)
    if batches is not None and batches is sampler:
        return 1
    size: Any = getattr(loader, "batch_size", None)
    return int(getattr(batches, "batch_size", 1) if size is None else size)


def _place_in(state: Mapping[str, Any], sampler: Any) -> str:
    for key in _PLACES:
        if key in state:
            return key
    raise RuleError(
        f"the state of {type(sampler).__name__} does not count samples: it has {', '.join(map(quote, state))}",
        remedy=_REMEDY,
    )
