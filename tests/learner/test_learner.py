"""What a Learner does to a model, and how long it goes on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as lrs

from firekeep.checkpoint import CheckpointManager, KeepAll
from firekeep.errors import RuleError
from firekeep.learner import EarlyStopping, Learner
from firekeep.schedulers import Cosine, Linear
from learner import runs


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def quiet(model, optimizer, scheduler=None, **options):
    settings = {"loss": nn.functional.mse_loss, "num_epochs": 1, "progress": False}
    return Learner(model, optimizer, scheduler, **{**settings, **options})


def line(value=0.0):
    """A model of one weight."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def pairs(*numbers, target=0.0):
    """Batches of one sample each."""
    return [(torch.tensor([[float(x)]]), torch.tensor([[target]])) for x in numbers]


class Script:
    """A model's objective whose validation losses are given, one an epoch."""

    def __init__(self, *values):
        self.values = list(values)

    def __call__(self, model, batch):
        return model(batch).sum() * 0 + (1.0 if model.training else self.values.pop(0))


def scripted(folder, *values, **options):
    model = line()
    return Learner(
        model,
        sgd(model),
        objective=Script(*values),
        num_epochs=options.pop("num_epochs", len(values)),
        checkpoint=folder,
        progress=False,
        **options,
    )


BATCHES = [torch.ones(2, 1)]


# How steps are made


def test_accumulated_batches_give_the_gradient_of_their_mean():
    model, twin = line(1.0), line(1.0)
    report = quiet(model, sgd(model), accumulate=2).fit(pairs(1, 2, 3))
    for group in ((1, 2), (3,)):  # the rest of an epoch is a step of its own
        loss = sum((twin(x) - y).square().mean() for x, y in pairs(*group)) / len(group)
        loss.backward()
        sgd(twin).step()
        twin.zero_grad()
    assert report.step == 2
    assert torch.allclose(model.weight, twin.weight)
    assert report.metrics["train_loss"] > 0


