"""Models for images, small, in the manner of those that people train."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        around = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + around)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 8, 1))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, 2), BasicBlock(16, 16, 1))
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer2(self.layer1(x)).mean((2, 3)))


class ViT(nn.Module):
    """The class token and the places are bare parameters; the blocks are torch's own, norms first."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 12, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 12))
        self.pos_embed = nn.Parameter(torch.zeros(1, 17, 12))
        layer = nn.TransformerEncoderLayer(12, 3, 20, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(12)
        self.pool = nn.MultiheadAttention(12, 3, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        x = self.norm(self.encoder(x))
        return self.head(self.pool(x[:, :1], x, x, need_weights=False)[0][:, 0])


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.block(1, 4), self.block(4, 8)])
        self.middle = self.block(8, 12)
        self.up = nn.ModuleDict(
            {"coarse": nn.ConvTranspose2d(12, 8, 2, 2), "fine": nn.ConvTranspose2d(8, 4, 2, 2, bias=False)}
        )
        self.merge = nn.ModuleDict({"coarse": self.block(16, 8), "fine": self.block(8, 4)})
        self.out = nn.Conv2d(4, 2, 1)

    @staticmethod
    def block(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(2, outside), nn.PReLU(outside), nn.Dropout(0.0)
        )

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down[0](x)
        coarse = self.down[1](F.max_pool2d(fine, 2))
        x = self.up["coarse"](self.middle(F.max_pool2d(coarse, 2)))
        x = self.up["fine"](self.merge["coarse"](torch.cat([x, coarse], 1)))
        return self.out(self.merge["fine"](torch.cat([x, fine], 1)))


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.token_mixing = nn.Sequential(nn.Linear(tokens, 10), nn.GELU(), nn.Linear(10, tokens))
        self.norm2 = nn.LayerNorm(channels)
        self.channel_mixing = nn.Sequential(nn.Linear(channels, 20), nn.GELU(), nn.Linear(20, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token_mixing(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mixing(self.norm2(x))


class Mixer(nn.Module):
    """As many tokens as channels: no shape tells which way round a weight lies."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, 4)
        self.blocks = nn.ModuleList([MixerBlock(16, 16) for _ in range(3)])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, 2, 1)
        self.fc2 = nn.Conv2d(2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.fc2(F.silu(self.fc1(x.mean((2, 3), keepdim=True)))))


class MBConv(nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        wide = channels * 3
        self.block = nn.Sequential(
            nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide, 1e-3, 0.01), nn.SiLU()),
            nn.Sequential(
                nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
                nn.BatchNorm2d(wide, 1e-3, momentum=None),
                nn.SiLU(),
            ),
            SqueezeExcitation(wide),
            nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels, 1e-3, 0.01)),
        )
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.stride == 1 else self.block(x)


class EfficientNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.SiLU()),
            MBConv(6, 1),
            MBConv(6, 2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(6, 7))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


class VAE(nn.Module):
    """An encoder and a decoder; the noise is left out, so that a forward can be compared."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1), nn.LeakyReLU(), nn.Conv2d(4, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.LeakyReLU()
        )
        self.mean = nn.Linear(8 * 16, 6)
        self.log_variance = nn.Linear(8 * 16, 6)
        self.unfold = nn.Linear(6, 8 * 16)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(8, 4, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(4, 2, 4, 2, 1, groups=2), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.encoder(x).flatten(1)
        mean, spread = self.mean(x), self.log_variance(x)
        return self.decoder(self.unfold(mean + torch.exp(spread / 2)).view(-1, 8, 4, 4)), mean, spread
