"""A training state is taken apart, put back, refused as a whole, and says what became of each part."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader

from firekeep.checkpoint import CheckpointManager
from firekeep.errors import FirekeepError, RuleError, UnsupportedError
from firekeep.sections import Savable
from firekeep.training import RestoreError, ResumableLoader, ResumableSampler, SeededDataset, TrainingState
from training.states import adam, bits, net, restore, step, trained, write


def test_a_state_is_savable():
    assert isinstance(trained(), Savable)


def test_all_parts_come_back(tmp_path):
    state = trained(step=7, epoch=2, metrics={"loss": float("nan")}, values={"a": {"b": (1, None, 2**80)}})
    state.scheduler = lr_scheduler.StepLR(state.optimizer, 1)
    step(state.model, state.optimizer)
    state.scheduler.step()
    write(state, tmp_path)
    fresh = TrainingState(model=net(5), optimizer=None)
    fresh.optimizer = adam(fresh.model)
    fresh.scheduler = lr_scheduler.StepLR(fresh.optimizer, 1)
    torch.manual_seed(99)
    report = restore(fresh, tmp_path)
    assert report.exact, str(report)
    assert report
    assert (report.step, report.epoch) == (7, 2)
    assert bits(fresh) == bits(state)
    assert fresh.values == {"a": {"b": (1, None, 2**80)}}


def test_sections_have_the_names_of_their_parts():
    model = {"gen": net(), "disc": net(1)}
    optimizers = {name: adam(one) for name, one in model.items()}
    state = TrainingState(
        model=model,
        optimizer=optimizers,
        scheduler={"gen": lr_scheduler.StepLR(optimizers["gen"], 1)},
        scaler=torch.amp.GradScaler("cpu"),
        ema=swa_utils.AveragedModel(model["gen"]),
    )
    assert [section.name for section in state.sections()] == [
        *("model-gen", "model-disc", "optimizer-gen", "optimizer-disc", "scheduler-gen", "scaler", "ema", "state")
    ]


def test_weights_keep_the_layout_of_the_framework_and_their_ids(tmp_path):
    state = trained()
    sections = {section.name: section for section in state.sections()}
    assert sections["model"].contents.metadata["firekeep.layout"] == "torch"
    entries = {entry.name: entry for entry in sections["model"].contents.entries}
    assert entries["0.weight"].shape == (4, 3)
    assert entries["0.weight"].param_id is not None


def test_nothing_is_copied():
    state = trained()
    entry = next(iter(state.sections()[0].contents.entries))
    before = bytes(entry.read())
    with torch.no_grad():
        state.model[0].weight += 1
    assert bytes(entry.read()) != before


def test_several_models_and_optimizers(tmp_path):
    def make(seed):
        models = {"gen": net(seed), "disc": net(seed + 1)}
        return TrainingState(model=models, optimizer={name: adam(one) for name, one in models.items()})

    state = make(0)
    for name in state.model:
        step(state.model[name], state.optimizer[name])
    write(state, tmp_path)
    other = make(5)
    assert restore(other, tmp_path).exact
    assert bits(other) == bits(state)


def test_one_optimizer_of_several_models(tmp_path):
    def make(seed):
        models = {"a": net(seed), "b": net(seed + 1)}
        return TrainingState(
            model=models, optimizer=torch.optim.Adam([p for one in models.values() for p in one.parameters()])
        )

    state = make(0)
    state.optimizer.zero_grad()
    (state.model["a"](torch.randn(5, 3)) + state.model["b"](torch.randn(5, 3))).sum().backward()
    state.optimizer.step()
    write(state, tmp_path)
    other = make(5)
    report = restore(other, tmp_path)
    assert report.exact, str(report)
    assert bits(other) == bits(state)


@pytest.mark.parametrize("kind", ["averaged", "copy", "object"])
def test_averages_of_the_model_come_back(kind, tmp_path):
    class Shadow:
        def __init__(self, model):
            self.held = [one.detach().clone() for one in model.parameters()]

        def state_dict(self):
            return {"decay": 0.5, "shadow": self.held}

        def load_state_dict(self, state):
            self.held = state["shadow"]

    make = {"averaged": swa_utils.AveragedModel, "copy": lambda model: net(3), "object": Shadow}[kind]
    state = trained()
    state.ema = make(state.model)
    if kind == "averaged":
        state.ema.update_parameters(state.model)
    write(state, tmp_path)
    other = TrainingState(model=net(5), optimizer=None)
    other.optimizer = adam(other.model)
    other.ema = make(other.model)
    report = restore(other, tmp_path)
    assert report.exact, str(report)
    if kind == "object":
        assert all(map(torch.equal, other.ema.held, state.ema.held))
    else:
        assert all(torch.equal(one, state.ema.state_dict()[name]) for name, one in other.ema.state_dict().items())


def test_a_scaler_comes_back(tmp_path):
    state = trained(scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    state.scaler.scale(torch.ones(()))
    write(state, tmp_path)
    other = trained(5, scaler=torch.amp.GradScaler("cpu"))
    other.scaler.scale(torch.ones(()))
    report = restore(other, tmp_path)
    assert report.ok
    assert other.scaler.get_scale() == 8.0


def test_a_scheduler_of_ones_own_is_kept_by_its_state_dict(tmp_path):
    class Mine:
        count = 0

        def state_dict(self):
            return {"count": self.count, "history": torch.arange(self.count)}

        def load_state_dict(self, state):
            self.count, self.history = state["count"], state["history"]

    state = trained(scheduler=Mine())
    state.scheduler.count = 3
    write(state, tmp_path)
    other = trained(scheduler=Mine())
    assert "scheduler" in restore(other, tmp_path).values
    assert other.scheduler.count == 3
    assert other.scheduler.history.tolist() == [0, 1, 2]


def test_values_may_hold_arrays_and_tensors(tmp_path):
    values = {
        "array": np.arange(3, dtype=np.int16),
        "tensors": [torch.ones(2, dtype=torch.bfloat16), {"deep": torch.tensor(5)}],
        "scalar": np.float32(0.1),
    }
    held = {}
    write(trained(values=values), tmp_path)
    restore(trained(values=held), tmp_path)
    assert held["array"].dtype == np.int16
    assert held["array"].tolist() == [0, 1, 2]
    assert held["tensors"][0].dtype == torch.bfloat16
    assert held["tensors"][1]["deep"].item() == 5
    assert type(held["scalar"]) is np.float32
    held["array"] += 1  # it is the user's own


def test_a_value_that_cannot_be_kept_is_named():
    with pytest.raises(UnsupportedError, match=r"values\.a\.1"):
        trained(values={"a": [1, object()]}).sections()


# Refused as a whole


def refused(state, folder, match, **options):
    before = bits(state)
    dry = restore(state, folder, dry_run=True, **options)
    assert not dry.ok
    assert dry.dry_run
    assert bits(state) == before
    with pytest.raises(RestoreError) as caught:
        restore(state, folder, **options)
    assert match in " ".join(str(caught.value).split())
    assert bits(state) == before
    assert all(len(line) <= 80 for line in str(caught.value).splitlines() if "/" not in line)
    assert caught.value.report.refusals == dry.refusals
    return caught.value.report


def test_a_model_that_does_not_fit_refuses_all(tmp_path):
    write(trained(), tmp_path)
    model = net(5, width=6)
    report = refused(TrainingState(model=model, optimizer=adam(model)), tmp_path, "model: ")
    assert not report.exact
    assert report.model.errors


def test_the_second_of_two_models_refuses_the_first_too(tmp_path):
    write(TrainingState(model={"a": net(1), "b": net(2)}), tmp_path)
    first, second = net(5), torch.nn.Sequential(*net(6), torch.nn.Linear(2, 2))
    before = [one.clone() for one in first.parameters()]
    with pytest.raises(RestoreError, match="model-b: 2 missing") as caught:
        restore(TrainingState(model={"a": first, "b": second}), tmp_path)
    assert all(map(torch.equal, before, first.parameters()))
    assert "in part" not in "".join(getattr(caught.value, "__notes__", []))


def test_another_model_is_refused_as_a_whole_though_not_all_is_asked_for(tmp_path):
    write(trained(), tmp_path)
    report = refused(TrainingState(model=torch.nn.Linear(3, 4), strict=False), tmp_path, "model: no name matched")
    assert not report.model.applied


def test_an_optimizer_of_another_kind_refuses_all(tmp_path):
    write(trained(), tmp_path)
    model = net(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    report = refused(TrainingState(model=model, optimizer=optimizer), tmp_path, "optimizer: ")
    assert report.optimizer.dropped


def test_a_schedule_of_another_kind_refuses_all(tmp_path):
    state = trained()
    state.scheduler = lr_scheduler.StepLR(state.optimizer, 1)
    write(state, tmp_path)
    other = trained(5)
    other.scheduler = lr_scheduler.CosineAnnealingLR(other.optimizer, 9)
    refused(other, tmp_path, "scheduler: ")


def test_a_schedule_that_would_come_back_is_not_touched_when_something_else_is_refused(tmp_path):
    state = trained(data=ResumableSampler(5))
    state.scheduler = lr_scheduler.StepLR(state.optimizer, 1)
    for _ in range(3):
        step(state.model, state.optimizer)
        state.scheduler.step()
    write(state, tmp_path)
    other = trained(5, data=ResumableSampler(5, seed=1))
    other.scheduler = lr_scheduler.StepLR(other.optimizer, 2)
    refused(other, tmp_path, "data: ")


def test_a_part_that_the_checkpoint_lacks_refuses_all(tmp_path):
    state = trained()
    state.optimizer = None
    write(state, tmp_path)
    refused(trained(5), tmp_path, "no such section")


def test_without_strict_what_fits_is_taken_and_the_rest_is_told(tmp_path):
    state = trained(data=ResumableSampler(5), step=3)
    state.scheduler = lr_scheduler.StepLR(state.optimizer, 1)
    write(state, tmp_path)
    model = net(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    other = TrainingState(
        model=model,
        optimizer=optimizer,
        scheduler=lr_scheduler.CosineAnnealingLR(optimizer, 9),
        scaler=torch.amp.GradScaler("cpu"),
        strict=False,
    )
    report = restore(other, tmp_path)
    assert report.ok
    assert not report.exact
    assert set(report.fresh) == {"scheduler", "scaler"}
    assert set(report.dropped) == {"data"}
    assert len(report.optimizer.dropped) == 6
    assert other.step == 3
    assert torch.equal(model[0].weight, state.model[0].weight)
    json.dumps(report.to_dict())
    assert all(len(line) <= 80 for line in str(report).splitlines() if "/" not in line)


def test_parts_of_the_checkpoint_that_nobody_wants_are_told(tmp_path):
    write(trained(), tmp_path)
    report = restore(TrainingState(model=net(5), rng=False, strict=False), tmp_path)
    assert report.ok
    assert not report.exact
    assert set(report.dropped) == {"optimizer", "rng"}


@pytest.mark.parametrize("kind", ["optimizer", "scheduler", "ema"])
def test_parts_that_the_next_save_would_lose_refuse_all(kind, tmp_path):
    def make(seed):
        state = trained(seed)
        state.scheduler = lr_scheduler.StepLR(state.optimizer, 1)
        state.ema = swa_utils.AveragedModel(state.model)
        return state

    write(make(0), tmp_path)
    other = make(5)
    setattr(other, kind, None)
    if kind == "optimizer":
        other.scheduler = None
    refused(other, tmp_path, f"{kind}: the checkpoint has it, and the state has no such part")
    with pytest.raises(RestoreError) as refusal:
        restore(other, tmp_path)
    assert f"make the state with {kind}=..., or with strict=False" in refusal.value.message
    assert kind in restore(other, tmp_path, strict=False).dropped


def test_a_rate_that_the_program_has_changed_and_the_checkpoint_changes_back_is_told(tmp_path):
    write(trained(), tmp_path)
    model = net(5)
    state = TrainingState(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.0001))
    report = restore(state, tmp_path)
    assert report.exact
    assert "\n  optimizer: lr: 0.0001 -> 0.01, as it was saved\n" in str(report)
    assert report.to_dict()["optimizers"]["optimizer"]["options_back"] == ["lr: 0.0001 -> 0.01, as it was saved"]
    assert state.optimizer.param_groups[0]["lr"] == 0.01


def test_a_rate_that_the_schedule_has_moved_is_not_told_as_changed(tmp_path):
    def make(gamma, lr):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        return TrainingState(
            model=model, optimizer=optimizer, scheduler=lr_scheduler.StepLR(optimizer, 1, gamma=gamma), rng=False
        )

    state = make(0.5, 0.01)
    step(state.model, state.optimizer, 1)
    state.scheduler.step()
    write(state, tmp_path)
    assert "as it was saved" not in str(restore(make(0.5, 0.01), tmp_path))
    assert "optimizer: initial_lr: 0.1 -> 0.01, as it was saved" in str(restore(make(0.5, 0.1), tmp_path))


def test_other_rates_of_many_groups_are_not_all_listed(tmp_path):
    def make(lr):
        model = net()
        groups = [{"params": [one], "lr": lr + index} for index, one in enumerate(model.parameters())]
        optimizer = torch.optim.Adam(groups)
        step(model, optimizer)
        return TrainingState(model=model, optimizer=optimizer, rng=False)

    write(make(0.5), tmp_path)
    told = str(restore(make(0.25), tmp_path))
    assert "optimizer: group 3: lr: 3.25 -> 3.5, as it was saved" in told
    assert "group 4" not in told
    assert "optimizer: 2 more options are as they were saved" in told


# Renamed, reordered, added, removed


class Named(nn.Module):
    def __init__(self, *names):
        super().__init__()
        for number, name in enumerate(names):
            setattr(self, name, nn.Linear(3, 3 + number % 2))

    def forward(self, x):
        return sum(one(x).sum() for one in self.children())


def of_names(*names, seed=0):
    torch.manual_seed(seed)
    model = Named(*names)
    state = TrainingState(model=model, optimizer=adam(model))
    for number, one in enumerate(model.children()):
        one.weight.grad = torch.full_like(one.weight, number + 1.0)
        one.bias.grad = torch.full_like(one.bias, number + 1.0)
    state.optimizer.step()
    return state


def moment(state, name):
    return state.optimizer.state[getattr(state.model, name).weight]["exp_avg"]


def test_renames_hold_for_models_and_optimizers_alike(tmp_path):
    state = of_names("body", "head")
    write(state, tmp_path)
    other = of_names("trunk", "head", seed=1)
    other.optimizer.state.clear()
    report = restore(other, tmp_path, rename=r"^body\.=>trunk.")
    assert report.exact, str(report)
    assert torch.equal(moment(other, "trunk"), moment(state, "body"))
    assert report.optimizer.renamed == {"body.weight": "trunk.weight", "body.bias": "trunk.bias"}


def test_renames_of_the_model_hold_for_its_average(tmp_path):
    state = of_names("body", "head")
    state.ema = swa_utils.AveragedModel(state.model)
    write(state, tmp_path)
    other = of_names("trunk", "head", seed=1)
    other.ema = swa_utils.AveragedModel(other.model)
    assert restore(other, tmp_path, rename=r"^body\.=>trunk.").exact
    assert torch.equal(other.ema.module.trunk.weight, state.ema.module.body.weight)


def test_wrappers_that_the_match_sees_through_are_seen_through_by_optimizers_too(tmp_path):
    state = of_names("body", "head")
    write(state, tmp_path)
    inner = of_names("body", "head", seed=1)

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    wrapped = Wrapper(inner.model)
    other = TrainingState(model=wrapped, optimizer=adam(wrapped))
    report = restore(other, tmp_path)
    assert report.exact, str(report)
    assert torch.equal(moment(inner, "body"), inner.optimizer.state[wrapped.module.body.weight]["exp_avg"])
    assert len(report.optimizer.restored) == 4


def test_a_reordered_model_gets_every_moment_back(tmp_path):
    state = of_names("a", "b", "c")
    write(state, tmp_path)
    other = of_names("c", "b", "a", seed=1)
    other.optimizer.state.clear()
    assert restore(other, tmp_path).exact
    for name in "abc":
        assert torch.equal(moment(other, name), moment(state, name))


def test_added_and_removed_layers_are_told(tmp_path):
    write(of_names("a", "b"), tmp_path)
    other = of_names("a", "d", seed=1)
    report = restore(other, tmp_path, strict=False)
    assert report.model.missing == ("d.bias", "d.weight")
    assert report.optimizer.fresh == ("d.bias", "d.weight")
    assert report.optimizer.orphaned == ("b.bias", "b.weight")


# What else decides the bits


def test_another_number_of_threads_is_told_and_not_refused(tmp_path):
    write(trained(), tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        report = restore(trained(5), tmp_path)
    finally:
        torch.set_num_threads(threads)
    assert report.ok
    assert not report.exact
    assert report.changed == (f"torch_threads was '{threads}', and is '{threads + 1}'",)


def test_another_default_dtype_is_told(tmp_path):
    write(trained(), tmp_path)
    other = trained(5)
    torch.set_default_dtype(torch.float64)
    try:
        report = restore(other, tmp_path)
    finally:
        torch.set_default_dtype(torch.float32)
    assert report.changed == ("default_dtype was 'float32', and is 'float64'",)


def test_another_environment_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    write(trained(), tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert restore(trained(5), tmp_path).changed == ("OMP_NUM_THREADS was not set, and is '3'",)


def test_facts_are_plain():
    facts = trained(step=4).facts()
    assert facts["step"] == 4
    assert facts["torch_threads"] == torch.get_num_threads()
    assert {type(value) for value in facts.values()} <= {str, int, float, bool}


def test_the_file_tells_step_and_metrics_to_who_looks_in(tmp_path):
    write(trained(step=4, epoch=1, metrics={"loss": 0.5, "odd": float("inf"), "word": "x"}), tmp_path)
    from firekeep import open as open_door

    with open_door(tmp_path / "state.bpk") as file:
        assert {name: scalar.value for name, scalar in file.scalars.items()} == {
            "step": 4,
            "epoch": 1,
            "metric.loss": 0.5,
        }


# Random generators


class Draws:
    """What draws from generators of its own."""

    def __init__(self):
        super().__init__()
        self.torch = torch.Generator()
        self.numpy = np.random.default_rng(0)
        self.python = random.Random(0)
        self.of_all = torch.default_generator

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


class Drawing(Draws, nn.Module):
    pass


def test_generators_of_modules_that_nobody_named_are_told(tmp_path):
    def state(*named):
        model = nn.Sequential(net(), Drawing())
        return TrainingState(model=model, generators={name: getattr(model[1], name) for name in named})

    write(state("torch", "numpy", "python"), tmp_path / "all")
    write(state("torch"), tmp_path / "one")
    assert restore(state("torch", "numpy", "python"), tmp_path / "all").exact
    report = restore(state("torch"), tmp_path / "one")
    assert not report.exact
    assert report.fresh == {
        "model.1.numpy": "it is a numpy.Generator that the state was not given: name it in generators=",
        "model.1.python": "it is a random.Random that the state was not given: name it in generators=",
    }


def test_generators_of_datasets_that_nobody_named_are_told(tmp_path):
    class Stateful(Draws):
        """A dataset that keeps its generators by itself."""

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    def state(data):
        loader = DataLoader(data, sampler=ResumableSampler(4), generator=torch.Generator())
        return trained(data=ResumableLoader(loader))

    write(state(Draws()), tmp_path)
    report = restore(state(SeededDataset(Draws(), seed=0)), tmp_path)
    assert list(report.fresh) == [f"data.dataset.dataset.{name}" for name in ("torch", "numpy", "python")]
    assert not restore(state(Stateful()), tmp_path).fresh


def test_all_generators_go_on_where_they_were(tmp_path):
    def generators():
        return {
            "pcg": np.random.default_rng(1),
            "philox": np.random.Generator(np.random.Philox(2)),
            "old": np.random.RandomState(3),
            "python": random.Random(4),
            "torch": torch.Generator().manual_seed(5),
        }

    def draw(held):
        return [
            *(random.gauss(0, 1), float(np.random.randn()), torch.randn(()).item()),
            *(held["pcg"].random(), held["philox"].random(), float(held["old"].randn()), held["python"].gauss(0, 1)),
            torch.randn((), generator=held["torch"]).item(),
        ]

    mine = generators()
    draw(mine)  # a second normal number waits in some of them
    write(trained(generators=mine), tmp_path)
    expected = draw(mine)
    theirs = generators()
    other = trained(5, generators=theirs)
    draw(theirs)
    draw(theirs)
    report = restore(other, tmp_path)
    assert report.exact, str(report)
    assert draw(theirs) == expected
    assert report.rng == ("python", "numpy", "torch", *(f"generators.{name}" for name in theirs))


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("python", {"version": 3, "words": np.zeros(5, np.uint32), "gauss": None}),
        ("python", 5),
        ("numpy", {"bit_generator": "MT19937", "state": {"key": np.zeros(5, np.uint32), "pos": 0}}),
        ("numpy", {"bit_generator": "PCG64", "state": {}}),
        ("torch", {"cpu": torch.zeros(3, dtype=torch.uint8)}),
        ("torch", {"cuda": [1]}),
        ("torch", None),
    ],
)
def test_a_state_that_is_none_is_refused(name, state, tmp_path, monkeypatch):
    from firekeep.training import _rest

    taken = _rest.take_rng({})
    monkeypatch.setattr(_rest, "take_rng", lambda _: {**taken, name: state})
    write(trained(), tmp_path)
    refused(trained(5), tmp_path, f"'{name}' cannot be put back")


def test_a_generator_of_another_kind_is_refused(tmp_path):
    write(trained(generators={"g": np.random.default_rng(1)}), tmp_path)
    other = trained(5, generators={"g": np.random.Generator(np.random.Philox(2))})
    before = random.getstate()
    refused(other, tmp_path, "PCG64, and the generator is Philox")
    assert random.getstate() == before


def test_generators_that_one_side_lacks_are_told(tmp_path):
    write(trained(generators={"a": random.Random(1)}), tmp_path)
    report = restore(trained(5, generators={"b": random.Random(1)}), tmp_path)
    assert set(report.fresh) == {"generators.b"}
    assert set(report.dropped) == {"generators.a"}


def test_what_is_no_generator_is_refused_at_once():
    with pytest.raises(UnsupportedError, match="'g'"):
        trained(generators={"g": 5})


# Other kinds of parts


def test_what_modules_keep_besides_tensors_comes_back(tmp_path):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))
            self.calls = {"n": 0}

        def get_extra_state(self):
            return self.calls

        def set_extra_state(self, state):
            self.calls = state

    def make():
        return TrainingState(model=nn.Sequential(Counting(), nn.Linear(2, 2)))

    state = make()
    state.model[0].calls = {"n": 3, "table": torch.arange(2)}
    write(state, tmp_path)
    other = make()
    assert restore(other, tmp_path).exact
    assert other.model[0].calls["n"] == 3
    assert other.model[0].calls["table"].tolist() == [0, 1]
    plain = TrainingState(
        model=nn.Sequential(nn.ParameterDict({"weight": nn.Parameter(torch.ones(2))}), nn.Linear(2, 2))
    )
    assert set(restore(plain, tmp_path).dropped) == {"model.0"}


def test_a_sampler_that_knows_its_epoch_only_keeps_that(tmp_path):
    from torch.utils.data.distributed import DistributedSampler

    def make():
        return DistributedSampler(range(10), num_replicas=2, rank=1)

    state = trained(data={"train": make()})
    state.data["train"].set_epoch(3)
    write(state, tmp_path)
    other = trained(5, data={"train": make()})
    assert restore(other, tmp_path).data == ("data-train",)
    assert other.data["train"].epoch == 3


def test_a_plain_loader_is_refused_with_the_way_out():
    loader = torch.utils.data.DataLoader(range(10))
    with pytest.raises(RuleError, match="ResumableLoader"):
        trained(data=loader)


def test_parts_of_one_name_are_refused():
    with pytest.raises(RuleError, match="cannot be the name"):
        TrainingState(model=net(), optimizer={"../x": adam(net())})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"version": 2}, "newer firekeep"),
        ({"step": "x"}, "'step'"),
        ({"rng": [], "extra": 3}, "'rng', 'extra'"),
        ({"extra": {"model": 1}}, "'extra'"),
        ({"data": {"data": 3}}, "no state of a ResumableSampler"),
        ({"data": {"data": {**ResumableSampler(5).state_dict(), "consumed": "x"}}}, "cannot be at place 'x'"),
    ],
)
def test_a_damaged_state_changes_nothing(change, what, tmp_path, monkeypatch):
    from firekeep.training import _rest

    pack = _rest.pack
    monkeypatch.setattr(_rest, "pack", lambda tree, *, key: pack({**tree, **change}, key=key))
    write(trained(data=ResumableSampler(5)), tmp_path)
    other = trained(5, data=ResumableSampler(5))
    before = bits(other), other.data.state_dict()
    with pytest.raises(FirekeepError) as caught:
        restore(other, tmp_path)
    assert what in " ".join(str(caught.value).split())
    assert (bits(other), other.data.state_dict()) == before


def test_what_broke_off_says_so(tmp_path):
    class Broken(ResumableSampler):
        def load_state_dict(self, state):
            raise OSError("no")

    write(trained(data=ResumableSampler(5)), tmp_path)
    with pytest.raises(OSError, match="no") as caught:
        restore(trained(5, data=Broken(5)), tmp_path)
    assert caught.value.__notes__ == ["The state is restored in part: 2 of 3 steps were done before."]


def test_a_native_model_is_a_model_too(tmp_path):
    from firekeep.module import Linear

    state = TrainingState(model=Linear(3, 2), step=1)
    write(state, tmp_path)
    other = TrainingState(model=Linear(3, 2))
    report = restore(other, tmp_path)
    assert report.exact, str(report)
    assert np.array_equal(other.model.weight.value, state.model.weight.value)


def test_in_the_layout_of_burn(tmp_path):
    state = trained(step=2)
    state.layout = "burn"
    state.scheduler = lr_scheduler.CosineAnnealingLR(state.optimizer, 9)
    with CheckpointManager(tmp_path, layout="burn", durable=False) as manager:
        manager.save(state, step=2)
        assert {"model-2.bpk", "optim-2.bpk", "scheduler-2.bpk"} <= {path.name for path in tmp_path.iterdir()}
        other = trained(5)
        other.scheduler = lr_scheduler.CosineAnnealingLR(other.optimizer, 9)
        report = manager.restore(other).report
    assert report.ok, str(report)
    assert bits(other) == bits(state)


@pytest.mark.parametrize("background", [False, True])
def test_with_a_manager(background, tmp_path):
    state = trained(step=2, values={"list": [1]})
    with CheckpointManager(tmp_path, background=background, durable=False) as manager:
        manager.save(state, step=2)
        expected = bits(state)
        step(state.model, state.optimizer)
        other = trained(5)
        manager.wait()
        assert manager.restore(other).report.exact
        assert manager.latest().facts["torch"] == torch.__version__
    assert bits(other) == expected


def scheduled(seed=0, **more):
    state = trained(seed, **more)
    state.scheduler = lr_scheduler.CosineAnnealingLR(state.optimizer, 10)
    return state


def test_a_rate_that_was_set_by_hand_beside_a_schedule_is_told(tmp_path):
    state = scheduled()
    step(state.model, state.optimizer)
    state.scheduler.step()
    write(state, tmp_path)
    rate = state.optimizer.param_groups[0]["lr"]
    assert not restore(scheduled(1), tmp_path).set_back(), "what a schedule has set is no hand's"
    other = scheduled(2)
    other.optimizer.param_groups[0]["lr"] = 0.5
    planned = restore(other, tmp_path, dry_run=True)
    assert other.optimizer.param_groups[0]["lr"] == 0.5
    report = restore(other, tmp_path)
    assert other.optimizer.param_groups[0]["lr"] == rate
    told = (f"scheduler: lr, which was set by hand: 0.5 -> {rate:g}, as it was saved",)
    assert report.set_back() == planned.set_back() == report.rates_back == told
    assert told[0] in " ".join(str(report).split())
    assert report.exact


def test_two_schedules_of_one_optimizer_are_not_taken_for_a_hand(tmp_path):
    def make():
        state = trained()
        first, second = lr_scheduler.StepLR(state.optimizer, 1), lr_scheduler.ExponentialLR(state.optimizer, 0.5)
        state.scheduler = {"a": first, "b": second}
        step(state.model, state.optimizer)
        first.step()
        second.step()
        return state

    write(make(), tmp_path)
    assert not restore(make(), tmp_path).set_back()


def test_moments_of_weights_that_were_not_taken_start_anew(tmp_path):
    def run(*widths):
        model = torch.nn.Sequential(*(torch.nn.Linear(*pair) for pair in itertools.pairwise(widths)))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, widths[0])).sum().backward()
        optimizer.step()
        return model, optimizer

    model, optimizer = run(20, 8, 8, 8)
    with CheckpointManager(tmp_path) as manager:
        manager.save(TrainingState(model=model, optimizer=optimizer), step=1)
    other, fresh = run(8, 8, 8, 8, 3)
    fresh = torch.optim.AdamW(other.parameters())
    with CheckpointManager(tmp_path) as manager:
        report = manager.restore(TrainingState(model=other, optimizer=fresh, strict=False)).report
    taken = set(report.model.applied)
    names = dict(other.named_parameters())
    assert {name for name, one in names.items() if fresh.state.get(one)} <= taken
    assert report.optimizer.dropped["1.weight"] == "its weights were not taken from the checkpoint"
