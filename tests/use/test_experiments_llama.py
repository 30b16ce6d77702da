"""The 272 names of SmolLM2 in BF16, at a size that runs, into a Llama of one's own in float32: rename, layout and cast in one load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

import firekeep
from firekeep.module import Embedding, Linear, Module, RmsNorm, walk
from firekeep.rules import KeyRemapper
from use.experiments import close, refusal, untouched

LAYERS, VOCABULARY, WIDTH, NARROW, WIDE = 30, 11, 8, 4, 12
SHAPES = {
    "input_layernorm.weight": (WIDTH,),
    "mlp.down_proj.weight": (WIDTH, WIDE),
    "mlp.gate_proj.weight": (WIDE, WIDTH),
    "mlp.up_proj.weight": (WIDE, WIDTH),
    "post_attention_layernorm.weight": (WIDTH,),
    "self_attn.k_proj.weight": (NARROW, WIDTH),
    "self_attn.o_proj.weight": (WIDTH, WIDTH),
    "self_attn.q_proj.weight": (WIDTH, WIDTH),
    "self_attn.v_proj.weight": (NARROW, WIDTH),
}
RULES = [r"^model\.=>", r"\.self_attn\.=>.attn.", r"_layernorm\.weight$=>_norm.gamma"]
TOKENS = np.array([3, 1, 4, 1, 5, 9, 2, 6])


class Attention(Module):
    """Two heads of queries share one head of keys and values."""

    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear

    def __call__(self, x: Any) -> Any:
        queries, keys, values = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        heads = []
        for query in np.split(queries, WIDTH // NARROW, axis=-1):
            scores = query @ keys.T / np.float32(np.sqrt(NARROW))
            scores = np.where(np.tril(np.ones(scores.shape, bool)), scores, np.float32(-np.inf))
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ values)
        return self.o_proj(np.concatenate(heads, -1))


class Mlp(Module):
    gate_proj: Linear
    up_proj: Linear
    down_proj: Linear

    def __call__(self, x: Any) -> Any:
        gate = self.gate_proj(x)
        return self.down_proj(gate / (1 + np.exp(-gate)) * self.up_proj(x))


class Block(Module):
    attn: Attention
    mlp: Mlp
    input_norm: RmsNorm
    post_attention_norm: RmsNorm

    def __call__(self, x: Any) -> Any:
        x = x + self.attn(self.input_norm(x))
        return x + self.mlp(self.post_attention_norm(x))


class Llama(Module):
    """No lm_head: the table of vectors is used in both directions."""

    embed_tokens: Embedding
    layers: list[Block]
    norm: RmsNorm

    def __call__(self, tokens: Any) -> Any:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.embed_tokens.weight.value.T


def make_block() -> Block:
    def linear(d_input: int, d_output: int) -> Linear:
        return Linear(d_input, d_output, bias=False)

    return Block(
        attn=Attention(
            q_proj=linear(WIDTH, WIDTH),
            k_proj=linear(WIDTH, NARROW),
            v_proj=linear(WIDTH, NARROW),
            o_proj=linear(WIDTH, WIDTH),
        ),
        mlp=Mlp(gate_proj=linear(WIDTH, WIDE), up_proj=linear(WIDTH, WIDE), down_proj=linear(WIDE, WIDTH)),
        input_norm=RmsNorm(WIDTH),
        post_attention_norm=RmsNorm(WIDTH),
    )


def make_llama() -> Llama:
    return Llama(
        embed_tokens=Embedding(VOCABULARY, WIDTH), layers=[make_block() for _ in range(LAYERS)], norm=RmsNorm(WIDTH)
    )


def make_state() -> dict[str, torch.Tensor]:
    torch.manual_seed(6)
    shapes = {"model.embed_tokens.weight": (VOCABULARY, WIDTH), "model.norm.weight": (WIDTH,)}
    shapes |= {f"model.layers.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in SHAPES.items()}
    return {
        name: (torch.rand(shape) + 0.5 if len(shape) == 1 else torch.randn(shape) / 4).to(torch.bfloat16)
        for name, shape in shapes.items()
    }


STATE = make_state()


def reference(state: dict[str, torch.Tensor]) -> torch.Tensor:
    """Compute the same in PyTorch, from the names of the file."""
    weights = {name: tensor.float() for name, tensor in state.items()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, (WIDTH,), weights[f"model.{name}.weight"], 1e-5)

    x = weights["model.embed_tokens.weight"][torch.from_numpy(TOKENS)]
    for layer in range(LAYERS):
        place = f"layers.{layer}"
        given = norm(x, f"{place}.input_layernorm")
        query, key, value = (
            (given @ weights[f"model.{place}.self_attn.{part}_proj.weight"].T)
            .unflatten(-1, (-1, NARROW))
            .transpose(0, 1)
            for part in "qkv"
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + seen.transpose(0, 1).flatten(1) @ weights[f"model.{place}.self_attn.o_proj.weight"].T
        given = norm(x, f"{place}.post_attention_layernorm")
        gate, up = (given @ weights[f"model.{place}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + functional.silu(gate) * up @ weights[f"model.{place}.mlp.down_proj.weight"].T
    return norm(x, "norm") @ weights["model.embed_tokens.weight"].T


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama") / "model.safetensors"
    save_file(STATE, path, {"format": "pt"})
    assert len(STATE) == 272
    return path


def check(model: Llama, tolerance: float = 1e-4) -> None:
    expected = reference(STATE).numpy()
    close(model(TOKENS), expected, tolerance * float(np.abs(expected).max()))


@pytest.mark.parametrize("rename", [RULES, KeyRemapper.preset("hf-llama-to-burn")], ids=["rules", "preset"])
@pytest.mark.parametrize("door", ["load_into", "store"])
def test_all_of_it_is_applied_in_float32(path: Path, rename: Any, door: str):
    model = make_llama()
    if door == "store":
        report = firekeep.SafetensorsStore(path, rename=rename).load_into(model)
    else:
        report = firekeep.load_into(model, path, rename=rename)
    assert report.exact
    assert len(report.applied) == 272
    assert set(report.casts.values()) == {("BF16", "F32")}
    assert len(report.casts) == 272
    assert {str(visited.param.dtype) for visited in walk(model)} == {"F32"}
    weight = STATE["model.layers.7.self_attn.k_proj.weight"].float().numpy()
    assert model.layers[7].attn.k_proj.weight.value.tolist() == weight.T.tolist()
    check(model)


def test_without_the_rules_it_is_refused_and_every_name_has_its_counterpart(path: Path):
    model = make_llama()
    report = refusal(firekeep.load_into, model, path)
    assert untouched(model)
    assert report.refusals == ("180 missing", "180 unused")  # "model." in front is a wrapper that is known
    near = {name: suggestion.name for name, suggestion in report.suggestions.items()}
    assert len(near) == 180
    assert {mine: theirs for theirs, mine in firekeep.renamed_keys(path, rename=RULES).items() if mine in near} == near


def test_the_files_dtype_is_kept_where_that_is_asked_for(path: Path):
    model = make_llama()
    report = firekeep.load_into(model, path, rename=RULES, dtype="file")
    assert report.exact
    assert not report.casts
    assert {str(visited.param.dtype) for visited in walk(model)} == {"BF16"}


def test_a_block_alone_is_taken_out_of_it(path: Path):
    model = make_llama()
    report = firekeep.load_into(model, path, rename=RULES, include=r"^layers\.12\.")
    assert len(report.applied) == 9
    assert len(report.skipped) == 263
    assert report.exact
    assert model.layers[12].mlp.up_proj.weight.is_initialized
    assert not model.layers[11].mlp.up_proj.weight.is_initialized


def test_adapters_one_after_the_other_do_the_same(path: Path):
    model, loaded = make_llama(), make_llama()
    firekeep.load_into(loaded, path, rename=RULES)
    with firekeep.open(path) as file:
        names = KeyRemapper.of([*RULES, r"_norm\.gamma$=>_norm.weight"]).rename(list(file)).names
        entries = [entry.renamed(names[name]) for name, entry in file.entries.items()]
        both = firekeep.chain(firekeep.PyTorchToBurnAdapter(), firekeep.FloatCastAdapter("f32"))
        made = both.adapt(entries, firekeep.slots_of(model))
        values = {entry.name: np.frombuffer(entry.read(), np.float32).reshape(entry.shape) for entry in made}
    assert values.keys() == {visited.path for visited in walk(model)}
    for visited in walk(loaded):
        assert values[visited.path].tolist() == visited.param.value.tolist()


def test_saved_in_bf16_and_loaded_again_nothing_is_lost(path: Path, tmp_path: Path):
    model, again = make_llama(), make_llama()
    firekeep.load_into(model, path, rename=RULES)
    firekeep.save(model, tmp_path / "back.bpk", dtype="bf16")
    assert firekeep.load_into(again, tmp_path / "back.bpk").exact
    assert again(TOKENS).tobytes() == model(TOKENS).tobytes()


def test_a_store_writes_the_names_layout_and_dtype_it_read(path: Path, tmp_path: Path):
    copy = tmp_path / "model.safetensors"
    copy.write_bytes(path.read_bytes())
    model = make_llama()
    store = firekeep.SafetensorsStore(copy, rename=RULES, dtype="bf16")
    store.load_into(model)
    store.save(model)
    with firekeep.open(path) as before, firekeep.open(copy) as after:
        assert sorted(after) == sorted(before)
        for name in before:
            assert (after.entry(name).dtype, after.entry(name).shape) == (
                before.entry(name).dtype,
                before.entry(name).shape,
            )
            assert bytes(after.entry(name).read()) == bytes(before.entry(name).read())
