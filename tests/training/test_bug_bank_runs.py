"""Faults that others' resumed runs have had, one test or more for each."""

from __future__ import annotations

import io
import random
import zipfile

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import firekeep
from firekeep.checkpoint import CheckpointManager
from firekeep.training import RestoreError, ResumableLoader, ResumableSampler, TrainingState


@pytest.fixture(autouse=True)
def generators_as_before():
    """Leave the generators of the process to other tests as they were."""
    python, numbers = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    random.setstate(python)
    np.random.set_state(numbers)


def seed(number):
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def drawn():
    return random.random(), float(np.random.rand()), torch.rand(2).tolist()


def restore(folder, state, **asked):
    with CheckpointManager(folder, durable=False) as manager:
        return manager.restore(state, **asked).report


def save(folder, state, step=1):
    with CheckpointManager(folder, durable=False) as manager:
        manager.save(state, step=step)


def model(value=1.0):
    made = nn.Linear(2, 1)
    with torch.no_grad():
        made.weight.fill_(value)
        made.bias.fill_(value)
    return made


class Skipping:
    """Goes to its place in the data by drawing all that lies before it, as a loader does that has no other way."""

    def __init__(self):
        self.place = 0

    def take(self):
        self.place += 1
        return drawn()

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        while self.place < state["place"]:
            self.take()


@pytest.mark.parametrize("layout", [None, "burn"])
def test_generators_are_where_they_were_though_the_way_to_the_place_draws(layout, tmp_path):
    """B120: the generators were restored before batches were skipped, and the noise of the run was another one."""
    seed(1)
    data = Skipping()
    for _ in range(3):
        data.take()
    save(tmp_path, TrainingState(model=model(), data=data, layout=layout))
    wanted = [data.take() for _ in range(3)]
    seed(2)
    other = Skipping()
    assert restore(tmp_path, TrainingState(model=model(0.0), data=other)).exact
    assert [other.take() for _ in range(3)] == wanted