def test_gradients_are_clipped_over_all_parameters():
    model = nn.Linear(2, 2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    batch = (torch.full((1, 2), 100.0), torch.zeros(1, 2))
    quiet(model, sgd(model, lr=1.0), clip_norm=0.5).fit([batch])
    moved = torch.cat([(old - new).flatten() for old, new in zip(before, model.parameters(), strict=True)])
    assert moved.norm().item() == pytest.approx(0.5, rel=1e-4)


def test_gradients_are_clipped_by_value():
    model = line(3.0)
    quiet(model, sgd(model, lr=1.0), clip_value=0.25).fit(pairs(100))
    assert model.weight.item() == pytest.approx(2.75)


def test_bf16_computes_in_bf16_and_keeps_the_weights():
    seen = []
    model = line(1.0)
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    quiet(model, sgd(model), precision="bf16").fit(pairs(1), pairs(1))
    assert seen == [torch.bfloat16, torch.bfloat16]
    assert model.weight.dtype == torch.float32


def test_fp16_scales_and_leaves_out_steps_that_are_not_finite(tmp_path):
    def learner(batches):
        model = line(1.0)
        optimizer = sgd(model)
        one = quiet(model, optimizer, lrs.ExponentialLR(optimizer, 0.5), precision="fp16", checkpoint=tmp_path)
        return one, one.fit(batches)

    one, report = learner(pairs(0.01, math.inf, 0.01))
    assert (report.step, report.skipped) == (3, 1)
    assert one.schedulers["scheduler"].last_epoch == 2, "a step that was left out is none for the scheduler"
    assert torch.isfinite(one.model.weight).all()
    _, report = learner(pairs(1))
    assert (report.resumed.step, report.skipped, report.exact) == (3, 1, True)


def test_an_optimizer_that_asks_for_a_closure_gets_the_whole_group(tmp_path):
    def learner(folder):
        model = line(1.0)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
        return quiet(model, optimizer, num_epochs=4, accumulate=2, checkpoint=folder)

    data = pairs(1, 2, 3, target=6.0)
    one = learner(tmp_path / "one")
    report = one.fit(data)
    assert (report.step, one.model.weight.item()) == (8, pytest.approx(2.0, abs=1.5))
    assert report.epochs[-1]["train_loss"] < report.epochs[0]["train_loss"]
    two = learner(tmp_path / "two")
    two.options = type(two.options)(judge=two.options.judge, num_epochs=2, accumulate=2, progress=False)
    two.fit(data)
    three = learner(tmp_path / "two")
    assert three.fit(data).exact
    assert runs.bits(three) == runs.bits(one)


def test_closures_go_neither_with_fp16_nor_with_a_second_optimizer():
    model = nn.Linear(1, 1)
    lbfgs = torch.optim.LBFGS([model.weight])
    with pytest.raises(RuleError, match="several times in a step"):
        quiet(model, lbfgs, precision="fp16").fit(pairs(1))
    with pytest.raises(RuleError, match="several times in a step"):
        quiet(model, {"a": lbfgs, "b": torch.optim.SGD([model.bias])}).fit(pairs(1))


def test_several_optimizers_step_together_and_come_back(tmp_path):
    def learner(epochs, folder):
        model = runs.network()
        flat = [one for one in model.parameters() if one.dim() == 2]
        rest = [one for one in model.parameters() if one.dim() != 2]
        both = {"muon": torch.optim.Muon(flat, lr=0.02), "adamw": torch.optim.AdamW(rest, lr=0.01)}
        return Learner(
            model,
            both,
            {"adamw": Cosine(initial=0.01, iterations=18)},
            loss=nn.functional.cross_entropy,
            num_epochs=epochs,
            checkpoint=folder,
            progress=False,
            seed=5,
        )

    straight = learner(3, tmp_path / "straight")
    straight.fit(runs.train_loader())
    learner(2, tmp_path / "cut").fit(runs.train_loader())
    after = learner(3, tmp_path / "cut")
    assert after.fit(runs.train_loader()).exact
    assert runs.bits(after) == runs.bits(straight)
    assert after.optimizers["adamw"].param_groups[0]["lr"] == straight.optimizers["adamw"].param_groups[0]["lr"] < 0.01
    assert after.optimizers["muon"].param_groups[0]["lr"] == 0.02


# Schedules


@pytest.mark.parametrize(("every", "expected"), [("step", 0.5**6), ("epoch", 0.5**2)])
def test_a_scheduler_steps_with_the_optimizer_or_with_the_epoch(every, expected):
    model = line()
    optimizer = sgd(model, lr=1.0)
    quiet(model, optimizer, lrs.ExponentialLR(optimizer, 0.5), num_epochs=2, scheduler_every=every).fit(pairs(0, 0, 0))
    assert optimizer.param_groups[0]["lr"] == expected


def test_a_schedule_of_burn_drives_the_optimizer(tmp_path):
    model = line()
    one = quiet(
        model,
        sgd(model),
        Linear(initial=0.5, final=0.25, iterations=2),
        num_epochs=2,
        checkpoint=tmp_path,
        log_every=1,
    )
    one.fit(pairs(0, 0))
    rates = [record["lr"] for record in runs.losses(tmp_path) if record["kind"] == "step"]
    assert rates == [0.5, 0.375, 0.25, 0.25]


def test_a_plateau_is_told_the_validation_loss_of_each_epoch(tmp_path):
    one = scripted(tmp_path, 3.0, 3.0, 3.0)
    optimizer = one.optimizers["optimizer"]
    plateau = lrs.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    one.schedulers = {"scheduler": plateau}
    one.fit(BATCHES, BATCHES)
    assert plateau.best == 3.0
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.25


# How long


def test_early_stopping_ends_the_run_and_its_counters_are_kept(tmp_path):
    rule = EarlyStopping("valid_loss", patience=2)
    values = [0.5, 0.9, 0.4, 0.6, math.nan, 0.1]
    straight = scripted(tmp_path / "a", *values, early_stopping=rule).fit(BATCHES, BATCHES)
    assert (straight.stopped, straight.epoch, straight.complete) == ("early stopping", 5, True)
    scripted(tmp_path / "b", *values[:4], early_stopping=rule).fit(BATCHES, BATCHES)
    after = scripted(tmp_path / "b", *values[4:], num_epochs=6, early_stopping=rule).fit(BATCHES, BATCHES)
    assert (after.stopped, after.epoch) == ("early stopping", 5)
    over = scripted(tmp_path / "b", num_epochs=6, early_stopping=rule).fit(BATCHES, BATCHES)
    assert (over.stopped, over.epoch) == ("early stopping", 5)
    patient = EarlyStopping("valid_loss", patience=3)
    more = scripted(tmp_path / "b", 0.1, num_epochs=6, early_stopping=patient).fit(BATCHES, BATCHES)
    assert (more.stopped, more.epoch) == (None, 6)


def test_early_stopping_by_the_greatest_value_with_a_least_gain(tmp_path):
    rule = EarlyStopping("valid_loss", patience=1, mode="max", min_delta=0.1)
    report = scripted(tmp_path, 0.5, 0.7, 0.75, 0.9, early_stopping=rule).fit(BATCHES, BATCHES)
    assert report.epoch == 3


def test_the_last_two_epochs_and_the_best_one_are_kept(tmp_path):
    report = scripted(tmp_path, 0.9, 0.5, 0.7, 0.8, 0.6).fit(BATCHES, BATCHES)
    manager = CheckpointManager(tmp_path)
    assert [info.step for info in manager.steps()] == [2, 4, 5]
    assert manager.best().step == 2
    assert [record["valid_loss"] for record in report.epochs] == pytest.approx([0.9, 0.5, 0.7, 0.8, 0.6])


def test_steps_are_saved_between_epochs_when_asked_for(tmp_path):
    manager = CheckpointManager(tmp_path, keep=KeepAll(), every=4)
    runs.learner(manager).fit(runs.train_loader(), runs.valid_loader())
    assert [info.step for info in manager.steps()] == [4, 6, 8, 12, 16, 18]
    assert [info.step for info in manager.steps() if "valid_loss" in info.metrics] == [6, 12, 18]


def test_a_complete_run_is_not_trained_again(tmp_path):
    first = runs.learner(tmp_path)
    first.fit(runs.train_loader(), runs.valid_loader())
    second = runs.learner(tmp_path)
    report = second.fit(runs.train_loader(), runs.valid_loader())
    assert (report.step, report.epoch, report.resumed.step, report.complete) == (18, 3, 18, True)
    assert [record["epoch"] for record in report.epochs] == [1, 2, 3]
    assert runs.bits(second) == runs.bits(first)


def test_a_new_run_is_not_mixed_with_an_old_one(tmp_path):
    runs.learner(tmp_path, num_epochs=1).fit(runs.train_loader())
    with pytest.raises(RuleError, match="holds step 6 of an earlier run"):
        runs.learner(tmp_path, resume=False).fit(runs.train_loader())


def test_a_run_without_checkpoints_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = runs.learner(None).fit(runs.train_loader(), runs.valid_loader())
    assert (report.step, report.saved, report.history, report.resumed) == (18, None, None, None)
    assert len(report.epochs) == 3
    assert list(tmp_path.iterdir()) == []


# What is measured


def test_means_weigh_batches_by_their_samples():
    model = line(1.0)
    batches = [(torch.ones(3, 1), torch.zeros(3, 1)), (torch.full((1, 1), 3.0), torch.zeros(1, 1))]
    report = quiet(model, sgd(model, lr=0.0), metrics={"largest": lambda output, target: output.max()}).fit(
        batches, batches
    )
    assert report.metrics == {
        "train_loss": pytest.approx((3 * 1 + 9) / 4),
        "train_largest": pytest.approx((3 * 1 + 3) / 4),
        "valid_loss": pytest.approx((3 * 1 + 9) / 4),
        "valid_largest": pytest.approx((3 * 1 + 3) / 4),
    }


def test_a_validation_changes_nothing_in_the_training():
    plain, validated = runs.learner(None), runs.learner(None)
    plain.fit(runs.train_loader())
    validated.fit(runs.train_loader(), runs.train_loader(runs.Noisy()))
    assert runs.bits(plain) == runs.bits(validated)


def test_the_mode_of_the_model_is_left_as_it_was():
    one = runs.learner(None, num_epochs=1)
    one.model.eval()
    modes = []
    one.model.register_forward_hook(lambda module, inputs, output: modes.append(module.training))
    one.fit(runs.train_loader(), runs.valid_loader())
    assert modes == [True] * 6 + [False] * 3
    assert not one.model.training


def test_an_objective_takes_any_batch():
    model = line(1.0)
    batches = [{"x": torch.ones(2, 1), "y": torch.zeros(2, 1), "name": "a"}]

    def objective(model, batch):
        output = model(batch["x"])
        return nn.functional.mse_loss(output, batch["y"]), output, batch["y"]

    one = Learner(
        model,
        sgd(model),
        objective=objective,
        metrics={"gap": lambda output, target: (output - target).mean()},
        num_epochs=1,
        progress=False,
    )
    assert one.fit(batches).metrics == {"train_loss": 1.0, "train_gap": 1.0}


@pytest.mark.parametrize(
    ("made", "batch", "said"),
    [
        ({"loss": lambda output, target: output}, (torch.ones(2, 1), torch.ones(2, 1)), r"shape \[2, 1\]"),
        ({"loss": lambda output, target: 1.0}, (torch.ones(1, 1), torch.ones(1, 1)), "the loss is float"),
        ({"loss": nn.functional.mse_loss}, torch.ones(1, 1), "a batch is Tensor.*objective="),
        ({"objective": lambda model, batch: (1, 2)}, torch.ones(1, 1), "gave 2 values"),
        (
            {"objective": lambda model, batch: model(batch).sum(), "metrics": {"m": lambda output, target: 0.0}},
            torch.ones(1, 1),
            "the loss alone, and there are metrics",
        ),
    ],
)
def test_batches_and_losses_that_do_not_fit_are_told(made, batch, said):
    model = line()
    with pytest.raises(RuleError, match=said):
        Learner(model, sgd(model), num_epochs=1, progress=False, **made).fit([batch])


# Settings


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_epochs": 0}, "num_epochs=0: a whole number of at least 1"),
        ({"accumulate": True}, "accumulate=True"),
        ({"precision": "fp8"}, "precision='fp8': 'fp32' or 'bf16' or 'fp16'"),
        ({"scheduler_every": "batch"}, "scheduler_every='batch'"),
        ({"clip_norm": 1.0, "clip_value": 1.0}, "clip_norm or clip_value"),
        ({"clip_norm": -1.0}, "clip_norm=-1.0: a number above 0"),
        ({"loss": None}, "either loss=.*or objective="),
        ({"objective": lambda model, batch: 0}, "either loss=.*or objective="),
        ({"metrics": {"loss": runs.accuracy}}, "cannot be called 'loss'"),
        ({"metrics": {"accuracy": 3}}, "functions of output and target"),
        ({"save_every": 3}, "save_every is for a Learner that is given the directory"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(options, said):
    model = line()
    with pytest.raises(RuleError, match=said):
        quiet(model, sgd(model), **options)


def test_early_stopping_by_a_metric_that_will_not_be_there_is_refused(tmp_path):
    one = runs.learner(tmp_path, early_stopping=EarlyStopping())
    with pytest.raises(RuleError, match=r"'valid_loss', and an epoch has train_accuracy, train_loss"):
        one.fit(runs.train_loader())


def test_what_is_no_model_optimizer_or_scheduler_is_refused():
    model = line()
    with pytest.raises(TypeError, match="not function"):
        quiet(line, sgd(model))
    with pytest.raises(TypeError, match=r"optimizer: a torch\.optim.Optimizer is needed, not Linear"):
        quiet(model, model)
    with pytest.raises(TypeError, match=r"scheduler: a scheduler of PyTorch or of firekeep\.schedulers is needed"):
        quiet(model, sgd(model), 3)
    with pytest.raises(RuleError, match="could drive any of several optimizers"):
        quiet(model, {"a": sgd(model), "b": sgd(model)}, Cosine(initial=0.1, iterations=3))


def test_early_stopping_by_a_number_is_refused_with_what_is_due():
    model = line()
    with pytest.raises(TypeError, match=r"EarlyStopping\(patience=3\)"):
        Learner(model, sgd(model), loss=nn.functional.mse_loss, num_epochs=1, early_stopping=3)


def test_early_stopping_by_an_accuracy_wants_the_mode():
    with pytest.raises(RuleError, match=r"EarlyStopping\('valid_accuracy', mode=\"max\"\)"):
        EarlyStopping("valid_accuracy")
    assert EarlyStopping("valid_accuracy", mode="max").mode == "max"
    assert EarlyStopping("valid_accuracy", mode="min").mode == EarlyStopping().mode == "min"


def test_what_is_other_than_in_the_run_before_is_told(tmp_path):
    data = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1))

    def fit(lr, batch_size, num_epochs):
        model = nn.Linear(1, 1)
        learner = quiet(model, sgd(model, lr), num_epochs=num_epochs, checkpoint=tmp_path)
        return learner.fit(torch.utils.data.DataLoader(data, batch_size=batch_size))

    fit(0.1, 4, 1)
    report = fit(0.25, 4, 2)
    assert report.exact
    assert "\n  optimizer: lr: 0.25 -> 0.1, as it was saved\n" in str(report)
    report = fit(0.1, 2, 3)
    assert report.exact is False
    assert "\n  not exactly: data: batches were of 4, and are of 2 now\n" in str(report)


def test_no_batches_are_an_error_and_not_a_trained_model():
    model = line()
    with pytest.raises(RuleError, match="no batches"):
        quiet(model, sgd(model)).fit([])


def test_another_seed_is_another_order(tmp_path):
    runs.learner(tmp_path / "a", num_epochs=1, seed=1).fit(runs.train_loader())
    runs.learner(tmp_path / "b", num_epochs=1, seed=2).fit(runs.train_loader())
    assert runs.losses(tmp_path / "a") != runs.losses(tmp_path / "b")
