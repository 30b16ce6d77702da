"""Both sides of a match, out of a few words."""

from __future__ import annotations

from dataclasses import dataclass

from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.matching import MatchOptions, Want, plan


@dataclass(frozen=True)
class NoBytes:
    """A planner that drew bytes would fail here."""

    nbytes: int = 4

    def identity(self):
        raise AssertionError("a plan asks for no bytes")

    view = read_into = identity


def want(name, shape=(2, 2), dtype="F32", **more):
    return Want(name=name, shape=shape, dtype=BY_NAME[dtype], **more)


def offer(name, shape=(2, 2), dtype="F32", problem=None):
    return TensorEntry(name, BY_NAME[dtype] if dtype else None, shape, NoBytes(), problem=problem)


def wants(sides):
    return [want(one) if isinstance(one, str) else one for one in sides]


def offers(sides):
    return [offer(one) if isinstance(one, str) else one for one in sides]


def match(model, file, **options):
    return plan(wants(model), offers(file), options=MatchOptions(**options))


def paired(made):
    return {pair.want.name: pair.offer.name for pair in made.pairs}


def names(found):
    return [one.name for one in found]
