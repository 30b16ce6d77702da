"""States of optax as records and back, alone and to and from PyTorch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

from firekeep.errors import UnsupportedError
from firekeep.records import OptimizerError, OptimizerRecord
from firekeep.rules import KeyRemapper

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (8, 6))


def start():
    """Parameters named and laid as those of PyTorch's twin."""
    keys = jax.random.split(KEY, 3)
    return {
        "0": {"weight": jax.random.normal(keys[0], (5, 6)) * 0.3, "bias": jnp.zeros(5)},
        "2": {"weight": jax.random.normal(keys[1], (3, 5)) * 0.3, "bias": jax.random.normal(keys[2], (3,))},
    }


def loss(params, x):
    hidden = jnp.tanh(x @ params["0"]["weight"].T + params["0"]["bias"])
    return jnp.mean((hidden @ params["2"]["weight"].T + params["2"]["bias"] - 1.0) ** 2)


QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def stepper(tx):
    """Give a function that makes steps, each on a batch of its own; compiled once, and not well."""

    @partial(jax.jit, compiler_options=QUICKLY)
    def step(params, state, number):
        x = X * (1 + 0.1 * number)
        value, grads = jax.value_and_grad(loss)(params, x)
        more = {"value": value, "grad": grads, "value_fn": lambda p: loss(p, x)} if needs_values(tx) else {}
        updates, state = tx.update(grads, state, params, **more)
        return optax.apply_updates(params, updates), state

    def run(params, state, steps, first=0):
        for number in range(first, first + steps):
            params, state = step(params, state, float(number))
        return params, state

    return run


def needs_values(tx):
    return any("LBFGS" in type(part).__name__ for part in jax.tree.leaves(tx.init(start()), is_leaf=is_state))


def is_state(value):
    return hasattr(value, "_fields") and not any(hasattr(part, "_fields") for part in value)


def matrices(params):
    return jax.tree.map(lambda leaf: leaf.ndim == 2, params)


def labels(params):
    return jax.tree.map(lambda leaf: "matrix" if leaf.ndim == 2 else "rest", params)


SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 0.05, 5, 30)
OPTIMIZERS = {
    "adam": lambda: optax.adam(0.01),
    "adamw": lambda: optax.adamw(SCHEDULE),
    "nadam": lambda: optax.nadam(0.01),
    "amsgrad": lambda: optax.amsgrad(0.01),
    "sgd": lambda: optax.sgd(0.01),
    "momentum": lambda: optax.sgd(0.01, momentum=0.9, nesterov=True),
    "adagrad": lambda: optax.adagrad(0.05),
    "rmsprop": lambda: optax.rmsprop(0.01, centered=True, momentum=0.9),
    "lion": lambda: optax.lion(0.01),
    "lamb": lambda: optax.lamb(0.01),
    "adafactor": lambda: optax.adafactor(0.01, min_dim_size_to_factor=4, momentum=0.9),
    "muon": lambda: optax.contrib.muon(0.01),
    "lbfgs": lambda: optax.lbfgs(memory_size=3),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.ema(0.9), optax.adam(SCHEDULE)),
    "masked": lambda: optax.chain(optax.masked(optax.trace(0.9), matrices), optax.adam(0.01)),
    "multi_transform": lambda: optax.multi_transform(
        {"matrix": optax.adam(SCHEDULE), "rest": optax.sgd(0.01, momentum=0.5)}, labels
    ),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=SCHEDULE, b1=0.8),
    "multi_steps": lambda: optax.MultiSteps(optax.adam(SCHEDULE), every_k_schedule=3),
    "noise": lambda: optax.chain(optax.add_noise(0.01, 0.5, jax.random.key(3)), optax.adam(0.01)),
}


