"""The architectures whose layers run in NumPy, written as Burn's would be: fields with the names of the torch models' parts."""

from __future__ import annotations

from typing import Any

import numpy as np

import firekeep.module as fm

Array = np.ndarray


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def chain(layers: list[Any], x: Array) -> Array:
    for layer in layers:
        x = layer(x)
    return x


class BasicBlock(fm.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        self.conv1 = fm.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.bn1 = fm.BatchNorm(outside)
        self.conv2 = fm.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = fm.BatchNorm(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = [fm.Conv2d(inside, outside, 1, stride=stride, bias=False), fm.BatchNorm(outside)]

    def __call__(self, x: Array) -> Array:
        around = x if self.downsample is None else chain(self.downsample, x)
        return relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))) + around)


class ResNet(fm.Module):
    def __init__(self) -> None:
        self.conv1 = fm.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
        self.bn1 = fm.BatchNorm(8)
        self.layer1 = [BasicBlock(8, 8, 1), BasicBlock(8, 8, 1)]
        self.layer2 = [BasicBlock(8, 16, 2), BasicBlock(16, 16, 1)]
        self.fc = fm.Linear(16, 5)

    def __call__(self, x: Array) -> Array:
        return self.fc(chain([*self.layer1, *self.layer2], relu(self.bn1(self.conv1(x)))).mean((2, 3)))


class ViT(fm.Module):
    def __init__(self) -> None:
        self.patches = fm.Conv2d(3, 12, 4, stride=4)
        self.cls_token = fm.Param(np.zeros((1, 1, 12), np.float32))
        self.pos_embed = fm.Param(np.zeros((1, 17, 12), np.float32))
        self.encoder = fm.TransformerEncoder(12, 20, 3, 2, norm_first=True)
        self.norm = fm.LayerNorm(12)
        self.pool = fm.MultiHeadAttention(12, 3)
        self.head = fm.Linear(12, 5)

    def __call__(self, x: Array) -> Array:
        x = self.patches(x).reshape(len(x), 12, -1).swapaxes(1, 2)
        x = np.concatenate([np.repeat(self.cls_token.value, len(x), 0), x], 1) + self.pos_embed.value
        x = self.norm(self.encoder(x))
        return self.head(self.pool(x[:, :1], x, x)[:, 0])


class Tagger(fm.Module):
    """PyTorch's one LSTM of two layers is a list of two here."""

    def __init__(self) -> None:
        self.embedding = fm.Embedding(23, 6)
        self.lstm = [fm.BiLstm(6, 5), fm.BiLstm(10, 5)]
        self.gru = fm.Gru(10, 4)
        self.tags = fm.Linear(4, 7)

    def __call__(self, ids: Array) -> Array:
        x = self.embedding(ids)
        for layer in self.lstm:
            x = layer(x)[0]
        return self.tags(self.gru(x)[0])


class Stages(fm.Module):
    """What a ModuleDict is: a part with a field for each."""

    coarse: Any
    fine: Any


def unet_block(inside: int, outside: int) -> list[Any]:
    return [
        fm.Conv2d(inside, outside, 3, padding=1),
        fm.GroupNorm(2, outside),
        fm.PRelu(num_parameters=outside),
    ]


def halved(x: Array) -> Array:
    return x.reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2).max((3, 5))


class UNet(fm.Module):
    def __init__(self) -> None:
        self.down = [unet_block(1, 4), unet_block(4, 8)]
        self.middle = unet_block(8, 12)
        self.up = Stages(
            coarse=fm.ConvTranspose2d(12, 8, 2, stride=2), fine=fm.ConvTranspose2d(8, 4, 2, stride=2, bias=False)
        )
        self.merge = Stages(coarse=unet_block(16, 8), fine=unet_block(8, 4))
        self.out = fm.Conv2d(4, 2, 1)

    def __call__(self, x: Array) -> Array:
        fine = chain(self.down[0], x)
        coarse = chain(self.down[1], halved(fine))
        x = self.up.coarse(chain(self.middle, halved(coarse)))
        x = self.up.fine(chain(self.merge.coarse, np.concatenate([x, coarse], 1)))
        return self.out(chain(self.merge.fine, np.concatenate([x, fine], 1)))


class MixerBlock(fm.Module):
    """An activation has no place in a list here, so that the second Linear moves from 2 to 1."""

    def __init__(self, tokens: int, channels: int) -> None:
        self.norm1 = fm.LayerNorm(channels)
        self.token_mixing = [fm.Linear(tokens, 10), fm.Linear(10, tokens)]
        self.norm2 = fm.LayerNorm(channels)
        self.channel_mixing = [fm.Linear(channels, 20), fm.Linear(20, channels)]

    def __call__(self, x: Array) -> Array:
        gelu = fm.Gelu()
        mixed = self.token_mixing[1](gelu(self.token_mixing[0](self.norm1(x).swapaxes(1, 2))))
        x = x + mixed.swapaxes(1, 2)
        return x + self.channel_mixing[1](gelu(self.channel_mixing[0](self.norm2(x))))


class Mixer(fm.Module):
    def __init__(self) -> None:
        self.stem = fm.Conv2d(3, 16, 4, stride=4)
        self.blocks = [MixerBlock(16, 16) for _ in range(3)]
        self.norm = fm.LayerNorm(16)
        self.head = fm.Linear(16, 16)

    def __call__(self, x: Array) -> Array:
        x = self.stem(x).reshape(len(x), 16, -1).swapaxes(1, 2)
        return self.head(self.norm(chain(self.blocks, x)).mean(1))


