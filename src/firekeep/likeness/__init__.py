"""What a reader of a file looks like: a model, a file, or a list of names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from firekeep.applying import LoadJob, variants_of
from firekeep.bridges import BRIDGES, bridge_of
from firekeep.errors import RuleError
from firekeep.formats import OpenOptions
from firekeep.likeness._behind import behind
from firekeep.likeness._file import of_file, outline_of_file
from firekeep.likeness._joined import is_cut
from firekeep.likeness._likeness import FLAXES, Likeness
from firekeep.rules.layout import tell_facts
from firekeep.slots import Outline
from firekeep.views import ghost

__all__ = ["Likeness", "behind", "is_cut", "likeness_of", "outline_of_file", "telling_of"]


def likeness_of(like: Any, options: OpenOptions) -> Likeness:
    """Describe what like= was given: a model, a path or bytes of a file, or names."""
    if isinstance(like, Likeness):
        return like
    if isinstance(like, str | os.PathLike | bytes):
        return of_file(like, options)
    if isinstance(like, Iterable) and not isinstance(like, Mapping) and not _is_model(like):
        names = list(like)
        if names and all(isinstance(name, str) for name in names):
            return Likeness(what="the list of names", names=tuple(names))
    bridge = bridge_of(like)
    outline: Outline = bridge.outline(like)
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
        if outline.convention is None or (linen_only and outline.convention != "linen"):
            return outline
        ghosts = [ghost(slot.path, slot.dtype, slot.shape) for slot in outline if slot.problem is None]
        if by_shapes and outline.convention not in FLAXES:
            raise _untold(like)
        try:
            layout = like.layout if by_shapes else None
            _, layers = reader.evidence(ghosts, layout=layout, source=outline.convention)
        except RuleError:
            if linen_only:
                return outline
            raise
        return replace(outline, layers=tell_facts(layers, ghosts, outline.convention), bare=False)

    return tell


def _untold(like: Likeness) -> RuleError:
    return RuleError(
        f"{like.what} does not tell what layers its tensors belong to",
        remedy="Give like= a model, or a PyTorch file of a whole model.",
    )


def _is_model(obj: Any) -> bool:
    """Tell a model from a tree of arrays, and from names: a `nn.ModuleDict` gives the names of its parts when asked for all."""
    return any(row.door().owns(obj) for row in BRIDGES.values() if row.name != "plain")
