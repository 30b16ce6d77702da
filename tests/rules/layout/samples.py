"""Layers of every kind with tensors of theirs, in PyTorch's layout; and what Burn's layers compute, in NumPy."""

from __future__ import annotations

import numpy as np

from firekeep.arrays import as_array, entry_of
from firekeep.rules.layout import translate, translate_layers
from firekeep.slots import Layer

MATRIX = ("linear", "linear_col", "linear_in_out")
NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")
CONVS = tuple(f"{kind}{n}d" for kind in ("conv", "conv_transpose") for n in (1, 2, 3))
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def shapes_of(kind, a, b, facts):
    """Give names and shapes of a layer of sizes a and b, in PyTorch's layout."""
    if kind in MATRIX:
        return {"weight": (a, b), "bias": (b if kind == "linear_in_out" else a,)}
    if kind == "embedding":
        return {"weight": (a, b)}
    if kind in CONVS:
        return {"weight": (a, b, *range(1, 1 + int(kind[-2]))), "bias": (a,)}
    if kind in NORMS:
        shapes = {"weight": (a,)} if kind == "rms_norm" else {"weight": (a,), "bias": (a,)}
        return shapes | ({"running_mean": (a,), "running_var": (a,)} if kind == "batch_norm" else {})
    if kind == "prelu":
        return {"weight": (a,)}
    if kind == "swiglu":
        return {"gate.weight": (a, b), "gate.bias": (a,), "up.weight": (a, b), "up.bias": (a,)}
    if kind == "multi_head_attention":
        return {
            "in_proj_weight": (3 * a, a),
            "in_proj_bias": (3 * a,),
            "out_proj.weight": (a, a),
            "out_proj.bias": (a,),
        }
    if kind in GATES:
        return recurrent_shapes(GATES[kind], a, b, facts)
    assert kind in ("feed_forward", "rng_state")
    return {}


def recurrent_shapes(gates, hidden, inputs, facts):
    shapes = {}
    both = facts.get("bidirectional", False)
    for layer in range(facts.get("num_layers", 1)):
        for suffix in ("", "_reverse")[: 1 + both]:
            width = inputs if layer == 0 else hidden * (1 + both)
            shapes[f"weight_ih_l{layer}{suffix}"] = (gates * hidden, width)
            shapes[f"weight_hh_l{layer}{suffix}"] = (gates * hidden, hidden)
            shapes[f"bias_ih_l{layer}{suffix}"] = shapes[f"bias_hh_l{layer}{suffix}"] = (gates * hidden,)
    return shapes


