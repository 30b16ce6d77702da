"""Every layer against PyTorch's, with the weights moved from its names and layouts to Burn's: the numbers must be the same."""

from __future__ import annotations

import numpy as np
import pytest

from firekeep import module as fm

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def array(tensor) -> np.ndarray:
    return tensor.detach().numpy()


def randomize(module) -> None:
    """Norms begin as ones and zeros, which would hide a mix-up."""
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.copy_(torch.randn_like(tensor) * 0.5)


def move(params: dict[str, object], layer) -> None:
    for name, tensor in params.items():
        if tensor is not None:
            owner = layer
            *path, last = name.split(".")
            for part in path:
                owner = getattr(owner, part)
            getattr(owner, last).set(np.ascontiguousarray(array(tensor)))


def move_linear(weight, bias, layer: fm.Linear) -> None:
    move({"weight": weight if layer.kind == "linear_col" else weight.T, "bias": bias}, layer)


def move_norm(source, layer) -> None:
    move({"gamma": source.weight, "beta": getattr(source, "bias", None)}, layer)


def move_attention(source, layer: fm.MultiHeadAttention) -> None:
    weights, biases = source.in_proj_weight.chunk(3), source.in_proj_bias.chunk(3)
    for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
        move_linear(weight, bias, getattr(layer, name))
    move_linear(source.out_proj.weight, source.out_proj.bias, layer.output)


def move_gates(source, names: tuple[str, ...], layer, suffix: str = "_l0") -> None:
    for kind, part in (("ih", "input_transform"), ("hh", "hidden_transform")):
        weights = getattr(source, f"weight_{kind}{suffix}").chunk(len(names))
        biases = getattr(source, f"bias_{kind}{suffix}").chunk(len(names)) if source.bias else [None] * len(names)
        for name, weight, bias in zip(names, weights, biases, strict=True):
            move_linear(weight, bias, getattr(getattr(layer, name), part))


