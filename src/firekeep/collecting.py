"""The tensors of a model on their way to a file: filtered, laid out, cast, renamed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from firekeep._version import __version__
from firekeep.applying import told_entries, told_outline
from firekeep.bridges import bridge_of
from firekeep.dtypes import BY_NAME, DType
from firekeep.entry import TensorEntry
from firekeep.errors import RuleError, UnsupportedError
from firekeep.formats import Contents, Format
from firekeep.garbage import collector_paused
from firekeep.layouts import COLUMNS, CONVENTIONS, LAYOUT, UNSPECIFIED, columns_of, tell_steps, tell_sums
from firekeep.likeness import Likeness, moved
from firekeep.matching import Plan, Want, plan
from firekeep.rules import KeyRemapper, Losses, PathFilter, can_cast, cast
from firekeep.rules.indices import open_gaps
from firekeep.rules.layout import BIASES, merged_biases, translate, write_biases
from firekeep.rules.surgery import Surgery
from firekeep.saving import tie
from firekeep.scalars import Scalar
from firekeep.slots import Constants, Convention, Layer, Outline
from firekeep.views import ghost
from firekeep.wording import count, lines, some

COUNTER_PREFIX = "firekeep.num_batches_tracked."
_COUNTER = "num_batches_tracked"
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """Tensors of a model, by the names and in the layout asked for.

    `layout` is None where the layers are not known. `scalars` are numbers that the layout has no tensors for. `steps` says what was done.
    """

    entries: tuple[TensorEntry, ...]
    layout: Convention | None
    layers: tuple[Layer, ...] = ()
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    biases: str | None = None
    """Biases that the layout has the sum of, as the metadata of a file keep them."""
    constants: tuple[Constants, ...] = ()
    """What the model computes with beside its tensors; of parts without any, where nothing is renamed."""
    left_out: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    losses: Losses = field(default_factory=Losses)

    def keys(self) -> list[str]:
        """List the names."""
        return [entry.name for entry in self.entries]

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectJob:
    """What is to become of a model's tensors: in this order chosen, laid out, cast, split and joined, renamed."""

    chosen: PathFilter = PathFilter()  # noqa: RUF009 - frozen
    layout: Convention | None = None
    holds_scalars: bool = True
    """The format has a place for what becomes numbers by themselves."""
    promised: str | None = None
    """The layout that is expected of the file, where none was asked for: kept for models whose layers are known."""
    dtype: DType | None = None
    surgery: Surgery = Surgery()  # noqa: RUF009 - frozen
    remapper: KeyRemapper = KeyRemapper()  # noqa: RUF009 - frozen
    like: Likeness | None = None
    load_surgery: Surgery = Surgery()  # noqa: RUF009 - frozen
    """The surgery of a load, which is undone after its renames are."""
    load_renames: KeyRemapper = KeyRemapper()  # noqa: RUF009 - frozen
    """The rename rules of a load: the names are those of which they make the model's."""
    ties: str = "keep"
    constants: bool = False
    """Keep what the model computes with beside its tensors."""


