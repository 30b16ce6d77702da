"""A file as a reader: what it holds, and as if it were a model that wants that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from firekeep.applying import LoadJob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.formats import OpenOptions
from firekeep.layouts import BURNS, CONVENTIONS, layout_of
from firekeep.likeness._joined import CUT, WHOLE, joined, parts
from firekeep.likeness._likeness import Likeness, flax_of, other_names, without_collections_of
from firekeep.matching import Plan, Want, plan
from firekeep.opened import OpenedFile, narrow, open_file
from firekeep.parts import take_part
from firekeep.rules.layout import layers_from_flax, layers_from_like, moved, parts_of, translate_layers
from firekeep.slots import Convention, Layer, Outline, Slot
from firekeep.supply import Supply
from firekeep.views import ghost
from firekeep.wording import quote, some


def of_file(like: Any, options: OpenOptions) -> Likeness:
    """Describe the names and shapes of a file, open or not, and what it tells of its layers."""
    with contextlib.nullcontext(like) if isinstance(like, OpenedFile) else open_file(like, options) as opened:
        return _of_opened(opened, str(opened.path or "the file"))


def of_model_in_file(like: Any, options: OpenOptions) -> Likeness:
    """Do the same for the part of a file that is a model, as a load takes it; raises `RuleError` where there are several."""
    key = options.top_level_key
    given = replace(options, top_level_key=key or None)
    with contextlib.nullcontext(like) if isinstance(like, OpenedFile) else open_file(like, given) as opened:
        held = narrow(opened, given) if key and isinstance(like, OpenedFile) else opened
        try:
            part = take_part(held, given, key)
        except RuleError as error:
            error.remedy = (error.remedy or "").replace("top_level_key=", "like_top_level_key=") or None
            raise error.at(path=opened.path)  # noqa: B904 - the same error, with its place
        name = str(opened.path or "the file")
        return _of_opened(part.opened, f"{name}, the part {quote(part.key)}" if part.key else name)


def _of_opened(opened: OpenedFile, what: str) -> Likeness:
    layout = layout_of(opened.format, opened.metadata, content=opened.container.layout).name
    return Likeness(
        what=what,
        entries=tuple(
            ghost(name, entry.dtype, entry.shape)
            for name, entry in opened.filled().items()
            if entry.dtype is not None and entry.problem is None
        ),
        layout=next((known for known in CONVENTIONS if known == layout), None),
        layers=opened.container.layers,
        modules=opened.container.submodules,
    )


def outline_of_file(
    source: Any,
    options: OpenOptions,
    supply: Supply,
    job: LoadJob = LoadJob(),  # noqa: B008 - frozen
) -> tuple[Outline, str]:
    """Describe a file as if it were a model that wants what it holds, and give its name.

    Where the file and the supply lie in two layouts, their layers are those that either tells, and for the rest what the shapes of
    tensors that would be paired tell. Raises `RuleError` for square ones, of which nothing tells.
    """
    like = of_model_in_file(source, options)
    own = like.layout
    said = None if supply.layout is None else supply.layout.name
    read = job.layout or next((known for known in CONVENTIONS if known == said), None)
    other = next((known for known in CONVENTIONS if known in (read, said) and known != own), None)
    if own == "linen" and other is not None:
        like = replace(like, entries=without_collections_of(like.entries))
    layers = like.layers
    slots = tuple(Slot(path=entry.name, dtype=entry.require(), shape=entry.shape, layer=None) for entry in like.entries)
    if own is not None and other is not None and not layers:
        turned = {slot.path for slot in slots if read != own and job.chosen.accepts(slot)}
        layers = _layers_of_both(like, supply, job, other=other, turned=turned)
    known = own if layers or read == own else None
    return Outline(slots=slots, convention=known, layers=layers, modules=like.modules), like.what


def _layers_of_both(
    like: Likeness, supply: Supply, job: LoadJob, *, other: Convention, turned: set[str]
) -> tuple[Layer, ...]:
    """Give the layers of a file that tells none, as the supply tells them and as its shapes do.

    Square tensors are refused where they are among those that may have to be turned round.
    """
    own: Convention = like.layout or other
    entries = supply.entries
    if other == "linen" and not job.remapper:  # as the load itself has them
        entries = {entry.name: entry for entry in without_collections_of(tuple(entries.values()))}
    names = job.remapper.rename(entries).names
    parts = {part for entry in like.entries for part in parts_of(entry.name)}
    told = translate_layers(tuple(moved(supply.layers, names)), source=other, target=own)
    told = tuple(layer for layer in told if layer.path in parts)
    offered = [entry.renamed(names[name]) for name, entry in entries.items() if entry.problem is None]
    if {own, other} != set(BURNS):
        if not told and (flax := flax_of(own, other)) is not None:
            sides = (like.entries, offered) if own == "torch" else (offered, like.entries)
            told = translate_layers(layers_from_flax(*sides, convention=flax), source="torch", target=own)
        if not told:
            raise RuleError(
                f"{like.what} lies as {own!r} has it and the other as {other!r}, and neither tells what layers its tensors belong to",
                remedy="Give the models, whose layers say it, or a PyTorch file of a whole model.",
            )
        return told
    paths = {layer.path for layer in told}
    met = list(_paired(like, offered))
    _refuse_cut(like, offered, told=paths, unmet=turned.difference(mine.name for mine, _ in met))
    pairs = [
        (mine, theirs)
        for mine, theirs in met
        if paths.isdisjoint(parts_of(mine.name))
        and (theirs.shape == mine.shape or _is_turned(mine, theirs))
        and (mine.name in turned or not _is_square(mine))
    ]
    mine, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = layers_from_like(mine, theirs) if own == "torch" else layers_from_like(theirs, mine)
    return (*told, *(found if own == "torch" else translate_layers(found, source="torch", target=own)))


def _refuse_cut(like: Likeness, offered: Sequence[TensorEntry], *, told: set[str], unmet: set[str]) -> None:
    """Refuse where one side has in one what the other has in parts, and neither tells of what layer."""
    names = [entry.name for entry in offered if told.isdisjoint(parts_of(entry.name))]
    wanted = [entry.name for entry in like.entries if entry.name in unmet and told.isdisjoint(parts_of(entry.name))]
    whole, cut = (joined(wanted), parts(names)) if like.layout == "torch" else (joined(names), parts(wanted))
    if whole and cut:
        raise RuleError(
            f"what is {some(whole, 2)} in PyTorch is {some(cut, 2)} in Burn ({CUT}), and neither file tells of what layer",
            remedy=f"Give {WHOLE} in place of the state dict, or load into the model itself, which knows its layers.",
        )


def _is_square(entry: TensorEntry) -> bool:
    return len(entry.shape) == 2 and entry.shape[0] == entry.shape[1]


def _is_turned(mine: TensorEntry, theirs: TensorEntry) -> bool:
    return len(mine.shape) == 2 and theirs.shape == mine.shape[::-1] and theirs.name.rpartition(".")[2] == "weight"


def _paired(like: Likeness, offered: Sequence[TensorEntry]) -> Iterator[tuple[TensorEntry, TensorEntry]]:
    """Pair tensors by their names alone; those of the supply come in the layers of the other, under their own last names.

    Names that no step finds are paired by their ends where only one of the supply has such an end: a rename may be wanting that makes
    the rest of them equal, and what is said of it should be true.
    """
    wants = [Want(name=entry.name, shape=(), spellings=tuple(other_names(entry.name))) for entry in like.entries]
    blind = [ghost(entry.name, BY_NAME["U8"], ()) for entry in offered]
    found = plan(wants, blind, options=like.options())
    names = [(pair.want.name, pair.offer.name) for pair in found.pairs]
    entries = {entry.name: entry for entry in like.entries}
    theirs = {entry.name: entry for entry in offered}
    names += [(want, offer) for want, offer in _ends(found) if not _is_square(entries[want])]
    for want, offer in names:
        layer, dot, _ = want.rpartition(".")
        yield entries[want], theirs[offer].renamed(f"{layer}{dot}{offer.rpartition('.')[2]}")


def _ends(found: Plan) -> Iterator[tuple[str, str]]:
    ends: dict[str, list[str]] = {}
    for offer in found.unused:
        for end in _tails(offer.name):
            ends.setdefault(end, []).append(offer.name)
    for want in found.missing:
        for name in (want.name, *want.spellings):
            having = next((ends[end] for end in _tails(name) if end in ends), [])
            if len(having) == 1:
                yield want.name, having[0]
                break


def _tails(name: str) -> Iterator[str]:
    """Give the ends of a name that have a layer's name in them, the longest first."""
    while "." in name:
        yield name
        name = name.partition(".")[2]
