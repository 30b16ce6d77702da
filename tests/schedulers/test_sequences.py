from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def rates(schedule, count):
    return [schedule.step() for _ in range(count)]


def test_a_line_ends_and_stays():
    assert rates(Linear(initial=0.9, final=0.5, iterations=4), 6) == [
        0.5 - (0.5 - 0.9) / 4 * left for left in (4, 3, 2, 1, 0, 0)
    ]
    assert rates(Linear(initial=0.9, final=0.5, iterations=4), 6) == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.5, 0.5])


def test_the_counter_of_a_line_counts_what_is_left():
    line = Linear(initial=0.9, final=0.5, iterations=4)
    assert line.to_record_scalars()["remaining_iters"].value == 5
    rates(line, 2)
    assert line.to_record_scalars()["remaining_iters"].value == 3


def test_a_wave_goes_up_again_unless_it_is_clamped():
    wave = rates(Cosine(initial=0.5, lowest=0.1, iterations=2), 5)
    assert wave == [0.1 + 0.5 * (0.5 - 0.1) * (1 + math.cos(n / 2 * math.pi)) for n in range(5)]
    assert wave == pytest.approx([0.5, 0.3, 0.1, 0.3, 0.5])
    assert rates(Cosine(initial=0.5, lowest=0.1, iterations=2, clamp=True), 5) == wave[:3] + [wave[2]] * 2


def test_a_decay_multiplies_so_that_rounding_adds_up():
    expected, rate = [], 0.3 / 0.7
    for _ in range(40):
        rate *= 0.7
        expected.append(rate)
    assert rates(Exponential(initial=0.3, gamma=0.7), 40) == expected
    assert expected != [0.3 * 0.7**n for n in range(40)]


def test_noam_rises_and_falls():
    schedule = Noam(factor=2.0, warmup=3, model_size=16)
    expected = [2.0 * 16**-0.5 * min(n**-0.5, n * 3.0**-1.5) for n in map(float, range(1, 8))]
    assert rates(schedule, 7) == expected
    assert max(expected) == expected[2]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"initial": 0.5, "size": 3}, [0.5] * 3 + [0.05] * 3 + [0.005] * 3),
        ({"initial": 0.1, "size": 2, "gamma": 2.0}, [0.1, 0.1, 0.2, 0.2, 0.4, 0.4]),
        ({"initial": 3.1, "size": 1, "gamma": 1.0}, [3.1] * 3),
    ],
)
def test_stairs(settings, expected):
    assert rates(Step(**settings), len(expected)) == pytest.approx(expected)


def test_stairs_take_powers_by_squaring():
    gamma = 0.9
    squared = [1.0, gamma, gamma * gamma, gamma * (gamma * gamma), (gamma * gamma) * (gamma * gamma)]
    assert rates(Step(initial=1.0, size=1, gamma=gamma), 5) == squared
    seventh = rates(Step(initial=1.0, size=1, gamma=gamma), 8)[7]
    two = gamma * gamma
    assert seventh == (gamma * two) * (two * two)


def test_one_after_another():
    schedule = Sequential(
        [
            Linear(initial=0.1, final=0.3, iterations=2),
            Exponential(initial=0.5, gamma=0.5),
            Cosine(initial=0.8, iterations=2),
        ],
        milestones=[2, 5],
    )
    assert rates(schedule, 8) == pytest.approx([0.1, 0.2, 0.5, 0.25, 0.125, 0.8, 0.4, 0.0], abs=1e-16)


@pytest.mark.parametrize(
    ("reduction", "expected", "empty"), [("product", 0.125, 1.0), ("sum", 0.75, 0.0), ("average", 0.375, 0.0)]
)
def test_several_at_once(reduction, expected, empty):
    assert Composed([Constant(rate=0.5), Constant(rate=0.25)], reduction=reduction).step() == expected
    assert Composed([], reduction=reduction).step() == empty


def test_an_average_divides_before_it_adds():
    parts = [0.1, 0.2, 0.7]
    average = Composed([Constant(rate=part) for part in parts], reduction="average").step()
    assert average == 0.1 / 3 + 0.2 / 3 + 0.7 / 3


