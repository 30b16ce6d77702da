"""Describe a Burn model in Python, load its weights and run it, without PyTorch or Rust: it reads a digit drawn by hand."""

import numpy as np

import firekeep
from firekeep.module import BatchNorm, Conv2d, Gelu, Linear, Module, Relu


class ConvBlock(Module):
    conv: Conv2d
    norm: BatchNorm

    def __call__(self, x):
        x = Relu()(self.norm(self.conv(x)))
        h, w = x.shape[2] // 2, x.shape[3] // 2
        return x[:, :, : 2 * h, : 2 * w].reshape(*x.shape[:2], h, 2, w, 2).max(axis=(3, 5))  # a MaxPool2d of 2


class Mnist(Module):
    conv1: ConvBlock
    conv2: ConvBlock
    fc1: Linear
    fc2: Linear
    fc3: Linear

    def __call__(self, x):
        x = self.conv2(self.conv1(x)).reshape(len(x), -1)
        return self.fc3(Gelu()(self.fc2(Gelu()(self.fc1(x)))))


model = Mnist(
    conv1=ConvBlock(conv=Conv2d(1, 64, 3), norm=BatchNorm(64)),
    conv2=ConvBlock(conv=Conv2d(64, 64, 3), norm=BatchNorm(64)),
    fc1=Linear(1600, 128),
    fc2=Linear(128, 128),
    fc3=Linear(128, 10),
)
print(firekeep.load_into(model, "model.bpk"))

drawing = """
..####..
.#...##.
......#.
......#.
.....##.
....##..
...##...
..##....
.##.....
########
"""
pixels = np.array([[letter == "#" for letter in line] for line in drawing.split()], np.float32)
image = np.pad(pixels.repeat(2, axis=0).repeat(2, axis=1), ((4, 4), (6, 6)))
answer = model((image[None, None] - np.float32(0.1307)) / np.float32(0.3081))
print(drawing, "is a", answer.argmax())
