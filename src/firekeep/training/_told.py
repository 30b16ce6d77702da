"""Variables of Linen, which do not tell their layers, with those that another model tells: so that a run moves to and from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from firekeep.applying import LoadJob, told_outline
from firekeep.bridges import jax
from firekeep.formats import OpenOptions
from firekeep.layouts import UNSPECIFIED
from firekeep.likeness import likeness_of, telling_of
from firekeep.rules import KeyRemapper
from firekeep.rules.layout import without_collections

REMEDY = "make the state with like=..., a model with the same layers in any framework"
_AS_IT_IS = (None, UNSPECIFIED, "linen")


def is_bare(model: Any) -> bool:
    """Say whether it is a tree of JAX that does not tell its layers and is called as Linen's are."""
    if not jax.owns(model) or isinstance(model, jax.Variables):
        return False
    outline = told_outline(jax.outline_anew(model))
    return outline.bare and outline.convention == "linen"


def with_layers(model: Any, like: Any, *, layout: str | None, remapper: KeyRemapper) -> Any:
    """Give a model that tells the layers where a file in the layout asks for them, and `like` has them; else the model as it is."""
    if like is None or layout in _AS_IT_IS or not is_bare(model):
        return model
    own = jax.outline_anew(model)
    outline = told_outline(own)
    told = telling_of(likeness_of(like, OpenOptions()), LoadJob(remapper=remapper))(outline)
    names = dict(zip(own.paths(), outline.paths(), strict=True))
    return jax.Variables(tree=model, names=names, layers=told.layers, modules=outline.modules)


def names_of_layers(paths: Iterable[str], *, layout: str | None, model: Any) -> dict[str, str]:
    """Map names of a record of Linen to those of its layers, for a model that knows no collections."""
    if layout != "linen" or (jax.owns(model) and is_bare(model)):
        return {}
    return {old: new for old, new in without_collections(paths).items() if old != new}