class Containing:
    def __init__(self, text):
        self.text = text

    def matches(self, *, param_id=None, path=None):
        return path is not None and self.text in path


def test_groups_step_together_and_the_last_that_matches_decides():
    groups = Groups(
        Constant(rate=1.0),
        [
            (Containing("w"), Exponential(initial=0.5, gamma=0.5)),
            (Containing("wx"), Step(initial=0.25, size=1, gamma=0.5)),
        ],
    )
    with pytest.raises(SchedulerError, match=r"step\(\)"):
        groups.rate_of(path="w")
    assert groups.step() == 1.0
    assert groups.rates == (1.0, 0.5, 0.25)
    groups.step()
    assert [groups.rate_of(path=path) for path in ("b", "w", "wx", None)] == [1.0, 0.25, 0.125, 1.0]


MAKERS = {
    "constant": lambda: Constant(rate=0.1),
    "linear": lambda: Linear(initial=0.9, final=0.1, iterations=7),
    "cosine": lambda: Cosine(initial=0.9, lowest=0.1, iterations=7),
    "exponential": lambda: Exponential(initial=0.9, gamma=0.83),
    "noam": lambda: Noam(factor=1.0, warmup=5, model_size=32),
    "step": lambda: Step(initial=0.9, size=3, gamma=0.7),
    "sequential": lambda: Sequential([MAKERS["linear"](), MAKERS["cosine"]()], milestones=[5]),
    "composed": lambda: Composed([MAKERS["linear"](), MAKERS["sequential"]()], reduction="product"),
    "groups": lambda: Groups(MAKERS["composed"](), [(Containing("w"), MAKERS["noam"]())]),
}


@pytest.mark.parametrize("kind", MAKERS)
@given(before=st.integers(0, 20), after=st.integers(1, 20))
def test_a_run_in_two_parts_is_the_run_in_one(kind, before, after):
    whole = rates(MAKERS[kind](), before + after)
    first, second = MAKERS[kind](), MAKERS[kind]()
    parts = rates(first, before)
    report = second.load_scalars(first.to_record_scalars())
    assert report.ok
    assert not report.unknown
    assert parts + rates(second, after) == whole


@pytest.mark.parametrize(
    "make",
    [
        lambda: Linear(initial=0.0, final=0.1, iterations=1),
        lambda: Linear(initial=1.5, final=0.1, iterations=1),
        lambda: Linear(initial=0.5, final=-0.1, iterations=1),
        lambda: Linear(initial=0.5, final=0.1, iterations=0),
        lambda: Linear(initial=0.5, final=0.1, iterations=2.0),
        lambda: Cosine(initial=0.5, lowest=0.6, iterations=1),
        lambda: Cosine(initial=math.nan, iterations=1),
        lambda: Cosine(initial=0.5, iterations=True),
        lambda: Exponential(initial=0.5, gamma=0.0),
        lambda: Exponential(initial=0.5, gamma=1.1),
        lambda: Noam(factor=1.0, warmup=0),
        lambda: Noam(factor=math.inf),
        lambda: Noam(factor=1.0, model_size=0),
        lambda: Step(initial=0.5, size=0),
        lambda: Step(initial=-0.5, size=1),
        lambda: Constant(rate=-1.0),
        lambda: Constant(rate="0.1"),
        lambda: Constant(rate=10**400),
        lambda: Sequential([], milestones=[]),
        lambda: Sequential([Constant(rate=1)], milestones=[1]),
        lambda: Sequential([Constant(rate=1), Constant(rate=1), Constant(rate=1)], milestones=[2, 2]),
        lambda: Sequential([Constant(rate=1), Constant(rate=1)], milestones=[0]),
        lambda: Sequential([0.1], milestones=[]),
        lambda: Sequential([one := Constant(rate=1), one], milestones=[1]),
        lambda: Composed([], reduction="prod"),
        lambda: Groups(Constant(rate=1), [("w", Constant(rate=1))]),
        lambda: Groups(0.1),
    ],
)
def test_settings_that_cannot_be_are_refused_when_it_is_built(make):
    with pytest.raises(SchedulerError):
        make()


def test_composed_has_no_reduction_of_its_own():
    with pytest.raises(TypeError, match="reduction"):
        Composed([Constant(rate=1)])
