"""The tensors of a model on their way to a file: filtered, laid out, cast, renamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from firekeep._version import __version__
from firekeep.applying import tell_rewriting, told_entries, told_outline
from firekeep.bridges import at_once, bridge_of
from firekeep.collecting._job import Collection, CollectJob
from firekeep.collecting._names import COUNTER, rename, uncut
from firekeep.collecting._others import LayoutWarning, LeftOutWarning, others_of, warn_of_layout, warn_of_others
from firekeep.collecting._report import SaveReport
from firekeep.collecting._shared import with_shared
from firekeep.entry import TensorEntry
from firekeep.errors import RuleError, UnsupportedError
from firekeep.formats import Contents, Format
from firekeep.garbage import collector_paused
from firekeep.layouts import (
    COLUMNS,
    CONVENTIONS,
    LAYOUT,
    UNSPECIFIED,
    UNTURNED,
    columns_of,
    move_columns,
    seen_by,
    tell_steps,
    tell_sums,
    write_columns,
    write_unturned,
)
from firekeep.likeness import Likeness, is_cut
from firekeep.rules import Losses, PathFilter, can_cast, cast
from firekeep.rules.layout import (
    BIASES,
    LAYERS,
    Translation,
    merged_biases,
    moved,
    tell_reader,
    tellable,
    translate,
    translate_layers,
    with_facts,
    write_biases,
    write_layers,
)
from firekeep.saving import tie
from firekeep.scalars import Scalar
from firekeep.slots import Constants, Convention, Layer, Outline
from firekeep.wording import count, some

KEPT = (
    "the tensors keep PyTorch's layout, as the metadata say, since nothing tells which are weights of Linear layers; Burn itself would "
    "misread those, unless a model is given (like=, or the model in place of its state dict)"
)
"""What is to be known of a state dict in a file that Burn's readers expect to be Burn's."""
COUNTER_PREFIX = "firekeep.num_batches_tracked."
_SHOWN = 5


def collect(obj: Any, job: CollectJob) -> Collection:
    """Take the tensors of a model, lazily; see `firekeep.collect`."""
    bridge = at_once(bridge_of(obj))
    with collector_paused():
        outline = bridge.outline(obj)
        entries = bridge.entries(obj)
        kept, left_out = _choose(outline, entries, job.chosen)
        if outline.convention is None and job.layout is None and job.like is not None:
            outline = _lying(kept, outline, job)
        tells = job.like is not None and (bool(job.like.layers) or job.like.layout == "torch")
        if tells and job.layout not in (None, outline.convention):
            named = told_outline(outline)
            if named is not outline:
                job = replace(job, remapper=seen_by(job.remapper, [entry.name for entry in kept]))
                kept = told_entries(kept)
            outline = named
        made = arrange(kept, outline, job, left_out=left_out)
        if job.constants:
            made = replace(made, constants=tuple(_constants(bridge.constants(obj), kept, made)))
    if others := others_of(outline, job.chosen):
        told = f"left out, being no tensors: {some([one.name for one in others])}"
        made = replace(made, others=others, steps=(*made.steps, told))
    if outline.rewriting:
        made = replace(made, steps=(*made.steps, f"{tell_rewriting(outline)} as they lie in the model"))
    return made


def _constants(constants: Sequence[Constants], before: Sequence[TensorEntry], made: Collection) -> Iterator[Constants]:
    """Give constants the paths that the parts have in a collection: all where no tensor has another name, or those that moved whole."""
    names = [entry.name for entry in before]
    if names == made.keys():
        yield from constants
    elif len(names) == len(made):  # nothing was split or joined
        yield from moved(constants, dict(zip(names, made.keys(), strict=True)))


def _choose(
    outline: Outline, entries: Sequence[TensorEntry], chosen: PathFilter
) -> tuple[list[TensorEntry], tuple[str, ...]]:
    if not chosen:
        return list(entries), ()
    wanted = {slot.path for slot in outline if chosen.accepts(slot)}
    kept = [entry for entry in entries if entry.name in wanted]
    if entries and not kept:
        raise RuleError(
            f"none of the {count(len(entries), 'tensor')} is left after include and exclude",
            remedy=f"Patterns are searched in the model's names: {some([entry.name for entry in entries])}.",
        )
    return kept, tuple(entry.name for entry in entries if entry.name not in wanted)


def arrange(
    entries: Sequence[TensorEntry], outline: Outline, job: CollectJob, *, left_out: tuple[str, ...] = ()
) -> Collection:
    """Lay out, cast and rename tensors that are named as a model names them."""
    made = list(entries)
    scalars: dict[str, Scalar] = {}
    steps: list[str] = []
    biases: str | None = None
    layout = _target(outline, job)
    unturned: frozenset[str] | None = None
    columns: frozenset[str] = frozenset()
    marked = with_shared(outline, layout)
    told = () if layout is None else tellable(marked, layout)
    if layout is not None and layout != outline.convention:
        like = None if job.like is None else _reader(job.like, made, job, layout=layout)
        known = outline.convention is not None and not outline.bare
        outline = replace(outline, layers=marked)
        laid = lay_out(made, outline, layout=layout, like=like, told=known, holds_scalars=job.holds_scalars)
        made, scalars, steps, biases = list(laid.entries), dict(laid.scalars), list(laid.steps), laid.biases
        told, unturned, columns = laid.told, laid.unturned, laid.columns or columns
    elif layout == "torch" and job.promised == "burn" and any(len(entry.shape) == 2 for entry in made):
        steps.append(KEPT)
    losses = Losses()
    if job.dtype is not None:
        casts = Counter(str(entry.dtype) for entry in made if can_cast(entry, job.dtype))
        made = [cast(entry, job.dtype, losses) for entry in made]
        steps += [f"{count(times, 'tensor')} of {source} cast to {job.dtype}" for source, times in casts.items()]
    made = list(job.surgery.apply(made).entries) if job.surgery else made
    before = [entry.name for entry in made]
    made = rename(made, replace(job, layout=layout), steps)
    names = dict(zip(before, (entry.name for entry in made), strict=True))
    told = tuple(moved(told, names)) if told else ()
    if told and write_layers(told) is None:
        steps.append(f"what no tensor tells of {count(len(told), 'layer')} is too long to be kept in the metadata")
    made = uncut(made, job.load_surgery) if job.load_surgery else made
    return Collection(
        entries=tuple(tie(made, job.ties)),
        layout=layout,
        layers=tuple(moved(outline.layers, names)) if layout == outline.convention else (),
        scalars=follow(scalars, names),
        told=told,
        unturned=None if unturned is None or job.surgery else frozenset(names[name] for name in unturned),
        columns=move_columns(columns, names)[0],
        biases=biases,
        left_out=left_out,
        steps=tuple(steps),
        losses=losses,
    )


def _reader(like: Likeness, entries: Sequence[TensorEntry], job: CollectJob, *, layout: Convention | None) -> Likeness:
    """Give what the reader looks for under the names of before surgery and renames; its own tensors are those of after."""
    like = like.read_by(job.load_surgery, job.load_renames)
    if job.surgery:
        return like.uncut(job.surgery, job.remapper, layout)
    return like.before(job.remapper.rename([entry.name for entry in entries]).names) if job.remapper else like


def _lying(entries: Sequence[TensorEntry], outline: Outline, job: CollectJob) -> Outline:
    """Take a tree of arrays for what it is like, where names and shapes tell how that lies: as a state dict, it can be laid out then."""
    promised = next((known for known in CONVENTIONS if known == job.promised), None)
    if promised is None or job.like is None:
        return outline
    fits = _reader(job.like, entries, job, layout=promised).fits(entries)
    if not fits or (len(fits) > 1 and fits[0] == promised):
        return outline
    return replace(outline, convention=fits[0], bare=True)


def _target(outline: Outline, job: CollectJob) -> Convention | None:
    """Choose the layout: what was asked for, else what the format promises of a model whose layers lie in some known way."""
    if job.layout is not None or outline.convention is None:
        return job.layout
    if outline.bare and not (job.like is not None and (job.like.layers or job.like.told)):
        return outline.convention
    promised = next((known for known in CONVENTIONS if known == job.promised), None)
    return promised or outline.convention


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """Tensors in another layout, what became scalars of them, and what was done, in words. `origins` maps new names to the old ones.

    `biases` are those that the layout has the sum of, and `told` the layers of which no tensor tells all, for the metadata of the file;
    so are the matrices that are `unturned` in Burn's layout, and the linear layers whose weights are `columns` there.
    """

    entries: tuple[TensorEntry, ...]
    origins: Mapping[str, tuple[str, ...]]
    scalars: Mapping[str, Scalar]
    steps: tuple[str, ...]
    biases: str | None = None
    told: tuple[Layer, ...] = ()
    unturned: frozenset[str] | None = None
    columns: frozenset[str] | None = None


def lay_out(
    entries: Sequence[TensorEntry],
    outline: Outline,
    *,
    layout: Convention,
    like: Likeness | None = None,
    told: bool = False,
    facts: tuple[Layer, ...] = (),
    holds_scalars: bool = True,
) -> LaidOut:
    """Give tensors as another layout has them; raises `UnsupportedError` naming all that it has no place for.

    Layers that the outline does not know are those of `like`; raises `RuleError` where nothing tells them. With `told` an outline
    without layers is that of a model which has none of any known kind. `facts` are what a file tells of layers, which only it knows.
    What becomes scalars is left out where these have no place.
    """
    source, layers = outline.convention, outline.layers
    if entries and (source is None or not (layers or told)):
        source, layers = _evidence(entries, layout, like, source)
    source, layers = source or layout, with_facts(layers, facts)
    made = translate(entries, layers, source=source, target=layout)
    if made.problems:
        for entry in entries:
            if entry.problem is not None and entry.name in made.problems:  # it is no tensor yet, in whatever layout
                raise UnsupportedError(entry.problem, tensor=entry.name)
        shown = "; ".join(f"{name!r}: {why}" for name, why in list(made.problems.items())[:_SHOWN])
        more = f"; and {len(made.problems) - _SHOWN} more" if len(made.problems) > _SHOWN else ""
        raise UnsupportedError(
            f"the layout {layout!r} has no place for {count(len(made.problems), 'tensor')}: {shown}{more}",
            remedy=f"Leave them out with exclude, or keep the layout they have with layout={source!r}.",
        )
    scalars = dict(_counters(entries, made.no_counterpart))
    dropped = [name for name in made.no_counterpart if name.rpartition(".")[2] != COUNTER]
    steps = list(filter(None, [tell_steps(made.steps.values(), source=source, target=layout)]))
    steps += tell_sums(made.steps)
    if scalars and holds_scalars:
        steps.append(f"{count(len(scalars), 'counter')} of batches kept as scalars, which Burn ignores")
    elif scalars:
        steps.append(f"{count(len(scalars), 'counter')} of batches left out: such a file holds no scalars")
    if dropped:
        steps.append(f"left out, since the layout {layout!r} has no such tensors: {some(dropped)}")
    merged = merged_biases(entries, made) if source == "torch" else ()
    biases = write_biases(merged)
    if merged:
        how = "kept in the metadata beside their sums" if biases else "too large to be kept beside their sums"
        steps.append(f"{count(len(merged), 'pair')} of biases {how}")
    return LaidOut(
        entries=made.entries,
        origins=made.origins,
        scalars=scalars if holds_scalars else {},
        steps=tuple(steps),
        biases=biases,
        told=tell_reader(layers, source=source, target=layout),
        unturned=_unturned(entries, made, layers) if layout == "burn" and source != "burn" else None,
        columns=_columns(made, layers, source=source) if layout == "burn" else None,
    )


def _columns(made: Translation, layers: Sequence[Layer], *, source: Convention) -> frozenset[str] | None:
    """Give the linear layers that lie as [out, in] in Burn's layout, since a reader that is one of Burn's own wants them so."""
    names = {entry.name for entry in made.entries}
    columns = columns_of(translate_layers(layers, source=source, target="burn"))
    return frozenset(path for path in columns if (f"{path}.weight" if path else "weight") in names) or None


def _unturned(entries: Sequence[TensorEntry], made: Translation, layers: Sequence[Layer]) -> frozenset[str]:
    """Give the matrices that lie as PyTorch would have them: all that stayed as they were, but for weights of linear layers and kernels."""
    kinds = {layer.path: layer.kind for layer in layers}
    before = {entry.name: entry for entry in entries if len(entry.shape) == 2}
    found = []
    for entry in made.entries:
        origins = made.origins[entry.name]
        old = before.get(origins[0]) if len(origins) == 1 else None
        if old is not None and old.shape == entry.shape and old.blob is entry.blob:
            parent, _, name = old.name.rpartition(".")
            is_linear = name == "weight" and kinds.get(parent, "").startswith("linear")
            found += [] if is_linear or name == "kernel" else [entry.name]
    return frozenset(found)


def _evidence(
    entries: Sequence[TensorEntry], layout: Convention, like: Likeness | None, source: Convention | None
) -> tuple[Convention, tuple[Layer, ...]]:
    """Say of bare tensors what layers they belong to: from what they are to be like, or not at all."""
    if like is not None:
        return like.evidence(entries, layout=layout, source=source)
    raise RuleError(
        f"what layers these {count(len(entries), 'tensor')} belong to is not known, and the layout {layout!r} turns some of "
        "them round and not others",
        remedy=f"Give like= a model or {_telling_file(entries, source, layout)}, or keep the layout they have.",
    )


def _telling_file(entries: Sequence[TensorEntry], source: Convention | None, layout: Convention) -> str:
    """Name the kind of file that tells layers of bare tensors: of the other layout where names and shapes are enough."""
    pair = {source or layout, layout}
    if not is_cut(entry.name for entry in entries) and pair in (
        {"torch", "burn"},
        {"torch", "flax"},
        {"torch", "linen"},
    ):
        return "a file of that layout with the same layers"
    return "a PyTorch file of a whole model with the same layers"


def _counters(entries: Sequence[TensorEntry], homeless: Mapping[str, str]) -> dict[str, Scalar]:
    scalars = {}
    for entry in entries:
        if entry.name in homeless and entry.shape == () and entry.name.rpartition(".")[2] == COUNTER:
            number = int.from_bytes(entry.read(), "little", signed=True)
            scalars[f"{COUNTER_PREFIX}{entry.name.rpartition('.')[0]}"] = Scalar("int", number)
    return scalars


def follow(scalars: Mapping[str, Scalar], names: Mapping[str, str]) -> dict[str, Scalar]:
    """Give counters of batches the names of their layers, where renames gave the layer's tensors others."""
    places = {old.rpartition(".")[0]: new.rpartition(".")[0] for old, new in names.items()} if scalars else {}
    moved = {}
    for key, scalar in scalars.items():
        layer = key.removeprefix(COUNTER_PREFIX)
        moved[key if layer == key else f"{COUNTER_PREFIX}{places.get(layer, layer)}"] = scalar
    return moved


