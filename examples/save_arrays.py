"""Save arrays, numbers and text, and load them again."""

import numpy as np

import firekeep

tensors = {"encoder.weight": np.eye(4, dtype=np.float32), "encoder.bias": np.zeros(4, dtype=np.float32)}
firekeep.save_file(tensors, "state.bpk", metadata={"run": "a1"}, scalars={"step": 1200, "loss": 0.25})

with firekeep.open("state.bpk") as file:
    print(int(file.scalars["step"]), file.metadata["run"])

loaded = firekeep.load_file("state.bpk")
assert (loaded["encoder.weight"] == tensors["encoder.weight"]).all()
