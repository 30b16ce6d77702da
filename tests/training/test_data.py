"""The order of samples, places in it, and randomness by sample."""

from __future__ import annotations

import copy
import pickle
import random
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from firekeep.errors import RuleError
from firekeep.training import ResumableLoader, ResumableSampler, SeededDataset, sample_seed
from training.states import restore, trained, write

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine of one processor


class Numbers(Dataset):
    """Its samples are their indices; it counts how many were read in this process."""

    def __init__(self, length=20):
        self.length = length
        self.read = 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read += 1
        return index


def loader(*, workers=0, batch_size=3, length=20, drop_last=False, dataset=None, **options):
    data = Numbers(length) if dataset is None else dataset
    return ResumableLoader(
        DataLoader(
            data,
            batch_size=batch_size,
            sampler=ResumableSampler(length, seed=1),
            num_workers=workers,
            drop_last=drop_last,
            **options,
        )
    )


def epoch(batches):
    return [batch.tolist() for batch in batches]


# Seeds


def test_seeds_are_the_same_for_ever():
    assert sample_seed(0, 0, 0) == 1120049306871282420
    assert sample_seed(1, 2, 3) == 8749341251006904683


def test_seeds_differ_by_each_of_their_parts():
    seeds = {sample_seed(*parts) for parts in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 11, 1), (0, 1, 11))}
    assert len(seeds) == 6
    assert all(0 <= seed < 1 << 64 for seed in seeds)


# The sampler


def test_the_order_is_the_same_for_ever():
    assert list(ResumableSampler(8, seed=0)) == [4, 2, 5, 6, 7, 3, 0, 1]
    assert ResumableSampler(8, seed=0).order(1) == [4, 1, 6, 7, 3, 0, 5, 2]


