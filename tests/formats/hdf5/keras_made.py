"""Write one model of Keras in all of its ways, and its variables beside them: `python keras_made.py FOLDER`, in a process of its own."""

import os
import sys
from pathlib import Path

folder = Path(sys.argv[1])
os.environ.update(KERAS_BACKEND="numpy", KERAS_HOME=str(folder / "home"), HOME=str(folder))

import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers  # noqa: E402

inputs = keras.Input((8, 8, 3))
x = layers.Conv2D(4, 3, name="first")(inputs)
x = layers.Conv2D(4, 1, use_bias=False)(x)
x = layers.BatchNormalization()(x)
x = layers.BatchNormalization(scale=False, center=False)(x)
x = layers.BatchNormalization(scale=False, name="half")(x)
x = layers.PReLU(shared_axes=[1, 2])(x)
x = layers.DepthwiseConv2D(2)(x)
x = layers.SeparableConv2D(4, 2)(x)
x = layers.Conv2DTranspose(4, 2)(x)
x = layers.Reshape((-1, 4))(x)
x = layers.LayerNormalization()(x)
x = layers.MultiHeadAttention(2, 4, name="att")(x, x)
x = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)
x = layers.GRU(5, dropout=0.5)(x)
x = layers.Dense(2, name="out")(x)
model = keras.Model(inputs, x)
model.compile(optimizer="adam", loss="mse")
model.save(folder / "m.keras")
model.save_weights(folder / "m.weights.h5")
model.save(folder / "m.h5")
np.savez(
    folder / "truth.npz", **{variable.path.replace("/", "."): np.asarray(variable) for variable in model.variables}
)
half = keras.Sequential([keras.Input((4,)), layers.Dense(3, dtype="bfloat16")])
half.save_weights(folder / "half.weights.h5")
np.save(folder / "half.npy", np.asarray(half.layers[0].kernel).astype("f4"))
