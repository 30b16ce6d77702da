"""Batches of any kind: with which a run goes on exactly in the middle of an epoch, and with which it says that it may not."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from firekeep.checkpoint import CheckpointManager
from firekeep.errors import RuleError
from firekeep.learner._data import Position, batches_in, source_of
from firekeep.training import ResumableLoader, ResumableSampler, SeededDataset
from learner import runs

DATA = TensorDataset(torch.arange(20.0))


def numbers(batches):
    return [batch[0].tolist() for batch in batches]


def test_a_shuffled_loader_is_rebuilt_with_an_order_that_can_begin_anywhere():
    loader = DataLoader(DATA, batch_size=6, shuffle=True, drop_last=True)
    source = source_of(loader, seed=3)
    assert source.doubt is None
    first, second = numbers(source.batches), numbers(source.batches)
    assert first != second
    assert [len(batch) for batch in first] == [6, 6, 6]
    again = source_of(DataLoader(DATA, batch_size=6, shuffle=True, drop_last=True), seed=3)
    batches = iter(again.batches)
    taken = [next(batches)[0].tolist() for _ in range(2)]
    resumed = source_of(loader, seed=3)
    resumed.batches.load_state_dict(again.batches.state_dict())
    assert [*taken, *numbers(resumed.batches)] == first
    assert numbers(resumed.batches) == second


def test_a_loader_in_order_stays_in_order():
    source = source_of(DataLoader(DATA, batch_size=6), seed=3)
    assert source.doubt is None
    assert [one for batch in numbers(source.batches) for one in batch] == [*range(20)]


def test_what_a_loader_was_made_with_is_kept():
    def collate(samples):
        return torch.stack([one[0] for one in samples]) * 2

    loader = DataLoader(DATA, batch_size=None, shuffle=True)
    assert len(list(source_of(loader, seed=0).batches)) == 20
    loader = DataLoader(runs.Noisy(), batch_size=5, shuffle=True, num_workers=2, prefetch_factor=4, timeout=60)
    made = source_of(loader, seed=0).batches.loader
    assert (made.num_workers, made.prefetch_factor, made.timeout, made.batch_size) == (2, 4, 60, 5)
    assert isinstance(made.dataset, SeededDataset), "workers draw their noise by sample"
    loader = DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 8, drop_last=True))
    assert [len(batch) for batch in numbers(source_of(loader, seed=0).batches)] == [8, 8]
    assert numbers(source_of(loader, seed=0).batches)[0] != [*range(8)]
    loader = DataLoader(DATA, batch_size=5, collate_fn=collate)
    assert next(iter(source_of(loader, seed=0).batches)).tolist() == [0, 2, 4, 6, 8]


def test_what_has_a_place_is_taken_as_it_is():
    loader = ResumableLoader(DataLoader(DATA, batch_size=4, sampler=ResumableSampler(20)))
    assert source_of(loader, seed=0).batches is loader
    made = source_of(loader.loader, seed=0)
    assert isinstance(made.batches, ResumableLoader)
    assert made.batches.loader is loader.loader
    assert made.doubt is None


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


class Fresh:
    def __iter__(self):
        return iter([(torch.ones(1),)])


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        (DataLoader(Stream(), batch_size=4), "without indices"),
        (DataLoader(DATA, batch_size=4, sampler=WeightedRandomSampler([1.0] * 20, 20)), "WeightedRandomSampler"),
        (DataLoader(DATA, batch_size=4, sampler=RandomSampler(DATA, replacement=True)), "RandomSampler"),
        (DataLoader(DATA, batch_size=4, sampler=RandomSampler(DATA, num_samples=7)), "RandomSampler"),
        (
            DataLoader(DATA, batch_sampler=type("Own", (BatchSampler,), {})(SequentialSampler(DATA), 4, False)),
            "Own",
        ),
        (Fresh(), "Fresh"),
    ],
)
def test_what_may_not_be_the_same_again_is_doubted(batches, said):
    source = source_of(batches, seed=0)
    assert said in source.doubt
    whole = len(list(source.batches))
    assert whole == len(list(batches))
    source.batches.load_state_dict({**source.batches.state_dict(), "batches": 1})
    assert len(list(source.batches)) == whole - 1


def test_a_list_of_batches_goes_on_exactly_and_a_generator_is_refused():
    source = source_of([1, 2, 3], seed=0)
    assert source.doubt is None
    source.batches.load_state_dict({**source.batches.state_dict(), "batches": 2})
    assert list(source.batches) == [3]
    with pytest.raises(RuleError, match="gives them once"):
        source_of((number for number in range(3)), seed=0)


def test_the_length_is_told_where_it_can_be_known():
    assert batches_in(source_of([1, 2], seed=0).batches) == 2
    assert batches_in(source_of(Fresh(), seed=0).batches) is None
    assert batches_in(source_of(DataLoader(Stream()), seed=0).batches) is None


def test_a_place_is_held_while_a_group_is_put_together():
    batches = source_of([1, 2, 3, 4], seed=0).batches
    place = Position(batches)
    running = iter(batches)
    next(running)
    place.hold()
    next(running)
    assert place.state_dict()["batches"] == 1
    place.release()
    assert place.state_dict()["batches"] == 2


def test_a_run_says_when_it_may_not_go_on_exactly(tmp_path):
    def loader():
        data = TensorDataset(*runs.points())
        return DataLoader(data, batch_size=8, sampler=WeightedRandomSampler([1.0] * runs.SAMPLES, runs.SAMPLES))

    def fail():
        raise RuntimeError("stop here")

    one = runs.learner(CheckpointManager(tmp_path, every=2))
    runs.at_forward(one.model, 4, fail)
    with pytest.raises(RuntimeError, match="stop here"):
        one.fit(loader())
    report = runs.learner(tmp_path).fit(loader())
    assert (report.resumed.step, report.exact, report.step) == (2, False, 18)
    assert "WeightedRandomSampler" in str(report)
    assert "not exactly" in str(report)
    assert runs.learner(tmp_path, num_epochs=4).fit(loader()).exact, "at the end of an epoch all is known"


def test_another_order_is_refused_in_the_middle_of_an_epoch(tmp_path):
    def fail():
        raise RuntimeError("stop here")

    one = runs.learner(CheckpointManager(tmp_path, every=2))
    runs.at_forward(one.model, 4, fail)
    with pytest.raises(RuntimeError, match="stop here"):
        one.fit(runs.train_loader())
    with pytest.raises(Exception, match="seed"):
        runs.learner(tmp_path, seed=6).fit(runs.train_loader())