def test_an_order_is_a_permutation_and_each_epoch_has_its_own():
    sampler = ResumableSampler(100, seed=7)
    orders = [sampler.order(number) for number in range(3)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert ResumableSampler(100, seed=8).order(0) != orders[0]


def test_without_shuffling_the_order_is_that_of_the_data():
    assert list(ResumableSampler(4, shuffle=False)) == [0, 1, 2, 3]
    assert list(ResumableSampler(0)) == []


def test_a_sampler_goes_on_where_its_state_was_taken():
    sampler = ResumableSampler(10, seed=1)
    sampler.set_epoch(2)
    first = list(islice(sampler, 4))
    other = ResumableSampler(10, seed=1)
    other.load_state_dict(sampler.state_dict())
    assert first + list(other) == sampler.order(2)
    assert list(other) == sampler.order(2), "and then begins anew"


def test_to_set_the_epoch_of_a_state_keeps_its_place_and_another_one_does_not():
    sampler = ResumableSampler(10, seed=1)
    next(iter(sampler))
    state = sampler.state_dict()
    sampler.load_state_dict(state)
    sampler.set_epoch(0)
    assert len(list(sampler)) == 9
    sampler.load_state_dict(state)
    sampler.set_epoch(1)
    assert list(sampler) == sampler.order(1)


@pytest.mark.parametrize(("drop_last", "each"), [(False, 4), (True, 3)])
def test_ranks_share_the_order(drop_last, each):
    shares = [list(ResumableSampler(10, num_replicas=3, rank=rank, drop_last=drop_last)) for rank in range(3)]
    assert [len(share) for share in shares] == [each] * 3
    assert len({index for share in shares for index in share}) == (9 if drop_last else 10)
    assert len(ResumableSampler(10, num_replicas=3, drop_last=drop_last)) == each


@pytest.mark.parametrize(
    "other", [ResumableSampler(11), ResumableSampler(10, seed=1), ResumableSampler(10, shuffle=False)]
)
def test_a_state_of_another_order_is_refused(other):
    sampler = ResumableSampler(10)
    next(iter(sampler))
    before = other.state_dict()
    with pytest.raises(RuleError, match="and has"):
        other.load_state_dict(sampler.state_dict())
    assert other.state_dict() == before


def test_data_may_grow_between_epochs():
    sampler = ResumableSampler(12)
    sampler.load_state_dict(ResumableSampler(10).state_dict())
    assert len(list(sampler)) == 12


def test_shares_that_cannot_be_are_refused():
    with pytest.raises(RuleError, match="no share 2 of 2"):
        ResumableSampler(10, num_replicas=2, rank=2)
    with pytest.raises(RuleError, match="no place -1"):
        ResumableSampler(10).start_at(-1, epoch=0)


def test_indices_survive_the_way_to_a_worker():
    index = next(iter(ResumableSampler(3, seed=0)))
    there = pickle.loads(pickle.dumps(index))
    assert (there, there.epoch) == (index, 0)
    assert [10, 11, 12][there] == 10 + index
    assert torch.arange(3)[there] == index


# The loader


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_goes_on_behind_what_the_loop_has_got(workers, drop_last):
    mine = loader(workers=workers, drop_last=drop_last)
    expected = [epoch(mine) for _ in range(2)]
    mine = loader(workers=workers, drop_last=drop_last)
    batches = iter(mine)
    first = epoch(islice(batches, 4))  # workers are ahead by several batches
    state = mine.state_dict()
    assert state["batches"] == 4
    assert state["sampler"]["consumed"] == 12
    other = loader(workers=workers, drop_last=drop_last)
    other.load_state_dict(state)
    assert first + epoch(other) == expected[0]
    assert epoch(other) == expected[1]


def test_nothing_is_read_to_get_there():
    mine = loader()
    list(islice(mine, 4))
    other = loader()
    other.load_state_dict(mine.state_dict())
    next(iter(other))
    assert other.loader.dataset.read == 3


def test_an_epoch_ends_with_its_loop_and_not_with_its_last_batch():
    mine = loader()
    assert [mine.state_dict()["epoch"] for _ in mine] == [0] * 7
    assert (mine.epoch, mine.batches) == (1, 0)


def test_a_state_of_the_last_batch_leaves_nothing_of_the_epoch():
    mine = loader()
    states = [copy.deepcopy(mine.state_dict()) for _ in mine]
    other = loader()
    other.load_state_dict(states[-1])
    assert epoch(other) == []
    assert epoch(other) == epoch(mine)


def test_a_loop_that_was_broken_off_begins_anew_in_the_same_process():
    mine = loader()
    first = epoch(islice(mine, 2))
    assert epoch(mine)[:2] == first


def test_to_set_the_epoch_of_a_state_keeps_its_place():
    mine = loader()
    list(islice(mine, 2))
    other = loader()
    other.load_state_dict(mine.state_dict())
    other.set_epoch(0)
    assert len(epoch(other)) == 5
    other.set_epoch(1)
    assert len(epoch(other)) == 7
    other.load_state_dict(mine.state_dict())
    other.set_epoch(3)
    assert epoch(other)[0] == ResumableSampler(20, seed=1).order(3)[:3]


def test_workers_that_stay_are_resumed_too():
    mine = loader(workers=2, persistent_workers=True)
    expected = [epoch(mine) for _ in range(2)]
    first = epoch(islice(mine_again := loader(workers=2, persistent_workers=True), 3))
    mine_again.load_state_dict(mine_again.state_dict())
    assert first + epoch(mine_again) == expected[0]
    assert epoch(mine_again) == expected[1]


def test_a_loader_takes_nothing_from_the_generators_of_the_process():
    torch.manual_seed(3)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]
    epoch(loader(workers=2))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[2])


def test_workers_are_seeded_by_epoch_and_not_by_what_was_drawn_before():
    class Seeds(Numbers):
        def __getitem__(self, index):
            return torch.initial_seed() % 2**31

    torch.manual_seed(1)
    first, second = [epoch(mine) for mine in [loader(workers=1, dataset=Seeds())] * 2]
    torch.manual_seed(2)
    assert epoch(loader(workers=1, dataset=Seeds())) == first != second


