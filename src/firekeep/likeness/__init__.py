"""What a reader of a file looks like: a model, a file, or a list of names."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from firekeep.applying import LoadJob, variants_of
from firekeep.bridges import BRIDGES, bridge_of
from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.formats import OpenOptions
from firekeep.likeness._behind import behind
from firekeep.likeness._file import of_file, outline_of_file
from firekeep.likeness._joined import is_cut
from firekeep.likeness._likeness import FLAXES, Likeness
from firekeep.opened import OpenedFile
from firekeep.rules.layout import tell_facts
from firekeep.slots import Outline
from firekeep.views import ghost
from firekeep.wording import some

__all__ = ["Likeness", "behind", "is_cut", "likeness_of", "outline_of_file", "telling_of"]


_FILES = (str, os.PathLike, bytes, bytearray, memoryview, io.IOBase, OpenedFile)


def likeness_of(like: Any, options: OpenOptions) -> Likeness:
    """Describe what like= was given: a model, a path or bytes of a file, or names."""
    if isinstance(like, Likeness):
        return like
    if isinstance(like, _FILES):
        return of_file(like, options)
    if isinstance(like, Iterable) and not isinstance(like, Mapping) and not _is_model(like):
        names = list(like)
        if names and all(isinstance(name, str) for name in names):
            return Likeness(what="the list of names", names=tuple(names))
    bridge = bridge_of(like)
    # Whether anything could be put there plays no part: a module of Equinox is as good a reader as one that is changed in place.
    describe = getattr(bridge, "outline_anew", bridge.outline)
    outline: Outline = describe(like)
    entries = tuple(ghost(slot.path, slot.dtype, slot.shape) for slot in outline if slot.problem is None)
    layers = outline.layers
    return Likeness(
        what=f"the {type(like).__name__}",
        entries=entries,
        layout=outline.convention,
        layers=layers if outline.convention is None else tell_facts(layers, entries, outline.convention),
        modules=outline.modules,
        variants=frozenset(variants_of(outline)),
        told=_is_model(like) and outline.convention is not None and not outline.bare,
    )


def telling_of(like: Likeness, job: LoadJob, *, linen_only: bool = False) -> Callable[[Outline], Outline]:
    """Give what adds the layers of a model to the outline of a tree that does not tell them; with `linen_only` to no other tree.

    The model's names are those of the tree, or those of which the load's surgery and rename rules make them.
    """
    by_shapes = like.layout == "torch" and bool(like.entries) and not (like.layers or like.told)
    if not (like.layers or like.told or by_shapes) or like.layout is None:
        raise _untold(like)
    reader = like.read_by(job.surgery, job.remapper)

    def tell(outline: Outline) -> Outline:
        if linen_only and outline.convention != "linen":
            return outline
        ghosts = [ghost(slot.path, slot.dtype, slot.shape) for slot in outline if slot.problem is None]
        if by_shapes and outline.convention not in FLAXES:
            raise _untold(like)
        lies = outline.convention or next(iter(reader.fits(ghosts)), None)
        if lies is None:  # a tree of arrays that is like it lies as it does
            raise _unlike(reader, ghosts)
        try:
            layout = like.layout if by_shapes else None
            _, layers = reader.evidence(ghosts, layout=layout, source=lies)
        except RuleError:
            if linen_only:
                return outline
            raise
        return replace(outline, convention=lies, layers=tell_facts(layers, ghosts, lies), bare=False)

    return tell


def _unlike(like: Likeness, ghosts: Sequence[TensorEntry]) -> RuleError:
    known = {entry.name: entry.shape for entry in like.entries}
    odd = [one.name for one in ghosts if known.get(one.name) != one.shape]
    return RuleError(
        f"the tree is not like {like.what}, which does not have these by name and shape, in the layout {like.layout!r} or another: "
        f"{some(odd)}",
        remedy="Leave out like= to take the tensors of the file as they lie, or give the model that the tree is of.",
    )


def _untold(like: Likeness) -> RuleError:
    return RuleError(
        f"{like.what} does not tell what layers its tensors belong to",
        remedy="Give like= a model, or a PyTorch file of a whole model.",
    )


def _is_model(obj: Any) -> bool:
    """Tell a model from a tree of arrays, and from names: a `nn.ModuleDict` gives the names of its parts when asked for all."""
    return any(row.door().owns(obj) for row in BRIDGES.values() if row.name != "plain")
