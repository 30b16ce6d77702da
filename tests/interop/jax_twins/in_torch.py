"""Ten architectures in PyTorch. Epsilons, paddings and the kind of GELU are written out: no file holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8, eps=1e-5)
        self.fc2 = nn.Linear(8, 8, bias=False)
        self.act = nn.PReLU()
        self.fc3 = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm(self.fc1(x)))
        return self.fc3(self.act(self.fc2(x)))


class CNN(nn.Module):
    """Down with groups, dilated, each channel alone, and up again with transposed convolutions."""

    def __init__(self, *, groups: int = 1) -> None:
        super().__init__()
        self.down = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2)
        self.wide = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8)
        self.up = nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1, groups=groups)
        self.out = nn.ConvTranspose2d(6, 2, (2, 3), bias=False)
        self.line = nn.Conv1d(2, 3, 5, padding=2)
        self.back = nn.ConvTranspose1d(3, 2, 4, stride=3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.wide(F.relu(self.down(x))))
        x = self.out(F.gelu(self.up(x)))
        return self.back(self.line(x.mean(2)))


class ResBlock(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out, eps=1e-5)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out, eps=1e-5)
        self.shortcut = nn.ModuleList(
            [nn.Conv2d(width, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out, eps=1e-5)]
        )

    def forward(self, x: Tensor) -> Tensor:
        short = self.shortcut[1](self.shortcut[0](x))
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + short)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4, eps=1e-5)
        self.blocks = nn.ModuleList([ResBlock(4, 6, 2), ResBlock(6, 6, 1)])
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class GPTBlock(nn.Module):
    """Attention written out: the projection of all three in one Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(8, eps=1e-5)
        self.qkv = nn.Linear(8, 24)
        self.proj = nn.Linear(8, 8)
        self.ln2 = nn.LayerNorm(8, eps=1e-5)
        self.fc = nn.Linear(8, 32)
        self.out = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in self.qkv(self.ln1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    """The head is the embedding: two names for one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, 8)
        self.places = nn.Embedding(6, 8)
        self.blocks = nn.ModuleList([GPTBlock() for _ in range(2)])
        self.norm = nn.LayerNorm(8, eps=1e-5)
        self.head = nn.Linear(8, 17, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Attention(nn.Module):
    """`nn.MultiheadAttention` keeps queries, keys and values in one tensor, where the others have three."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8, eps=1e-5)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.cross = nn.MultiheadAttention(8, 4, batch_first=True)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        inner = self.norm(x)
        x = x + self.attn(inner, inner, inner, need_weights=False)[0]
        return x + self.cross(x, context, context, need_weights=False)[0]


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 5)
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        self.head = nn.Linear(6, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(ids))[0])


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 5)
        self.gru = nn.GRU(5, 6, batch_first=True)
        self.head = nn.Linear(6, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.gru(self.embed(ids))[0])


class Tower(nn.Module):
    def __init__(self, many: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(many, 6)
        self.fc = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8, eps=1e-5)
        self.out = nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.out(F.gelu(self.norm(self.fc(self.embed(ids).mean(1)))))
        return F.normalize(x, dim=-1)


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = Tower(7)
        self.items = Tower(13)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return self.scale * self.users(users) @ self.items(items).T


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(2, 4, 3, padding=1)
        self.norm1 = nn.GroupNorm(2, 4, eps=1e-5)
        self.down = nn.Conv2d(4, 8, 2, stride=2)
        self.norm2 = nn.GroupNorm(4, 8, eps=1e-5)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.silu(self.norm1(self.enter(x)))
        x = F.silu(self.norm2(self.down(skip)))
        return self.out(torch.cat([self.up(x), skip], 1))


class LlamaBlock(nn.Module):
    """Four heads of queries for two of keys and values, turned by their place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(8, eps=1e-6)
        self.q = nn.Linear(8, 8, bias=False)
        self.k = nn.Linear(8, 4, bias=False)
        self.v = nn.Linear(8, 4, bias=False)
        self.o = nn.Linear(8, 8, bias=False)
        self.norm2 = nn.RMSNorm(8, eps=1e-6)
        self.gate = nn.Linear(8, 20, bias=False)
        self.up = nn.Linear(8, 20, bias=False)
        self.down = nn.Linear(20, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm1(x)
        q = turned(self.q(inner).unflatten(-1, (4, 2)).transpose(1, 2))
        k = turned(self.k(inner).unflatten(-1, (2, 2)).transpose(1, 2)).repeat_interleave(2, 1)
        v = self.v(inner).unflatten(-1, (2, 2)).transpose(1, 2).repeat_interleave(2, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        inner = self.norm2(x)
        return x + self.down(F.silu(self.gate(inner)) * self.up(inner))


def turned(x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None]
    first, second = x.chunk(2, -1)
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, 8)
        self.blocks = nn.ModuleList([LlamaBlock() for _ in range(2)])
        self.norm = nn.RMSNorm(8, eps=1e-6)
        self.head = nn.Linear(8, 17, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "mlp": MLP,
    "cnn": CNN,
    "resnet": ResNet,
    "gpt": GPT,
    "attention": Attention,
    "lstm": Tagger,
    "gru": Gated,
    "towers": Towers,
    "unet": UNet,
    "llama": Llama,
}
