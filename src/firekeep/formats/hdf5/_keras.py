"""What Keras calls things in its files.

Keras 3 numbers the variables of a layer, `layers/conv2d/vars/0`, and calls layers by their classes, in the order of the model; the names
that the user gave are attributes. Keras 2 has both names written out: `model_weights/first/first/kernel`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

VARIABLES = "vars"
_WEIGHTS = "model_weights"
_DENSE = (("kernel", None), ("bias", None))
_CELL = (("kernel", 2), ("recurrent_kernel", 2), ("bias", None))
_AFFINE = (("gamma", None), ("beta", None))

_ROLES: Mapping[str, tuple[tuple[str, int | None], ...]] = {
    "dense": (("kernel", 2), ("bias", 1)),
    "einsum_dense": _DENSE,
    **{f"{kind}{n}d": (("kernel", n + 2), ("bias", 1)) for kind in ("conv", "depthwise_conv") for n in (1, 2, 3)},
    **{f"conv{n}d_transpose": (("kernel", n + 2), ("bias", 1)) for n in (1, 2, 3)},
    **{f"separable_conv{n}d": (("depthwise_kernel", n + 2), ("pointwise_kernel", n + 2), ("bias", 1)) for n in (1, 2)},
    "embedding": (("embeddings", 2),),
    "batch_normalization": (("gamma", 1), ("beta", 1), ("moving_mean", 1), ("moving_variance", 1)),
    "layer_normalization": _AFFINE,
    "group_normalization": _AFFINE,
    "rms_normalization": (("scale", None),),
    "p_re_lu": (("alpha", None),),
    **dict.fromkeys(("cell", "lstm_cell", "gru_cell", "simple_rnn_cell"), _CELL),
    **{f"{part}_dense": _DENSE for part in ("query", "key", "value", "output")},
    "seed_generator": (("seed_generator_state", 1),),
}
"""The variables of a layer by its class, in their order, with the number of axes each has. A last `bias` may not be there."""
_ATTENTION = {"query_dense": "query", "key_dense": "key", "value_dense": "value", "output_dense": "attention_output"}
"""Layers within attention: the names of the attributes that hold them, and those of the layers themselves."""


def name_layer(path: Sequence[str]) -> list[str]:
    """Give the words that the names of a layer's variables begin with."""
    return [_ATTENTION.get(part, part) for part in path]


def name_variables(path: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Name the variables of one `vars` group by what they are in their layer, and by their numbers where that is not certain.

    `path` leads to the group of the layer; `shapes` are those of its variables.
    """
    layer = name_layer(path)
    roles = _roles(re.sub(r"_\d+$", "", path[-1]), shapes) if path else None
    return {
        number: ".".join((*layer, *((VARIABLES, number) if roles is None else (roles[int(number)],))))
        for number in shapes
    }


def _roles(kind: str, shapes: Mapping[str, tuple[int, ...]]) -> list[str] | None:
    row = _ROLES.get(kind)
    if row is None or shapes.keys() != {str(index) for index in range(len(shapes))}:
        return None
    if kind == "batch_normalization" and len(shapes) == 2:
        row = row[2:]  # neither scaled nor shifted: the statistics are always there
    if len(shapes) != len(row) and not (len(shapes) == len(row) - 1 and row[-1][0] == "bias"):
        return None
    used = row[: len(shapes)]
    if any(rank is not None and len(shapes[str(index)]) != rank for index, (_, rank) in enumerate(used)):
        return None
    return [role for role, _ in used]


def name_written_out(path: Sequence[str]) -> str:
    """Name a weight of a Keras 2 file: without the group of all weights, the layer's name said twice, and TensorFlow's ":0"."""
    parts = list(path[1:] if path[0] == _WEIGHTS else path)
    if len(parts) > 2 and parts[0] == parts[1]:
        del parts[0]
    return re.sub(r":0$", "", ".".join(parts))


def is_keras_2(root: Mapping[str, object], groups: Sequence[str]) -> bool:
    """Tell a file of Keras 2, or of the old format in Keras 3, by the attributes of its root and the groups in it."""
    return "layer_names" in root or ("keras_version" in root and _WEIGHTS in groups)