def check(actual, expected) -> None:
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, array(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(layout, bias):
    peer, x = nn.Linear(4, 6, bias=bias), torch.randn(2, 3, 4)
    layer = fm.Linear(4, 6, bias=bias, layout=layout)
    move_linear(peer.weight, peer.bias, layer)
    check(layer(x.numpy()), peer(x))


def test_embedding():
    peer, indices = nn.Embedding(7, 3), torch.tensor([[0, 6, 2]])
    layer = fm.Embedding(7, 3)
    move({"weight": peer.weight}, layer)
    check(layer(indices.numpy()), peer(indices))


OPTIONS = [
    {},
    {"stride": 2, "padding": 1},
    {"dilation": 2, "padding": 3},
    {"groups": 2, "bias": False},
    {"stride": 2, "dilation": 2, "groups": 4, "padding": 2},
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")  # torch's, of its own speed
@pytest.mark.parametrize("options", [*OPTIONS, {"padding": "same"}, {"padding": "same", "dilation": 3}])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_convolutions(axes, options):
    kernel = (2, 3, 2)[:axes]
    peer = getattr(nn, f"Conv{axes}d")(4, 8, kernel, **options)
    layer = getattr(fm, f"Conv{axes}d")(4, 8, kernel, **options)
    x = torch.randn(2, 4, *(7, 8, 9)[:axes])
    move({"weight": peer.weight, "bias": peer.bias}, layer)
    check(layer(x.numpy()), peer(x))


@pytest.mark.parametrize(
    "options",
    [
        *OPTIONS,
        {"stride": 3, "padding": 1, "padding_out": 2},
        {"padding": 2},
        {"stride": 2, "padding": 3, "padding_out": 1},
    ],
)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_transposed_convolutions(axes, options):
    kernel = (2, 3, 2)[:axes]
    layer = getattr(fm, f"ConvTranspose{axes}d")(4, 8, kernel, **options)
    renamed = {{"padding_out": "output_padding"}.get(name, name): value for name, value in options.items()}
    peer = getattr(nn, f"ConvTranspose{axes}d")(4, 8, kernel, **renamed)
    x = torch.randn(2, 4, *(5, 6, 7)[:axes])
    move({"weight": peer.weight, "bias": peer.bias}, layer)
    check(layer(x.numpy()), peer(x))


@pytest.mark.parametrize("axes", [0, 1, 2, 3])
def test_batch_norm(axes):
    peer = (nn.BatchNorm3d if axes == 3 else nn.BatchNorm2d if axes == 2 else nn.BatchNorm1d)(3)
    randomize(peer)
    peer.running_mean.normal_()
    peer.running_var.uniform_(0.5, 2)
    layer = fm.BatchNorm(3)
    move_norm(peer, layer)
    move({"running_mean": peer.running_mean, "running_var": peer.running_var}, layer)
    x = torch.randn(2, 3, *(4, 5, 6)[:axes])
    check(layer(x.numpy()), peer.eval()(x))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("peer", "layer"),
    [
        (lambda affine: nn.GroupNorm(2, 4, affine=affine), lambda affine: fm.GroupNorm(2, 4, affine=affine)),
        (lambda affine: nn.InstanceNorm2d(4, affine=affine), lambda affine: fm.InstanceNorm(4, affine=affine)),
    ],
)
def test_norms_of_channels(peer, layer, affine):
    peer, layer = peer(affine), layer(affine)
    randomize(peer)
    if affine:
        move_norm(peer, layer)
    x = torch.randn(2, 4, 3, 5)
    check(layer(x.numpy()), peer(x))


@pytest.mark.parametrize(
    ("peer", "layer"),
    [
        (lambda: nn.LayerNorm(5), lambda: fm.LayerNorm(5)),
        (lambda: nn.LayerNorm(5, bias=False, eps=1e-2), lambda: fm.LayerNorm(5, bias=False, epsilon=1e-2)),
        (lambda: nn.RMSNorm(5, eps=1e-5), lambda: fm.RmsNorm(5)),
        (lambda: nn.RMSNorm(5, eps=1e-2), lambda: fm.RmsNorm(5, epsilon=1e-2)),
    ],
)
def test_norms_of_the_last_axis(peer, layer):
    peer, layer = peer(), layer()
    randomize(peer)
    move_norm(peer, layer)
    x = torch.randn(2, 3, 5)
    check(layer(x.numpy()), peer(x))


@pytest.mark.parametrize(
    ("layer", "peer"),
    [
        (fm.Identity(), nn.Identity()),
        (fm.Dropout(prob=0.9), nn.Dropout(0.9).eval()),
        (fm.Relu(), nn.ReLU()),
        (fm.LeakyRelu(), nn.LeakyReLU()),
        (fm.LeakyRelu(negative_slope=0.3), nn.LeakyReLU(0.3)),
        (fm.Gelu(), nn.GELU()),
        (fm.Gelu(approximate=True), nn.GELU(approximate="tanh")),
        (fm.Sigmoid(), nn.Sigmoid()),
        (fm.Tanh(), nn.Tanh()),
        (fm.Softplus(), nn.Softplus()),
        (fm.Softplus(beta=2.0), nn.Softplus(2.0)),
        (fm.Elu(), nn.ELU()),
        (fm.Elu(alpha=0.5), nn.ELU(0.5)),
        (fm.HardSigmoid(alpha=1 / 6), nn.Hardsigmoid()),
        (fm.HardSwish(), nn.Hardswish()),
    ],
    ids=lambda value: repr(value),
)
def test_activations(layer, peer):
    x = torch.cat([torch.linspace(-9, 9, 61), torch.tensor([-100.0, 100.0, 0.0])])
    check(layer(x.numpy()), peer(x))


@pytest.mark.parametrize("count", [1, 4])
def test_prelu(count):
    peer, layer = nn.PReLU(count), fm.PRelu(count)
    randomize(peer)
    move({"alpha": peer.weight}, layer)
    x = torch.randn(2, 4, 3)
    check(layer(x.numpy()), peer(x))


@pytest.mark.parametrize("bias", [True, False])
def test_swiglu(bias):
    gate, up, x = nn.Linear(4, 6, bias=bias), nn.Linear(4, 6, bias=bias), torch.randn(3, 4)
    layer = fm.SwiGlu(4, 6, bias=bias)
    move_linear(gate.weight, gate.bias, layer.linear_inner)
    move_linear(up.weight, up.bias, layer.linear_outer)
    check(layer(x.numpy()), nn.functional.silu(gate(x)) * up(x))


def test_attention():
    peer, layer = nn.MultiheadAttention(8, 2, batch_first=True), fm.MultiHeadAttention(8, 2)
    randomize(peer)
    move_attention(peer, layer)
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
    check(layer(x.numpy()), peer(x, x, x)[0])
    check(layer(x.numpy(), memory.numpy()), peer(x, memory, memory)[0])
    check(layer(x.numpy(), memory.numpy(), 2 * memory.numpy()), peer(x, memory, 2 * memory)[0])
    causal = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    padded = torch.zeros(2, 5, dtype=torch.bool)
    padded[1, 3:] = True
    actual = layer(x.numpy(), mask=causal[None].numpy(), mask_pad=padded.numpy())
    check(actual, peer(x, x, x, attn_mask=causal, key_padding_mask=padded)[0])


def test_quiet_attention_may_attend_to_nothing():
    layer = fm.MultiHeadAttention(4, 1, quiet_softmax=True, rng=0)
    loud = fm.MultiHeadAttention(4, 1, rng=0)
    for attention in (layer, loud):
        attention.query.weight.set(np.zeros((4, 4), np.float32))
        attention.query.bias.set(np.zeros(4, np.float32))
        attention.output.bias.set(np.zeros(4, np.float32))
    x = np.ones((1, 3, 4), np.float32)
    np.testing.assert_allclose(
        layer(x), loud(x) * 3 / 4, rtol=1e-5
    )  # every score is 0: 3 times and nothing weigh the same


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("peer", "layer", "names"),
    [
        (nn.LSTM, fm.Lstm, ("input_gate", "forget_gate", "cell_gate", "output_gate")),
        (nn.GRU, fm.Gru, ("reset_gate", "update_gate", "new_gate")),
        (nn.RNN, fm.Rnn, ("gate",)),
    ],
)
def test_recurrent(peer, layer, names, bias):
    peer, layer = peer(3, 5, batch_first=True, bias=bias), layer(3, 5, bias=bias)
    move_gates(peer, names, layer)
    x = torch.randn(2, 6, 3)
    compare_states(layer(x.numpy()), peer(x))
    start = torch.randn(1, 2, 5)
    if isinstance(peer, nn.LSTM):
        compare_states(layer(x.numpy(), (start[0].numpy(), 2 * start[0].numpy())), peer(x, (start, 2 * start)))
    else:
        compare_states(layer(x.numpy(), start[0].numpy()), peer(x, start))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    ("peer", "layer", "names"),
    [
        (nn.LSTM, fm.BiLstm, ("input_gate", "forget_gate", "cell_gate", "output_gate")),
        (nn.GRU, fm.BiGru, ("reset_gate", "update_gate", "new_gate")),
    ],
)
def test_recurrent_in_both_directions(peer, layer, names, batch_first):
    peer = peer(3, 5, batch_first=batch_first, bidirectional=True)
    layer = layer(3, 5, batch_first=batch_first)
    move_gates(peer, names, layer.forward)
    move_gates(peer, names, layer.reverse, "_l0_reverse")
    x = torch.randn(2, 6, 3)
    batch = 2 if batch_first else 6
    compare_states(layer(x.numpy()), peer(x))
    start = torch.randn(2, batch, 5)
    state = (start, 2 * start) if isinstance(peer, nn.LSTM) else start
    given = tuple(part.numpy() for part in state) if isinstance(state, tuple) else state.numpy()
    compare_states(layer(x.numpy(), given), peer(x, state))


