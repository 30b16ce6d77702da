"""Names like the reader's: those that renames give, those that a reader looks for, and those that undo what a load does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firekeep.collecting._job import CollectJob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.likeness import Likeness
from firekeep.matching import Plan, Want, plan
from firekeep.rules import KeyRemapper
from firekeep.rules.indices import open_gaps
from firekeep.rules.surgery import Surgery
from firekeep.views import ghost
from firekeep.wording import count, some

COUNTER = "num_batches_tracked"


def rename(entries: Sequence[TensorEntry], job: CollectJob, steps: list[str]) -> list[TensorEntry]:
    """Give tensors the names that the file is to have, by the rename rules, by what the reader looks for and by a load to be undone."""
    made = list(entries)
    if job.remapper:
        renaming = job.remapper.rename([entry.name for entry in made])
        made = [entry.renamed(renaming.names[entry.name]) for entry in made]
        steps += [f"the rename {rule!r} changed nothing" for rule, hits in renaming.hits if not hits]
        if renaming.unmet:
            steps.append(
                f"{count(len(renaming.unmet), 'name')} of the table of renames met no tensor: {some(renaming.unmet)}"
            )
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
    missing = [want.name for want in found.missing if want.name.rpartition(".")[2] != COUNTER]
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


def uncut(made: Sequence[TensorEntry], surgery: Surgery) -> list[TensorEntry]:
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
