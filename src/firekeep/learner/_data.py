"""Batches that can be taken up in the middle of an epoch, made of whatever gives batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

from firekeep.errors import RuleError
from firekeep.training import ResumableLoader, ResumableSampler, SeededDataset


@dataclass(frozen=True, slots=True)
class Source:
    """Batches with a place in them that can be kept. `doubt` says why going on in the middle of an epoch may not be exact."""

    batches: Any
    doubt: str | None = None


def source_of(train: Iterable[Any], *, seed: int) -> Source:
    """Make batches resumable: as they are where they have a state, else by a `ResumableLoader` around them."""
    if hasattr(train, "state_dict") and hasattr(train, "load_state_dict"):
        return Source(train)
    if isinstance(train, DataLoader):
        return _of_loader(train, seed)
    if isinstance(train, list | tuple):
        return Source(ResumableLoader(train))
    if not hasattr(train, "__iter__") or iter(train) is train:
        raise RuleError(
            f"batches are needed once an epoch, and {type(train).__name__} gives them once",
            remedy="Give a DataLoader, or a list of batches.",
        )
    return Source(
        ResumableLoader(_Again(train)),
        doubt=f"batches of {type(train).__name__} are read again up to the place: exact only if they are the same again",
    )


def _of_loader(loader: DataLoader[Any], seed: int) -> Source:
    if isinstance(loader.dataset, IterableDataset):
        return Source(
            ResumableLoader(_Again(loader), seed=seed),
            doubt="a dataset without indices is read again up to the place: exact only if it gives the same samples again",
        )
    try:
        return Source(ResumableLoader(loader))
    except RuleError:
        order = _order(loader)
    if order.known:
        return Source(ResumableLoader(_rebuilt(loader, order, seed)))
    return Source(
        ResumableLoader(_Again(loader), seed=seed),
        doubt=f"the order of the loader is that of {type(order.source).__name__}, which cannot begin in the middle",
    )


@dataclass(frozen=True, slots=True)
class _Order:
    """Where a loader has its order from, and how it makes batches of it. `known` says whether another sampler can stand for it."""

    source: Any
    batch_size: int | None
    drop_last: bool = False
    known: bool = False


def _order(loader: DataLoader[Any]) -> _Order:
    batches: Any = loader.batch_sampler
    if batches is None:
        sampler, size, drop_last = loader.sampler, None, False
    elif type(batches) is BatchSampler:  # the loader's own sampler is not used where it was given one of batches
        sampler, size, drop_last = batches.sampler, batches.batch_size, batches.drop_last
    else:
        return _Order(batches, None)
    return _Order(sampler, size, drop_last, known=_goes_through_all(sampler))


def _goes_through_all(sampler: Any) -> bool:
    """Say whether it gives each sample once, in order or by chance."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler


def _rebuilt(loader: DataLoader[Any], order: _Order, seed: int) -> DataLoader[Any]:
    """Make the same loader with an order that can begin anywhere."""
    dataset: Any = loader.dataset
    sampler = ResumableSampler(len(dataset), seed=seed, shuffle=type(order.source) is RandomSampler)
    if loader.num_workers and not isinstance(dataset, TensorDataset):
        # Workers that begin in the middle have drawn nothing for the samples before: each sample gets a seed of its own.
        dataset = SeededDataset(dataset, seed=seed)
    several: dict[str, Any] = {"prefetch_factor": loader.prefetch_factor} if loader.num_workers else {}
    return DataLoader(
        dataset,
        batch_size=order.batch_size,
        sampler=sampler,
        drop_last=order.drop_last,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        persistent_workers=loader.persistent_workers,
        **several,
    )


class _Again:
    """Batches that are gone through from the beginning, whatever has them."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to whoever wants it."""
        parts = (self.batches, getattr(self.batches, "sampler", None), getattr(self.batches, "dataset", None))
        one: Any
        for one in parts:
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)


class Position:
    """The place in the batches, as a part of the run's state.

    While a group of batches is put together the place is held from before the group: should its last batch fail, the first ones have not
    been trained with.
    """

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self._held: dict[str, Any] | None = None

    def hold(self) -> None:
        """Stay at this place."""
        self._held = dict(self._batches.state_dict())

    def release(self) -> None:
        """Go along with the loop again."""
        self._held = None

    def state_dict(self) -> dict[str, Any]:
        """Give the place."""
        return dict(self._batches.state_dict()) if self._held is None else self._held

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a place in other batches, where they can tell."""
        if hasattr(self._batches, "check_state"):
            self._batches.check_state(state)

    def changes(self, state: Mapping[str, Any]) -> tuple[str, ...]:
        """Say what is other about the batches, where they can tell."""
        return tuple(self._batches.changes(state)) if callable(getattr(self._batches, "changes", None)) else ()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a place."""
        self._batches.load_state_dict(state)


def batches_in(source: Any) -> int | None:
    """Count the batches of an epoch, where that can be known."""
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None
