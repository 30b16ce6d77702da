"""What an adversary found in states and checkpoints: moments on the wrong parameter, resumes called exact, hostile files, forks."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from checkpoint.states import State
from firekeep.blobs import MemoryBlob
from firekeep.checkpoint import CheckpointManager, scan_steps
from firekeep.dtypes import BY_NAME
from firekeep.errors import FirekeepError, FormatError, LimitError, RuleError
from firekeep.formats import Contents
from firekeep.records import LrSchedulerRecord, OptimizerError, OptimizerRecord
from firekeep.rules import KeyRemapper
from firekeep.scalars import Scalar
from firekeep.tagged import decode, encode
from records.models import MAKERS, Optim, net, run

# Moments on the wrong parameter, or not as they were


class SameShapes(nn.Module):
    """No Linear, but with parameters that look like those of one."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.zeros(4))


def stepped(model, optimizer):
    for _ in range(2):
        for param in model.parameters():
            param.grad = torch.randn(param.shape)
        optimizer.step()


@pytest.mark.parametrize("kinds", [(lambda: nn.Linear(4, 4), SameShapes), (SameShapes, lambda: nn.Linear(4, 4))])
def test_a_square_moment_is_not_turned_round_because_the_layer_is_of_another_kind(kinds):
    model, other = (nn.Sequential(kind()) for kind in kinds)
    optimizer, restored = (Optim.Adam(one.parameters()) for one in (model, other))
    stepped(model, optimizer)
    record = OptimizerRecord.of(optimizer, model, layout="burn")
    with pytest.raises(OptimizerError, match=r"0\.weight.*turned round|0\.weight.*as it is"):
        record.apply(restored, other)
    report = record.apply(restored, other, allow_dropped=True)
    assert report.restored == ("0.bias",)
    assert not restored.state.get(other[0].weight)


def two():
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    optimizer = Optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    stepped(model, optimizer)
    return model, optimizer


def test_an_id_that_belongs_to_another_name_now_is_followed_and_told():
    model, optimizer = two()
    record = OptimizerRecord.of(optimizer, model)
    buffers = {param: optimizer.state[param]["momentum_buffer"].clone() for param in model.parameters()}
    model["a"], model["b"] = model["b"], model["a"]
    report = record.apply(optimizer, model)
    assert all(torch.equal(optimizer.state[param]["momentum_buffer"], kept) for param, kept in buffers.items())
    assert not report.exact
    assert report.renamed["a.weight"] == "b.weight"
    assert any("'a.weight'" in one and "by its id" in one for one in report.changed)
    assert "under another name now: 4" in str(report)


def test_a_rename_that_contradicts_the_ids_is_told():
    model, optimizer = two()
    names = {"a.weight": "b.weight", "b.weight": "a.weight"}
    report = OptimizerRecord.of(optimizer, model).apply(optimizer, model, rename=KeyRemapper.of((), names=names))
    assert not report.exact
    assert len(report.changed) == 2
    assert "would be 'b.weight' by its name" in report.changed[0]


def test_moments_that_were_cast_are_not_called_exact():
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 2)
    half = net().to(torch.bfloat16)
    restored = Optim.Adam(half.parameters())
    report = OptimizerRecord.of(optimizer, model).apply(restored, half)
    assert restored.state[half.inner.weight]["exp_avg"].dtype == torch.bfloat16
    assert report.ok
    assert not report.exact
    assert len(report.changed) == 6


def test_a_record_of_burn_which_says_no_options_is_not_called_exact():
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 2)
    contents = OptimizerRecord.of(optimizer, model, layout="burn").contents()
    ours = {key: text for key, text in contents.metadata.items() if not key.startswith("firekeep.")}
    report = OptimizerRecord(replace(contents, metadata=ours)).apply(Optim.Adam(model.parameters(), lr=5.0), model)
    assert report.ok
    assert len(report.restored) == 6
    assert not report.exact
    assert "options" in report.groups_kept[0]


def altered(optimizer, model, change):
    contents = OptimizerRecord.of(optimizer, model).contents()
    return OptimizerRecord(replace(contents, entries=[change(entry) for entry in contents.entries]))


def test_moments_of_another_kind_of_numbers_do_not_reach_the_step():
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 1)
    record = altered(optimizer, model, lambda entry: replace(entry, dtype=BY_NAME["I32"]))
    with pytest.raises(OptimizerError, match=r"exp_avg.*I32"):
        record.apply(Optim.Adam(model.parameters()), model)