def test_workers_of_a_loader_with_a_generator_are_seeded_by_epoch_too():
    class Seeds(Numbers):
        def __getitem__(self, index):
            return torch.initial_seed() % 2**31

    mine = torch.Generator().manual_seed(1)
    before = mine.get_state()
    first = epoch(loader(workers=1, dataset=Seeds(), generator=mine))
    assert torch.equal(mine.get_state(), before)
    assert epoch(loader(workers=1, dataset=Seeds(), generator=torch.Generator().manual_seed(2))) == first


def test_batches_may_be_made_by_a_batch_sampler():
    def make():
        batches = BatchSampler(ResumableSampler(20, seed=1), 3, drop_last=False)
        return ResumableLoader(DataLoader(Numbers(), batch_sampler=batches))

    expected = epoch(make())
    mine = make()
    first = epoch(islice(mine, 2))
    other = make()
    other.load_state_dict(mine.state_dict())
    assert first + epoch(other) == expected == epoch(loader())


def test_samples_may_come_without_batches():
    mine = loader(batch_size=None)
    first = list(islice(mine, 4))
    other = loader(batch_size=None)
    other.load_state_dict(mine.state_dict())
    assert first + list(other) == ResumableSampler(20, seed=1).order(0)


class Counting:
    """A sampler as others make them: a state that counts, and no start_at."""

    def __init__(self, length):
        self.length, self.yielded, self.next, self.epoch = length, 0, None, 0

    def __len__(self):
        return self.length

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.yielded, self.next = self.next or 0, None
        for index in range(self.yielded, self.length):
            self.yielded += 1
            yield (index + self.epoch) % self.length

    def state_dict(self):
        return {"yielded": self.yielded}

    def load_state_dict(self, state):
        self.next = state["yielded"]


@pytest.mark.parametrize("workers", [0, 2])
def test_other_samplers_with_a_state_are_told_what_the_loop_has_got(workers):
    def make():
        return ResumableLoader(DataLoader(Numbers(), batch_size=3, sampler=Counting(20), num_workers=workers))

    mine = make()
    expected = [epoch(mine) for _ in range(2)]
    mine = make()
    epoch(mine)
    first = epoch(islice(mine, 2))
    other = make()
    other.load_state_dict(mine.state_dict())
    assert first + epoch(other) == expected[1]


def test_any_iterable_of_batches_is_read_again():
    mine = ResumableLoader([1, 2, 3, 4])
    assert list(islice(mine, 2)) == [1, 2]
    other = ResumableLoader([1, 2, 3, 4])
    other.load_state_dict(mine.state_dict())
    assert list(other) == [3, 4]
    assert list(other) == [1, 2, 3, 4]


def test_data_that_is_only_gone_through_is_read_again():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(10))

    def make():
        return ResumableLoader(DataLoader(Stream(), batch_size=2))

    mine = make()
    list(islice(mine, 3))
    other = make()
    other.load_state_dict(mine.state_dict())
    assert epoch(other) == [[6, 7], [8, 9]]


@pytest.mark.parametrize(
    "options", [{"shuffle": True}, {"batch_sampler": BatchSampler(RandomSampler(range(9)), 3, False)}]
)
def test_a_loader_with_an_order_of_its_own_is_refused(options):
    with pytest.raises(RuleError, match=r"RandomSampler.*ResumableSampler"):
        ResumableLoader(DataLoader(Numbers(9), **options))


def test_a_batch_sampler_of_unknown_batches_is_refused():
    class Buckets:
        sampler, batch_size = ResumableSampler(9), 3

        def __iter__(self):
            return iter([[0], [1, 2]])

    with pytest.raises(RuleError, match="Buckets"):
        ResumableLoader(DataLoader(Numbers(9), batch_sampler=Buckets()))


def test_a_state_of_other_batches_is_refused():
    mine = loader()
    list(islice(mine, 2))
    other = loader(batch_size=4)
    before = other.state_dict()
    with pytest.raises(RuleError, match="batches of 3, and has batches of 4"):
        other.load_state_dict(mine.state_dict())
    with pytest.raises(RuleError, match="lacks 'epoch', 'batches'"):
        other.load_state_dict({"batch_size": 4})
    with pytest.raises(RuleError, match="not both"):
        other.load_state_dict(ResumableLoader([1]).state_dict())
    assert other.state_dict() == before


