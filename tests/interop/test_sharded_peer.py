"""Sets of files that Hugging Face's libraries and firekeep read from each other."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import firekeep

pytestmark = pytest.mark.usefixtures("quiet_libraries")


def llama(*, tied: bool, seed: int = 0) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return model.eval()


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("digest", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_reads_a_set_that_was_saved(tmp_path, tied, digest):
    model = llama(tied=tied)
    model.config.save_pretrained(tmp_path)
    firekeep.save(llama(tied=tied, seed=5), tmp_path, max_shard_size="1MB")  # one file, of which nothing may be left
    report = firekeep.save(model, tmp_path, max_shard_size="5kB", digest=digest)
    assert len(report.files) > 3
    again, told = LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert same(again, model)
    assert (again.lm_head.weight is again.model.embed_tokens.weight) is tied
    tokens = torch.arange(8).reshape(1, 8)
    assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_a_set_of_transformers_is_read_and_replaced(tmp_path):
    model = llama(tied=True)
    model.save_pretrained(tmp_path, max_shard_size="5kB")
    before = {path.name for path in tmp_path.glob("model-*.safetensors")}
    other = llama(tied=True, seed=5)
    with torch.device("meta"):
        hollow = LlamaForCausalLM(model.config)
    for target in (other, hollow):
        assert firekeep.load_into(target, tmp_path).ok
    assert same(other, model)
    weights = [name for name, _ in hollow.named_parameters(remove_duplicate=False)]
    assert all(torch.equal(hollow.get_parameter(name), model.get_parameter(name)) for name in weights)
    report = firekeep.save(llama(tied=True, seed=7), tmp_path, max_shard_size="9kB")
    after = {path.name for path in tmp_path.glob("model-*.safetensors")}
    assert after == {path.name for path in report.files[:-1]}
    assert not after & before
    assert same(LlamaForCausalLM.from_pretrained(tmp_path), llama(tied=True, seed=7))


def test_a_set_kept_under_other_names_is_read_by_transformers_too(tmp_path, monkeypatch):
    llama(tied=True, seed=5).save_pretrained(tmp_path, max_shard_size="5kB")
    model = llama(tied=True)

    def no_links(*_):
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.hardlink_to", no_links)
    names = [firekeep.save(model, tmp_path, max_shard_size="5kB").files[0].name for _ in range(2)]
    assert (".new." in names[0]) != (".new." in names[1])  # the names that are free
    assert same(LlamaForCausalLM.from_pretrained(tmp_path), model)


def test_a_set_of_pytorch_files_and_variants_of_transformers_are_read(tmp_path):
    model = llama(tied=False)
    model.save_pretrained(tmp_path, max_shard_size="5kB", variant="fp16")
    assert (tmp_path / "model.safetensors.index.fp16.json").exists()
    for place in (tmp_path, tmp_path / "model.safetensors.index.fp16.json"):
        other = llama(tied=False, seed=5)
        firekeep.load_into(other, place)
        assert same(other, model)
    plain = llama(tied=False, seed=7)
    plain.save_pretrained(tmp_path, max_shard_size="5kB")
    other = llama(tied=False, seed=5)
    firekeep.load_into(other, tmp_path)
    assert same(other, plain)
