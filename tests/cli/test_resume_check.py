"""`firekeep resume-check`: would a step be restored exactly, and what would start fresh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import firekeep
from firekeep.checkpoint import CheckpointManager, KeepAll

torch = pytest.importorskip("torch")
training = pytest.importorskip("firekeep.training")
Run = Callable[..., Any]


def make(*, width: int = 8, cosine: int = 100, seed: int = 0, kind: str = "AdamW", layout: str | None = None) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, width))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.125)
    return training.TrainingState(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cosine),
        data=training.ResumableSampler(10, seed=seed),
        layout=layout,
    )


def save(folder: Path, state: Any, *steps: int, layout: Any = None) -> None:
    manager = CheckpointManager(folder, keep=KeepAll(), durable=False, layout=layout)
    for step in steps:
        state.step = step
        state.optimizer.zero_grad()
        state.model(torch.ones(2, 4)).sum().backward()
        state.optimizer.step()
        state.scheduler.step()
        manager.save(state, step=step, metrics={"valid_loss": float(step)})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save(tmp_path / "run", make(), 1, 2, 3)
    return tmp_path / "run"


def test_a_run_of_the_same_program_would_be_restored_exactly(fk: Run, run: Path, tmp_path: Path):
    save(tmp_path / "other", make(), 1)
    done = fk("resume-check", run, "--like", tmp_path / "other")
    assert (done.code, done.err) == (0, "")
    assert f"step 3 of {run} would be restored exactly into step 1 of {tmp_path / 'other'}" in done.text
    assert "model: 6 of 6 tensors" in done.text
    assert "optimizer: 6 states of AdamW" in done.text
    assert "again, not" not in done.text, "a rate that the schedule has moved is no difference"


@pytest.mark.parametrize(("step", "number"), [("best", 1), ("latest", 3), ("2", 2)])
def test_the_step_is_the_one_that_is_asked_for(step: str, number: int, fk: Run, run: Path):
    assert fk("resume-check", run, "--like", run, "--step", step, "--json").json["step"] == number


def test_the_best_is_known_by_the_metric_of_the_manager_or_asked_for(fk: Run, run: Path, tmp_path: Path):
    state = make()
    manager = CheckpointManager(tmp_path / "val", keep=KeepAll(), durable=False, best="val")
    for step, value in enumerate((3.0, 1.0, 2.0), 1):
        manager.save(state, step=step, metrics={"val": value, "acc": value})
    assert fk("resume-check", tmp_path / "val", "--like", run, "--step", "best", "--json").json["step"] == 2
    found = fk(
        "resume-check", tmp_path / "val", "--like", run, "--step", "best", "--best", "acc", "--mode", "max", "--json"
    )
    assert found.json["step"] == 1
    done = fk("resume-check", tmp_path / "val", "--like", run, "--step", "best", "--best", "valid_loss")
    assert (done.code, done.out) == (2, "")
    assert "a number for the metric 'valid_loss'" in done.err
    assert "The steps have the metrics 'val', 'acc': tell the best by --best val." in done.err
    done = fk("resume-check", tmp_path / "val", "--like", run, "--step", "best", "--best", "accuracy", "--mode", "max")
    assert "'acc', 'val': tell the best by --best acc --mode max." in done.err


def test_a_step_is_a_place_too(fk: Run, run: Path):
    found = fk("resume-check", run / "step-00000002", "--like", run / "step-00000001", "--json").json
    assert (found["source"], found["like"]) == (f"step 2 of {run}", f"step 1 of {run}")


def test_other_shapes_are_told_for_weights_and_moments(fk: Run, run: Path, tmp_path: Path):
    save(tmp_path / "other", make(width=9), 1)
    done = fk("resume-check", run, "--like", tmp_path / "other")
    assert done.code == 1
    assert "would NOT be restored exactly" in done.text
    assert "model: 4 of 6 tensors" in done.text
    assert "optimizer: 4 states of AdamW, 2 that cannot be taken over" in done.text
    assert "'2.weight': its shape was [8, 6], and is [9, 6] now" in done.text


def test_another_optimizer_another_schedule_and_another_order_are_told(fk: Run, run: Path, tmp_path: Path):
    save(tmp_path / "other", make(kind="SGD", cosine=50, seed=1), 1)
    done = fk("resume-check", run, "--like", tmp_path / "other")
    assert done.code == 1
    assert "its state is that of AdamW, and the optimizer is SGD" in done.text
    assert "T_max is 100 from the record; the other has 50" in done.text
    assert "it was one of seed=0, and is one of seed=1" in done.text


def test_parts_that_only_one_side_has_are_told(fk: Run, run: Path, tmp_path: Path):
    other = make()
    other.scheduler = None
    other.ema = torch.optim.swa_utils.AveragedModel(other.model)
    manager = CheckpointManager(tmp_path / "other", durable=False)
    manager.save(other, step=1)
    done = fk("resume-check", run, "--like", tmp_path / "other", "--json")
    assert done.code == 1
    assert done.json["fresh"] == {"ema": "the step lacks it"}
    assert list(done.json["dropped"]) == ["scheduler"]


@pytest.mark.parametrize("name", ["model.safetensors", "model.bpk"])
def test_a_file_of_the_model_tells_of_weights_and_moments(name: str, fk: Run, run: Path, tmp_path: Path):
    firekeep.save(make().model, tmp_path / name)
    done = fk("resume-check", run, "--like", tmp_path / name)
    assert done.code == 0
    assert "optimizer: 6 states of AdamW" in done.text
    assert "says nothing of it: scheduler, state" in done.text
    firekeep.save(make(width=9).model, tmp_path / name)
    done = fk("resume-check", run, "--like", tmp_path / name)
    assert done.code == 1
    assert "optimizer: 4 states of AdamW, 2 that cannot be taken over" in done.text


def test_a_layer_more_starts_anew_and_a_layer_less_is_of_no_use(fk: Run, run: Path, tmp_path: Path):
    model = make().model
    firekeep.save(torch.nn.Sequential(*model, torch.nn.Linear(8, 2)), tmp_path / "more.safetensors")
    done = fk("resume-check", run, "--like", tmp_path / "more.safetensors", "--json")
    assert done.code == 1
    optimizer = done.json["parts"][1]["report"]
    assert (len(optimizer["restored"]), optimizer["fresh"]) == (6, ["3.bias", "3.weight"])
    firekeep.save(model[:2], tmp_path / "less.safetensors")
    optimizer = fk("resume-check", run, "--like", tmp_path / "less.safetensors", "--json").json["parts"][1]["report"]
    assert (len(optimizer["restored"]), optimizer["orphaned"]) == (4, ["2.bias", "2.weight"])


def test_a_record_is_compared_with_its_own_kind(fk: Run, run: Path, tmp_path: Path):
    save(tmp_path / "other", make(width=9), 1)
    found = fk("resume-check", run, "--like", tmp_path / "other" / "step-00000001" / "optimizer.bpk", "--json").json
    assert [part["name"] for part in found["parts"]] == ["optimizer"]
    assert found["unchecked"] == ["model", "scheduler", "state"]
    assert found["exact"] is False


def test_burns_folders_are_compared_by_what_burn_keeps(fk: Run, tmp_path: Path):
    for name, width in (("run", 8), ("same", 8), ("other", 9)):
        save(tmp_path / name, make(width=width, layout="burn"), 1, layout="burn")
    assert fk("resume-check", tmp_path / "run", "--like", tmp_path / "same").code == 0
    done = fk("resume-check", tmp_path / "run", "--like", tmp_path / "other")
    assert done.code == 1
    assert "2 that cannot be taken over" in done.text


def test_what_has_no_part_in_common_could_not_be_compared(fk: Run, run: Path, tmp_path: Path):
    firekeep.save_file({}, tmp_path / "empty.bpk")
    done = fk("resume-check", run, "--like", tmp_path / "empty.bpk")
    assert (done.code, done.out) == (2, "")
    assert "nothing of the kind" in done.err


def test_a_step_that_is_not_there_is_told_with_those_that_are(fk: Run, run: Path):
    (run / "step-00000003" / "model.bpk").unlink()
    assert fk("resume-check", run, "--like", run, "--json").json["step"] == 2
    for arguments in ((run, "--step", 3), (run / "step-00000003",)):
        done = fk("resume-check", *arguments, "--like", run)
        assert (done.code, done.out) == (2, "")
        assert "holds steps 1, 2; 'step-00000003' is incomplete: model.bpk is not there" in done.err
    done = fk("resume-check", run, "--like", run, "--step", "last")
    assert done.code == 2
    assert "--step last: a number, 'latest' or 'best'" in done.err


def test_a_folder_without_steps_names_the_one_below_that_has_them(fk: Run, run: Path, tmp_path: Path):
    run.rename(tmp_path / "checkpoint")
    done = fk("resume-check", tmp_path, "--like", tmp_path / "checkpoint")
    assert done.code == 2
    assert f"There are steps in {tmp_path / 'checkpoint'}: give that." in done.err


def test_the_check_needs_no_framework(run: Path):
    import subprocess
    import sys

    code = f"from firekeep.cli import run; import sys; assert run(['resume-check', {str(run)!r}, '--like', {str(run)!r}]) == 0; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_across_frameworks_the_files_do_not_tell_and_what_would_is_said(fk: Run, run: Path, tmp_path: Path):
    jax = pytest.importorskip("jax")
    optax = pytest.importorskip("optax")
    tree = {"params": {"0": {"kernel": jax.numpy.ones((4, 6)), "bias": jax.numpy.ones(6)}}}
    tx = optax.adamw(1e-3)
    state = training.TrainingState(model=tree, optimizer=tx.init(tree["params"]), tx=tx, rng=False)
    with CheckpointManager(tmp_path / "linen", durable=False) as manager:
        manager.save(state, step=1)
    done = fk("resume-check", run, "--like", tmp_path / "linen")
    assert (done.code, done.err) == (1, "")
    told = " ".join(done.text.split())
    assert "the files alone do not tell" in told
    assert "0 states" not in told
    assert "optimizer: 6 states of AdamW, as 'torch' has them, and 'linen' there" in told
    assert "dry_run=True" in told, "the code is Python's, and no option of the command"


def test_what_it_tells_to_run_works(run: Path):
    files = {file.stem: firekeep.open(file) for file in (run / "step-00000003").glob("*.bpk")}
    assert make().restore(files, dry_run=True).ok
    for file in files.values():
        file.close()