class Noisy(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index + 0.01 * torch.rand(()) + 0.001 * float(np.random.rand())


def noisy_run(number):
    seed(number)
    loader = DataLoader(Noisy(), batch_size=2, sampler=ResumableSampler(10, seed=3), num_workers=0)
    return TrainingState(model=model(), data=ResumableLoader(loader), values={"made": []})


def go_on(state, upto, *, then=lambda: None):
    while state.step < upto:
        for batch in state.data:
            state.values["made"] = [*state.values["made"], batch.tolist() + torch.rand(1).tolist()]
            state.step += 1
            if state.step == upto:
                return then()
        state.epoch += 1
    return then()


@pytest.mark.parametrize("half", [1, 4, 5, 7])
def test_a_shuffled_loader_with_noise_goes_on_to_the_bit(half, tmp_path):
    """B120: in the middle of an epoch, at its end, and in the next one."""
    straight = noisy_run(1)
    go_on(straight, 12)
    first = noisy_run(1)
    go_on(first, half, then=lambda: save(tmp_path, first))
    second = noisy_run(9)
    report = restore(tmp_path, second)
    assert report.exact, str(report)
    go_on(second, 12)
    assert second.values["made"] == straight.values["made"]


def ranks(count, *, place=0):
    made = {}
    for rank in range(count):
        made[f"rank{rank}"] = ResumableSampler(24, seed=3, num_replicas=count, rank=rank)
        made[f"rank{rank}"].start_at(place, epoch=2)
    return made


def test_a_place_within_an_epoch_is_refused_for_another_number_of_ranks(tmp_path):
    """B121: two ranks were given the places of four, and samples were seen twice or never."""
    save(tmp_path, TrainingState(model=model(), data=ranks(2, place=4)))
    target, linear = ranks(4), model(0.0)
    with pytest.raises(RestoreError) as caught:
        restore(tmp_path, TrainingState(model=linear, data=target))
    told = caught.value.report.refusals
    assert len(told) == 4
    assert all("num_replicas=2" in one and "num_replicas=4" in one for one in told if "rank0" in one or "rank1" in one)
    assert all("no place in the data of this name" in one for one in told if "rank2" in one or "rank3" in one)
    assert linear.weight.tolist() == [[0, 0]]
    assert [one.state_dict()["consumed"] for one in target.values()] == [0] * 4
    as_it_was = ranks(2)
    assert restore(tmp_path, TrainingState(model=linear, data=as_it_was)).exact
    assert [one.state_dict()["consumed"] for one in as_it_was.values()] == [4, 4]


def test_between_epochs_the_number_of_ranks_may_change_and_that_is_told(tmp_path):
    """B121: what can be taken over is, by name."""
    save(tmp_path, TrainingState(model=model(), data=ranks(4)))
    target = ranks(2)
    report = restore(tmp_path, TrainingState(model=model(0.0), data=target))
    assert report.data == ("data-rank0", "data-rank1")
    assert sorted(report.dropped) == ["data-rank2", "data-rank3"]
    assert any("num_replicas was 4, and is 2 now" in one for one in report.changed)
    assert not report.exact
    assert {one.epoch for one in target.values()} == {2}


def test_parts_of_ranks_that_were_not_there_are_named(tmp_path):
    """B121: of models, one for each rank."""
    save(tmp_path, TrainingState(model={f"rank{n}": model(n + 1.0) for n in range(2)}))
    wider = {f"rank{n}": model(0.0) for n in range(4)}
    with pytest.raises(RestoreError) as caught:
        restore(tmp_path, TrainingState(model=wider))
    assert [one.partition(":")[0] for one in caught.value.report.refusals] == ["model-rank2", "model-rank3"]
    assert [one.bias.tolist() for one in wider.values()] == [[0]] * 4
    report = restore(tmp_path, TrainingState(model=wider, strict=False))
    assert sorted(report.fresh) == ["model-rank2", "model-rank3"]
    assert [one.bias.tolist() for one in wider.values()] == [[1], [2], [0], [0]]
    narrower = {"rank0": model(0.0)}
    report = restore(tmp_path, TrainingState(model=narrower))
    assert report.dropped == {"model-rank1": "the state has no such part"}
    assert not report.exact


def moved(data):
    """Have a file of torch.save say that its tensors were on a device that is not there."""
    there = {b"X\x03\x00\x00\x00cpu": b"X\x06\x00\x00\x00cuda:0", b"\x8c\x03cpu": b"\x8c\x06cuda:0"}
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return replaced(data, there)
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as file:
        for name in source.namelist():
            whole = source.read(name)
            file.writestr(name, replaced(whole, there) if name.endswith("data.pkl") else whole)
    return target.getvalue()


def replaced(data, changes):
    for old, new in changes.items():
        data = data.replace(old, new)
    assert b"cuda:0" in data
    return data


@pytest.mark.parametrize("zipped", [True, False])
def test_a_whole_checkpoint_of_a_device_that_is_not_there_opens(zipped):
    """B126: model and optimizer of a GPU, on a machine without one."""
    linear = model(3.0)
    optimizer = torch.optim.Adam(linear.parameters())
    linear(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    buffer = io.BytesIO()
    whole = {"model": linear.state_dict(), "optimizer": optimizer.state_dict(), "step": 7}
    torch.save(whole, buffer, _use_new_zipfile_serialization=zipped)
    data = moved(buffer.getvalue())
    with pytest.raises((RuntimeError, AssertionError)):
        torch.load(io.BytesIO(data), weights_only=True)
    other = model(0.0)
    assert firekeep.load_into(other, data, top_level_key="model").ok
    assert torch.equal(other.weight, linear.weight)
    assert other.weight.device.type == "cpu"
    moments = firekeep.open(data, top_level_key="optimizer")
    assert any(name.endswith("exp_avg") for name in moments)