def test_a_buffer_of_sgd_of_another_shape_does_not_reach_the_step():
    model = net()
    optimizer = MAKERS["SGD, nesterov"](list(model.parameters()))
    run(model, optimizer, 0, 1)
    contents = OptimizerRecord.of(optimizer, model).contents()
    first = contents.entries[0]
    own = first.name.partition(".")[0]
    hidden = f"firekeep.state.{own}.momentum_buffer"
    small = replace(first, name=hidden, shape=(1, 4), blob=MemoryBlob(bytes(16)))
    key = f"firekeep.state.{own}"
    text = json.dumps(json.loads(contents.metadata[key])).replace("momentum.velocity", hidden)
    text = text.replace(f"{own}.{hidden}", hidden)
    made = Contents(
        entries=[small, *contents.entries[1:]], metadata={**contents.metadata, key: text}, scalars=contents.scalars
    )
    restored = MAKERS["SGD, nesterov"](list(model.parameters()))
    with pytest.raises(OptimizerError, match=r"momentum_buffer.*shape"):
        OptimizerRecord(made).apply(restored, model)
    assert not restored.state


@pytest.mark.parametrize(
    "time", [Scalar("int", -5), Scalar("float", 1.5), Scalar("float", float("nan")), Scalar("bool", True)]
)
def test_a_count_of_steps_that_is_none_does_not_reach_the_step(time):
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 1)
    contents = OptimizerRecord.of(optimizer, model, layout="burn").contents()
    ours = {key: text for key, text in contents.metadata.items() if not key.startswith("firekeep.")}
    scalars = {key: time if key.endswith(".time") else value for key, value in contents.scalars.items()}
    restored = Optim.Adam(model.parameters())
    with pytest.raises(OptimizerError, match="dropped, so they start anew: 6"):
        OptimizerRecord(replace(contents, metadata=ours, scalars=scalars)).apply(restored, model)
    assert not restored.state


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 6])
def test_the_length_of_a_list_is_checked_against_the_tensors_there_are(length):
    model = net()
    optimizer = MAKERS["LBFGS"](list(model.parameters()))
    run(model, optimizer, 0, 2)
    contents = OptimizerRecord.of(optimizer, model, layout="burn").contents()
    ours = {key: text for key, text in contents.metadata.items() if not key.startswith("firekeep.")}
    scalars = {**contents.scalars, "history_s.len": Scalar("uint", length)}
    restored = MAKERS["LBFGS"](list(model.parameters()))
    with pytest.raises(OptimizerError, match="history_s"):
        OptimizerRecord(replace(contents, metadata=ours, scalars=scalars)).apply(restored, model)
    assert not restored.state


@pytest.mark.parametrize("step", ["text", [1], None, {"a": 1}])
def test_what_is_no_number_of_steps_does_not_reach_the_step(step):
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 1)
    contents = OptimizerRecord.of(optimizer, model).contents()
    key = next(key for key in contents.metadata if key.startswith("firekeep.state."))
    told = decode(contents.metadata[key])
    told["state"]["step"] = step
    made = OptimizerRecord(replace(contents, metadata={**contents.metadata, key: encode(told)}))
    with pytest.raises(OptimizerError, match="'step'"):
        made.apply(Optim.Adam(model.parameters()), model)


@pytest.mark.parametrize(
    "change",
    [
        {"groups": [["lr", 1]]},
        {"groups": [{"lr": 16**8000}]},
        {"groups": []},
        {"groups": None},
        {"order": ["x"]},
        {"version": "new"},
        {"version": 99},
        {"extra": [1]},
    ],
    ids=["list", "huge", "none", "null", "order", "version", "newer", "extra"],
)
def test_options_that_are_none_are_refused_or_told_and_never_break_off(change):
    model = net()
    optimizer = Optim.Adam(model.parameters())
    run(model, optimizer, 0, 1)
    contents = OptimizerRecord.of(optimizer, model).contents()
    about = {**decode(contents.metadata["firekeep.optimizer"]), **change}
    made = OptimizerRecord(replace(contents, metadata={**contents.metadata, "firekeep.optimizer": encode(about)}))
    try:
        report = made.apply(Optim.Adam(model.parameters()), model)
    except FirekeepError as error:
        assert str(error)  # noqa: PT017 - either is fine, and a traceback of anything else is not
    else:
        assert str(report)
        assert not report.exact or report.notes


# Schedules


@pytest.mark.parametrize("state", [{}, {"last_epoch": 3}])
@pytest.mark.parametrize(
    "make",
    [
        lambda one: lr_scheduler.LambdaLR(one, lambda epoch: 0.9**epoch),
        lambda one: lr_scheduler.CyclicLR(one, 0.01, 0.1),
        lambda one: lr_scheduler.SequentialLR(one, [lr_scheduler.StepLR(one, 2), lr_scheduler.StepLR(one, 3)], [2]),
    ],
)
def test_a_state_that_lacks_what_the_schedule_asks_for_is_refused(make, state):
    optimizer = Optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9)
    schedule = make(optimizer)
    record = LrSchedulerRecord.of(schedule)
    told = {**decode(record.metadata["firekeep.scheduler"]), "state": state}
    before = str(schedule.state_dict())
    report = LrSchedulerRecord(record.scalars, {"firekeep.scheduler": encode(told)}).restore(schedule)
    assert not report.ok
    assert not report.restored
    assert report.refused
    assert str(schedule.state_dict()) == before


