"""Write the tables of layers in docs/native-modules.md from the layers themselves.

Usage: make_layer_docs.py [--check]. With --check nothing is written; the exit code is 1 when the page is not current.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import firekeep.module as native
from firekeep.module import Module, Param, walk

PAGE = Path(__file__).parents[1] / "docs" / "native-modules.md"
TABLES = {
    "layers": {
        "Linear": "4, 6",
        "Embedding": "10, 4",
        "Conv1d": "4, 6, 3",
        "Conv2d": "4, 6, 3",
        "Conv3d": "4, 6, 3",
        "ConvTranspose1d": "4, 6, 3",
        "ConvTranspose2d": "4, 6, 3",
        "ConvTranspose3d": "4, 6, 3",
        "BatchNorm": "6",
        "LayerNorm": "6",
        "GroupNorm": "2, 6",
        "InstanceNorm": "6",
        "RmsNorm": "6",
        "PRelu": "",
        "SwiGlu": "4, 6",
        "Lstm": "4, 6",
        "BiLstm": "4, 6",
        "Gru": "4, 6",
        "BiGru": "4, 6",
        "Rnn": "4, 6",
        "GateController": "4, 6",
        "MultiHeadAttention": "8, 2",
        "PositionWiseFeedForward": "8, 16",
        "TransformerEncoderLayer": "8, 16, 2",
        "TransformerEncoder": "8, 16, 2, 2",
        "TransformerDecoderLayer": "8, 16, 2",
        "TransformerDecoder": "8, 16, 2, 2",
    },
    "activations": dict.fromkeys(
        (
            *("Relu", "Gelu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "HardSigmoid", "HardSwish", "Softplus"),
            *("Identity", "Dropout"),
        ),
        "",
    ),
}
"""What is shown, and the arguments of the one that is made."""

UNSAID = ("initializer", "rng")
"""Arguments that many layers have, which the page tells once."""


def rows(table: str) -> Iterator[str]:
    """Give the lines of a table."""
    made_as = table == "layers"
    yield "| layer | arguments |" + (" for example | has |" if made_as else "")
    yield "|---|---|" + ("---|---|" if made_as else "")
    for name, given in TABLES[table].items():
        kind = getattr(native, name)
        line = f"| `{name}` | {arguments(kind)} |"
        if made_as:
            layer = kind(*map(int, filter(None, given.split(", "))))
            line += f" `{name}({given})` | {'; '.join(parts(layer))} |"
        yield line


def arguments(kind: Any) -> str:
    """Tell the arguments of a layer, those that are given by keyword with their defaults."""
    said = [one for one in inspect.signature(kind).parameters.values() if one.name not in UNSAID]
    told = [one.name if one.default is inspect.Parameter.empty else f"{one.name}={one.default!r}" for one in said]
    return ", ".join(f"`{one}`" for one in told) or "none"


def parts(layer: Module) -> Iterator[str]:
    """Tell the tensors of a layer with their shapes, and its inner layers by their class."""
    inner: dict[str, list[str]] = {}
    own = {visited.path: visited.param.shape for visited in walk(layer)}
    for path, part in children(layer, ""):
        own = {name: shape for name, shape in own.items() if not name.startswith(f"{path}.")}
        if any(True for _ in walk(part)):
            inner.setdefault(type(part).__name__, []).append(path)
    yield from (f"`{name}` {list(shape)}" for name, shape in own.items())
    for kind, paths in inner.items():
        yield f"{', '.join(f'`{path}`' for path in paths)}: {kind}"


def children(value: Any, path: str) -> Iterator[tuple[str, Module]]:
    """Give the modules right below a module, those in lists too."""
    items = vars(value).items() if isinstance(value, Module) else enumerate(value)
    for name, part in items:
        below = f"{path}.{name}" if path else str(name)
        if isinstance(part, Module):
            yield below, part
        elif isinstance(part, list | tuple) and not isinstance(part, Param):
            yield from children(part, below)


def page(text: str) -> str:
    """Give the whole page, with its tables made anew."""
    for table in TABLES:
        begin, end = f"<!-- {table}: made by `make docs` -->", "<!-- end -->"
        body = "\n".join(rows(table))
        text, found = re.subn(
            rf"{re.escape(begin)}.*?{re.escape(end)}",
            lambda _, body=body, begin=begin, end=end: f"{begin}\n\n{body}\n\n{end}",
            text,
            flags=re.DOTALL,
        )
        if found != 1:
            raise RuntimeError(f"the page has {found} places for {table}")
    return text


def main() -> int:
    """Write or check the page."""
    current = PAGE.read_text(encoding="utf-8")
    text = page(current)
    if "--check" in sys.argv[1:]:
        if current != text:
            print("docs/native-modules.md is not current: run `make docs`", file=sys.stderr)
        return int(current != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
