"""What the commands say of records: moments below their parameters, options and counters as values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firekeep
from firekeep.records import FieldStates, LrSchedulerRecord, OptimizerRecord
from firekeep.schedulers import Cosine, Linear

torch = pytest.importorskip("torch")
Run = Callable[..., Any]


@pytest.fixture
def trained() -> Any:
    """A net, its AdamW with two groups, and its schedule, after three steps."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    groups = [{"params": [net[0].weight, net[2].weight]}, {"params": [net[0].bias, net[2].bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.125)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
    return net, optimizer, scheduler


def test_moments_stand_below_the_names_of_their_parameters(fk: Run, trained: Any, tmp_path: Path):
    net, optimizer, _ = trained
    path = OptimizerRecord.of(optimizer, net).save(tmp_path / "optim-3")
    done = fk("inspect", path, "--table")
    assert done.code == 0
    assert "burnpack, record of an optimizer (AdamW), 8 tensors" in done.text
    assert "2.weight.momentum.moment_1" in done.text
    assert "step: 3" in done.text
    assert "group 0, 2 parameters: of: '{0,2}.weight'" in done.text
    assert "group 1, 2 parameters: of: '{0,2}.bias' weight_decay: 0.0 lr:" in done.text
    assert "betas: [0.9, 0.999]" in done.text
    assert "firekeep.state" not in done.text
    assert "__rank" not in done.text


def test_all_shows_what_the_file_says_itself(fk: Run, trained: Any, tmp_path: Path):
    net, optimizer, _ = trained
    done = fk("inspect", OptimizerRecord.of(optimizer, net).save(tmp_path / "optim-3"), "--all")
    assert "firekeep.state" in done.text
    assert "__rank: UInt(2)" in done.text


def test_json_keeps_the_names_of_the_file_and_describes_the_record(fk: Run, trained: Any, tmp_path: Path):
    net, optimizer, _ = trained
    path = OptimizerRecord.of(optimizer, net, layout="burn").save(tmp_path / "optim-3")
    found = fk("inspect", path, "--json").json
    with firekeep.open(path) as opened:
        assert sorted(tensor["name"] for tensor in found["tensors"]) == sorted(opened.keys())
        shapes = {name: list(entry.shape) for name, entry in opened.entries.items()}
    record = found["record"]
    assert (record["kind"], record["of"], record["layout"]) == ("optimizer", "AdamW", "burn")
    first = record["params"][0]
    assert (first["path"], first["group"], first["shape"], first["numbers"]["step"]) == ("0.weight", 0, [8, 4], 3)
    assert shapes[first["tensors"]["momentum.moment_1"]] == [4, 8], "it lies as the weight does in Burn"
    assert [one["weight_decay"] for one in record["groups"]] == [0.01, 0.0]


def test_states_that_burn_does_not_have_stand_below_their_parameters_too(fk: Run, trained: Any, tmp_path: Path):
    net = trained[0]
    optimizer = torch.optim.Adamax(net.parameters())
    optimizer.step()
    done = fk("inspect", OptimizerRecord.of(optimizer, net).save(tmp_path / "optim"), "--table")
    assert "0.weight.exp_inf" in done.text
    assert "record of an optimizer (Adamax)" in done.text


def test_an_optimizer_without_states_says_so(fk: Run, trained: Any, tmp_path: Path):
    net = trained[0]
    done = fk("inspect", OptimizerRecord.of(torch.optim.SGD(net.parameters(), lr=0.5), net).save(tmp_path / "optim"))
    assert "without a state: '{0,2}.weight', '{0,2}.bias'" in done.text
    assert "lr: 0.5" in done.text


def test_lbfgs_is_told_by_its_own_counters(fk: Run, trained: Any, tmp_path: Path):
    net = trained[0]
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    done = fk("inspect", OptimizerRecord.of(optimizer, net).save(tmp_path / "optim"))
    assert "prev_flat_grad" in done.text
    assert "g_iter: " in done.text
    assert "without a state" not in done.text


def burns_own(tmp_path: Path) -> Path:
    """A record as Burn writes it: fields by id, and nothing of the class."""
    moments = {"moment_1": np.zeros((3, 2), np.float32), "moment_2": np.ones((3, 2), np.float32), "time": 7}
    state = FieldStates(param_id=42, path="fc.weight", rank=2, fields={"momentum": moments})
    return OptimizerRecord.of_states([state]).save(tmp_path / "optim-1")


