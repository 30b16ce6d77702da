"""The words of the meeting: what a model wants, what it was paired with, and what stayed without a partner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from firekeep.dtypes import DType
from firekeep.entry import TensorEntry

Via = Literal["exact", "spelling", "variant", "index", "wrapper"]
"""How a name was found: as it is; under the layer's other spelling; without enum variants; at another index of its list; without or with
the name of a wrapper around the model."""

Verdict = Literal["error", "allow"]


# Neither is frozen, as a TensorEntry is not: a model may have tens of thousands.
@dataclass(slots=True, kw_only=True)
class Want:
    """A tensor that a model wants from a file, under the name that the file's convention gives it.

    `slots` are the paths of the places that it fills. `spellings` are whole other names that the layer's kind is known under, the likelier
    first. `short` is the name without the variants of enums in it. `dtype` None takes any kind of numbers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType | None = None
    slots: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()
    short: str | None = None
    container: str = ""
    turned: bool = False
    """A matrix that the model has the other way round."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The model's own names for it."""
        return self.slots or (self.name,)


@dataclass(slots=True)
class Pair:
    """A want, the tensor of the file that is to fill it, and how the one was found for the other."""

    want: Want
    offer: TensorEntry
    via: tuple[Via, ...] = ("exact",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ambiguity:
    """A want for which a step beyond the exact name gave more than one tensor, or whose tensor more than one want would have."""

    want: str
    candidates: tuple[str, ...]
    reason: str

    @property
    def speaks_of(self) -> tuple[str, tuple[str, ...]]:
        """What it is a doubt about, whatever the reason."""
        return self.want, self.candidates

    def __str__(self) -> str:
        return f"{self.want!r}: {self.reason}: {', '.join(map(repr, self.candidates))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a load refuses: tensors missing in the file, tensors of the file that nothing wants, tensors of another shape."""

    missing: Verdict = "error"
    unused: Verdict = "error"
    shape: Verdict = "error"


STRICT = Policy()
"""Refuse all three."""

IMPORT = Policy(unused="allow")
"""Burn's habit for files of other origin: what nothing wants is reported, no more."""

LENIENT = Policy(missing="allow", unused="allow", shape="allow")
"""Take what fits, and report the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchOptions:
    """How far names may be apart, and what is known of either side besides its tensors.

    `match` "exact" pairs equal names only. `modules` are the paths of all parts of the model as the file's convention names them, those
    without tensors too, `keyed` those in which numbers are keys and no places. `submodules` are the file's own parts (the keys of a state
    dict's `_metadata`), after the same renames as the offers.
    `sources` are the names that renamed offers had before. Empty means that nothing is known.
    """

    match: Literal["auto", "exact"] = "auto"
    modules: frozenset[str] = frozenset()
    keyed: frozenset[str] = frozenset()
    submodules: frozenset[str] = frozenset()
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which tensor goes where, before a byte is read.

    `pairs` can be carried out. `mismatched` pairs differ in shape, `clashes` in the kind of numbers (floats where integers are due), and
    the tensors of `unreadable` pairs have a problem of their own. Every want is in exactly one of these four or in `missing`, in the
    order given; every offer is in exactly one of them or in `unused`. `steps` are sentences about all that was done beyond equal names,
    `offered` is how many offers there were.
    """

    pairs: tuple[Pair, ...] = ()
    missing: tuple[Want, ...] = ()
    unused: tuple[TensorEntry, ...] = ()
    mismatched: tuple[Pair, ...] = ()
    clashes: tuple[Pair, ...] = ()
    unreadable: tuple[Pair, ...] = ()
    steps: tuple[str, ...] = ()
    ambiguities: tuple[Ambiguity, ...] = ()
    offered: int = 0
    unsure: Mapping[str, Ambiguity] = field(default_factory=dict)
    """By the want's name, pairs that only a strict load may keep, which refuses what else is wrong with their list."""
    hints: tuple[Ambiguity, ...] = ()
    """Elements of lists that may be others of the file, which a strict load is told by a remedy."""

    @property
    def found(self) -> tuple[Pair, ...]:
        """All pairs, fit or not."""
        return (*self.pairs, *self.mismatched, *self.clashes, *self.unreadable)

    @property
    def matched(self) -> int:
        """How many wants found a tensor, fit or not."""
        return len(self.pairs) + len(self.mismatched) + len(self.clashes) + len(self.unreadable)

    @property
    def misfits(self) -> int:
        """How many of the model's tensors would be of another shape: one of the file may be several of the model."""
        return len({path for pair in self.mismatched for path in pair.want.paths})

    @property
    def nothing(self) -> bool:
        """Whether tensors are wanted and not one was found."""
        return bool(self.missing) and not self.matched

    @property
    def ok(self) -> bool:
        """Whether everything found its place, and nothing is left over."""
        return not (self.missing or self.unused or self.mismatched or self.clashes or self.unreadable)

    def narrowed(self, keep: Callable[[Want], bool]) -> Plan:
        """Give the plan without some of its wants; the tensors that were found for them do not count as unused.

        Wants are left out after planning, never before: a list is matched by all of its elements.
        """

        def kept(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
            return tuple(pair for pair in pairs if keep(pair.want))

        missing = tuple(want for want in self.missing if keep(want))
        names = {want.name for want in missing}
        return replace(
            self,
            pairs=kept(self.pairs),
            missing=missing,
            ambiguities=tuple(one for one in self.ambiguities if one.want in names),
            hints=(),
            mismatched=kept(self.mismatched),
            clashes=kept(self.clashes),
            unreadable=kept(self.unreadable),
        )

    def cautious(self) -> Plan:
        """Give the plan without its unsure pairs, and with its hints: a load that takes what fits must not take what only seems to."""
        if not self.unsure and not self.hints:
            return self

        def sure(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
            return tuple(pair for pair in pairs if pair.want.name not in self.unsure)

        parted = [pair for pair in self.found if pair.want.name in self.unsure]
        doubts = dict.fromkeys(self.unsure[pair.want.name] for pair in parted)
        said = {doubt.speaks_of for doubt in doubts}  # and more of it
        return replace(
            self,
            pairs=sure(self.pairs),
            missing=(*self.missing, *(pair.want for pair in parted)),
            unused=(*self.unused, *(pair.offer for pair in parted)),
            mismatched=sure(self.mismatched),
            clashes=sure(self.clashes),
            unreadable=sure(self.unreadable),
            ambiguities=(*(one for one in self.ambiguities if one.speaks_of not in said), *doubts, *self.hints),
            unsure={},
            hints=(),
        )

    def refusals(self, policy: Policy) -> tuple[str, ...]:
        """Say what of it the policy does not allow, in a few words each; a clash of kinds and an unreadable tensor never are allowed."""
        return tuple(self._refused(policy))

    def _refused(self, policy: Policy) -> Iterator[str]:
        if self.nothing:
            yield "no name matched"
        if self.missing and policy.missing == "error":
            yield f"{len(self.missing):,} missing"
        if self.unused and policy.unused == "error":
            yield f"{len(self.unused):,} unused"
        if self.mismatched and policy.shape == "error":
            yield f"{self.misfits:,} of another shape"
        if self.clashes:
            yield f"{len(self.clashes):,} of another kind"
        if self.unreadable:
            yield f"{len(self.unreadable):,} unreadable"
