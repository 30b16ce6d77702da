"""Run in a process of its own: put arrays into layers of Keras by name, and write what they compute."""

from __future__ import annotations

import json
import sys

import keras
import numpy as np


def bidirectional(make):
    return keras.layers.Bidirectional(make(4, return_sequences=True))


def mha(heads=2):
    return keras.layers.MultiHeadAttention(heads, 4)


layers = keras.layers
MAKERS = {
    "linear": lambda: layers.Dense(3),
    "general": lambda: layers.EinsumDense("bij,ijkl->bkl", output_shape=(4, 2), bias_axes="kl"),
    "embedding": lambda: layers.Embedding(7, 3),
    "conv1d": lambda: layers.Conv1D(6, 2, strides=2, groups=2),
    "conv2d": lambda: layers.Conv2D(6, (2, 3), dilation_rate=(2, 1)),
    "conv3d": lambda: layers.Conv3D(4, (2, 1, 2)),
    "depthwise1d": lambda: layers.DepthwiseConv1D(2, depth_multiplier=2),
    "depthwise2d": lambda: layers.DepthwiseConv2D((2, 3), depth_multiplier=2),
    "conv_transpose1d": lambda: layers.Conv1DTranspose(6, 3, strides=2),
    "conv_transpose2d": lambda: layers.Conv2DTranspose(6, (2, 3), strides=(2, 1)),
    "conv_transpose3d": lambda: layers.Conv3DTranspose(3, (2, 3, 2), strides=(2, 1, 2)),
    "batch_norm": lambda: layers.BatchNormalization(epsilon=1e-5),
    "layer_norm": lambda: layers.LayerNormalization(epsilon=1e-5),
    "group_norm": lambda: layers.GroupNormalization(3, epsilon=1e-5),
    "instance_norm": lambda: layers.GroupNormalization(-1, epsilon=1e-5),
    "rms_norm": lambda: layers.RMSNormalization(epsilon=1e-5),
    "prelu": lambda: layers.PReLU(shared_axes=[1, 2]),
    "attention": mha,
    "attention_other": mha,
    "lstm": lambda: layers.LSTM(4, return_sequences=True),
    "gru": lambda: layers.GRU(4, return_sequences=True),
    "rnn": lambda: layers.SimpleRNN(4, return_sequences=True),
    "both_lstm": lambda: bidirectional(layers.LSTM),
    "both_gru": lambda: bidirectional(layers.GRU),
}


def variables(layer):
    """Give the variables by attribute: the cell of a recurrent layer is `cell`, the direction `forward_layer`."""
    if isinstance(layer, layers.Bidirectional):
        for name in ("forward_layer", "backward_layer"):
            cell = getattr(layer, name).cell
            yield from ((f"{name}.cell.{variable.name}", variable) for variable in cell.weights)
    elif isinstance(layer, layers.MultiHeadAttention):
        for variable in layer.weights:
            yield ".".join(variable.path.split("/")[-2:]), variable
    else:
        cell = getattr(layer, "cell", layer)
        yield from ((variable.name, variable) for variable in cell.weights)


def run(case, arrays, inputs):
    layer = MAKERS[case]()
    layer(*inputs)
    named = dict(variables(layer))
    shapes = {name: tuple(variable.shape) for name, variable in named.items()}
    assert shapes == {name: array.shape for name, array in arrays.items()}, (case, shapes)
    for name, variable in named.items():
        variable.assign(arrays[name])
    return keras.ops.convert_to_numpy(layer(*inputs))


if __name__ == "__main__":
    given = np.load(sys.argv[1])
    made = {}
    for case in json.loads(sys.argv[3]):
        held = {key.split("/")[2]: given[key] for key in given.files if key.startswith(f"{case}/weights/")}
        count = sum(key.startswith(f"{case}/inputs/") for key in given.files)
        made[case] = run(case, held, [given[f"{case}/inputs/{place}"] for place in range(count)])
    np.savez(sys.argv[2], **made)
