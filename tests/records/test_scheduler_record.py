from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import firekeep
from firekeep.errors import ExistsError, MetadataError, ScalarError, WrongFormatError
from firekeep.records._scheduler_record import LrSchedulerRecord
from firekeep.records._state import StateError, UInt
from firekeep.scalars import Scalar
from firekeep.schedulers import (
    Composed,
    Cosine,
    Exponential,
    Groups,
    Linear,
    SchedulerError,
    Sequential,
    Step,
    as_torch,
)

SCALARS_ONLY = (
    "4e52554201007d000000"
    "a26774656e736f7273a0677363616c617273a56e302e63757272656e745f69746572a16455496e74"
    "1bffffffffffffffff66312e68616c66a165466c6f6174f938006d312e70726576696f75735f6c72"
    "a165466c6f6174fb3f847ae147ae147b6a322e697465725f696478a163496e742064666c6167a164"
    "426f6f6cf5"
)
COSINE = "4e525542010029000000a26774656e736f7273a0677363616c617273a16e302e63757272656e745f69746572a16455496e7400"


def file_of(table: str) -> bytes:
    return bytes.fromhex(table).ljust(256, b"\0")


def test_a_file_of_scalars_is_burns_to_the_byte():
    record = LrSchedulerRecord()
    for key, value in [
        ("flag", True),
        ("2.iter_idx", -1),
        ("1.previous_lr", 0.01),
        ("1.half", 0.5),
        ("0.current_iter", Scalar("uint", 2**64 - 1)),
    ]:
        record = record.with_scalar(key, value)
    assert record.to_bytes().hex() == file_of(SCALARS_ONLY).hex()
    assert LrSchedulerRecord.from_bytes(file_of(SCALARS_ONLY)) == record


def test_a_cosine_of_burns_learner_after_its_first_step():
    schedule = Groups(Cosine(initial=0.5, lowest=0.1, iterations=2))
    schedule.step()
    assert LrSchedulerRecord.of(schedule).to_bytes().hex() == file_of(COSINE).hex()
    again = LrSchedulerRecord().with_record("0", LrSchedulerRecord.of(schedule.children[0]))
    assert again.to_bytes() == file_of(COSINE)


def test_scalars_are_asked_for_by_key():
    record = LrSchedulerRecord({"step": 3})
    assert record.scalar("step") == Scalar("int", 3)
    with pytest.raises(ScalarError, match="there are 'step'"):
        record.scalar("stop")
    with pytest.raises(ScalarError, match="there are none"):
        LrSchedulerRecord().scalar("stop")
    with pytest.raises(ScalarError, match="'x'"):
        record.with_scalar("x", "text")
    with pytest.raises(MetadataError):
        LrSchedulerRecord({}, {"a": 1})
    assert record.with_scalar("step", Scalar("uint", 4)).scalar("step") == Scalar("uint", 4)
    assert record.scalar("step") == Scalar("int", 3)


def test_records_inside_records():
    inner = LrSchedulerRecord({"a": 1, "b.c": 2}, {"note": "x"})
    outer = LrSchedulerRecord({"1.gone": 5, "10.stays": 6}).with_record("1", inner)
    assert dict(outer.scalars) == {"10.stays": Scalar("int", 6), "1.a": Scalar("int", 1), "1.b.c": Scalar("int", 2)}
    assert outer.record("1") == inner
    assert outer.record("1").record("b") == LrSchedulerRecord({"c": 2})
    assert outer.record("2") == LrSchedulerRecord()


@dataclass
class Mine:
    steps: UInt
    best: float | None


@dataclass
class WithTensor:
    steps: UInt
    average: np.ndarray


