"""Translated weights give the same numbers: PyTorch's layers against those of Flax NNX, Flax Linen and Equinox, and back again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from firekeep.arrays import as_array, entry_of
from firekeep.rules.layout import tell_facts, translate, translate_layers
from firekeep.slots import Layer
from rules.layout.samples import state

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")
linen = pytest.importorskip("flax.linen")
eqx = pytest.importorskip("equinox")
jnp = jax.numpy

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
TOLERANCE = {"rtol": 0, "atol": 3e-6}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(5)


def scrambled(module):
    """Give every tensor random numbers, biases and statistics too."""
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) + 0.5 if "var" in name else torch.randn_like(value) * 0.4)
    return module.eval()


def moved(entries, kind, target, facts, *, source="torch", lossy=False):
    """Translate, and see that the way back is what was, counters of batches apart."""
    layer = Layer(kind=kind, path="", facts=facts)
    there = translate(entries, [layer], source=source, target=target)
    assert not there.problems
    (again,) = tell_facts(translate_layers([layer], source=source, target=target), there.entries, target)
    fresh = [entry_of(entry.name, as_array(entry)) for entry in there.entries]
    back = translate(fresh, [again], source=target, target=source)
    assert not back.problems
    if not lossy:
        kept = [entry for entry in entries if not entry.name.endswith("num_batches_tracked")]
        assert sorted(entry.name for entry in back.entries) == sorted(entry.name for entry in kept)
        after = {entry.name: as_array(entry) for entry in back.entries}
        for entry in kept:
            assert after[entry.name].shape == entry.shape
            assert after[entry.name].tobytes() == as_array(entry).tobytes(), entry.name
    return {entry.name: as_array(entry) for entry in there.entries}


def into_nnx(module, arrays):
    """Put arrays into all weights and statistics of an nnx module, by name; none may be left over on either side."""
    flat = {
        ".".join(map(str, path)): one
        for path, one in nnx.to_flat_state(nnx.state(module))
        if not issubclass(one.type, nnx.RngState)
    }
    assert {name: one[...].shape for name, one in flat.items()} == {n: a.shape for n, a in arrays.items()}
    for path, variable in nnx.iter_graph(module):
        name = ".".join(map(str, path))
        if isinstance(variable, nnx.Variable) and name in arrays:
            variable[...] = jnp.asarray(arrays[name])
    return module


def into_linen(module, arrays, *inputs, **call):
    """Give variables of a Linen module these arrays: statistics are a collection of their own."""
    variables = module.init(jax.random.key(0), *inputs, **call)
    used = set()

    def pick(path, old):
        name = ".".join(str(key.key) for key in path)
        used.add(name)
        assert arrays[name].shape == old.shape, name
        return jnp.asarray(arrays[name])

    made = {group: jax.tree_util.tree_map_with_path(pick, dict(tree)) for group, tree in variables.items()}
    assert used == set(arrays)
    return made


def into_equinox(module, arrays):
    """Give all arrays of an Equinox module, by attribute."""

    def pick(path, old):
        name = ".".join(getattr(key, "name", str(getattr(key, "idx", ""))) for key in path)
        if not eqx.is_array(old):
            return old
        assert arrays[name].shape == old.shape, name
        used.add(name)
        return jnp.asarray(arrays[name])

    used: set[str] = set()
    made = jax.tree_util.tree_map_with_path(pick, module)
    assert used == set(arrays)
    return made


def same(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected.detach().numpy(), **TOLERANCE)


def channels_last(x):
    return jnp.moveaxis(jnp.asarray(x.numpy()), 1, -1)


def channels_first(y):
    return jnp.moveaxis(y, -1, 1)


def test_linear():
    module, x = scrambled(torch.nn.Linear(5, 3)), torch.randn(4, 5)
    flax = into_nnx(nnx.Linear(5, 3, rngs=nnx.Rngs(0)), moved(state(module), "linear", "flax", {}))
    same(flax(x.numpy()), module(x))
    dense = linen.Dense(3)
    same(dense.apply(into_linen(dense, moved(state(module), "linear", "linen", {}), x.numpy()), x.numpy()), module(x))
    equinox = into_equinox(eqx.nn.Linear(5, 3, key=jax.random.key(0)), moved(state(module), "linear", "equinox", {}))
    same(jax.vmap(equinox)(x.numpy()), module(x))


def test_a_linear_that_is_stored_in_by_out_already():
    weight, bias, x = torch.randn(5, 3), torch.randn(3), torch.randn(4, 5)
    entries = [entry_of("weight", weight.numpy()), entry_of("bias", bias.numpy())]
    flax = into_nnx(nnx.Linear(5, 3, rngs=nnx.Rngs(0)), moved(entries, "linear_in_out", "flax", {}))
    same(flax(x.numpy()), x @ weight + bias)
    equinox = into_equinox(eqx.nn.Linear(5, 3, key=jax.random.key(0)), moved(entries, "linear_in_out", "equinox", {}))
    same(jax.vmap(equinox)(x.numpy()), x @ weight + bias)


def test_maps_with_several_axes():
    module, x = scrambled(torch.nn.Linear(6, 8)), torch.randn(4, 6)
    facts = {"in_shape": "2,3", "out_shape": "4,2"}
    arrays = moved(state(module), "linear", "flax", facts)
    flax = into_nnx(nnx.LinearGeneral((2, 3), (4, 2), axis=(-2, -1), rngs=nnx.Rngs(0)), arrays)
    same(flax(x.numpy().reshape(4, 2, 3)).reshape(4, 8), module(x))
    einsum = into_nnx(nnx.Einsum("bij,ijkl->bkl", (2, 3, 4, 2), (4, 2), rngs=nnx.Rngs(0)), arrays)
    same(einsum(x.numpy().reshape(4, 2, 3)).reshape(4, 8), module(x))
    dense = linen.DenseGeneral((4, 2), axis=(-2, -1))
    given = into_linen(dense, moved(state(module), "linear", "linen", facts), x.numpy().reshape(4, 2, 3))
    same(dense.apply(given, x.numpy().reshape(4, 2, 3)).reshape(4, 8), module(x))


def test_embedding():
    module, x = scrambled(torch.nn.Embedding(7, 3)), torch.tensor([1, 6, 0])
    entries = state(module)
    same(into_nnx(nnx.Embed(7, 3, rngs=nnx.Rngs(0)), moved(entries, "embedding", "flax", {}))(x.numpy()), module(x))
    embed = linen.Embed(7, 3)
    same(embed.apply(into_linen(embed, moved(entries, "embedding", "linen", {}), x.numpy()), x.numpy()), module(x))
    equinox = into_equinox(eqx.nn.Embedding(7, 3, key=jax.random.key(0)), moved(entries, "embedding", "equinox", {}))
    same(jax.vmap(equinox)(x.numpy()), module(x))


@pytest.mark.parametrize(("dims", "groups", "channels"), [(1, 1, 6), (2, 1, 6), (2, 2, 6), (2, 4, 8), (3, 2, 6)])
def test_convolutions(dims, groups, channels):
    kernel, stride, dilation, padding = (2, 3, 2)[:dims], (1, 2, 1)[:dims], (2, 1, 1)[:dims], (1, 2, 0)[:dims]
    make = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[dims - 1]
    options = {"stride": stride, "dilation": dilation, "groups": groups}
    module, x = scrambled(make(4, channels, kernel, padding=padding, **options)), torch.randn(2, 4, *(6, 7, 5)[:dims])
    kind, facts, pads = f"conv{dims}d", {"groups": groups}, [(p, p) for p in padding]
    theirs = {"strides": stride, "kernel_dilation": dilation, "feature_group_count": groups, "padding": pads}
    entries = state(module)
    flax = into_nnx(nnx.Conv(4, channels, kernel, rngs=nnx.Rngs(0), **theirs), moved(entries, kind, "flax", facts))
    same(channels_first(flax(channels_last(x))), module(x))
    conv = linen.Conv(channels, kernel, **theirs)
    given = into_linen(conv, moved(entries, kind, "linen", facts), channels_last(x))
    same(channels_first(conv.apply(given, channels_last(x))), module(x))
    own = (eqx.nn.Conv1d, eqx.nn.Conv2d, eqx.nn.Conv3d)[dims - 1]
    equinox = own(4, channels, kernel, padding=padding, key=jax.random.key(0), **options)
    same(jax.vmap(into_equinox(equinox, moved(entries, kind, "equinox", facts)))(x.numpy()), module(x))


@pytest.mark.parametrize(("dims", "turned"), [(1, False), (2, False), (3, False), (1, True), (2, True)])
def test_transposed_convolutions(dims, turned):
    kernel, stride, dilation = (2, 3, 2)[:dims], (3, 2, 2)[:dims], (2, 1, 1)[:dims]
    padding, extra = (1, 0, 1)[:dims], (1, 1, 0)[:dims]
    make = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)[dims - 1]
    options = {"stride": stride, "dilation": dilation, "output_padding": extra, "padding": padding}
    module, x = scrambled(make(4, 6, kernel, **options)), torch.randn(2, 4, *(4, 5, 3)[:dims])
    each = zip(kernel, dilation, padding, extra, strict=True)
    pads = [(d * (k - 1) - p, d * (k - 1) - p + e) for k, d, p, e in each]
    kind, facts = f"conv_transpose{dims}d", {"transpose_kernel": turned}
    theirs = {"strides": stride, "kernel_dilation": dilation, "padding": pads, "transpose_kernel": turned}
    arrays = moved(state(module), kind, "flax", facts)
    flax = into_nnx(nnx.ConvTranspose(4, 6, kernel, rngs=nnx.Rngs(0), **theirs), arrays)
    same(channels_first(flax(channels_last(x))), module(x))
    conv = linen.ConvTranspose(6, kernel, **theirs)
    given = into_linen(conv, moved(state(module), kind, "linen", facts), channels_last(x))
    same(channels_first(conv.apply(given, channels_last(x))), module(x))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_of_equinox_have_groups(dims, groups):
    kernel, stride = (2, 3, 2)[:dims], (3, 2, 2)[:dims]
    make = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)[dims - 1]
    own = (eqx.nn.ConvTranspose1d, eqx.nn.ConvTranspose2d, eqx.nn.ConvTranspose3d)[dims - 1]
    options = {"stride": stride, "padding": (1, 0, 1)[:dims], "output_padding": 1, "groups": groups}
    module, x = scrambled(make(4, 6, kernel, **options)), torch.randn(2, 4, *(4, 5, 3)[:dims])
    arrays = moved(state(module), f"conv_transpose{dims}d", "equinox", {"groups": groups})
    equinox = into_equinox(own(4, 6, kernel, key=jax.random.key(0), **options), arrays)
    same(jax.vmap(equinox)(x.numpy()), module(x))


@pytest.mark.parametrize("side", ["flax", "linen", "keras"])
def test_transposed_convolutions_in_groups_are_refused_elsewhere(side):
    entries = state(torch.nn.ConvTranspose2d(4, 6, 3, groups=2))
    found = translate(
        entries,
        [Layer(kind="conv_transpose2d", path="", facts={"groups": 2})],
        source="torch",
        target=side,
    )
    assert not found.entries
    assert all("ConvTranspose has no groups" in why for why in found.problems.values())


NORMS = {
    "batch_norm": (
        lambda: torch.nn.BatchNorm1d(6),
        lambda: nnx.BatchNorm(6, use_running_average=True, rngs=nnx.Rngs(0)),
    ),
    "layer_norm": (lambda: torch.nn.LayerNorm(6), lambda: nnx.LayerNorm(6, epsilon=1e-5, rngs=nnx.Rngs(0))),
    "group_norm": (
        lambda: torch.nn.GroupNorm(3, 6),
        lambda: nnx.GroupNorm(6, 3, epsilon=1e-5, use_fast_variance=False, rngs=nnx.Rngs(0)),
    ),
    "rms_norm": (lambda: torch.nn.RMSNorm(6, eps=1e-5), lambda: nnx.RMSNorm(6, epsilon=1e-5, rngs=nnx.Rngs(0))),
}
LINEN_NORMS = {
    "batch_norm": lambda: linen.BatchNorm(use_running_average=True),
    "layer_norm": lambda: linen.LayerNorm(epsilon=1e-5),
    "group_norm": lambda: linen.GroupNorm(3, epsilon=1e-5, use_fast_variance=False),
    "rms_norm": lambda: linen.RMSNorm(epsilon=1e-5),
}


@pytest.mark.parametrize("kind", NORMS)
def test_norms(kind):
    make, own = NORMS[kind]
    module, x = scrambled(make()), torch.randn(4, 6)
    same(into_nnx(own(), moved(state(module), kind, "flax", {}))(x.numpy()), module(x))
    norm = LINEN_NORMS[kind]()
    same(norm.apply(into_linen(norm, moved(state(module), kind, "linen", {}), x.numpy()), x.numpy()), module(x))


def test_instance_norm():
    module, x = scrambled(torch.nn.InstanceNorm2d(6, affine=True)), torch.randn(2, 6, 3, 4)
    arrays = moved(state(module), "instance_norm", "flax", {})
    flax = into_nnx(nnx.InstanceNorm(6, epsilon=1e-5, rngs=nnx.Rngs(0)), arrays)
    same(channels_first(flax(channels_last(x))), module(x))
    norm = eqx.nn.GroupNorm(6, 6)  # Equinox has no class of the name, and this is one
    same(jax.vmap(into_equinox(norm, moved(state(module), "instance_norm", "equinox", {})))(x.numpy()), module(x))


def test_norms_of_equinox():
    x = torch.randn(4, 6)
    for kind, module, own in (
        ("layer_norm", torch.nn.LayerNorm(6), eqx.nn.LayerNorm(6)),
        ("group_norm", torch.nn.GroupNorm(3, 6), eqx.nn.GroupNorm(3, 6)),
        ("rms_norm", torch.nn.RMSNorm(6, eps=1e-5), eqx.nn.RMSNorm(6)),
    ):
        arrays = moved(state(scrambled(module)), kind, "equinox", {})
        same(jax.vmap(into_equinox(own, arrays))(x.numpy()), module(x))
    module = scrambled(torch.nn.LayerNorm((2, 3)))
    arrays = moved(state(module), "layer_norm", "equinox", {})
    same(
        jax.vmap(into_equinox(eqx.nn.LayerNorm((2, 3)), arrays))(x.numpy().reshape(4, 2, 3)), module(x.reshape(4, 2, 3))
    )


def test_a_bias_of_an_rms_norm_is_made_up_and_dropped_while_it_is_zero():
    layer = Layer(kind="rms_norm", path="n")
    made = translate([entry_of("n.weight", np.ones(3, "f4"))], [layer], source="torch", target="equinox")
    assert as_array(made.entries[1]).tolist() == [0, 0, 0]
    assert "made up" in made.steps["n.bias"]
    back = translate(made.entries, [layer], source="equinox", target="torch")
    assert [entry.name for entry in back.entries] == ["n.weight"]
    assert "all zeros" in back.no_counterpart["n.bias"]
    full = [made.entries[0], entry_of("n.bias", np.ones(3, "f4"))]
    refused = translate(full, [layer], source="equinox", target="burn")
    assert "Burn's RMSNorm has no bias" in refused.problems["n.bias"]
    without = Layer(kind="rms_norm", path="n", facts={"use_bias": False})
    made = translate([entry_of("n.weight", np.ones(3, "f4"))], [without], source="torch", target="equinox")
    assert [entry.name for entry in made.entries] == ["n.weight"]


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_batch_norm_of_equinox_keeps_statistics_in_a_state(mode):
    module, x = scrambled(torch.nn.BatchNorm1d(6)), torch.randn(4, 6)
    arrays = moved(state(module), "batch_norm", "equinox", {"mode": mode, "momentum": "0.99"})
    norm, kept = eqx.nn.make_with_state(eqx.nn.BatchNorm)(6, "batch", mode=mode)
    held = {name: array for name, array in arrays.items() if name in ("weight", "bias")}
    norm = into_equinox(norm, held)
    stats = tuple(jnp.asarray(arrays[f"{mode}_state_index.{place}"]) for place in (0, 1))
    kept = kept.set(norm.batch_state_index if mode == "batch" else norm.ema_state_index, stats)
    if mode == "batch":
        kept = kept.set(norm.batch_counter, jnp.array(int(arrays["batch_counter"])))  # of a weak type, as it was
    else:
        assert arrays["ema_first_time_index"].dtype == bool
        kept = kept.set(norm.ema_first_time_index, jnp.asarray(arrays["ema_first_time_index"]))
    run = jax.vmap(lambda v, s: norm(v, s, inference=True)[0], in_axes=(0, None), axis_name="batch")
    same(run(x.numpy(), kept), module(x))


def test_statistics_that_equinox_has_begun_lose_the_bias_of_their_beginning():
    norm, kept = eqx.nn.make_with_state(eqx.nn.BatchNorm)(6, "batch", mode="batch", momentum=0.9)
    x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32) * 2 + 1
    step = jax.vmap(lambda v, s: norm(v, s), in_axes=(0, None), out_axes=(0, None), axis_name="batch")
    for _ in range(3):
        _, kept = step(x, kept)
    mean, var = kept.get(norm.batch_state_index)
    arrays = {"weight": norm.weight, "bias": norm.bias, "batch_state_index.0": mean, "batch_state_index.1": var}
    arrays["batch_counter"] = kept.get(norm.batch_counter)
    layer = Layer(kind="batch_norm", path="", facts={"mode": "batch", "momentum": "0.9"})
    entries = [entry_of(name, np.asarray(array)) for name, array in arrays.items()]
    back = translate(entries, [layer], source="equinox", target="torch")
    assert list(back.no_counterpart) == ["batch_counter"]
    module = torch.nn.BatchNorm1d(6).eval()
    module.load_state_dict({e.name: torch.from_numpy(as_array(e).copy()) for e in back.entries}, strict=False)
    run = jax.vmap(lambda v, s: norm(v, s, inference=True)[0], in_axes=(0, None), axis_name="batch")
    same(run(x, kept), module(torch.from_numpy(x)))
    alone = translate(entries[:3], [layer], source="equinox", target="torch")
    assert "depends on the steps" in alone.problems["batch_state_index.0"]


def test_prelu_has_one_slope_in_jax():
    module, x = scrambled(torch.nn.PReLU()), torch.randn(4, 6)
    same(into_nnx(nnx.PReLU(), moved(state(module), "prelu", "flax", {}))(x.numpy()), module(x))
    prelu = linen.PReLU()
    same(prelu.apply(into_linen(prelu, moved(state(module), "prelu", "linen", {}), x.numpy()), x.numpy()), module(x))
    same(into_equinox(eqx.nn.PReLU(), moved(state(module), "prelu", "equinox", {}))(x.numpy()), module(x))
    for side in ("flax", "linen", "equinox"):
        many = translate(state(torch.nn.PReLU(6)), [Layer(kind="prelu", path="")], source="torch", target=side)
        assert "one slope for all channels" in many.problems["weight"]


@pytest.mark.parametrize("other", [False, True])
def test_attention(other):
    sizes = {"kdim": 5, "vdim": 7} if other else {}
    module = scrambled(torch.nn.MultiheadAttention(8, 2, batch_first=True, **sizes))
    query, key = torch.randn(2, 3, 8), torch.randn(2, 4, sizes.get("kdim", 8))
    value = torch.randn(2, 4, sizes.get("vdim", 8))
    expected, entries = module(query, key, value, need_weights=False)[0], state(module)
    arrays = moved(entries, "multi_head_attention", "flax", {"num_heads": 2})
    options = {"in_kv_features": 5} if other else {}
    if not other:  # nnx has one size for keys and values
        flax = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0), **options)
        same(into_nnx(flax, arrays)(query.numpy(), key.numpy(), value.numpy()), expected)
    linens = linen.MultiHeadDotProductAttention(2, qkv_features=8, out_features=8)
    given = [part.numpy() for part in (query, key, value)]
    arrays = moved(entries, "multi_head_attention", "linen", {"num_heads": 2})
    same(linens.apply(into_linen(linens, arrays, *given), *given), expected)
    biases = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}
    own = eqx.nn.MultiheadAttention(
        2, 8, key_size=sizes.get("kdim"), value_size=sizes.get("vdim"), key=jax.random.key(0), **biases
    )
    arrays = moved(entries, "multi_head_attention", "equinox", {})
    same(jax.vmap(into_equinox(own, arrays))(*given), expected)


def test_heads_are_told_by_the_target_and_never_guessed():
    entries = state(torch.nn.MultiheadAttention(8, 2), "a")
    layer = Layer(kind="multi_head_attention", path="a")
    bare = translate(entries, [layer], source="torch", target="flax")
    assert "how many heads" in bare.problems["a.in_proj_weight"]
    flax = translate(entries, [Layer(kind=layer.kind, path="a", facts={"num_heads": 2})], source="torch", target="flax")
    (told,) = tell_facts([layer], flax.entries, "flax")
    assert told.facts == {"num_heads": 2}
    odd = translate(entries, [Layer(kind=layer.kind, path="a", facts={"num_heads": 3})], source="torch", target="keras")
    assert "cannot be cut into 3 heads" in odd.problems["a.in_proj_weight"]


def test_attention_that_pytorch_cannot_have_is_refused():
    layer = Layer(kind="multi_head_attention", path="a")
    shapes = {"query.kernel": (8, 2, 4), "key.kernel": (8, 1, 4), "value.kernel": (8, 1, 4), "out.kernel": (2, 4, 8)}
    entries = [entry_of(f"a.{name}", np.zeros(shape, "f4")) for name, shape in shapes.items()]
    found = translate(entries, [layer], source="flax", target="torch")
    assert not found.entries
    assert "8, 4, 4 features" in found.problems["a.key.kernel"]
    normed = [entry_of("a.query_ln.scale", np.ones(4, "f4"))]
    layers = [layer, Layer(kind="layer_norm", path="a.query_ln", parent=layer)]
    found = translate(normed, layers, source="flax", target="torch")
    assert "normalize_qk" in found.problems["a.query_ln.scale"]
    kdim = state(torch.nn.MultiheadAttention(8, 2, kdim=5), "a")
    flax = translate(kdim, [Layer(kind=layer.kind, path="a", facts={"num_heads": 2})], source="torch", target="flax")
    found = translate(flax.entries, [layer], source="flax", target="burn")
    assert "kdim, vdim" in found.problems["a.key.kernel"]


CELLS = {
    "lstm": (torch.nn.LSTM, "plain", nnx.LSTMCell, linen.LSTMCell),
    "optimized": (torch.nn.LSTM, "optimized", nnx.OptimizedLSTMCell, linen.OptimizedLSTMCell),
    "gru": (torch.nn.GRU, "plain", nnx.GRUCell, linen.GRUCell),
    "rnn": (torch.nn.RNN, "plain", nnx.SimpleCell, linen.SimpleCell),
}


def recurrent(name, **options):
    make, cell, own, lin = CELLS[name]
    kind = "lstm" if name == "optimized" else name
    return scrambled(make(3, 4, batch_first=True, **options)), kind, {"cell": cell, "wrapped": False}, own, lin


def without_hidden_bias(module):
    for name, bias in module.named_parameters():
        if name.startswith("bias_hh"):
            bias.data[8:] = 0
    return module


@pytest.mark.parametrize("name", CELLS)
def test_cells_of_nnx(name):
    module, kind, facts, own, _ = recurrent(name)
    if kind == "gru":
        without_hidden_bias(module)
    xs = torch.randn(2, 5, 3)
    arrays = moved(state(module), kind, "flax", facts, lossy=True)
    cell = into_nnx(own(3, 4, rngs=nnx.Rngs(0)), arrays)
    same(nnx.RNN(cell)(xs.numpy()), module(xs)[0])
    whole = nnx.RNN(own(3, 4, rngs=nnx.Rngs(0)))
    same(
        into_nnx(whole, moved(state(module), kind, "flax", {**facts, "wrapped": True}, lossy=True))(xs.numpy()),
        module(xs)[0],
    )


@pytest.mark.parametrize("name", CELLS)
def test_cells_of_nnx_in_both_directions(name):
    module, kind, facts, own, _ = recurrent(name, bidirectional=True)
    if kind == "gru":
        without_hidden_bias(module)
    xs = torch.randn(2, 5, 3)
    both = nnx.Bidirectional(*(nnx.RNN(own(3, 4, rngs=nnx.Rngs(0))) for _ in range(2)), rngs=nnx.Rngs(0))
    arrays = moved(state(module), kind, "flax", {**facts, "bidirectional": True}, lossy=True)
    same(into_nnx(both, arrays)(xs.numpy()), module(xs)[0])


@pytest.mark.parametrize("name", CELLS)
def test_cells_of_linen(name):
    module, kind, _, _, own = recurrent(name)
    xs, arrays = torch.randn(2, 5, 3), moved(state(module), kind, "linen", {"wrapped": False}, lossy=True)
    cell = own(4)
    carry = cell.initialize_carry(jax.random.key(0), (2, 3))
    given = into_linen(cell, arrays, carry, xs.numpy()[:, 0])
    found = []
    for step in range(5):
        carry, y = cell.apply(given, carry, xs.numpy()[:, step])
        found.append(y)
    same(jnp.stack(found, 1), module(xs)[0])
    whole = linen.RNN(own(4))
    wrapped = moved(state(module), kind, "linen", {"wrapped": True}, lossy=True)
    same(whole.apply(into_linen(whole, wrapped, xs.numpy()), xs.numpy()), module(xs)[0])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_cells_of_equinox(kind):
    module, _, _, _, _ = recurrent(kind)
    own = {"lstm": eqx.nn.LSTMCell, "gru": eqx.nn.GRUCell}[kind]
    arrays = moved(state(module), kind, "equinox", {}, lossy=True)
    cell, xs = into_equinox(own(3, 4, key=jax.random.key(0)), arrays), torch.randn(5, 3)
    carry, found = (jnp.zeros(4), jnp.zeros(4)) if kind == "lstm" else jnp.zeros(4), []
    for x in xs.numpy():
        carry = cell(x, carry)
        found.append(carry[0] if kind == "lstm" else carry)
    same(jnp.stack(found), module(xs)[0])
    two = Layer(kind=kind, path="", facts={"bidirectional": True})
    refused = translate(state(module), [two], source="torch", target="equinox")
    assert "one direction" in refused.problems["weight_ih_l0"]


@pytest.mark.parametrize("target", ["flax", "linen", "equinox", "keras"])
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_merged_biases_come_back_as_their_sum_and_zeros(kind, target):
    if (kind, target) == ("rnn", "equinox"):
        return
    module, layer = recurrent(kind)[0], Layer(kind=kind, path="")
    if kind == "gru":
        without_hidden_bias(module)
    there = translate(state(module), [layer], source="torch", target=target)
    back = translate(there.entries, [layer], source=target, target="torch")
    after = {entry.name: as_array(entry) for entry in back.entries}
    before = {entry.name: as_array(entry) for entry in state(module)}
    assert set(after) == set(before)
    if (kind, target) == ("gru", "keras"):  # which keeps both
        assert all(after[name].tobytes() == before[name].tobytes() for name in before)
        return
    assert any(step.startswith("summed from bias_ih_l0") for step in there.steps.values())
    summed = before["bias_ih_l0"] + before["bias_hh_l0"]
    np.testing.assert_array_equal(after["bias_ih_l0"], summed)
    assert not after["bias_hh_l0"].any()
    assert back.steps["bias_ih_l0"].startswith("taken from")
    assert "zero" in back.steps["bias_hh_l0"]
    exact = translate(state(module), [layer], source="torch", target=target, sums="refuse")
    assert "bias_hh_l0" in exact.problems
    refused = translate(there.entries, [layer], source=target, target="torch", sums="refuse")
    assert any("merged" in why for why in refused.problems.values())


def test_a_gru_whose_hidden_bias_is_not_zero_has_no_place_in_nnx_alone():
    entries, layer = state(recurrent("gru")[0]), Layer(kind="gru", path="")
    for target in ("linen", "equinox", "keras"):
        assert not translate(entries, [layer], source="torch", target=target).problems
    found = translate(entries, [layer], source="torch", target="flax")
    assert list(found.problems) == ["bias_hh_l0"]
    assert "Flax NNX's GRUCell has no place" in found.problems["bias_hh_l0"]
    assert sorted(entry.name for entry in found.entries) == ["cell.dense_h.kernel", "cell.dense_i.kernel"]
    burn = translate(entries, [layer], source="torch", target="burn")
    found = translate(burn.entries, [layer], source="burn", target="flax")
    assert list(found.problems) == ["new_gate.hidden_transform.bias"]


def test_flax_and_burn_meet_in_pytorchs_parts():
    module = scrambled(torch.nn.LSTM(3, 4))
    burn = translate(state(module), [Layer(kind="lstm", path="")], source="torch", target="burn")
    arrays = moved(list(burn.entries), "lstm", "flax", {}, source="burn", lossy=True)
    direct = moved(state(module), "lstm", "flax", {}, lossy=True)
    assert {n: a.tolist() for n, a in arrays.items()} == {n: a.tolist() for n, a in direct.items()}
    attention = scrambled(torch.nn.MultiheadAttention(8, 2))
    layer = Layer(kind="multi_head_attention", path="", facts={"num_heads": 2})
    burn = translate(state(attention), [layer], source="torch", target="burn")
    moved(list(burn.entries), "multi_head_attention", "flax", {"num_heads": 2}, source="burn")
    conv = scrambled(torch.nn.ConvTranspose2d(2, 3, (2, 3)))
    moved(state(conv), "conv_transpose2d", "flax", {}, source="burn")
    moved([entry_of("kernel", np.ones((5, 3), "f4"))], "linear", "burn", {}, source="flax")


def test_random_state_of_layers_stays_behind():
    module = nnx.RNN(nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
    entries = [entry_of("rngs.count", np.uint32(3)), entry_of("rngs.key.threefry2x32", np.zeros(2, "u4"))]
    layers = [Layer(kind="lstm", path="", facts={"wrapped": True}), Layer(kind="rng_state", path="rngs")]
    assert module is not None
    found = translate(entries, layers, source="flax", target="torch")
    assert not found.entries
    assert set(found.no_counterpart) == {"rngs.count", "rngs.key.threefry2x32"}


def test_ties_stay_ties():
    weight = np.random.default_rng(0).standard_normal((4, 2, 3, 3)).astype("f4")
    first, second = entry_of("a.weight", weight), entry_of("b.weight", weight)
    layers = [Layer(kind="conv_transpose2d", path=path) for path in "ab"]
    for target in ("flax", "equinox", "keras"):
        there = translate([first, second], layers, source="torch", target=target)
        assert there.entries[0].blob.identity() == there.entries[1].blob.identity() is not None
        back = translate(there.entries, layers, source=target, target="torch")
        assert back.entries[0].blob.identity() == first.blob.identity()
