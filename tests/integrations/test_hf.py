"""Trainer of Transformers: what a checkpoint holds, how it appears, and runs that go on in another process."""

from __future__ import annotations

import json
import signal

import pytest
import torch
from transformers import GPT2LMHeadModel, Trainer
from transformers.trainer_utils import get_last_checkpoint

import firekeep
from firekeep.records import OptimizerError
from integrations import hf_run as runs
from integrations.processes import start

OURS = {"optimizer.bpk", "scheduler.bpk", "rng.bpk", "trainer_state.json", "training_args.json", "model.safetensors"}


pytestmark = pytest.mark.usefixtures("quiet_libraries")


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_run_killed_mid_epoch_goes_on_exactly_in_another_process(tmp_path):
    status, told = start("hf_run.py", "killed", tmp_path)
    assert status == -signal.SIGKILL
    straight = told["straight"]
    _, resumed = start("hf_run.py", "resumed", tmp_path)
    assert list(resumed["losses"]) == [str(step) for step in range(6, 15)]
    assert resumed["losses"] == {step: straight["losses"][step] for step in resumed["losses"]}
    assert resumed["weights"] == straight["weights"]


def test_a_checkpoint_is_trainers_folder_without_its_pickles(tmp_path):
    made = runs.trainer(tmp_path, max_steps=2, save_steps=1, save_total_limit=1)
    made.train()
    assert names(tmp_path) == {"checkpoint-2"}
    folder = tmp_path / "checkpoint-2"
    assert get_last_checkpoint(str(tmp_path)) == str(folder)
    assert names(folder) == OURS | {"config.json", "generation_config.json"}
    assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == 2
    again = GPT2LMHeadModel.from_pretrained(folder)
    assert all(torch.equal(value, made.model.state_dict()[name]) for name, value in again.state_dict().items())


def test_what_came_back_is_told(tmp_path):
    runs.trainer(tmp_path, max_steps=2, save_steps=2).train()
    made = runs.trainer(tmp_path, max_steps=3, seed=9)
    made.train(resume_from_checkpoint=True)
    resumed = made.resumed
    assert resumed.model.ok
    assert resumed.optimizer.exact
    assert resumed.scheduler.ok
    assert resumed.changed == ()


def test_moments_of_layers_that_are_frozen_now_are_not_left_out_unnoticed(tmp_path):
    runs.trainer(tmp_path, max_steps=2, save_steps=2).train()
    net = runs.model(9)
    net.transformer.wpe.requires_grad_(False)
    with pytest.raises(OptimizerError, match="1 parameter of the record that the") as caught:
        runs.trainer(tmp_path, max_steps=3, net=net).train(resume_from_checkpoint=True)
    assert caught.value.report.orphaned == ("transformer.wpe.weight",)


def test_the_best_model_is_loaded_at_the_end(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "metric_for_best_model": "loss"}
    made = runs.trainer(
        tmp_path, kind=Worsening, max_steps=3, load_best_model_at_end=True, save_total_limit=1, **options
    )
    made.train()
    assert made.state.best_model_checkpoint == str(tmp_path / "checkpoint-1")
    assert names(tmp_path) == {"checkpoint-1"}, "Trainer keeps no other than the best"
    best = firekeep.load_file(tmp_path / "checkpoint-1" / "model.safetensors")
    assert torch.equal(
        made.model.state_dict()["transformer.wte.weight"], torch.from_numpy(best["transformer.wte.weight"])
    )


class Worsening(runs.KeptTrainer):
    def evaluate(self, *args, **kwargs):
        return {"eval_loss": float(self.state.global_step)}


class Failing(runs.KeptTrainer):
    def save_model(self, output_dir=None, _internal_call=False):
        super().save_model(output_dir, _internal_call)
        if self.state.global_step == 2:
            raise OSError("no space left")


def test_a_save_that_fails_leaves_nothing_behind(tmp_path):
    with pytest.raises(OSError, match="no space left"):
        runs.trainer(tmp_path, kind=Failing, max_steps=3, save_steps=1).train()
    assert names(tmp_path) == {"checkpoint-1"}


def test_what_a_killed_save_has_left_is_tidied_up(tmp_path):
    for name in (
        ".checkpoint-5.firekeep-tmp",
        ".checkpoint-1.firekeep-old",
        "checkpoint-1",
        ".checkpoint-0.firekeep-old",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    assert get_last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-1")
    runs.trainer(tmp_path, max_steps=1, save_steps=1).train()
    assert names(tmp_path) == {"checkpoint-0", "checkpoint-1"}
    assert names(tmp_path / "checkpoint-1") >= OURS, "the folder of that name was replaced"


def test_a_checkpoint_that_lacks_a_part_is_refused(tmp_path):
    runs.trainer(tmp_path, max_steps=1, save_steps=1).train()
    (tmp_path / "checkpoint-1" / "scheduler.bpk").unlink()
    with pytest.raises(firekeep.FormatError, match=r"lacks scheduler\.bpk"):
        runs.trainer(tmp_path, max_steps=2).train(resume_from_checkpoint=True)


def test_another_model_is_refused(tmp_path):
    runs.trainer(tmp_path, max_steps=1, save_steps=1).train()
    net = runs.model(1)
    net.extra = torch.nn.Linear(2, 2)
    with pytest.raises(firekeep.LoadError, match=r"extra\.weight"):
        runs.trainer(tmp_path, net=net, max_steps=2).train(resume_from_checkpoint=True)


def test_a_run_that_trainer_itself_has_saved_goes_on_exactly(tmp_path):
    class Theirs(Trainer):
        losses = None

    straight = runs.run(tmp_path / "straight", max_steps=4, save_strategy="no")
    runs.run(tmp_path / "theirs", kind=Theirs, max_steps=4, save_steps=2)
    assert "optimizer.pt" in names(tmp_path / "theirs" / "checkpoint-2")
    resumed = runs.run(
        tmp_path / "ours", resume=tmp_path / "theirs" / "checkpoint-2", max_steps=4, save_steps=4, seed=9
    )
    assert resumed["weights"] == straight["weights"]
    assert names(tmp_path / "ours" / "checkpoint-4") >= OURS


def test_several_processes_are_refused(tmp_path, monkeypatch):
    made = runs.trainer(tmp_path, max_steps=1, save_steps=1)
    monkeypatch.setattr(made, "is_fsdp_enabled", True)
    with pytest.raises(firekeep.UnsupportedError, match="runs of one process"):
        made._save_checkpoint(made.model, None)
