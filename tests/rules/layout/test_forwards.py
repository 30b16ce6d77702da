"""Translated weights give the same numbers: PyTorch's layers against Burn's, rewritten in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from firekeep.slots import Layer
from rules.layout.samples import Burn, layers_of_transformer, state, to_burn

TOLERANCE = {"rtol": 0, "atol": 5e-6}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(5)


def scrambled(module):
    """Give every tensor random numbers, biases and statistics too."""
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) + 0.5 if "var" in name else torch.randn_like(value) * 0.5)
    return module.eval()


def inputs(*shape):
    return torch.randn(*shape)


def test_linear():
    module, x = scrambled(torch.nn.Linear(5, 3)), inputs(4, 5)
    burn = Burn(to_burn(state(module, "fc"), [Layer(kind="linear", path="fc")]), "fc")
    np.testing.assert_allclose(burn.linear(x.numpy()), module(x).detach().numpy(), **TOLERANCE)


def test_a_linear_that_is_stored_in_by_out_already():
    x, weight, bias = inputs(4, 5), inputs(5, 3), inputs(3)
    module = torch.nn.Module()
    module.weight, module.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
    burn = Burn(to_burn(state(module), [Layer(kind="linear_in_out", path="")]))
    np.testing.assert_allclose(burn.linear(x.numpy()), (x @ weight + bias).numpy(), **TOLERANCE)


def test_norms():
    module, x = scrambled(torch.nn.LayerNorm(6)), inputs(4, 6)
    burn = Burn(to_burn(state(module, "n"), [Layer(kind="layer_norm", path="n")]), "n")
    np.testing.assert_allclose(burn.layer_norm(x.numpy()), module(x).detach().numpy(), **TOLERANCE)
    module = scrambled(torch.nn.BatchNorm1d(6))
    burn = Burn(to_burn(state(module, "n"), [Layer(kind="batch_norm", path="n")]), "n")
    np.testing.assert_allclose(burn.batch_norm(x.numpy()), module(x).detach().numpy(), **TOLERANCE)


def test_attention():
    module = scrambled(torch.nn.MultiheadAttention(8, 2))
    query, context = inputs(3, 8), inputs(5, 8)
    burn = Burn(to_burn(state(module, "a"), [Layer(kind="multi_head_attention", path="a")]), "a")
    expected = module(query, context, context, need_weights=False)[0].detach().numpy()
    np.testing.assert_allclose(burn.attention(query.numpy(), context.numpy(), 2), expected, **TOLERANCE)


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer(norm_first):
    module = scrambled(torch.nn.TransformerEncoderLayer(8, 2, 12, norm_first=norm_first))
    layers = layers_of_transformer("transformer_encoder_layer", "e", norm_first)
    burn, x = Burn(to_burn(state(module, "e"), layers), "e"), inputs(5, 8)
    np.testing.assert_allclose(burn.encoder_layer(x.numpy(), 2, norm_first), module(x).detach().numpy(), **TOLERANCE)


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layer(norm_first):
    module = scrambled(torch.nn.TransformerDecoderLayer(8, 2, 12, norm_first=norm_first))
    layers = layers_of_transformer("transformer_decoder_layer", "d", norm_first)
    burn, x, memory = Burn(to_burn(state(module, "d"), layers), "d"), inputs(5, 8), inputs(4, 8)
    found = burn.decoder_layer(x.numpy(), memory.numpy(), 2, norm_first)
    np.testing.assert_allclose(found, module(x, memory).detach().numpy(), **TOLERANCE)


@pytest.mark.parametrize(("kind", "make"), [("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU), ("rnn", torch.nn.RNN)])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True])
def test_recurrent(kind, make, layers, both):
    module = scrambled(make(3, 4, num_layers=layers, bidirectional=both))
    facts = {"num_layers": layers, "bidirectional": both}
    burn, xs = Burn(to_burn(state(module, "r"), [Layer(kind=kind, path="r", facts=facts)]), "r"), inputs(6, 3)
    found = xs.numpy().astype(np.float64)
    for number in range(layers):
        layer = burn.at(str(number)) if layers > 1 else burn
        if both:
            ahead, back = getattr(layer.at("forward"), kind), getattr(layer.at("reverse"), kind)
            found = np.concatenate([ahead(found), back(found[::-1])[::-1]], axis=-1)
        else:
            found = getattr(layer, kind)(found)
    np.testing.assert_allclose(found, module(xs)[0].detach().numpy(), **TOLERANCE)
