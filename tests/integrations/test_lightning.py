"""Lightning: what a checkpoint holds, and runs that go on in another process."""

from __future__ import annotations

import signal
import warnings
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch

import firekeep
from firekeep.integrations.lightning import ExactResume, FirekeepCheckpointIO, ResumeWarning
from integrations import lightning_run as runs
from integrations.processes import start

CHECKPOINT = {
    "epoch": 3,
    "state_dict": OrderedDict(weight=torch.arange(6.0).reshape(2, 3), small=torch.ones(2, dtype=torch.bfloat16)),
    "optimizer_states": [{"state": {0: {"step": torch.tensor(7.0), "avg": torch.zeros(2, 3)}}, "param_groups": [{"betas": (0.9, 0.999)}]}],
    "lr_schedulers": [{"base_lrs": [0.1], "last_epoch": 7, "lr_lambdas": [None]}],
    "callbacks": {"Best{'monitor': None}": {"best": torch.tensor(float("inf")), "nan": float("nan")}},
    "hyper_parameters": {"sizes": {3, 5}, "name": "net", "nothing": None},
}  # fmt: skip


def same(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "run" / "last.ckpt"
    FirekeepCheckpointIO().save_checkpoint(CHECKPOINT, path)
    return path


def test_a_checkpoint_comes_back_as_it_was(saved):
    assert same(FirekeepCheckpointIO().load_checkpoint(saved, weights_only=False), CHECKPOINT)


def test_a_checkpoint_is_a_burnpack_file_under_lightnings_name(saved):
    with firekeep.open(saved) as opened:
        assert opened.format == "burnpack"
        assert set(opened.keys()) >= {"state_dict.weight", "state_dict.small", "optimizer_states.0.state.0.avg"}


def test_the_weights_load_into_a_model_by_themselves(saved):
    model = torch.nn.ParameterDict({"weight": torch.zeros(2, 3), "small": torch.zeros(2, dtype=torch.bfloat16)})
    firekeep.load_into(model, saved, rename=r"^state_dict\.=>", layout="torch", allow_unused=True)
    assert torch.equal(model["weight"], CHECKPOINT["state_dict"]["weight"])


def test_the_versions_of_modules_come_back(tmp_path):
    weights = torch.nn.BatchNorm1d(2).state_dict()
    FirekeepCheckpointIO().save_checkpoint({"state_dict": weights}, tmp_path / "one.ckpt")
    loaded = FirekeepCheckpointIO().load_checkpoint(tmp_path / "one.ckpt")["state_dict"]
    assert loaded._metadata == weights._metadata
    assert loaded._metadata[""]["version"] == 2


def test_tensors_go_to_the_device_that_is_asked_for(saved):
    loaded = FirekeepCheckpointIO().load_checkpoint(saved, map_location="meta")
    assert loaded["state_dict"]["weight"].is_meta
    assert loaded["callbacks"]["Best{'monitor': None}"]["best"].is_meta
    with pytest.raises(firekeep.UnsupportedError, match="tensors come on the CPU, or on one device"):
        FirekeepCheckpointIO().load_checkpoint(saved, map_location=lambda storage, place: storage)


def test_an_object_is_refused_by_its_place_and_the_old_file_stays(saved):
    before = saved.read_bytes()
    with pytest.raises(firekeep.UnsupportedError, match=r"hyper_parameters\.where'.*cannot be kept as text"):
        FirekeepCheckpointIO().save_checkpoint({**CHECKPOINT, "hyper_parameters": {"where": saved}}, saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["last.ckpt"]


def test_a_pickle_is_refused_and_not_run(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "theirs.ckpt")
    with pytest.raises(
        firekeep.WrongFormatError, match=r"not a checkpoint that FirekeepCheckpointIO saved.*without this"
    ):
        FirekeepCheckpointIO().load_checkpoint(tmp_path / "theirs.ckpt")


def test_a_path_elsewhere_is_refused():
    for attempt in (FirekeepCheckpointIO().load_checkpoint, FirekeepCheckpointIO().remove_checkpoint):
        with pytest.raises(firekeep.UnsupportedError, match="local file system"):
            attempt("s3://bucket/last.ckpt")
    with pytest.raises(TypeError, match="storage_options"):
        FirekeepCheckpointIO().save_checkpoint({}, "last.ckpt", storage_options={})


def test_a_checkpoint_is_removed_once(saved):
    FirekeepCheckpointIO().remove_checkpoint(saved)
    FirekeepCheckpointIO().remove_checkpoint(saved)
    assert not saved.exists()


def test_a_run_killed_mid_epoch_goes_on_exactly_in_another_process(tmp_path):
    status, told = start("lightning_run.py", "killed", tmp_path)
    assert status == -signal.SIGKILL
    straight = told["straight"]
    _, resumed = start("lightning_run.py", "resumed", tmp_path)
    assert list(resumed["losses"]) == [str(step) for step in range(14, 30)]
    assert resumed["losses"] == {step: straight["losses"][step] for step in resumed["losses"]}
    assert resumed["weights"] == straight["weights"]
    assert resumed["report"]["exact"]
    assert (resumed["report"]["epoch"], resumed["report"]["batch"]) == (1, 4)


@pytest.fixture
def quiet():
    """Lightning has advice for small runs, as warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(("every", "validate"), [(10, True), (10, False), (None, True)])
@pytest.mark.usefixtures("quiet")
def test_a_run_goes_on_exactly_at_the_end_of_an_epoch(tmp_path, every, validate):
    straight = runs.run(tmp_path / "straight", every=every, validate=validate)
    resumed = runs.run(
        tmp_path / "again", every=every, validate=validate, resume=tmp_path / "straight" / "step=10.ckpt", seed=9
    )
    assert resumed["losses"] == {step: straight["losses"][step] for step in range(10, 30)}
    assert resumed["weights"] == straight["weights"]
    assert resumed["report"]["exact"]


@pytest.mark.usefixtures("quiet")
def test_a_loader_that_does_not_say_where_it_is_is_told(tmp_path):
    runs.run(tmp_path / "one", every=7, resumable=False)
    with pytest.warns(ResumeWarning, match="the DataLoader does not say where it is: it began the epoch anew"):
        resumed = runs.run(tmp_path / "two", every=7, resumable=False, resume=tmp_path / "one" / "step=14.ckpt")
    assert not resumed["report"]["exact"]
    with pytest.warns(ResumeWarning, match="the DataLoader draws its order before the generators are back"):
        runs.run(tmp_path / "two", every=10, resumable=False, resume=saved_at(tmp_path / "one", 10))


def saved_at(folder, step):
    runs.run(folder, every=step, resumable=False)
    return folder / f"step={step}.ckpt"


def test_a_state_without_generators_is_refused():
    with pytest.raises(firekeep.FormatError, match="has no random generators"):
        ExactResume().load_state_dict({"rng": 3})


class Endless:
    """A loader of no known length that says where it is."""

    def __iter__(self):
        return iter(range(9))

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"train_dataloader": {"a": [Endless()]}}, "the Endless has no length, so Lightning asks it for a batch ahead"),
        ({"accumulate_grad_batches": 2}, "gradients had been accumulated and not applied yet"),
        ({"world_size": 3}, "of 3 processes only the first has its generators"),
    ],
)
def test_what_keeps_a_run_from_going_on_exactly_is_told(change, reason):
    usual = {"train_dataloader": runs.data(), "accumulate_grad_batches": 1, "world_size": 1}
    trainer = SimpleNamespace(is_global_zero=True, current_epoch=2, **{**usual, **change})
    resume = ExactResume()
    resume.load_state_dict(ExactResume().state_dict())
    with pytest.warns(ResumeWarning, match=reason):
        resume.on_train_batch_start(trainer, None, None, 5)
    assert str(resume.report).startswith("went on in epoch 2, at batch 5, not exactly as it would have\n  ")
    resume.on_train_batch_start(trainer, None, None, 6)
    assert resume.report.batch == 5, "once is enough"


def test_generators_go_back_to_where_they_were():
    mine = torch.Generator()
    resume = ExactResume(generators={"mine": mine})
    state = resume.state_dict()
    drawn = torch.rand(3), torch.rand(3, generator=mine)
    resume.load_state_dict(state)
    trainer = SimpleNamespace(
        is_global_zero=True, current_epoch=0, train_dataloader=runs.data(), accumulate_grad_batches=1, world_size=1
    )
    torch.manual_seed(99)
    resume.on_train_batch_start(trainer, None, None, 0)
    assert torch.equal(torch.rand(3), drawn[0])
    assert torch.equal(torch.rand(3, generator=mine), drawn[1])
    assert resume.report.generators[:3] == ("python", "numpy", "torch")
    assert [name for name in resume.report.generators if name.endswith("mine")]