def collect(obj: Any, job: CollectJob) -> Collection:
    """Take the tensors of a model, lazily; see `firekeep.collect`."""
    bridge = bridge_of(obj)
    with collector_paused():
        outline = bridge.outline(obj)
        entries = bridge.entries(obj)
        kept, left_out = _choose(outline, entries, job.chosen)
        if job.like is not None and job.like.layers and job.layout not in (None, outline.convention):
            named = told_outline(outline)
            kept = kept if named is outline else told_entries(kept)
            outline = named
        made = arrange(kept, outline, job, left_out=left_out)
        if job.constants:
            made = replace(made, constants=tuple(_constants(bridge.constants(obj), kept, made)))
    if outline.others:
        made = replace(made, steps=(*made.steps, f"left out, being no tensors: {some(outline.others)}"))
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
    if layout is not None and layout != outline.convention:
        like = None if job.like is None else job.like.read_by(job.load_surgery, job.load_renames)
        told = outline.convention is not None and not outline.bare
        if like is not None and job.surgery:  # whose tensors are those after the surgery and the renames
            like = like.uncut(job.surgery, job.remapper, layout)
        elif like is not None and job.remapper:
            like = like.before(job.remapper.rename([entry.name for entry in made]).names)
        laid = lay_out(made, outline, layout=layout, like=like, told=told, holds_scalars=job.holds_scalars)
        made, scalars, steps, biases = list(laid.entries), dict(laid.scalars), list(laid.steps), laid.biases
    losses = Losses()
    if job.dtype is not None:
        casts = Counter(str(entry.dtype) for entry in made if can_cast(entry, job.dtype))
        made = [cast(entry, job.dtype, losses) for entry in made]
        steps += [f"{count(times, 'tensor')} of {source} cast to {job.dtype}" for source, times in casts.items()]
    made = list(job.surgery.apply(made).entries) if job.surgery else made
    before = [entry.name for entry in made]
    made = _rename(made, replace(job, layout=layout), steps)
    names = dict(zip(before, (entry.name for entry in made), strict=True))
    made = _uncut(made, job.load_surgery) if job.load_surgery else made
    return Collection(
        entries=tuple(tie(made, job.ties)),
        layout=layout,
        layers=tuple(moved(outline.layers, names)) if layout == outline.convention else (),
        scalars=follow(scalars, names),
        biases=biases,
        left_out=left_out,
        steps=tuple(steps),
        losses=losses,
    )


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

    `biases` are those that the layout has the sum of, for the metadata of the file.
    """

    entries: tuple[TensorEntry, ...]
    origins: Mapping[str, tuple[str, ...]]
    scalars: Mapping[str, Scalar]
    steps: tuple[str, ...]
    biases: str | None = None


def lay_out(
    entries: Sequence[TensorEntry],
    outline: Outline,
    *,
    layout: Convention,
    like: Likeness | None = None,
    told: bool = False,
    holds_scalars: bool = True,
) -> LaidOut:
    """Give tensors as another layout has them; raises `UnsupportedError` naming all that it has no place for.

    Layers that the outline does not know are those of `like`; raises `RuleError` where nothing tells them. With `told` an outline
    without layers is that of a model which has none of any known kind. What becomes scalars is left out where these have no place.
    """
    source, layers = outline.convention, outline.layers
    if entries and (source is None or not (layers or told)):
        source, layers = _evidence(entries, layout, like, source)
    source = source or layout
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
    dropped = [name for name in made.no_counterpart if name.rpartition(".")[2] != _COUNTER]
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
    )


def _evidence(
    entries: Sequence[TensorEntry], layout: Convention, like: Likeness | None, source: Convention | None
) -> tuple[Convention, tuple[Layer, ...]]:
    """Say of bare tensors what layers they belong to: from what they are to be like, or not at all."""
    if like is not None:
        return like.evidence(entries, layout=layout, source=source)
    raise RuleError(
        f"what layers these {count(len(entries), 'tensor')} belong to is not known, and the layout {layout!r} turns some of "
        "them round and not others",
        remedy="Give like= a model or a file of that layout with the same layers, or keep the layout they have.",
    )


def _counters(entries: Sequence[TensorEntry], homeless: Mapping[str, str]) -> dict[str, Scalar]:
    scalars = {}
    for entry in entries:
        if entry.name in homeless and entry.shape == () and entry.name.rpartition(".")[2] == _COUNTER:
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


def _rename(entries: Sequence[TensorEntry], job: CollectJob, steps: list[str]) -> list[TensorEntry]:
    made = list(entries)
    if job.remapper:
        renaming = job.remapper.rename([entry.name for entry in made])
        made = [entry.renamed(renaming.names[entry.name]) for entry in made]
        steps += [f"the rename {rule!r} changed nothing" for rule, hits in renaming.hits if not hits]
    known: dict[str, str] = {}
    if job.like is not None and (job.like.whole or job.like.tells(job.layout)):
        like = job.like.in_layout(job.layout).read_by(job.load_surgery, job.load_renames)
        known = _names_like(made, like, steps)
    return _undo(made, known, job.load_renames)


def _names_like(made: list[TensorEntry], like: Likeness, steps: list[str]) -> dict[str, str]:
    """Give the names under which a reader looks for tensors, as far as it does; its own ones where renames gave them others."""
    if not like.entries:
        return _names_of(made, like, steps)
    found = plan(like.wants(), made, options=like.options())
    if like.whole and (found.mismatched or found.ambiguities):
        raise RuleError(f"these tensors are not like {like.what}: {_unlike(found)}")
    # PyTorch sets a counter of batches that a state dict lacks to 0, and other frameworks have none to write.
    missing = [want.name for want in found.missing if want.name.rpartition(".")[2] != _COUNTER]
    if missing and like.whole:
        raise RuleError(
            f"the reader that like= describes ({like.what}) wants tensors that there are not: {some(missing)}",
            remedy="Leave out like=, or give one with the same layers.",
        )
    steps += found.steps
    return {pair.offer.name: like.originals.get(pair.want.name, pair.want.name) for pair in found.found}


def _names_of(made: list[TensorEntry], like: Likeness, steps: list[str]) -> dict[str, str]:
    """Do it where only the names are known: lists take their indices, and variants of enums and known wrappers are left out."""
    opened = open_gaps([entry.name for entry in made], like=like.names).names
    wants = [Want(name=name, shape=()) for name in like.names]
    found = plan(wants, [ghost(name, BY_NAME["U8"], ()) for name in opened.values()])
    steps += found.steps
    new = {pair.offer.name: like.originals.get(pair.want.name, pair.want.name) for pair in found.pairs}
    return {old: new.get(name, name) for old, name in opened.items() if name in new or name != old}


def _undo(made: list[TensorEntry], known: Mapping[str, str], rules: KeyRemapper) -> list[TensorEntry]:
    """Give tensors names that are known, or those of which the rename rules of a load make theirs again."""
    names = dict(known)
    rest = [entry.name for entry in made if entry.name not in known]
    if rules and rest:
        names |= _undone(rest, rules, known)
    return [entry.renamed(names.get(entry.name, entry.name)) for entry in made]


def _undone(names: Sequence[str], rules: KeyRemapper, known: Mapping[str, str]) -> Mapping[str, str]:
    try:
        undone = rules.undo(names).names
    except RuleError as error:
        # A tensor that the file of the last load had not keeps its name if the rules let it.
        if known and all(rules.rename([name]).names[name] == name for name in names):
            return {}
        raise RuleError(
            f"a save has to undo the rename rules, and {error.message}",
            remedy="Give like= a file or a model that has the names to be written, or load from such a file first.",
        ) from None
    twins = {old: new for new, old in known.items()}
    for new, old in undone.items():
        if old in twins:
            raise RuleError(
                f"a save has to undo the rename rules, and {twins[old]!r} and {new!r} both go back to {old!r}",
                remedy="Leave one of them out with exclude.",
            )
    return undone


def _uncut(made: Sequence[TensorEntry], surgery: Surgery) -> list[TensorEntry]:
    """Undo the surgery of a load."""
    try:
        return surgery.inverse().apply(made).entries
    except RuleError as error:
        raise RuleError(
            f"a save has to undo the surgery, and {error.message}",
            remedy="Write its patterns as plain text and simple groups, or save with firekeep.save and a surgery of its own.",
        ) from None


def _unlike(found: Plan) -> str:
    if not found.mismatched:
        return str(found.ambiguities[0])
    pair = found.mismatched[0]
    there = f"{pair.want.name!r} there {list(pair.want.shape)}"
    return f"{pair.offer.name!r} has shape {list(pair.offer.shape)}, and {there}"


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
    if collection.layout == "burn" and (columns := columns_of(collection.layers)):
        own[COLUMNS] = json.dumps(sorted(columns))
    if collection.biases is not None:
        own[BIASES] = collection.biases
    entries = collection.entries if row.holds_param_ids else [replace(e, param_id=None) for e in collection.entries]
    kept = {**collection.scalars, **scalars} if row.holds_scalars else dict(scalars)
    return Contents(entries=entries, metadata={**own, **metadata}, scalars=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReport(os.PathLike[str]):
    """What was written: a path, and what was done to the tensors on the way."""

    path: Path
    format: str
    layout: str | None
    tensors: int
    nbytes: int
    left_out: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    overflowed: Mapping[str, int] = field(default_factory=dict)

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def to_dict(self) -> dict[str, Any]:
        """Give the report as data that `json` writes."""
        return {
            "path": str(self.path),
            "format": self.format,
            "layout": self.layout,
            "tensors": self.tensors,
            "bytes": self.nbytes,
            "left_out": list(self.left_out),
            "steps": list(self.steps),
            "overflowed": dict(self.overflowed),
        }

    def __str__(self) -> str:
        where = f"written to {self.path}" if self.path.name else "written to memory"
        told = [f"{count(self.tensors, 'tensor')} {where} ({self.format}, layout {self.layout or 'not known'})"]
        told += list(lines(self.steps))
        if self.left_out:
            told += list(lines([f"left out by the filter: {some(self.left_out)}"]))
        if self.overflowed:
            told += list(
                lines([f"numbers too large for the new type became infinite in {some(list(self.overflowed))}"])
            )
        return "\n".join(told)


__all__ = ["CollectJob", "Collection", "SaveReport", "arrange", "collect", "contents_of"]