def test_a_record_of_burns_is_told_by_its_fields(fk: Run, tmp_path: Path):
    done = fk("inspect", burns_own(tmp_path))
    assert "fc.weight.momentum" in done.text
    assert "class: not said by the file" in done.text
    assert "momentum.time: 7" in done.text
    assert "its fields are those of adam" in done.text


def test_a_scheduler_of_torch_is_told_by_its_values(fk: Run, trained: Any, tmp_path: Path):
    done = fk("inspect", LrSchedulerRecord.of(trained[2]).save(tmp_path / "scheduler-3"))
    assert "record of a scheduler (CosineAnnealingLR)" in done.text
    assert "T_max: 100" in done.text
    assert "last_epoch: 3" in done.text
    assert "current_iter: UInt(2)" in done.text


def test_a_schedule_of_which_burn_would_find_nothing_says_so(fk: Run, trained: Any, tmp_path: Path):
    scheduler = torch.optim.lr_scheduler.OneCycleLR(trained[1], 0.5, total_steps=10)
    done = fk("inspect", LrSchedulerRecord.of(scheduler).save(tmp_path / "scheduler"))
    assert "Note: Burn has no such schedule" in done.text


def test_counters_of_burns_schedules_are_explained(fk: Run, tmp_path: Path):
    path = LrSchedulerRecord.of(Linear(initial=0.5, final=0.25, iterations=4)).save(tmp_path / "linear")
    assert "remaining_iters is the counter of a schedule of Burn's: linear" in fk("inspect", path).text
    path = LrSchedulerRecord.of(Cosine(initial=0.5, iterations=4)).save(tmp_path / "cosine")
    assert "current_iter is the counter of a schedule of Burn's: cosine, not started" in fk("inspect", path).text


@pytest.mark.parametrize("command", ["verify", "scan", "doctor"])
def test_other_commands_say_what_a_record_is_of(command: str, fk: Run, trained: Any, tmp_path: Path):
    net, optimizer, scheduler = trained
    paths = [
        OptimizerRecord.of(optimizer, net).save(tmp_path / "optim-3"),
        LrSchedulerRecord.of(scheduler).save(tmp_path / "scheduler-3"),
    ]
    firekeep.save(net, tmp_path / "net.bpk")
    done = fk(command, *paths, tmp_path / "net.bpk")
    assert done.code == 0
    assert done.text.count("record of an optimizer (AdamW): 4 states of 4 parameters") == 1
    assert done.text.count("record of a scheduler (CosineAnnealingLR)") == 1
    answers = fk(command, "--json", *paths, tmp_path / "net.bpk").json
    told = [answer.get("record") or answer.get("facts", {}).get("record") for answer in answers]
    assert told[1:] == ["record of a scheduler (CosineAnnealingLR)", None]


def test_a_record_that_contradicts_itself_is_still_shown(fk: Run, tmp_path: Path):
    firekeep.save_file({}, tmp_path / "optim.bpk", metadata={"firekeep.optimizer": "{", "firekeep.record": "optimizer"})
    done = fk("inspect", tmp_path / "optim.bpk")
    assert done.code == 0
    assert "firekeep.optimizer: {" in done.text


def test_names_in_a_record_are_escaped(fk: Run, tmp_path: Path):
    state = FieldStates(
        param_id=1, path="fc\x1b[31m", rank=1, fields={"momentum": {"velocity": np.zeros(2, np.float32)}}
    )
    path = OptimizerRecord.of_states([state]).save(tmp_path / "optim")
    for command in ("inspect", "verify", "doctor"):
        assert fk(command, path).out.replace("\n", "").isprintable()


def test_the_rest_of_a_training_state_is_told_as_values(fk: Run, trained: Any, tmp_path: Path):
    from firekeep.checkpoint import CheckpointManager
    from firekeep.training import ResumableSampler, TrainingState

    net, optimizer, _ = trained
    state = TrainingState(
        model=net, optimizer=optimizer, data=ResumableSampler(10, seed=7), step=12, values={"best": (0.5, None)}
    )
    CheckpointManager(tmp_path, durable=False).save(state, step=12)
    path = tmp_path / "step-00000012" / "state.bpk"
    done = fk("inspect", path)
    assert "state of a training run" in done.text
    assert "best: [0.5, None]" in done.text
    assert "seed: 7" in done.text
    assert "firekeep.training" not in done.text
    assert fk("inspect", path, "--json").json["record"]["values"]["step"] == 12
    assert "state of a training run: step 12, epoch 0" in fk("verify", path).text
