"""Where tensors come from that are put into a model: a file, or another model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from firekeep.bridges import bridge_of
from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, RuleError
from firekeep.layouts import FileLayout, columns_of, columns_said, layout_of, unturned_said
from firekeep.opened import OpenedFile, Readable, narrow, open_file
from firekeep.parts import take_part
from firekeep.rules.layout import Pair, read_biases, read_layers
from firekeep.scalars import Scalar
from firekeep.slots import Constants, Layer
from firekeep.wording import count, quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from firekeep.formats import OpenOptions

_RANK = re.compile(r"\d+\.__rank", re.ASCII)
_RECORDS = re.compile(r"optimizer|optim|lr_scheduler|scheduler")
"""What files of records are called where one of a model is called so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Tensors on offer, by the names they have where they come from.

    `layout` is how their layers lie, None where nobody knows. `layers` are those that the source tells the kinds of, `submodules` all
    parts it names, those without tensors too. `left_out` counts tensors of the file that lie outside the part taken.
    """

    entries: Mapping[str, TensorEntry]
    layout: FileLayout | None
    layers: tuple[Layer, ...] = ()
    submodules: frozenset[str] = frozenset()
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    columns: frozenset[str] | None = None
    """Linear layers that lie as [out, in] in Burn's layout; None where there may be such and nobody says."""
    unturned: frozenset[str] | None = None
    """Matrices that lie as PyTorch had them, in Burn's layout; None where nobody says."""
    where: str | None = None
    part: str | None = None
    left_out: int = 0
    live: bool = False
    """The tensors are in memory, which may be that of the model they are put into."""
    biases: tuple[Pair, ...] = ()
    """Biases that the file has the sums of, as its metadata keep them."""
    told: tuple[Layer, ...] = ()
    """Some of the layers, with what no tensor tells of them, as the metadata of a file or a collection have it."""
    constants: tuple[Constants, ...] = ()
    """What the model computes with beside these, where they are another's."""
    parts: tuple[str, ...] = ()
    """Keys of the parts of a PyTorch file that look like models."""
    part_at: Callable[[str], Supply] | None = field(default=None, repr=False, compare=False)
    """Offers what `top_level_key` takes of a PyTorch file, while that is open."""

    def notes(self) -> Iterator[str]:
        """Say what was taken of the source."""
        if self.part and self.left_out:
            lie = "lies" if self.left_out == 1 else "lie"
            yield f"of the file, the part {quote(self.part)} was taken; {count(self.left_out, 'tensor')} {lie} outside it"
        elif self.part:
            yield f"of the file, the part {quote(self.part)} was taken"


@contextmanager
def supply_of_file(source: Readable, options: OpenOptions) -> Iterator[Supply]:
    """Open a file and offer its tensors, or those of the one part of it that is a model, until the file is closed again."""
    with open_file(source, replace(options, top_level_key=options.top_level_key or None)) as opened:
        _refuse_records(opened)
        yield supply_of_opened(opened, options)


def _refuse_records(opened: OpenedFile) -> None:
    """Refuse what Burn keeps beside a model, the states of optimizers and schedulers: nothing in it is a tensor of a model."""
    if any(_RANK.fullmatch(name) for name in opened.container.scalars):
        raise RuleError(
            "this is the record of an optimizer, whose tensors are named by the ids of parameters, and no model",
            path=opened.path,
            remedy=_model_beside(opened.path),
        )
    if opened.format == "burnpack" and opened.container.scalars and not opened.container.entries:
        raise RuleError(
            "this holds numbers and no tensors, as the record of a scheduler does, and no model",
            path=opened.path,
            remedy=_model_beside(opened.path),
        )


def _model_beside(path: str | None) -> str:
    if path is None:
        return "Give the model's own file."
    record = Path(path)
    names = dict.fromkeys((_RECORDS.sub("model", record.name), f"model{record.suffix}"))
    for name in names:
        if name != record.name and record.with_name(name).is_file():
            return f"Give the model's own file, which lies beside it: {str(record.with_name(name))!r}."
    return "Give the model's own file."


def supply_of_opened(opened: OpenedFile, options: OpenOptions) -> Supply:
    """Offer the tensors of an open file, or those of the one part of it that is a model."""
    try:
        part = take_part(opened, options, options.top_level_key)
        told = read_layers(opened.metadata)
    except FirekeepError as error:
        raise error.at(path=opened.path)  # noqa: B904 - the same error, with its place
    held = part.opened
    return Supply(
        entries=held.filled(),
        layout=layout_of(opened.format, opened.metadata, content=opened.container.layout),
        layers=held.container.layers,
        submodules=held.container.submodules,
        scalars=held.container.scalars,
        columns=columns_said(opened.metadata),
        unturned=unturned_said(opened.metadata),
        biases=read_biases(opened.metadata),
        told=told,
        where=opened.path,
        part=part.key,
        left_out=len(part.left_out),
        parts=opened.subtrees,
        part_at=(lambda key: _supply_of_part(opened, options, key)) if opened.format == "pytorch" else None,
    )


def _supply_of_part(opened: OpenedFile, options: OpenOptions, key: str) -> Supply:
    keyed = replace(options, top_level_key=key)
    return supply_of_opened(narrow(opened, keyed), keyed)


def supply_of_entries(
    entries: Iterable[TensorEntry],
    *,
    layout: str | None,
    layers: tuple[Layer, ...] = (),
    scalars: Mapping[str, Scalar] = MappingProxyType({}),
    constants: tuple[Constants, ...] = (),
    told: tuple[Layer, ...] = (),
    unturned: frozenset[str] | None = None,
) -> Supply:
    """Offer tensors that were collected; raises `RuleError` for two of one name."""
    named: dict[str, TensorEntry] = {}
    for entry in entries:
        if named.setdefault(entry.name, entry) is not entry:
            raise RuleError(f"two of the tensors are called {entry.name!r}")
    said = FileLayout(layout, said=True) if layout else None
    return Supply(
        entries=named,
        layout=said,
        layers=layers,
        scalars=scalars,
        live=True,
        constants=constants,
        columns=columns_of(layers) if said else None,
        told=told,
        unturned=unturned,
    )


def _unturned(entries: Iterable[TensorEntry], layers: Iterable[Layer]) -> frozenset[str]:
    """Give the matrices that no linear layer has as its weight, where all layers are known."""
    linear = {f"{layer.path}.weight" if layer.path else "weight" for layer in layers if layer.kind.startswith("linear")}
    return frozenset(entry.name for entry in entries if len(entry.shape) == 2 and entry.name not in linear)


def supply_of_object(obj: Any) -> Supply:
    """Offer the tensors of a model."""
    bridge = bridge_of(obj)
    outline = bridge.outline(obj)
    entries = bridge.entries(obj)
    return replace(
        supply_of_entries(entries, layout=outline.convention, layers=outline.layers),
        unturned=_unturned(entries, outline.layers) if outline.convention == "burn" else None,
        submodules=outline.modules,
        constants=tuple(bridge.constants(obj)),
    )
