"""Models for text, text with images, and tables, small, in the manner of those that people train."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from interop.architectures.vision import ResNet


class GPTBlock(nn.Module):
    """Written out, with the mask as a buffer of the file, as older checkpoints of GPT-2 have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width, bias=False)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})
        self.register_buffer("bias", torch.tril(torch.ones(9, 9, dtype=torch.bool)))
        self.register_buffer("masked_bias", torch.full((1,), -1e4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(self.ln_1(x)).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        scores = torch.where(self.bias[: x.shape[1], : x.shape[1]], scores, self.masked_bias)
        x = x + self.c_proj(scores.softmax(-1) @ v)
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """The head is the embedding: two names for one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(23, 12),
                "wpe": nn.Embedding(9, 12),
                "h": nn.ModuleList([GPTBlock(12) for _ in range(2)]),
                "ln_f": nn.LayerNorm(12),
            }
        )
        self.lm_head = nn.Linear(12, 23, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.transformer["wte"](ids) + self.transformer["wpe"](torch.arange(ids.shape[1]))
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))


class RMSNorm(nn.Module):
    """Everybody's own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class LlamaLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(width)
        self.self_attn = nn.ModuleDict(
            {"qkv_proj": nn.Linear(width, 2 * width, bias=False), "o_proj": nn.Linear(width, width, bias=False)}
        )
        self.post_attention_layernorm = nn.RMSNorm(width, eps=1e-6)
        self.mlp = nn.ModuleDict(
            {
                "gate_up_proj": nn.Linear(width, 40, bias=False),
                "down_proj": nn.Linear(20, width, bias=False),
            }
        )
        frequencies = 10000.0 ** -(torch.arange(0, 4, 2, dtype=torch.float32) / 4)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[2])[:, None] * self.inv_freq
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.self_attn["qkv_proj"](self.input_layernorm(x)).view(batch, time, -1, 4).transpose(1, 2)
        heads, groups = width // 4, width // 8
        q, k, v = qkv.split([heads, groups, groups], 1)
        k, v = (one.repeat_interleave(2, 1) for one in (k, v))
        mixed = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        x = x + self.self_attn["o_proj"](mixed.transpose(1, 2).reshape(x.shape))
        gate, up = self.mlp["gate_up_proj"](self.post_attention_layernorm(x)).chunk(2, -1)
        return x + self.mlp["down_proj"](F.silu(gate) * up)


class Llama(nn.Module):
    """Query, key and value in one Linear, fewer keys than queries; nothing is tied, and nothing has a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(23, 16, padding_idx=0),
                "layers": nn.ModuleList([LlamaLayer(16) for _ in range(2)]),
                "norm": RMSNorm(16),
            }
        )
        self.lm_head = nn.Linear(16, 23, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.model["embed_tokens"](ids)
        for layer in self.model["layers"]:
            x = layer(x)
        return self.lm_head(self.model["norm"](x))


class Tagger(nn.Module):
    """A recurrent network of two layers and both directions, then a GRU of one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(23, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(10, 4, batch_first=True)
        self.tags = nn.Linear(4, 7)

    def forward(self, ids: Tensor) -> Tensor:
        return self.tags(self.gru(self.lstm(self.embedding(ids))[0])[0])


class Bert(nn.Module):
    """Norms last; the places are a buffer of the file."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(23, 12, padding_idx=0),
                "position_embeddings": nn.Embedding(9, 12),
                "LayerNorm": nn.LayerNorm(12, eps=1e-12),
            }
        )
        self.register_buffer("position_ids", torch.arange(9)[None])
        layer = nn.TransformerEncoderLayer(12, 3, 20, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pooler = nn.ModuleDict({"dense": nn.Linear(12, 12)})

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        places = self.embeddings["position_embeddings"](self.position_ids[:, : ids.shape[1]])
        x = self.embeddings["LayerNorm"](self.embeddings["word_embeddings"](ids) + places)
        x = self.encoder(x)
        return x, torch.tanh(self.pooler["dense"](x[:, 0]))


class CLIP(nn.Module):
    """Two towers, and a scale that is a parameter without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = ResNet()
        self.token_embedding = nn.Embedding(23, 12)
        self.positional_embedding = nn.Parameter(torch.zeros(9, 12))
        self.transformer = nn.TransformerEncoderLayer(12, 3, 20, 0.0, batch_first=True, norm_first=True)
        self.ln_final = nn.LayerNorm(12)
        self.text_projection = nn.Parameter(torch.zeros(12, 5))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image: Tensor, ids: Tensor) -> Tensor:
        x = self.transformer(self.token_embedding(ids) + self.positional_embedding[: ids.shape[1]])
        texts = F.normalize(self.ln_final(x)[:, -1] @ self.text_projection, dim=-1)
        return self.logit_scale.exp() * F.normalize(self.visual(image), dim=-1) @ texts.T


class DLRM(nn.Module):
    """Tables for categories, one of them a bag, and two stacks of Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(11, 6), nn.EmbeddingBag(17, 6, mode="sum")])
        self.bottom = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 6), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 1), nn.Sigmoid())

    def forward(self, dense: Tensor, one: Tensor, many: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = torch.stack([x, self.tables[0](one), self.tables[1](many)], 1)
        pairs = rows @ rows.transpose(1, 2)
        return self.top(torch.cat([x, pairs[:, 0, 1:], pairs[:, 1, 2:]], 1))