def test_a_state_that_the_schedule_itself_refuses_changes_nothing():
    optimizer = Optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer)
    record = LrSchedulerRecord.of(schedule)
    told = decode(record.metadata["firekeep.scheduler"])
    told["state"] |= {"mode": "upwards", "patience": 1234}
    before = str(schedule.state_dict())
    with pytest.raises(FormatError, match="upwards"):
        LrSchedulerRecord(record.scalars, {"firekeep.scheduler": encode(told)}).restore(schedule)
    assert str(schedule.state_dict()) == before


@pytest.mark.parametrize("pairs", [[[3, None]], [[3, "x"]], [["x", 1]], [[3, 1.5]]])
def test_milestones_are_whole_numbers(pairs):
    optimizer = Optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    schedule = lr_scheduler.MultiStepLR(optimizer, [3, 5])
    record = LrSchedulerRecord.of(schedule)
    told = json.loads(record.metadata["firekeep.scheduler"])
    told["state"]["milestones"] = {"$counter": pairs}
    report = LrSchedulerRecord({}, {"firekeep.scheduler": json.dumps(told)}).restore(schedule)
    assert dict(report.refused).keys() == {"milestones"}


# Tagged text


@pytest.mark.parametrize("tag", ["$set", "$frozenset", "$dict", "$ordered", "$counter"])
def test_keys_that_were_chosen_to_have_one_hash_are_refused(tag):
    keys = [number * (2**61 - 1) for number in range(2000)]
    items = keys if tag in ("$set", "$frozenset") else [[key, 0] for key in keys]
    with pytest.raises(LimitError, match="hash"):
        decode(json.dumps({tag: items}))


def test_keys_that_nobody_chose_are_taken():
    value = {number * 2**40 for number in range(-5000, 5000)}
    assert decode(encode(value)) == value


# Directories


@pytest.fixture
def manager(tmp_path):
    made = CheckpointManager(tmp_path / "run")
    made.save(State(1), step=1)
    made.save(State(2), step=2)
    return made


def change_manifest(manager, change):
    path = manager.directory / "step-00000002" / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


MANIFESTS = {
    "above": lambda told: told["files"].update({"../step-00000001/model.bpk": {"nbytes": 1}}),
    "absolute": lambda told: told["files"].update({"/etc/hostname.bpk": {"nbytes": 1}}),
    "backslash": lambda told: told["files"].update({"..\\model.bpk": {"nbytes": 1}}),
    "no files": lambda told: told["files"].clear(),
    "two of a section": lambda told: told["files"]["optimizer.bpk"].update(section="model"),
    "time too large": lambda told: told.update(time=1e308),
    "time nan": lambda told: told.update(time="nan"),
    "time before all": lambda told: told.update(time=-1e18),
    "size": lambda told: told["files"]["model.bpk"].update(nbytes=10**30),
    "metric": lambda told: told.update(metrics={"loss": 10**400}),
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=list(MANIFESTS))
def test_a_manifest_that_was_tampered_with_makes_its_step_incomplete(manager, change):
    change_manifest(manager, change)
    catalog = scan_steps(manager.directory)
    assert [info.step for info in catalog.steps] == [1]
    assert [step.step for step in catalog.incomplete] == [2]
    assert json.dumps(catalog.to_dict())
    assert str(catalog)
    state = State()
    assert manager.restore(state).step == 1
    assert state.value == 1


def test_a_manifest_of_a_gigabyte_is_not_read(manager):
    with (manager.directory / "step-00000002" / "manifest.json").open("r+b") as file:
        file.truncate(1 << 30)
    assert manager.latest().step == 1


def test_the_lock_does_not_write_through_a_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock = tmp_path / "run" / ".firekeep.lock"
    lock.parent.mkdir()
    lock.symlink_to(victim)
    manager = CheckpointManager(lock.parent)
    with pytest.raises(FirekeepError, match=r"lock.*Remove it"):
        manager.save(State(1), step=1)
    assert victim.read_text() == "precious"
    lock.unlink()
    lock.hardlink_to(victim)
    manager.save(State(1), step=1)
    assert victim.read_text() == "precious"
    assert manager.latest().step == 1


@pytest.mark.parametrize("step", [10**18, 10**5000, -(10**5000), -1], ids=["1e18", "1e5000", "-1e5000", "-1"])
def test_numbers_that_no_step_can_have_are_refused_whatever_their_length(manager, step):
    with pytest.raises(RuleError, match="a number from 0"):
        manager.save(State(3), step=step)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("busy", [False, True])
def test_a_fork_of_a_process_that_has_saved_in_the_background_can_save_too(tmp_path, busy):
    manager = CheckpointManager(tmp_path, background=True, durable=False)
    manager.save(State(1, size=1 << 20), step=1)
    if not busy:
        manager.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            manager.save(State(2, size=1 << 20), step=2)
            manager.wait()
        except BaseException:
            os._exit(3)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    manager.close()
    for step in (1, 2):
        state = State()
        manager.restore(state, step)
        assert state.value == step