def compare_states(actual, expected) -> None:
    check(actual[0], expected[0])
    mine = actual[1] if isinstance(actual[1], tuple) else (actual[1],)
    theirs = expected[1] if isinstance(expected[1], tuple) else (expected[1],)
    for one, other in zip(mine, theirs, strict=True):
        check(one.reshape(other.shape), other)


def test_the_other_gru_resets_before_the_weights():
    layer, x = (
        fm.Gru(3, 5, reset_after=False, rng=0),
        np.random.default_rng(0).normal(size=(1, 1, 3)).astype(np.float32),
    )
    state = np.ones((1, 5), np.float32)
    z, r = (1 / (1 + np.exp(-gate(x[:, 0], state))) for gate in (layer.update_gate, layer.reset_gate))
    n = np.tanh(layer.new_gate(x[:, 0], r * state))
    np.testing.assert_allclose(layer(x, state)[1], (1 - z) * n + z * state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_encoder(norm_first):
    peer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=norm_first, batch_first=True).eval()
    layer = fm.TransformerEncoderLayer(8, 16, 2, norm_first=norm_first, activation=fm.Relu())
    randomize(peer)
    move_attention(peer.self_attn, layer.mha)
    move_linear(peer.linear1.weight, peer.linear1.bias, layer.pwff.linear_inner)
    move_linear(peer.linear2.weight, peer.linear2.bias, layer.pwff.linear_outer)
    first, second = (layer.norm_2, layer.norm_1) if norm_first else (layer.norm_1, layer.norm_2)
    move_norm(peer.norm1, first)
    move_norm(peer.norm2, second)
    x = torch.randn(2, 5, 8)
    check(layer(x.numpy()), peer(x))
    stack = fm.TransformerEncoder(8, 16, 2, 2)
    stack.layers[:] = [layer, layer]
    check(stack(x.numpy()), peer(peer(x)))


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_decoder(norm_first):
    peer = nn.TransformerDecoderLayer(8, 2, 16, norm_first=norm_first, batch_first=True, activation="gelu").eval()
    layer = fm.TransformerDecoderLayer(8, 16, 2, norm_first=norm_first)
    randomize(peer)
    move_attention(peer.self_attn, layer.self_attn)
    move_attention(peer.multihead_attn, layer.cross_attn)
    move_linear(peer.linear1.weight, peer.linear1.bias, layer.pwff.linear_inner)
    move_linear(peer.linear2.weight, peer.linear2.bias, layer.pwff.linear_outer)
    order = (layer.norm_3, layer.norm_1, layer.norm_2) if norm_first else (layer.norm_1, layer.norm_2, layer.norm_3)
    for source, norm in zip((peer.norm1, peer.norm2, peer.norm3), order, strict=True):
        move_norm(source, norm)
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
    causal = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    check(layer(x.numpy(), memory.numpy(), mask=causal[None].numpy()), peer(x, memory, tgt_mask=causal))
    stack = fm.TransformerDecoder(8, 16, 2, 2)
    stack.layers[:] = [layer, layer]
    check(stack(x.numpy(), memory.numpy()), peer(peer(x, memory), memory))


def test_weights_stored_in_sixteen_bits_are_computed_with_in_thirty_two():
    torch_linear = nn.Linear(4, 6)
    layer = fm.Linear(4, 6)
    layer.weight.set(array(torch_linear.weight.T).astype(np.float16))
    layer.bias.set(array(torch_linear.bias).astype(np.float16))
    x = torch.randn(3, 4)
    check(layer(x.numpy()), torch_linear.half().float()(x))
