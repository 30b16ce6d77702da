"""Numbers of Python's beside arrays of JAX: kept to the last bit, in dataclasses that JAX takes apart, whatever their width."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import pytest

jax = pytest.importorskip("jax")
struct = pytest.importorskip("flax.struct")

import jax.numpy as jnp  # noqa: E402

import firekeep  # noqa: E402
from firekeep.checkpoint import CheckpointManager  # noqa: E402
from firekeep.training import TrainingState  # noqa: E402


@struct.dataclass
class Struct:
    x: Any
    w: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    x: Any
    w: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed:
    x: Any
    w: Any


@dataclasses.dataclass(frozen=True)
class Unknown:
    """Frozen, and nothing that JAX knows."""

    x: Any
    w: Any


class Color(enum.IntEnum):
    RED = 1
    BLUE = 2


def restored(folder, then, now):
    CheckpointManager(folder, durable=False).save(TrainingState(model=then, rng=False), step=1)
    state = TrainingState(model=now, rng=False)
    return CheckpointManager(folder).restore(state).report, state.model


@pytest.mark.parametrize("kind", [Struct, Registered, Fixed])
@pytest.mark.parametrize(
    ("then", "now"),
    [
        (0.1, 0.0),
        (1e300, 0.5),
        (0.0, 0.1),
        (2**40, 0),
        (-(2**63), 3),
        (3, 2**40),
        (True, False),
        (Color.BLUE, Color.RED),
    ],
)
def test_numbers_come_back_to_the_last_bit(tmp_path, kind, then, now):
    report, model = restored(tmp_path, kind(then, jnp.arange(3.0)), kind(now, jnp.zeros(3)))
    assert (model.x, type(model.x)) == (then, type(then))
    assert model.w.tolist() == [0, 1, 2]
    assert report.exact, report.reasons()


@pytest.mark.parametrize("kind", [Struct, Registered])
def test_a_count_that_was_an_array_comes_back_as_the_number_that_there_is_now(tmp_path, kind):
    report, model = restored(tmp_path, kind(jnp.asarray(7), jnp.ones(3)), kind(0, jnp.zeros(3)))
    assert (model.x, type(model.x)) == (7, int)
    assert report.exact


def test_a_number_that_no_file_holds_is_refused_by_name(tmp_path):
    with pytest.raises(firekeep.UnsupportedError, match=r"'x'.*more than 64 bits"):
        restored(tmp_path, Struct(2**70, jnp.ones(3)), Struct(0, jnp.ones(3)))


def test_a_frozen_dataclass_that_jax_does_not_know_is_made_anew(tmp_path):
    now = Unknown({"b": jnp.zeros(2)}, jnp.zeros(3))
    report, model = restored(tmp_path, Unknown({"b": jnp.ones(2)}, jnp.arange(3.0)), now)
    assert isinstance(model, Unknown)
    assert (model.x["b"].tolist(), model.w.tolist()) == ([1, 1], [0, 1, 2])
    assert report.exact
    assert now.w.tolist() == [0, 0, 0]
    with pytest.warns(firekeep.LeftOutWarning, match=r"'model\.x' \(int\)"):
        TrainingState(model=Unknown(3, jnp.ones(3)), rng=False).sections()


def test_values_whose_dtype_gives_way_do_so_again(tmp_path):
    values = {"rate": jnp.asarray(1.5), "whole": jnp.full(2, 3), "firm": jnp.ones(2), "key": jax.random.key(1)}
    with CheckpointManager(tmp_path) as manager:
        manager.save(TrainingState(model={"w": jnp.ones(2)}, values=dict(values)), step=1)
        state = TrainingState(model={"w": jnp.zeros(2)})
        assert manager.restore(state).report.exact
    weak = [name for name, one in state.values.items() if getattr(one, "weak_type", False)]
    assert weak == ["rate", "whole"]
    half = jnp.ones(2, jnp.bfloat16)
    assert (state.values["rate"] * half).dtype == (values["rate"] * half).dtype
