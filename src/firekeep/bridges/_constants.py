"""Constants of layers, spelled alike for all frameworks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from firekeep.slots import Constant

Pads = Sequence[tuple[int, int]]


def told(values: Iterable[tuple[str, Constant]]) -> dict[str, Constant]:
    """Collect constants, as far as a layer tells them: a subclass of one's own may have none of its parent's attributes."""
    found: dict[str, Constant] = {}
    with suppress(AttributeError, TypeError, ValueError):
        for name, value in values:
            found[name] = value  # noqa: PERF403 - what came before one that fails is kept
    return found


def each(value: int | Sequence[int] | None, axes: int) -> tuple[int, ...]:
    """Give a number for every axis, where one may stand for all; None is 1."""
    if value is None:
        value = 1
    return (value,) * axes if isinstance(value, int) else tuple(map(int, value))


def spell_each(values: Sequence[int]) -> str:
    """Spell numbers of axes: "2", or "2, 1" where they differ."""
    return ", ".join(map(str, dict.fromkeys(values) if len(set(values)) == 1 else values))


def spell_pads(pads: Pads) -> str:
    """Spell what is added before and after each axis: "1", "1, 2" by axes, "0+1, 1" where the two ends of an axis differ."""
    ends = [str(low) if low == high else f"{low}+{high}" for low, high in pads]
    return ", ".join(dict.fromkeys(ends) if len(set(ends)) == 1 else ends)


def same(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Pads | None:
    """Give what "same" adds at stride 1, the odd one at the end; at another stride it depends on the input, and is None."""
    if any(step != 1 for step in stride):
        return None
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [(total // 2, total - total // 2) for total in totals]


def spell_padding(padding: str | Pads, *, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> str:
    """Spell the padding of a convolution: words are made widths where these do not depend on the input."""
    if not isinstance(padding, str):
        return spell_pads(padding)
    word = padding.lower()
    if word == "valid":
        return "0"
    pads = same(kernel, stride, dilation) if word == "same" else None
    return word if pads is None else spell_pads(pads)


def gelu(approximate: object) -> str:
    """Name a form of GELU, by the word of PyTorch ("none", "tanh") or as a switch."""
    return "gelu (tanh)" if approximate not in (False, "none") else "gelu (erf)"
