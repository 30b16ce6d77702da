from __future__ import annotations

import pytest

from firekeep.scalars import Scalar
from firekeep.schedulers import (
    Composed,
    Constant,
    Cosine,
    Exponential,
    Groups,
    Linear,
    Noam,
    SchedulerError,
    Sequential,
    Step,
)

FRESH = 2**64 - 1


def test_the_keys_and_kinds_are_those_of_burn():
    assert Constant(rate=1).to_record_scalars() == {}
    assert Linear(initial=1, final=0, iterations=3).to_record_scalars() == {"remaining_iters": Scalar("uint", 4)}
    assert Cosine(initial=1, iterations=3).to_record_scalars() == {"current_iter": Scalar("uint", FRESH)}
    assert Exponential(initial=0.5, gamma=0.5).to_record_scalars() == {"previous_lr": Scalar("float", 1.0)}
    assert Noam(factor=1).to_record_scalars() == {"step": Scalar("float", 0.0)}
    assert Step(initial=1, size=2).to_record_scalars() == {"iter_idx": Scalar("int", -1)}


def test_schedules_inside_others_are_numbered():
    inside = Composed([Constant(rate=1), Linear(initial=1, final=0, iterations=3)], reduction="sum")
    assert list(Groups(inside).to_record_scalars()) == ["0.1.remaining_iters"]
    sequence = Sequential([Cosine(initial=1, iterations=3)], milestones=[])
    assert list(Groups(sequence).to_record_scalars()) == ["0.step", "0.0.current_iter"]


@pytest.mark.parametrize("fresh", [FRESH, 2**32 - 1])
def test_both_widths_of_a_cosine_that_has_not_begun(fresh):
    cosine = Cosine(initial=0.5, lowest=0.1, iterations=2)
    cosine.step()
    cosine.step()
    assert cosine.load_scalars({"current_iter": Scalar("uint", fresh)}).ok
    assert cosine.to_record_scalars() == {"current_iter": Scalar("uint", FRESH)}
    assert cosine.step() == 0.5


def test_plain_numbers_are_taken_too():
    line = Linear(initial=1, final=0, iterations=4)
    assert line.load_scalars({"remaining_iters": 3}).restored == ("remaining_iters",)
    assert line.step() == 0.5


def test_nothing_is_lost_silently():
    schedule = Sequential([Linear(initial=1, final=0, iterations=4), Step(initial=1, size=1)], milestones=[3])
    before = schedule.to_record_scalars()
    report = schedule.load_scalars({"0.remaining_iters": Scalar("float", 1.5), "1.iter_idx": 4, "1.previous_lr": 0.5})
    assert not report.ok
    assert report.restored == ("1.iter_idx",)
    assert report.missing == ("step",)
    assert [key for key, _ in report.refused] == ["0.remaining_iters"]
    assert report.unknown == ("1.previous_lr",)
    assert schedule.to_record_scalars() == {**before, "1.iter_idx": Scalar("int", 4)}
    with pytest.raises(SchedulerError, match="'step'"):
        report.require()


@pytest.mark.parametrize(
    ("schedule", "scalars"),
    [
        (Linear(initial=1, final=0, iterations=4), {"remaining_iters": 6}),
        (Linear(initial=1, final=0, iterations=4), {"remaining_iters": -1}),
        (Linear(initial=1, final=0, iterations=4), {"remaining_iters": True}),
        (Cosine(initial=1, iterations=4), {"current_iter": 1.0}),
        (Exponential(initial=1, gamma=0.5), {"previous_lr": float("nan")}),
        (Exponential(initial=1, gamma=0.5), {"previous_lr": -1.0}),
        (Noam(factor=1), {"step": float("inf")}),
        (Step(initial=1, size=1), {"iter_idx": -2}),
        (Step(initial=1, size=1), {"iter_idx": "3"}),
    ],
)
def test_counters_that_no_run_reaches_are_refused(schedule, scalars):
    before = schedule.to_record_scalars()
    report = schedule.load_scalars(scalars)
    assert [key for key, _ in report.refused] == list(scalars)
    assert report.restored == ()
    assert schedule.to_record_scalars() == before


def test_stairs_go_on_where_a_32_bit_counter_ends():
    stairs = Step(initial=1, size=2**31, gamma=0.5)
    assert stairs.load_scalars({"iter_idx": 2**31 - 2}).ok
    assert [stairs.step(), stairs.step()] == [1.0, 0.5]


def test_a_report_in_words_and_as_data():
    report = Linear(initial=1, final=0, iterations=4).load_scalars({"remaining_iters": 99, "x" * 30: 1, "y" * 60: 2})
    assert all(len(line) <= 80 for line in str(report).splitlines())
    assert "99 steps are left, and this schedule has 4" in str(report)
    data = report.to_dict()
    assert (data["ok"], data["refused"], data["unknown"]) == (
        False,
        {"remaining_iters": "99 steps are left, and this schedule has 4"},
        ["x" * 30, "y" * 60],
    )