class SqueezeExcitation(fm.Module):
    def __init__(self, channels: int) -> None:
        self.fc1 = fm.Conv2d(channels, 2, 1)
        self.fc2 = fm.Conv2d(2, channels, 1)

    def __call__(self, x: Array) -> Array:
        return x * fm.Sigmoid()(self.fc2(silu(self.fc1(x.mean((2, 3), keepdims=True)))))


class MBConv(fm.Module):
    def __init__(self, channels: int, stride: int) -> None:
        wide = channels * 3
        middle = fm.Conv2d(wide, wide, 3, stride=stride, padding=1, groups=wide, bias=False)
        self.block = [
            [fm.Conv2d(channels, wide, 1, bias=False), fm.BatchNorm(wide, epsilon=1e-3)],
            [middle, fm.BatchNorm(wide, epsilon=1e-3)],
            SqueezeExcitation(wide),
            [fm.Conv2d(wide, channels, 1, bias=False), fm.BatchNorm(channels, epsilon=1e-3)],
        ]
        self.stride = stride

    def __call__(self, x: Array) -> Array:
        y = silu(chain(self.block[1], silu(chain(self.block[0], x))))
        y = chain(self.block[3], self.block[2](y))
        return x + y if self.stride == 1 else y


class EfficientNet(fm.Module):
    def __init__(self) -> None:
        stem = [fm.Conv2d(3, 6, 3, stride=2, padding=1, bias=False), fm.BatchNorm(6)]
        self.features = [stem, MBConv(6, 1), MBConv(6, 2)]
        self.classifier = [fm.Linear(6, 7)]

    def __call__(self, x: Array) -> Array:
        x = chain(self.features[1:], silu(chain(self.features[0], x)))
        return self.classifier[0](x.mean((2, 3)))


class BertEmbeddings(fm.Module):
    word_embeddings: fm.Embedding
    position_embeddings: fm.Embedding
    LayerNorm: fm.LayerNorm


class Pooler(fm.Module):
    dense: fm.Linear


class Bert(fm.Module):
    def __init__(self) -> None:
        self.embeddings = BertEmbeddings(
            word_embeddings=fm.Embedding(23, 12),
            position_embeddings=fm.Embedding(9, 12),
            LayerNorm=fm.LayerNorm(12, epsilon=1e-12),
        )
        self.position_ids = fm.Param(np.zeros((1, 9), np.int64))
        self.encoder = fm.TransformerEncoder(12, 20, 3, 2, epsilon=1e-12)
        self.pooler = Pooler(dense=fm.Linear(12, 12))

    def __call__(self, ids: Array) -> tuple[Array, Array]:
        places = self.embeddings.position_embeddings(self.position_ids.value[:, : ids.shape[1]])
        x = self.encoder(self.embeddings.LayerNorm(self.embeddings.word_embeddings(ids) + places))
        return x, np.tanh(self.pooler.dense(x[:, 0]))


class VAE(fm.Module):
    def __init__(self) -> None:
        first, second = fm.Conv2d(1, 4, 3, stride=2, padding=1), fm.Conv2d(4, 8, 3, stride=2, padding=1)
        self.encoder = [first, fm.LeakyRelu(), second, fm.BatchNorm(8), fm.LeakyRelu()]
        self.mean = fm.Linear(8 * 16, 6)
        self.log_variance = fm.Linear(8 * 16, 6)
        self.unfold = fm.Linear(6, 8 * 16)
        up = fm.ConvTranspose2d(8, 4, 3, stride=2, padding=1, padding_out=1)
        self.decoder = [up, fm.Relu(), fm.ConvTranspose2d(4, 2, 4, stride=2, padding=1, groups=2), fm.Sigmoid()]

    def __call__(self, x: Array) -> tuple[Array, Array, Array]:
        x = chain(self.encoder, x).reshape(len(x), -1)
        mean, spread = self.mean(x), self.log_variance(x)
        return chain(self.decoder, self.unfold(mean + np.exp(spread / 2)).reshape(-1, 8, 4, 4)), mean, spread


class DLRM(fm.Module):
    def __init__(self) -> None:
        self.tables = [fm.Embedding(11, 6), fm.Embedding(17, 6)]
        self.bottom = [fm.Linear(5, 9), fm.Linear(9, 6)]
        self.top = [fm.Linear(9, 9), fm.Linear(9, 1)]

    def __call__(self, dense: Array, one: Array, many: Array) -> Array:
        x = relu(self.bottom[1](relu(self.bottom[0](dense))))
        rows = np.stack([x, self.tables[0](one), self.tables[1](many).sum(1)], 1)
        pairs = rows @ rows.swapaxes(1, 2)
        whole = np.concatenate([x, pairs[:, 0, 1:], pairs[:, 1, 2:]], 1)
        return fm.Sigmoid()(self.top[1](relu(self.top[0](whole))))


TWINS: dict[str, type[fm.Module]] = {
    "resnet": ResNet,
    "vit": ViT,
    "tagger": Tagger,
    "unet": UNet,
    "mixer": Mixer,
    "efficientnet": EfficientNet,
    "bert": Bert,
    "vae": VAE,
    "dlrm": DLRM,
}
