"""States of optax that are put into those of other transformations."""

from __future__ import annotations

import jax.numpy as jnp
import optax
import pytest

from firekeep.training import RestoreError, TrainingState
from training.states import restore, write


def made(tx, *, value=1.0, steps=1, **more):
    params = {"a": jnp.full(3, value), "b": jnp.full(2, value)}
    state = tx.init(params)
    for _ in range(steps):
        _, state = tx.update(params, state, params)
    return TrainingState(model=params, optimizer=state, tx=tx, rng=False, **more)


def masked(**chosen):
    return optax.masked(optax.adam(0.1), chosen)


SCHEDULED = optax.adam(optax.linear_schedule(0.1, 0.0, 10))
AVERAGED = optax.chain(optax.adam(0.1), optax.ema(0.9))
INJECTED = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (optax.adam(0.1), SCHEDULED, "1 part that only one of the record and the state of optax has ('1.count')"),
        (SCHEDULED, optax.adam(0.1), "1 part that only one of the record and the state of optax has ('1.count')"),
        (optax.adam(0.1), AVERAGED, "2 parts that only one of the record and the state of optax has ('EmaState.ema'"),
        (AVERAGED, optax.adam(0.1), "2 parts that only one of the record and the state of optax has ('EmaState.ema'"),
        (optax.adam(0.1), INJECTED, "6 parts that only one of the record and the state of optax has ('count'"),
        (
            masked(a=True, b=False),
            optax.adam(0.1),
            "1 parameter of the optimizer that the record has no state of ('b')",
        ),
        (optax.adam(0.1), masked(a=True, b=False), "1 state that cannot be taken over"),
    ],
)
def test_parts_that_only_one_side_has_are_refused(before, after, told, tmp_path):
    write(made(before), tmp_path)
    state = made(after, value=0.0, steps=0)
    held = state.optimizer
    with pytest.raises(RestoreError) as caught:
        restore(state, tmp_path)
    said = " ".join(str(caught.value).split())
    assert told in said
    assert "with strict=False what fits is taken over" in said
    assert state.optimizer is held
    assert not restore(state, tmp_path, strict=False).exact


@pytest.mark.parametrize("tx", [SCHEDULED, AVERAGED, INJECTED, masked(a=True, b=False)])
def test_the_same_transformations_go_on_exactly(tx, tmp_path):
    write(made(tx), tmp_path)
    assert restore(made(tx, value=0.0, steps=0), tmp_path).exact


def test_options_of_transformations_without_a_state_are_told(tmp_path):
    plain, decayed = optax.adam(0.1), optax.adamw(0.1, weight_decay=0.5)
    write(made(plain), tmp_path / "plain")
    write(made(decayed), tmp_path / "decayed")
    assert restore(made(decayed, steps=0), tmp_path / "plain").optimizer.changed == (
        "weight_decay was in no transformation, and is 0.5 now",
    )
    assert restore(made(plain, steps=0), tmp_path / "decayed").optimizer.changed == (
        "weight_decay was 0.5, and is in no transformation now",
    )
    untold = made(decayed, steps=0)
    untold.tx = None
    assert restore(untold, tmp_path / "plain").exact


def test_a_transformation_without_a_state_is_no_other_one(tmp_path):
    write(made(optax.adam(0.1)), tmp_path)
    assert restore(made(optax.chain(optax.clip(1.0), optax.adam(0.1)), steps=0), tmp_path).exact