def entries_of(kind, path, a, b, facts=()):
    rng = np.random.default_rng((a, b))
    prefix = f"{path}." if path else ""
    shapes = shapes_of(kind, a, b, dict(facts))
    return [entry_of(prefix + name, rng.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()]


def state(module, path=""):
    """Give a torch module's state dict as entries."""
    prefix = f"{path}." if path else ""
    return [entry_of(prefix + name, value.numpy()) for name, value in module.state_dict().items()]


def layers_of_transformer(kind, path, norm_first):
    """Describe a torch transformer layer and its children, as a bridge does."""
    whole = Layer(kind=kind, path=path, facts={"norm_first": norm_first})
    decoder = kind == "transformer_decoder_layer"
    attention = ("self_attn", "multihead_attn") if decoder else ("self_attn",)
    children = [(f"norm{n}", "layer_norm") for n in range(1, 4 if decoder else 3)]
    children += [("linear1", "linear"), ("linear2", "linear")]
    children += [(name, "multi_head_attention") for name in attention]
    found = [whole] + [Layer(kind=kind, path=f"{path}.{name}", parent=whole) for name, kind in children]
    inner = [
        Layer(kind="linear", path=f"{one.path}.out_proj", parent=one) for one in found if one.path.endswith("attn")
    ]
    return [*found, *inner]


def to_burn(entries, layers):
    """Translate to Burn's layout, everything; give arrays by name."""
    found = translate(entries, layers, source="torch", target="burn")
    assert not found.problems
    return {entry.name: as_array(entry) for entry in found.entries}


def there_and_back(entries, layers, source="torch", target="burn"):
    there = translate(entries, layers, source=source, target=target)
    moved = translate_layers(layers, source=source, target=target)
    return there, translate(there.entries, moved, source=target, target=source)


class Burn:
    """Burn's layers as functions of arrays by name: weights are in x out, norms have gamma and beta, gates a map each."""

    def __init__(self, arrays, path=""):
        self._arrays = arrays
        self._path = path

    def at(self, name) -> Burn:
        return Burn(self._arrays, f"{self._path}.{name}" if self._path else name)

    def __getitem__(self, name):
        return self._arrays[f"{self._path}.{name}" if self._path else name].astype(np.float64)

    def linear(self, x):
        return x @ self["weight"] + self["bias"]

    def layer_norm(self, x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * self["gamma"] + self["beta"]

    def batch_norm(self, x):
        return (x - self["running_mean"]) / np.sqrt(self["running_var"] + 1e-5) * self["gamma"] + self["beta"]

    def attention(self, query, context, heads):
        """Attend without batches: [length, size]."""
        q, k, v = (self.at(name).linear(x) for name, x in (("query", query), ("key", context), ("value", context)))
        width = q.shape[-1] // heads
        out = np.empty_like(q)
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            scores = q[:, part] @ k[:, part].T / np.sqrt(width)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, part] = weights / weights.sum(-1, keepdims=True) @ v[:, part]
        return self.at("output").linear(out)

    def feed_forward(self, x):
        return self.at("linear_outer").linear(np.maximum(self.at("linear_inner").linear(x), 0))

    def encoder_layer(self, x, heads, norm_first):
        """Burn's: norm_1 and norm_2 follow attention and feed forward; coming first, norm_2 precedes one and norm_1 the other."""
        attend, pwff = self.at("mha").attention, self.at("pwff").feed_forward
        norm_1, norm_2 = self.at("norm_1").layer_norm, self.at("norm_2").layer_norm
        if norm_first:
            inside = norm_2(x)
            x = x + attend(inside, inside, heads)
            return x + pwff(norm_1(x))
        x = norm_1(x + attend(x, x, heads))
        return norm_2(x + pwff(x))

    def decoder_layer(self, x, memory, heads, norm_first):
        attend, cross, pwff = (
            self.at("self_attn").attention,
            self.at("cross_attn").attention,
            self.at("pwff").feed_forward,
        )
        norm_1, norm_2, norm_3 = (self.at(f"norm_{n}").layer_norm for n in (1, 2, 3))
        if norm_first:
            inside = norm_3(x)
            x = x + attend(inside, inside, heads)
            x = x + cross(norm_1(x), memory, heads)
            return x + pwff(norm_2(x))
        x = norm_1(x + attend(x, x, heads))
        x = norm_2(x + cross(x, memory, heads))
        return norm_3(x + pwff(x))

    def gate(self, name, x, h):
        inner = self.at(name)
        return inner.at("input_transform").linear(x), inner.at("hidden_transform").linear(h)

    def lstm(self, xs):
        h = c = np.zeros_like(self["input_gate.hidden_transform.bias"])
        out = []
        for x in xs:
            i, f, o, g = (sum(self.gate(f"{n}_gate", x, h)) for n in ("input", "forget", "output", "cell"))
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            out.append(h)
        return np.stack(out)

    def gru(self, xs):
        h = np.zeros_like(self["new_gate.hidden_transform.bias"])
        out = []
        for x in xs:
            z, r = (sigmoid(sum(self.gate(f"{n}_gate", x, h))) for n in ("update", "reset"))
            mine, before = self.gate("new_gate", x, h)
            h = (1 - z) * np.tanh(mine + r * before) + z * h
            out.append(h)
        return np.stack(out)

    def rnn(self, xs):
        h = np.zeros_like(self["gate.hidden_transform.bias"])
        out = []
        for x in xs:
            h = np.tanh(sum(self.gate("gate", x, h)))
            out.append(h)
        return np.stack(out)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))