def contents_of(
    collection: Collection, row: Format, *, metadata: Mapping[str, str], scalars: Mapping[str, Scalar]
) -> Contents:
    """Put together what a file of a format holds of a collection: its metadata say what no reader could else know."""
    own = {"format": row.name, "producer": "firekeep", "version": __version__}
    if row.name == "safetensors" and collection.layout in ("torch", None):
        own["format"] = "pt"  # the word by which Hugging Face's readers take a file for PyTorch's
    if collection.layout is None and row.layout != "torch":
        own[LAYOUT] = UNSPECIFIED
    elif collection.layout is not None and collection.layout != row.layout:
        own[LAYOUT] = collection.layout
    if collection.layout == "burn" and (columns := columns_of(collection.layers) | collection.columns):
        own[COLUMNS] = write_columns(columns)
    if (told := write_layers(collection.told)) is not None:
        own[LAYERS] = told
    if (unturned := write_unturned(collection.unturned)) is not None:
        own[UNTURNED] = unturned
    if collection.biases is not None:
        own[BIASES] = collection.biases
    entries = collection.entries if row.holds_param_ids else [replace(e, param_id=None) for e in collection.entries]
    kept = {**collection.scalars, **scalars} if row.holds_scalars else dict(scalars)
    return Contents(entries=entries, metadata={**own, **metadata}, scalars=kept)


__all__ = [
    "KEPT",
    "CollectJob",
    "Collection",
    "LaidOut",
    "LayoutWarning",
    "LeftOutWarning",
    "SaveReport",
    "arrange",
    "collect",
    "contents_of",
    "warn_of_layout",
    "warn_of_others",
]
