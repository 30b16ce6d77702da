"""Matrices of a file in Burn's layout that lie otherwise than the layers of `like` make one expect, as far as the file tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.layouts import columns_said, kind_of_weight, lies_across, unturned_said
from firekeep.likeness import Likeness
from firekeep.rules.layout import translate, with_facts
from firekeep.slots import Layer
from firekeep.views import ghost, permuted
from firekeep.wording import some


def turn_as_told(
    entries: Sequence[TensorEntry], like: Likeness, metadata: Mapping[str, str], *, facts: tuple[Layer, ...] = ()
) -> tuple[list[TensorEntry], Likeness]:
    """Lay tensors of a file as the layers of a reader have them in Burn's layout, and give that reader.

    The file may say which linear weights lie as [out, in] (LinearLayout::Col), and which matrices lie as PyTorch had them. Where it does
    not say the latter, as Burn's own files do not, a square that may be a linear layer's is refused, since Burn turns these round.
    """
    if not (like.layers or like.told):
        return list(entries), like  # only shapes tell, of which no square does
    reader = like.in_layout("burn")
    made = list(entries)
    if (columns := columns_said(metadata)) is not None:
        made = [_turned(entry) if _is_weight_of(entry, columns) else entry for entry in made]
        reader = _in_rows(reader)
    kinds = {layer.path: layer.kind for layer in reader.layers}
    turned = _turned_in_torch(made, with_facts(reader.layers, facts))
    if (unturned := unturned_said(metadata)) is None:
        if like.layout != "burn":  # in a model of Burn's nothing is turned round but what is of a linear layer
            unknown = {name for name, is_turned in turned.items() if not is_turned}
            _refuse_squares([entry for entry in made if entry.name in unknown], kinds, like.what)
        return made, reader
    told = {layer.path for layer in facts}  # of which the way there knows by itself how they lie
    for place, entry in enumerate(made):
        if entry.name not in turned or entry.name.rpartition(".")[0] in told:
            continue
        kind = kind_of_weight(entry.name, entry.shape, kinds)
        if lies_across(kind, turned=turned[entry.name], as_in_torch=entry.name in unturned):
            made[place] = permuted(entry, (1, 0))
    return made, reader


def _is_weight_of(entry: TensorEntry, paths: frozenset[str]) -> bool:
    parent, _, role = entry.name.rpartition(".")
    return role == "weight" and parent in paths


def _turned(entry: TensorEntry) -> TensorEntry:
    return permuted(entry, (1, 0)) if len(entry.shape) == 2 else entry


def _in_rows(reader: Likeness) -> Likeness:
    """Give a reader whose linear layers all lie as [in, out]."""
    columns = frozenset(layer.path for layer in reader.layers if layer.kind == "linear_col")
    if not columns:
        return reader
    return replace(
        reader,
        entries=tuple(_turned(entry) if _is_weight_of(entry, columns) else entry for entry in reader.entries),
        layers=tuple(replace(one, kind="linear") if one.path in columns else one for one in reader.layers),
    )


def _turned_in_torch(entries: Sequence[TensorEntry], layers: Sequence[Layer]) -> dict[str, bool]:
    """Say of each matrix that is one in PyTorch, too, whether the way there turns it round."""
    ghosts = [
        ghost(entry.name, entry.dtype, entry.shape)
        for entry in entries
        if entry.dtype is not None and entry.problem is None
    ]
    blobs = {one.name: one.blob for one in ghosts}
    made = translate(ghosts, layers, source="burn", target="torch")
    found: dict[str, bool] = {}
    for entry in made.entries:
        origins = made.origins[entry.name]
        if len(origins) == 1 and len(entry.shape) == 2:
            found[origins[0]] = entry.blob is not blobs[origins[0]]
    return found


def _refuse_squares(entries: Sequence[TensorEntry], kinds: Mapping[str, str], what: str) -> None:
    doubtful = [
        entry.name
        for entry in entries
        if len(entry.shape) == 2
        and entry.shape[0] == entry.shape[1] > 1
        and entry.name.rpartition(".")[2] == "weight"
        and kind_of_weight(entry.name, entry.shape, kinds) == ""
    ]
    if doubtful:
        raise RuleError(
            f"Burn turns the weights of Linear layers round and no others, and neither the file nor {what} says whether these square ones "
            f"are such: {some(doubtful)}",
            remedy="Leave them out with exclude=, and copy them as they are meant (firekeep.open(path)[name], or its .T).",
        )
