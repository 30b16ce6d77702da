"""Training by Keras on PyTorch, in a process of its own, since the backend is chosen as keras is imported: `python keras_run.py MODE FOLDER`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

mode, folder = sys.argv[1], Path(sys.argv[2])
os.environ |= {
    "KERAS_BACKEND": sys.argv[3] if len(sys.argv) > 3 else "torch",
    "HOME": str(folder),
    "KERAS_HOME": str(folder),
}

import keras  # noqa: E402
import numpy as np  # noqa: E402

from firekeep import save_file  # noqa: E402
from firekeep.integrations.keras import restore_keras, save_keras  # noqa: E402

STEPS, HALF = 12, 6


def model(*, width=16, last="last"):
    net = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(width, name="first"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dropout(0.3, name="drop"),
            keras.layers.Dense(1, name=last),
        ],
        name="net",
    )
    schedule = keras.optimizers.schedules.CosineDecay(1e-2, STEPS)
    net.compile(optimizer=keras.optimizers.AdamW(schedule), loss="mse")
    return net


def train(net, steps):
    numbers = np.random.default_rng(7)
    inputs, targets = numbers.normal(size=(STEPS, 4, 8)), numbers.normal(size=(STEPS, 4, 1))
    return [float(net.train_on_batch(inputs[at], targets[at])).hex() for at in steps]


def told(net):
    return {one.path: one.value.detach().double().flatten().tolist() for one in net.variables}


def refusal(attempt):
    try:
        attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def first():
    keras.utils.set_random_seed(1)
    net = model()
    losses = train(net, range(HALF))
    save_keras(net, folder / "run.bpk")
    return {"losses": losses + train(net, range(HALF, STEPS)), "weights": told(net)}


def second():
    keras.utils.set_random_seed(100)
    net = model()
    report = restore_keras(net, folder / "run.bpk")
    return {"losses": train(net, range(HALF, STEPS)), "weights": told(net), "report": str(report), "rng": report.rng}


class Twins(keras.layers.Layer):
    def build(self, shape):
        self.one, self.other = (self.add_weight(shape=(2,), name="same") for _ in range(2))

    def call(self, inputs):
        return inputs


def refusals():
    wider, other = model(width=17), model(last="other")
    before = told(wider)
    keras.utils.clear_session()
    return {
        "wider": refusal(lambda: restore_keras(wider, folder / "run.bpk")),
        "untouched": told(wider) == before,
        "other": refusal(lambda: restore_keras(other, folder / "run.bpk")),
        "unbuilt": refusal(lambda: save_keras(keras.Sequential([keras.layers.Dense(1)]), folder / "no.bpk")),
        "twins": refusal(
            lambda: save_keras(keras.Sequential([keras.Input((2,)), Twins(name="both")]), folder / "no.bpk")
        ),
        "kerasfile": refusal(lambda: restore_keras(model(), save_file({"w": np.ones(2)}, folder / "other.bpk"))),
        "alone": alone(),
        "files": sorted(path.name for path in folder.glob("*.bpk")),
    }


def alone():
    keras.utils.clear_session()
    net = model()
    report = restore_keras(net, folder / "run.bpk", optimizer=False, rng=False)
    return [report.model, report.optimizer, report.rng, int(net.optimizer.iterations.value)]


def backend():
    return refusal(lambda: save_keras(model(), folder / "no.bpk"))


if __name__ == "__main__":
    modes = {"first": (first,), "second": (second, refusals), "backend": (backend,)}
    print(json.dumps([one() for one in modes[mode]]))