def test_states_of_ones_own():
    record = LrSchedulerRecord.from_state(Mine(3, None))
    assert dict(record.scalars) == {"steps": Scalar("uint", 3)}
    assert record.into_state(Mine) == Mine(3, None)
    with pytest.raises(StateError, match="'steps'"):
        LrSchedulerRecord({"best": 1.0}).into_state(Mine)
    with pytest.raises(StateError, match=r"no tensors.*'average'"):
        LrSchedulerRecord.from_state(WithTensor(3, np.zeros(2)))


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("lr", "lr.bpk"),
        ("lr.bpk", "lr.bpk"),
        ("lr-1.0", "lr-1.0.bpk"),
        ("lr.v1", "lr.v1.bpk"),
        (".hidden", ".hidden.bpk"),
    ],
)
def test_the_suffix_is_added_unless_it_is_there(tmp_path, given, written):
    record = LrSchedulerRecord({"step": 3})
    (tmp_path / "lr").mkdir(exist_ok=True)
    assert record.save(tmp_path / given) == tmp_path / written
    assert LrSchedulerRecord.load(tmp_path / given) == record
    with pytest.raises(ExistsError):
        record.save(tmp_path / given, overwrite=False)


def test_a_file_without_the_suffix_is_read_where_it_is_the_only_one(tmp_path):
    (tmp_path / "scheduler.v1").write_bytes(file_of(COSINE))
    assert LrSchedulerRecord.load(tmp_path / "scheduler.v1").scalar("0.current_iter") == Scalar("uint", 0)


def test_other_records_are_refused_and_named(tmp_path):
    model = firekeep.save_bytes({"w": np.zeros(2)}, format="burnpack")
    with pytest.raises(WrongFormatError, match="record of a model, with 1 tensor"):
        LrSchedulerRecord.from_bytes(model)
    sgd = firekeep.save_bytes({}, format="burnpack", scalars={"42.__rank": 1})
    with pytest.raises(WrongFormatError, match="record of an optimizer"):
        LrSchedulerRecord.from_bytes(sgd)
    path = tmp_path / "x.safetensors"
    firekeep.save_file({"w": np.zeros(2)}, path)
    with pytest.raises(WrongFormatError, match="safetensors"):
        LrSchedulerRecord.load(path)


def three(schedule):
    for _ in range(3):
        schedule.step()
    return schedule


def make():
    return Composed(
        [
            Sequential([Linear(initial=1, final=0.5, iterations=2), Step(initial=1, size=2)], milestones=[2]),
            Cosine(initial=1, iterations=9),
        ],
        reduction="product",
    )


def test_a_schedule_comes_back_from_its_own_level_and_from_the_learners():
    expected = three(three(make()))
    for wrap, unwrap in [(False, False), (True, True), (True, False), (False, True)]:
        taken = three(make())
        record = LrSchedulerRecord.from_bytes(LrSchedulerRecord.of(Groups(taken) if wrap else taken).to_bytes())
        target = make()
        report = record.restore(Groups(target) if unwrap else target)
        assert report.ok
        assert not report.unknown
        assert bool(report.notes) == (wrap != unwrap)
        assert three(target).to_record_scalars() == expected.to_record_scalars()


def test_a_record_of_another_schedule_is_told():
    report = LrSchedulerRecord.of(Exponential(initial=0.5, gamma=0.5)).restore(Cosine(initial=1, iterations=3))
    assert (report.ok, report.missing, report.unknown) == (False, ("current_iter",), ("previous_lr",))


def test_schedules_beside_torch_and_torchs_own():
    parameter = torch.nn.Parameter(torch.zeros(1))
    schedule = as_torch(Cosine(initial=0.5, iterations=4), torch.optim.SGD([parameter], lr=0.1))
    three(schedule)
    assert LrSchedulerRecord.of(schedule) == LrSchedulerRecord({"current_iter": Scalar("uint", 2)})
    other = as_torch(Cosine(initial=0.5, iterations=4), torch.optim.SGD([parameter], lr=0.1))
    assert LrSchedulerRecord.of(schedule).restore(other).ok
    assert other.get_last_lr() == schedule.get_last_lr()


def test_what_is_no_schedule_is_refused():
    for call in (LrSchedulerRecord.of, LrSchedulerRecord().restore):
        with pytest.raises(SchedulerError, match="no schedule that is known"):
            call(3)