def same(first, second):
    """Compare two trees to the last bit."""
    one, two = (jax.tree_util.tree_flatten_with_path(tree) for tree in (first, second))
    assert one[1] == two[1]
    for (path, left), (_, right) in zip(one[0], two[0], strict=True):
        assert left.dtype == right.dtype, path
        if jax.dtypes.issubdtype(left.dtype, jax.dtypes.prng_key):
            left, right = map(jax.random.key_data, (left, right))
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes(), jax.tree_util.keystr(path)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_saved_and_ten_more_are_twenty(name, tmp_path):
    tx = OPTIMIZERS[name]()
    run = stepper(tx)
    params, state = run(start(), tx.init(start()), 10)
    OptimizerRecord.of(state, params, tx=tx).save(tmp_path / "o.bpk")
    record = OptimizerRecord.load(tmp_path / "o.bpk")
    for like in (tx.init(params), jax.eval_shape(tx.init, params)):
        made, report = record.apply(like, params, tx=tx)
        assert report.exact, str(report)
        same(made, state)
    same(run(params, made, 10, first=10), run(params, state, 10, first=10))


def twin():
    """Make PyTorch's model with the same numbers."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    put(model, start())
    return model


def put(model, params):
    flat = {
        f"{layer}.{name}": torch.tensor(np.asarray(leaf))
        for layer, part in params.items()
        for name, leaf in part.items()
    }
    model.load_state_dict(flat)


def taken(model):
    made = {"0": {}, "2": {}}
    for name, value in model.state_dict().items():
        made[name[0]][name[2:]] = jnp.asarray(value.numpy().copy())
    return made


def run_torch(model, optimizer, steps, first=0):
    for number in range(first, first + steps):
        x = torch.tensor(np.asarray(X * (1 + 0.1 * number)))
        optimizer.zero_grad()
        ((model(x) - 1.0) ** 2).mean().backward()
        optimizer.step()


def apart(model, params):
    """Say how far two models are from each other."""
    return max(
        float(np.abs(model.state_dict()[f"{layer}.{name}"].numpy() - np.asarray(leaf)).max())
        for layer, part in params.items()
        for name, leaf in part.items()
    )


ALIKE = {
    "adam": (lambda p: torch.optim.Adam(p, 0.01), lambda: optax.adam(0.01), 2e-6),
    "adamw": (
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
        lambda: optax.adamw(lambda count: 0.01, weight_decay=0.1),
        2e-6,
    ),
    "sgd": (
        lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True),
        lambda: optax.sgd(0.01, momentum=0.9, nesterov=True),
        1e-6,
    ),
    "adagrad": (
        lambda p: torch.optim.Adagrad(p, 0.05, initial_accumulator_value=0.1, eps=1e-10),
        lambda: optax.adagrad(0.05, eps=1e-12),
        2e-6,
    ),
    "rmsprop": (
        lambda p: torch.optim.RMSprop(p, 0.01),
        lambda: optax.rmsprop(0.01, decay=0.99, eps_in_sqrt=False),
        2e-6,
    ),
    "rmsprop, centered and with momentum": (
        lambda p: torch.optim.RMSprop(p, 0.01, centered=True, momentum=0.8, eps=1e-4),
        lambda: optax.rmsprop(0.01, decay=0.99, eps=1e-4, centered=True, momentum=0.8, eps_in_sqrt=False),
        5e-6,
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_run_goes_from_torch_to_optax(name, tmp_path):
    make, make_tx, within = ALIKE[name]
    model, tx = twin(), make_tx()
    optimizer = make(model.parameters())
    run_torch(model, optimizer, 10)
    OptimizerRecord.of(optimizer, model).save(tmp_path / "o.bpk")
    params = taken(model)
    state, report = OptimizerRecord.load(tmp_path / "o.bpk").apply(tx.init(params), params, tx=tx)
    assert len(report.restored) == 4, str(report)
    run = stepper(tx)
    params, state = run(params, state, 10, first=10)
    run_torch(model, optimizer, 10, first=10)
    assert apart(model, params) < within
    fresh, _ = run(taken(twin()), tx.init(taken(twin())), 20)
    assert apart(model, fresh) < 4 * within  # the rules agree from the start; else the test would show nothing


@pytest.mark.parametrize(("name", "layout"), [*((name, None) for name in ALIKE), ("adamw", "burn"), ("sgd", "burn")])
def test_a_run_goes_from_optax_to_torch(name, layout, tmp_path):
    make, make_tx, within = ALIKE[name]
    tx = make_tx()
    run = stepper(tx)
    params, state = run(start(), tx.init(start()), 10)
    OptimizerRecord.of(state, params, tx=tx).save(tmp_path / "o.bpk")
    model = twin()
    put(model, params)
    optimizer = make(model.parameters())
    report = OptimizerRecord.load(tmp_path / "o.bpk").apply(optimizer, model)
    if (
        layout == "burn"
    ):  # and on through a file of Burn's layout, into a model that has its matrices the other way round
        model_of_nnx = nnx_twin(params)
        optimizer_of_nnx = nnx.Optimizer(model_of_nnx, tx, wrt=nnx.Param)
        report = OptimizerRecord.of(optimizer, model, layout=layout).apply(optimizer_of_nnx, model_of_nnx)
        nnx_steps(model_of_nnx, optimizer_of_nnx, 10, first=10)
        params = {key: {"weight": part.kernel[...].T, "bias": part.bias[...]} for key, part in layers_of(model_of_nnx)}
    assert len(report.restored) == 4, str(report)
    run_torch(model, optimizer, 10, first=10)
    if layout is None:
        params, state = run(params, state, 10, first=10)
    assert apart(model, params) < within


class Twin(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        setattr(self, "0", nnx.Linear(6, 5, rngs=rngs))
        setattr(self, "2", nnx.Linear(5, 3, rngs=rngs))


def nnx_twin(params):
    model = Twin()
    for layer, part in params.items():
        getattr(model, layer).kernel[...] = part["weight"].T
        getattr(model, layer).bias[...] = part["bias"]
    return model


def layers_of(model):
    return [(key, getattr(model, key)) for key in ("0", "2")]


@nnx.jit
def nnx_step(model, optimizer, number):
    def loss(model):
        first, last = (layer for _, layer in layers_of(model))
        return jnp.mean((last(jnp.tanh(first(X * (1 + 0.1 * number)))) - 1.0) ** 2)

    optimizer.update(model, nnx.grad(loss)(model))


def nnx_steps(model, optimizer, steps, first=0):
    for number in range(first, first + steps):
        nnx_step(model, optimizer, float(number))


def matrix_only(params):
    return {layer: {"weight": part["weight"]} for layer, part in params.items()}


def test_muon_goes_both_ways():
    """PyTorch iterates in bfloat16, so the runs are as near as that."""
    whole = matrix_only(start())
    sides = jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0), whole)
    tx = optax.contrib.muon(0.01, muon_weight_dimension_numbers=sides)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5, bias=False), torch.nn.Tanh(), torch.nn.Linear(5, 3, bias=False))
    put(model, whole)
    optimizer = torch.optim.Muon(model.parameters(), lr=0.01, weight_decay=0.0)

    @partial(jax.jit, compiler_options=QUICKLY)
    def step(params, state):
        def loss(params):
            return jnp.mean((jnp.tanh(X @ params["0"]["weight"].T) @ params["2"]["weight"].T - 1.0) ** 2)

        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(10):
        run_torch(model, optimizer, 1)
    params = matrix_only(taken(model))
    state, report = OptimizerRecord.of(optimizer, model).apply(tx.init(params), params, tx=tx)
    assert len(report.restored) == 2
    for _ in range(10):
        params, state = step(params, state)
        run_torch(model, optimizer, 1)
    assert apart(model, params) < 2e-3
    back = torch.optim.Muon(model.parameters(), lr=0.01)
    assert len(OptimizerRecord.of(state, params, tx=tx).apply(back, model).restored) == 2
    held = back.state[model[0].weight]["momentum_buffer"]
    assert np.array_equal(held.numpy(), np.asarray(state.inner_states["muon"].inner_state[0].mu["0"]["weight"]))


REFUSED = {
    "nadam": (lambda p: torch.optim.NAdam(p), lambda: optax.nadam(0.01), "another formula"),
    "nadam, not told": (lambda p: torch.optim.NAdam(p), lambda: optax.adam(0.01), "NAdam"),
    "amsgrad": (lambda p: torch.optim.Adam(p, amsgrad=True), lambda: optax.amsgrad(0.01), "largest of corrected"),
    "amsgrad of torch only": (
        lambda p: torch.optim.Adam(p, amsgrad=True),
        lambda: optax.adam(0.01),
        "largest of corrected|max_exp",
    ),
    "adafactor": (lambda p: torch.optim.Adafactor(p), lambda: optax.adafactor(0.01), "two largest axes"),
    "lbfgs": (lambda p: torch.optim.LBFGS(p), lambda: optax.lbfgs(), "history"),
    "eps in the root": (lambda p: torch.optim.RMSprop(p), lambda: optax.rmsprop(0.01), "inside of the root"),
    "another rule": (lambda p: torch.optim.Adagrad(p), lambda: optax.adam(0.01), "optax.Ad|Adagrad"),
    "a rate that decays": (lambda p: torch.optim.Adagrad(p, lr_decay=0.1), lambda: optax.adagrad(0.05), "lr_decay"),
    "momentum under a schedule": (
        lambda p: torch.optim.RMSprop(p, momentum=0.9),
        lambda: optax.rmsprop(SCHEDULE, momentum=0.9, eps_in_sqrt=False),
        "follows a schedule",
    ),
}


def step_torch(model, optimizer):
    def again():
        optimizer.zero_grad()
        value = ((model(torch.ones(2, 6)) - 1.0) ** 2).mean()
        value.backward()
        return value

    optimizer.step(again)


@pytest.mark.parametrize("name", REFUSED)
def test_what_means_something_else_is_refused_with_the_reason(name):
    make, make_tx, reason = REFUSED[name]
    model, tx, params = twin(), make_tx(), start()
    optimizer = make(model.parameters())
    step_torch(model, optimizer)
    state = tx.init(params)
    with pytest.raises(OptimizerError, match=reason) as caught:
        OptimizerRecord.of(optimizer, model).apply(state, params, tx=tx)
    assert caught.value.report.dropped
    same(state, tx.init(params))


@pytest.mark.parametrize("name", [name for name in REFUSED if "rate" not in name and "torch only" not in name])
def test_it_is_refused_in_the_other_direction_too(name):
    make, make_tx, reason = REFUSED[name]
    model, tx, params = twin(), make_tx(), start()
    optimizer = make(model.parameters())
    with pytest.raises(OptimizerError, match=reason):
        OptimizerRecord.of(tx.init(params), params, tx=tx).apply(optimizer, model)
    assert not any(held for held in optimizer.state.values() if "exp_avg" in held)


def test_parameters_are_told_by_name_whatever_their_order_and_number():
    tx = optax.adamw(SCHEDULE)
    old = {"gone": jnp.ones(2), "kept": jnp.ones((2, 3)), "moved": jnp.full(4, 2.0)}
    state = tx.init(old)
    for _ in range(3):
        _, state = tx.update(old, state, old)
    record = OptimizerRecord.of(state, old, tx=tx)
    new = {"added": jnp.ones(2), "elsewhere": {"moved": jnp.ones(4)}, "kept": jnp.ones((2, 3))}
    made, report = record.apply(tx.init(new), new, tx=tx, rename={"moved": "elsewhere.moved"})
    assert (report.restored, report.fresh, report.orphaned) == (("elsewhere.moved", "kept"), ("added",), ("gone",))
    assert report.renamed == {"moved": "elsewhere.moved"}
    assert not report.exact
    assert any("once for all" in one for one in report.changed)
    same(made[0].mu["elsewhere"]["moved"], state[0].mu["moved"])
    same(made[0].nu["kept"], state[0].nu["kept"])
    same(made[0].mu["added"], jnp.zeros(2))
    assert int(made[0].count) == 3
    assert int(made[2].count) == 3
    with pytest.raises(OptimizerError, match="start anew"):
        record.apply(tx.init(new), new, allow_fresh=False)
    with pytest.raises(OptimizerError, match="1 state that cannot"):
        record.apply(tx.init(new | {"kept": jnp.ones((3, 3))}), new | {"kept": jnp.ones((3, 3))})


def test_names_are_exchanged_by_a_rename_whatever_they_were():
    tx = optax.sgd(0.1, momentum=0.9)
    params = {"a": jnp.ones(2), "b": jnp.full(2, 3.0)}
    _, state = tx.update(params, tx.init(params))
    made, report = OptimizerRecord.of(state, params).apply(
        tx.init(params), params, rename=KeyRemapper.of((), names={"a": "b", "b": "a"})
    )
    same(made[0].trace, {"a": params["b"], "b": params["a"]})
    assert report.ok


def test_a_dry_run_gives_the_state_as_it_was():
    tx = optax.adam(0.1)
    params = {"a": jnp.ones(2)}
    _, state = tx.update(params, tx.init(params))
    like = tx.init(params)
    made, report = OptimizerRecord.of(state, params).apply(like, params, dry_run=True)
    assert made is like
    assert report.dry_run
    assert report.restored == ("a",)


def test_a_transformation_before_the_others_does_not_stand_in_the_way():
    params = {"a": jnp.ones(2)}
    plain, clipped = optax.adam(SCHEDULE), optax.chain(optax.clip(1.0), optax.adam(SCHEDULE))
    _, state = plain.update(params, plain.init(params))
    made, report = OptimizerRecord.of(state, params).apply(clipped.init(params), params)
    assert report.exact, str(report)
    same(made[1], state)


def test_shapes_cannot_start_anew():
    tx = optax.adam(0.1)
    params = {"a": jnp.ones(2)}
    record = OptimizerRecord.of(tx.init(params), params)
    more = params | {"b": jnp.ones(3)}
    with pytest.raises(OptimizerError, match="shapes"):
        record.apply(jax.eval_shape(tx.init, more), more)


@pytest.mark.parametrize("name", ["adamw", "lbfgs", "multi_steps", "muon"])
def test_optimizers_of_nnx_are_changed_themselves(name):
    tx = OPTIMIZERS[name]()
    model = nnx_twin(start())
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    if name != "lbfgs":
        nnx_steps(model, optimizer, 3)
    else:  # every number is another one
        put_numbers(optimizer)
    record = OptimizerRecord.of(optimizer, model)
    other = nnx.Optimizer(model, tx, wrt=nnx.Param)
    report = record.apply(other, model)
    assert report.exact, str(report)
    same(nnx.to_pure_dict(nnx.state(other)), nnx.to_pure_dict(nnx.state(optimizer)))


def put_numbers(optimizer):
    state = nnx.state(optimizer)
    leaves, shape = jax.tree.flatten(state)
    numbered = [jnp.full_like(leaf, place + 1) for place, leaf in enumerate(leaves)]
    nnx.update(optimizer, jax.tree.unflatten(shape, numbered))


def test_what_was_taken_does_not_change_with_the_optimizer():
    model = nnx_twin(start())
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    before = nnx.to_pure_dict(nnx.state(optimizer))
    record = OptimizerRecord.of(optimizer, model)
    nnx_steps(model, optimizer, 1)
    record.apply(optimizer, model)
    same(nnx.to_pure_dict(nnx.state(optimizer)), before)


def test_a_number_of_pythons_in_a_state_is_refused_by_name():
    params = {"a": jnp.ones(2)}
    with pytest.raises(UnsupportedError, match="rate"):
        OptimizerRecord.of({"rate": 0.5, "mu": params}, params)


@pytest.mark.parametrize("name", ["adagrad", "rmsprop, centered and with momentum"])
def test_burn_finds_all_its_fields_and_optax_its_own_again(name):
    _, make_tx, _ = ALIKE[name]
    tx = make_tx()
    model = nnx_twin(start())
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    nnx_steps(model, optimizer, 2)
    record = OptimizerRecord.of(optimizer, model, layout="burn")
    fields = {key.partition(".")[2] for key in (*record.keys(), *record.scalars)}
    wanted = {"lr_decay.sum", "lr_decay.time"} if name == "adagrad" else {"square_avg.square_avg", "momentum.buf"}
    assert wanted <= fields
    other = nnx.Optimizer(model, tx, wrt=nnx.Param)
    assert len(record.apply(other, model).restored) == 4
    for left, right in zip(jax.tree.leaves(nnx.state(other)), jax.tree.leaves(nnx.state(optimizer)), strict=True):
        np.testing.assert_allclose(left, right, rtol=3e-7)


@pytest.mark.filterwarnings("ignore:Burn's Muon")
def test_the_scale_of_a_momentum_has_to_be_known():
    tx = optax.contrib.muon(0.01)
    state = tx.init(start())
    with pytest.raises(UnsupportedError, match="tx="):
        OptimizerRecord.of(state, start(), layout="burn")
    rmsprop = optax.rmsprop(0.01, momentum=0.9)
    with pytest.raises(UnsupportedError, match="tx="):
        OptimizerRecord.of(rmsprop.init(start()), start(), layout="burn")


def test_attention_that_is_fused_in_torch_finds_its_parts():
    torch.manual_seed(0)
    model = torch.nn.ModuleDict(
        {"attn": torch.nn.MultiheadAttention(8, 2, batch_first=True), "conv": torch.nn.Conv1d(8, 4, 2)}
    )
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(2, 5, 8)
    (model["attn"](x, x, x)[0].sum() + model["conv"](x.transpose(1, 2)).square().sum()).backward()
    optimizer.step()
    rngs = nnx.Rngs(0)
    other = nnx.Dict(attn=nnx.MultiHeadAttention(2, 8, rngs=rngs, decode=False), conv=nnx.Conv(8, 4, (2,), rngs=rngs))
    live = nnx.Optimizer(other, optax.adamw(0.01), wrt=nnx.Param)
    report = OptimizerRecord.of(optimizer, model).apply(live, other)
    assert not report.fresh
    assert not report.orphaned
    moments = live.opt_state[0].nu
    fused = optimizer.state[model["attn"].in_proj_weight]["exp_avg_sq"].numpy()
    assert np.array_equal(moments["attn"]["key"]["kernel"][...].reshape(8, 8).T, fused[8:16])
    conv = optimizer.state[model["conv"].weight]["exp_avg_sq"].numpy()
    assert np.array_equal(moments["conv"]["kernel"][...].transpose(2, 1, 0), conv)
    again = torch.optim.AdamW(model.parameters())
    assert len(OptimizerRecord.of(live, other).apply(again, model).restored) == len(optimizer.state)
    for value, held in optimizer.state.items():
        assert torch.equal(again.state[value]["exp_avg"], held["exp_avg"])


def test_a_bias_that_was_merged_starts_anew_by_name():
    model = torch.nn.ModuleDict({"cell": torch.nn.LSTM(3, 4)})
    optimizer = torch.optim.Adam(model.parameters())
    model["cell"](torch.ones(2, 1, 3))[0].sum().backward()
    optimizer.step()
    other = nnx.Dict(cell=nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0)))
    live = nnx.Optimizer(other, optax.adam(0.01), wrt=nnx.Param)
    report = OptimizerRecord.of(optimizer, model).apply(live, other)
    assert report.fresh == ("cell.dense_h.bias",)
    assert not report.exact
