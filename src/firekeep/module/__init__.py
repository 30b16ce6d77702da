"""A module tree in the manner of Burn: layers with its names and shapes, made when used, run in NumPy.

>>> import numpy as np
>>> from firekeep.module import Linear, Module, Relu
>>> class Net(Module):
...     inner: Linear
...     outer: Linear
...
...     def __call__(self, x):
...         return self.outer(Relu()(self.inner(x)))
>>> net = Net(inner=Linear(4, 8, rng=0), outer=Linear(8, 2, rng=1))
>>> [(visited.path, visited.param.shape) for visited in walk(net)]
[('inner.weight', (4, 8)), ('inner.bias', (8,)), ('outer.weight', (8, 2)), ('outer.bias', (2,))]
>>> net(np.ones((3, 4), np.float32)).shape
(3, 2)
"""

from __future__ import annotations

from firekeep.module._activations import (
    Dropout,
    Elu,
    Gelu,
    HardSigmoid,
    HardSwish,
    Identity,
    LeakyRelu,
    PRelu,
    Relu,
    Sigmoid,
    Softplus,
    SwiGlu,
    Tanh,
)
from firekeep.module._conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from firekeep.module._errors import ConstantArrayWarning, ModuleError
from firekeep.module._group import ParamGroup
from firekeep.module._initializers import (
    Constant,
    Fans,
    Initializer,
    KaimingNormal,
    KaimingUniform,
    Normal,
    Uniform,
    XavierNormal,
    XavierUniform,
    seed,
)
from firekeep.module._linear import Embedding, Linear
from firekeep.module._norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm
from firekeep.module._param import Mappers, Param, RunningState
from firekeep.module._recurrent import BiGru, BiLstm, GateController, Gru, Lstm, Rnn
from firekeep.module._transformer import (
    MultiHeadAttention,
    PositionWiseFeedForward,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from firekeep.module._tree import Module, Variant
from firekeep.module._walk import ModuleMapper, ModuleVisitor, Visited, map_module, modules, visit, walk

__all__ = [
    "BatchNorm",
    "BiGru",
    "BiLstm",
    "Constant",
    "ConstantArrayWarning",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Elu",
    "Embedding",
    "Fans",
    "GateController",
    "Gelu",
    "GroupNorm",
    "Gru",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "Initializer",
    "InstanceNorm",
    "KaimingNormal",
    "KaimingUniform",
    "LayerNorm",
    "LeakyRelu",
    "Linear",
    "Lstm",
    "Mappers",
    "Module",
    "ModuleError",
    "ModuleMapper",
    "ModuleVisitor",
    "MultiHeadAttention",
    "Normal",
    "PRelu",
    "Param",
    "ParamGroup",
    "PositionWiseFeedForward",
    "Relu",
    "RmsNorm",
    "Rnn",
    "RunningState",
    "Sigmoid",
    "Softplus",
    "SwiGlu",
    "Tanh",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Uniform",
    "Variant",
    "Visited",
    "XavierNormal",
    "XavierUniform",
    "map_module",
    "modules",
    "seed",
    "visit",
    "walk",
]