# Randomness by sample


class Noise(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64)


def noise(workers, **options):
    data = SeededDataset(Noise(), seed=2)
    mine = ResumableLoader(DataLoader(data, 4, sampler=ResumableSampler(12), num_workers=workers, **options))
    return [torch.cat(list(mine)).tolist() for _ in range(2)]


def test_samples_are_the_same_whatever_the_workers():
    expected = noise(0)
    assert noise(1) == noise(2, persistent_workers=True) == expected
    first, second = ({int(row[0]): row[1:] for row in one} for one in expected)
    assert all(first[index] != second[index] for index in range(12)), "and others in another epoch"
    assert len({row[1] for row in expected[0]}) == 12


def test_the_generators_of_the_process_are_left_as_they_were():
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    SeededDataset(Noise(), seed=2)[3]
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def test_they_are_left_so_by_a_sample_that_fails():
    class Failing(Noise):
        def __getitem__(self, index):
            torch.rand(())
            raise IndexError(random.random())

    states = torch.get_rng_state(), random.getstate()
    with pytest.raises(IndexError):
        SeededDataset(Failing(), seed=2)[3]
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()


def test_with_another_sampler_the_epoch_is_told():
    data = SeededDataset(Noise(), seed=2)
    first = data[3].tolist()
    data.set_epoch(1)
    assert data[3].tolist() != first
    data.set_epoch(0)
    assert data[3].tolist() == first
    assert len(data) == 12


@pytest.mark.parametrize(
    ("length", "batch_size", "told"),
    [
        (12, 2, "data: batches were of 4, and are of 2 now"),
        (8, 4, "data: the length of the dataset was 12, and is 8 now"),
    ],
)
def test_other_epochs_to_come_are_told_where_an_epoch_begins(length, batch_size, told, tmp_path):
    def make(length, batch_size):
        data = TensorDataset(torch.arange(length))
        loader = DataLoader(data, batch_size=batch_size, sampler=ResumableSampler(length))
        return trained(data=ResumableLoader(loader))

    state = make(12, 4)
    for _ in state.data:
        pass
    write(state, tmp_path)
    assert restore(make(12, 4), tmp_path).exact
    report = restore(make(length, batch_size), tmp_path)
    assert not report.exact
    assert report.ok
    assert report.changed == (told,)
    assert report.reasons() == (told,)


class Drawn(IterableDataset):
    """Draws its order as it is gone through, and noise for each sample."""

    def __iter__(self):
        for place in torch.randperm(12).tolist():
            yield place + round(random.random(), 3)


def test_what_a_stream_draws_follows_from_the_epoch_and_the_batch():
    def make():
        return ResumableLoader(DataLoader(Drawn(), batch_size=2))

    mine = make()
    before = torch.get_rng_state()
    whole = [torch.cat(list(mine)).tolist() for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before), "the loop's own numbers are not drawn from"
    assert whole[0] != whole[1]
    mine = make()
    list(mine)
    list(islice(mine, 2))
    other = make()
    torch.manual_seed(99)
    other.load_state_dict(mine.state_dict())
    assert torch.cat(list(other)).tolist() == whole[1][4:]


class Epochs(IterableDataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([self.epoch * 10 + place for place in range(4)])


def test_workers_that_are_kept_hear_of_the_epoch():
    def make():
        return ResumableLoader(DataLoader(Epochs(), batch_size=2, num_workers=1, persistent_workers=True))

    mine = make()
    epochs = [[batch.tolist() for batch in mine] for _ in range(3)]
    assert epochs == [[[0, 1], [2, 3]], [[10, 11], [12, 13]], [[20, 21], [22, 23]]]
    mine = make()
    for _ in range(2):
        list(mine)
    list(islice(mine, 1))
    other = make()
    other.load_state_dict(mine.state_dict())
    assert [batch.tolist() for batch in other] == epochs[2][1:]
