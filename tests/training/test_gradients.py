"""A run that is saved in the middle of a step, while it gathers gradients, goes on to the last bit, or says why it does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from firekeep.checkpoint import CheckpointManager, check_resume
from firekeep.errors import RuleError, UnsupportedError
from firekeep.training import RestoreError, TrainingState
from training.states import net, opened, restore, write

MICRO, EVERY, UPTO = 5, 4, 14
"""Micro-steps before the save, in a step of the optimizer, and of the whole run."""


def fresh(seed, **more):
    model = net(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    more = {"gradients": True, **more}
    return TrainingState(model=model, optimizer=optimizer, values={"micro": 0}, **more)


def go_on(state, upto):
    """Gather gradients of batches that follow from their number alone, and step at every fourth one."""
    while state.values["micro"] < upto:
        batch = torch.randn(5, 3)
        (state.model(batch).square().mean() / EVERY).backward()
        state.values["micro"] += 1
        if state.values["micro"] % EVERY == 0:
            nn.utils.clip_grad_norm_(state.model.parameters(), 0.05)
            state.optimizer.step()
            state.optimizer.zero_grad()
    return state


def gradients(state):
    return {
        name: None if one.grad is None else one.grad.numpy().tobytes() for name, one in state.model.named_parameters()
    }


def bits(state):
    held = state.optimizer.state_dict()["state"]
    return gradients(state), [one.numpy().tobytes() for one in state.model.state_dict().values()], repr(held)


@pytest.fixture(scope="module")
def straight():
    torch.manual_seed(0)
    return bits(go_on(fresh(0), UPTO))


@pytest.mark.parametrize("options", [{}, {"background": True}, {"layout": "burn"}])
def test_a_run_saved_in_the_middle_of_a_step_goes_on_as_the_straight_one(tmp_path, straight, options):
    burn = {"layout": "burn"} if "layout" in options else {}
    with CheckpointManager(tmp_path, durable=False, **options) as manager:
        torch.manual_seed(0)
        state = go_on(fresh(0, **burn), MICRO)
        waiting = gradients(state)
        manager.save(state, step=1)
        assert bits(go_on(state, UPTO)) == straight, "what is saved is a copy"
        manager.wait()
        second = fresh(99, **burn)
        go_on(second, 2)  # it has gradients of its own, which are gone
        report = manager.restore(second).report
        assert gradients(second) == waiting
        assert report.exact
        assert report.gradients == tuple(name for name, _ in second.model.named_parameters())
        assert "gradients: of 6 parameters" in str(report)
        assert bits(go_on(second, UPTO)) == straight
        assert check_resume(tmp_path, tmp_path).exact


def test_without_them_the_run_is_another_one(tmp_path, straight):
    """This is what is told by the page about exact resume, and the reason for the option."""
    torch.manual_seed(0)
    write(go_on(fresh(0, gradients=False), MICRO), tmp_path)
    second = fresh(99, gradients=False)
    restore(second, tmp_path)
    assert set(gradients(second).values()) == {None}
    assert bits(go_on(second, UPTO)) != straight


def test_a_parameter_without_a_gradient_has_none_again(tmp_path):
    state = fresh(0)
    state.model[0].weight.grad = torch.full((4, 3), 2.0)
    state.model[1].bias.grad = torch.zeros(4)
    write(state, tmp_path)
    second = go_on(fresh(1), 1)
    report = restore(second, tmp_path)
    assert report.gradients == ("0.weight", "1.bias")
    assert gradients(second) == gradients(state)
    assert second.model[0].weight.grad is not None
    assert second.model[2].weight.grad is None


def test_they_lie_as_their_parameters_do(tmp_path):
    """Norms are summed in the order of the memory."""
    state = TrainingState(model=nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last), gradients=True)
    state.model(torch.randn(1, 3, 4, 4)).sum().backward()
    write(state, tmp_path)
    second = TrainingState(model=nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last), gradients=True)
    restore(second, tmp_path)
    mine, theirs = second.model.weight.grad, state.model.weight.grad
    assert mine.stride() == theirs.stride() == second.model.weight.stride()
    assert torch.equal(mine, theirs)


def test_a_dry_run_and_a_refused_restore_leave_them(tmp_path):
    torch.manual_seed(0)
    write(go_on(fresh(0), MICRO), tmp_path)
    second = go_on(fresh(1), 2)
    before = gradients(second)
    assert restore(second, tmp_path, dry_run=True).gradients == tuple(before)
    other = TrainingState(model=net(1, width=7), gradients=True)
    other.model(torch.ones(3, 3)).sum().backward()
    held = gradients(other)
    with pytest.raises(RestoreError):
        restore(other, tmp_path)
    assert (gradients(second), gradients(other)) == (before, held)


def test_a_checkpoint_without_them_is_told(tmp_path):
    write(fresh(0, gradients=False), tmp_path)
    second = go_on(fresh(1), 1)
    report = restore(second, tmp_path)
    assert report.fresh == {"gradients": "the checkpoint was saved without them, so there are none"}
    assert not report.exact
    assert set(gradients(second).values()) == {None}


def test_a_state_that_does_not_ask_for_them_is_told(tmp_path):
    write(go_on(fresh(0), 1), tmp_path)
    second = go_on(fresh(1, gradients=False), 1)
    report = restore(second, tmp_path)
    assert report.dropped == {"gradients": "the state was made without gradients=True"}
    assert (report.exact, report.gradients) == (False, None)
    assert set(gradients(second).values()) == {None}


class Renamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net(5)
        self.more = nn.Linear(2, 2)


def test_they_follow_their_parameters_to_other_names(tmp_path):
    state = go_on(TrainingState(model=net(0), optimizer=None, gradients=True, values={"micro": 0}), 1)
    write(state, tmp_path)
    second = TrainingState(model=Renamed(), gradients=True, rename=[(r"^", "body.")], strict=False)
    report = restore(second, tmp_path)
    assert report.gradients == tuple(f"body.{name}" for name, _ in state.model.named_parameters())
    assert {name: held for name, held in gradients(second).items() if held is not None} == {
        f"body.{name}": held for name, held in gradients(state).items()
    }


def test_what_does_not_fit_is_refused_or_left_out_with_the_reason(tmp_path):
    state = go_on(TrainingState(model=net(0), gradients=True, values={"micro": 0}), 1)
    write(state, tmp_path)
    model = net(0)
    model[2] = nn.Linear(4, 3)
    other = TrainingState(model=model, gradients=True)
    with pytest.raises(RestoreError) as caught:
        restore(other, tmp_path)
    assert "gradients: that of '2.weight' has no place: it has shape [2, 4], and the parameter [3, 4]" in " ".join(
        caught.value.report.refusals
    )
    report = restore(other, tmp_path, strict=False)
    assert "'2.weight'" in report.fresh["gradients"]
    assert "and 1 more" in report.fresh["gradients"]
    assert report.gradients == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert not report.exact
    assert other.model[2].weight.grad is None


def test_gradients_of_another_dtype_are_not_cast_unseen(tmp_path):
    write(go_on(TrainingState(model=net(0), gradients=True, values={"micro": 0}), 1), tmp_path)
    other = TrainingState(model=net(0).double(), gradients=True)
    with pytest.raises(RestoreError) as caught:
        restore(other, tmp_path)
    (refusal,) = caught.value.report.refusals
    assert "it is of F32, and the parameter takes gradients of torch.float64" in refusal


def test_each_of_several_models_has_a_file_of_them(tmp_path):
    def make(seed):
        torch.manual_seed(seed)
        models = {"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)}
        return TrainingState(model=models, gradients=True)

    state = make(0)
    state.model["two"](torch.ones(1, 2)).sum().backward()
    write(state, tmp_path)
    with opened(tmp_path) as files:
        assert {name: len(file) for name, file in files.items() if name.startswith("gradients")} == {
            "gradients-one": 0,
            "gradients-two": 2,
        }
    second = make(1)
    second.model["one"](torch.ones(1, 2)).sum().backward()
    report = restore(second, tmp_path)
    assert report.exact
    assert report.gradients == ("two.weight", "two.bias")
    assert second.model["one"].weight.grad is None
    assert torch.equal(second.model["two"].weight.grad, state.model["two"].weight.grad)


def test_parameters_within_wrappers_are_found_outside_them(tmp_path):
    state = TrainingState(model=nn.DataParallel(net(0)), gradients=True)
    state.model.module(torch.ones(3, 3)).sum().backward()
    write(state, tmp_path)
    second = TrainingState(model=net(1), gradients=True)
    assert restore(second, tmp_path).gradients == tuple(name for name, _ in second.model.named_parameters())
    assert torch.equal(second.model[0].weight.grad, state.model.module[0].weight.grad)


def test_gradients_that_no_file_can_hold_are_refused_by_name(tmp_path):
    state = TrainingState(model=nn.Embedding(4, 2, sparse=True), gradients=True)
    state.model(torch.tensor([1])).sum().backward()
    with pytest.raises(UnsupportedError, match=r"'weight'.*torch.sparse_coo"):
        state.sections()


def test_a_model_that_is_not_of_pytorch_has_none(tmp_path):
    import numpy as np

    with pytest.raises(RuleError, match="only parameters of PyTorch have gradients") as caught:
        TrainingState(model={"w": np.zeros(2)}, gradients=True)
    assert "MultiSteps" in caught.value.remedy


def test_a_later_version_of_the_file_is_told(tmp_path):
    state = fresh(0)
    sections = {section.name: section for section in state.sections()}
    sections["gradients"].contents.metadata["firekeep.gradients"] = "2"
    state.sections = lambda: list(sections.values())
    write(state, tmp_path)
    with pytest.raises(RestoreError) as caught:
        restore(fresh(1), tmp_path)
    assert caught.value.report.refusals == (
        "gradients: the checkpoint has no gradients there that this firekeep knows",
    )
