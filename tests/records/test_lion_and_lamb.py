"""Lion and LAMB, which PyTorch has not: optimizers of other packages, optax, and Burn's record."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")
pytest.importorskip("torch")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx
from torch import nn

import firekeep
from firekeep.records import OptimizerError, OptimizerRecord

RNG = np.random.default_rng(5)
START = {"fc": {"weight": RNG.normal(size=(4, 3)).astype("f4"), "bias": RNG.normal(size=4).astype("f4")}}
GRADS = [jax.tree.map(lambda leaf: RNG.normal(size=leaf.shape).astype("f4"), START) for _ in range(8)]


class Lion(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for param in self.param_groups[0]["params"]:
            kept = self.state[param].setdefault("exp_avg", torch.zeros_like(param))
            param -= 0.01 * (0.9 * kept + 0.1 * param.grad).sign()
            kept.mul_(0.99).add_(param.grad, alpha=0.01)


class Lamb(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for param in self.param_groups[0]["params"]:
            held = self.state[param]
            if not held:
                held |= {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(param)}
                held["exp_avg_sq"] = torch.zeros_like(param)
            held["step"] += 1
            held["exp_avg"].lerp_(param.grad, 0.1)
            held["exp_avg_sq"].mul_(0.999).addcmul_(param.grad, param.grad, value=0.001)
            first = held["exp_avg"] / (1 - 0.9 ** held["step"])
            second = held["exp_avg_sq"] / (1 - 0.999 ** held["step"])
            update = first / (second.sqrt() + 1e-6)
            param -= 0.01 * (param.norm() / update.norm()) * update


PAIRS = {"lion": (Lion, lambda: optax.lion(0.01, weight_decay=0.0)), "lamb": (Lamb, lambda: optax.lamb(0.01))}


def model():
    made = nn.ModuleDict({"fc": nn.Linear(3, 4)})
    with torch.no_grad():
        for name, value in made["fc"].named_parameters():
            value.copy_(torch.tensor(START["fc"][name]))
    return made


def step_torch(net, optimizer, grads):
    for grad in grads:
        for name, value in net["fc"].named_parameters():
            value.grad = torch.tensor(grad["fc"][name])
        optimizer.step()


def step_optax(tx, params, state, grads):
    for grad in grads:
        updates, state = tx.update(jax.tree.map(jnp.asarray, grad), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def arrays(net):
    return {"fc": {name: jnp.asarray(value.detach().numpy().copy()) for name, value in net["fc"].named_parameters()}}


def near(net, params):
    for name, value in net["fc"].named_parameters():
        np.testing.assert_allclose(value.detach().numpy(), np.asarray(params["fc"][name]), atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", PAIRS)
def test_a_run_goes_to_optax_and_back(name, tmp_path):
    make, make_tx = PAIRS[name]
    net, tx = model(), make_tx()
    optimizer = make(net.parameters())
    step_torch(net, optimizer, GRADS[:3])
    OptimizerRecord.of(optimizer, net).save(tmp_path / "o.bpk")
    params = arrays(net)
    state, report = OptimizerRecord.load(tmp_path / "o.bpk").apply(tx.init(params), params, tx=tx)
    assert len(report.restored) == 2
    params, state = step_optax(tx, params, state, GRADS[3:6])
    step_torch(net, optimizer, GRADS[3:6])
    near(net, params)
    back = make(net.parameters())
    assert len(OptimizerRecord.of(state, params, tx=tx).apply(back, net).restored) == 2
    step_torch(net, back, GRADS[6:])
    params, _ = step_optax(tx, params, state, GRADS[6:])
    near(net, params)


class Twin(nnx.Module):
    def __init__(self):
        self.fc = nnx.Linear(3, 4, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(("name", "fields"), [("lion", {"momentum"}), ("lamb", {"moment_1", "moment_2", "time"})])
def test_a_record_of_burns_goes_between_the_two(name, fields):
    make, make_tx = PAIRS[name]
    net, twin = model(), Twin()
    optimizer, again = make(net.parameters()), make(net.parameters())
    step_torch(net, optimizer, GRADS[:2])
    record = OptimizerRecord.of(optimizer, net, layout="burn")
    held = {key.partition(".")[2] for key in (*record.scalars, *firekeep.load_file(record.to_bytes()))}
    assert held - {"__rank"} == fields | ({"momentum.__rank"} & held)
    state = nnx.Optimizer(twin, make_tx(), wrt=nnx.Param)
    assert len(record.apply(state, twin).restored) == 2
    kept = optimizer.state[net["fc"].weight]
    np.testing.assert_array_equal(state.opt_state[0].mu.fc.kernel[...], kept["exp_avg"].T.numpy())
    back = OptimizerRecord.of(state, twin, layout="burn")
    assert {key.partition(".")[2] for key in (*back.scalars, *firekeep.load_file(back.to_bytes()))} == held
    assert len(back.apply(again, net).restored) == 2
    for param, was in optimizer.state.items():
        for key, value in was.items():
            assert torch.equal(torch.as_tensor(again.state[param][key], dtype=value.dtype), value), key


def test_lamb_without_its_transformation_is_refused_and_says_what_to_give():
    net, tx = model(), optax.lamb(0.01)
    optimizer = Lamb(net.parameters())
    step_torch(net, optimizer, GRADS[:1])
    with pytest.raises(OptimizerError, match=r"(?s)Lamb.*give\s+that\s+too,\s+as\s+tx="):
        OptimizerRecord.of(optimizer, net).apply(tx.init(START), START)
    bare = OptimizerRecord.of(step_optax(tx, START, tx.init(START), GRADS[:1])[1], START)
    with pytest.raises(OptimizerError, match=r"(?s)Lamb.*give\s+that\s+too,\s+as\s+tx="):
        bare.apply(Lamb(net.parameters()), net)


def test_a_bare_state_goes_to_adam_with_a_word_of_what_it_is_taken_for():
    net, tx = model(), optax.adam(0.01)
    state = step_optax(tx, START, tx.init(START), GRADS[:1])[1]
    bare = OptimizerRecord.of(state, START).apply(torch.optim.Adam(net.parameters()), net)
    told = OptimizerRecord.of(state, START, tx=tx).apply(torch.optim.Adam(net.parameters()), net)
    assert len(bare.restored) == len(told.restored) == 2
    assert any("taken for Adam's" in line for line in bare.changed)
    assert not any("taken for Adam's" in line for line in told.changed)


def test_lion_is_not_adam():
    net = model()
    state = optax.lion(0.01).init(START)
    with pytest.raises(OptimizerError, match="Lion"):
        OptimizerRecord.of(state, START).apply(torch.optim.Adam(net.parameters()), net)
