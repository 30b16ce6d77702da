"""The parts of one layer: found in tensors of the source, cut out of them, added, or made up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, RuleError
from firekeep.rules.layout._row import PLUS, Field, Made, Row
from firekeep.slots import Convention, Layer
from firekeep.views import constant, is_ghost, sliced, summed

_UNLIKE = "what is kept of two biases cannot be merged, nor what is kept of a merged one taken apart, as the biases can"


@dataclass(slots=True)
class Home:
    """Where a part of a layer is: in which entry, the how-manieth, under which field of the source."""

    entry: TensorEntry
    position: int
    field: Field


@dataclass(slots=True)
class Piece:
    """A part in PyTorch's way round, what it was made of, and how if it was not just cut out."""

    entry: TensorEntry
    homes: tuple[Home, ...]
    how: Literal["", "summed", "taken", "zeroed", "made"] = ""


@dataclass(slots=True)
class Group:
    """The tensors of one layer, by the parts that they hold."""

    layer: Layer
    row: Row
    source: Convention
    sums: Literal["add", "refuse"] = "add"
    homes: dict[str, Home] = field(default_factory=dict)
    _renamed: dict[str, str] = field(default_factory=dict)

    def add(self, home: Home) -> None:
        """Take in a tensor; raises `RuleError` where there is another of its parts."""
        for part in home.field.parts:
            other = self.homes.setdefault(part, home)
            if other is not home:
                raise RuleError(
                    f"{other.entry.name!r} and {home.entry.name!r} are both the {home.field.name} of {self.layer.path!r}",
                    remedy="Leave one of them out with exclude.",
                )

    def adapt(self, target: Convention) -> None:
        """Call parts what they are in this very layer; raises `RuleError` where the target cannot have it."""
        if self.row.adapt is None:
            return
        try:
            shapes = {part: self._cut(home, part).shape for part, home in self.homes.items()}
        except FirekeepError:
            return  # it is told when the tensor is made
        for old, new in self.row.adapt(shapes, target).items():
            self.homes[new] = self.homes.pop(old)
            self._renamed[new] = old

    def piece(self, part: str) -> Piece | None:
        """Find a part, or make it of what there is: of two that are added, of a sum, or out of nothing that the source could have."""
        home = self.homes.get(part)
        if home is not None:
            return Piece(self._cut(home, part), (home,))
        if PLUS in part:
            return self._sum(part)
        whole = next((each for each in self.homes if PLUS in each and part in each.split(PLUS)), None)
        if whole is not None:
            return self._share(part, whole)
        made = self.row.made.get(part)
        if made is not None and part not in self.row.parts(self.source):
            return self._made(part, made)
        return None

    def back(self, home: Home) -> TensorEntry:
        """Give a whole tensor in PyTorch's way round."""
        form = home.field.form
        if form.back_with is None:
            return form.back(home.entry)
        beside = self.homes.get(form.with_part)
        if beside is None:
            raise RuleError(f"what it says depends on the {form.with_part} of the layer, which are not there")
        return form.back_with(home.entry, beside.entry)

    def entries_of(self, parts: Iterable[str]) -> Iterator[TensorEntry]:
        """Give the tensors that hold any of these parts, sums they are in, and what they are sums of."""
        wanted = {name for part in parts for name in (part, *part.split(PLUS))}
        for part, home in self.homes.items():
            if not wanted.isdisjoint((part, *part.split(PLUS))):
                yield home.entry

    def is_zero(self, part: str) -> bool:
        """Say whether a part is all zeros; one without values is taken to be."""
        from firekeep.arrays import as_array

        entry = self._cut(self.homes[part], part)
        return entry.problem is not None or is_ghost(entry) or not (as_array(entry) != 0).any()

    def _cut(self, home: Home, part: str) -> TensorEntry:
        one = home.field
        entry = self.back(home)
        if len(one.parts) == 1:
            return entry
        if len(entry.shape) <= one.axis or entry.shape[one.axis] % len(one.parts):
            raise RuleError(f"its shape {list(entry.shape)} cannot be cut into {len(one.parts)} equal parts")
        extent = entry.shape[one.axis] // len(one.parts)
        start = one.parts.index(self._renamed.get(part, part)) * extent
        return sliced(entry, axis=one.axis, start=start, stop=start + extent)

    def _sum(self, part: str) -> Piece | None:
        names = part.split(PLUS)
        pieces = [self.piece(name) for name in names]
        found = [piece for piece in pieces if piece is not None]
        if not found:
            return None
        if len(found) < len(names):
            missing = next(name for name, piece in zip(names, pieces, strict=True) if piece is None)
            raise RuleError(f"it is one of two that are added, and there is no {missing}")
        self._require_sums()
        first, second = found
        homes = (*first.homes, *second.homes)
        return Piece(summed(first.entry, second.entry, name=first.entry.name), homes, "summed")

    def _share(self, part: str, whole: str) -> Piece:
        """Give the first of two that were added all of it, and the other nothing."""
        self._require_sums()
        home = self.homes[whole]
        entry = self._cut(home, whole)
        if part == whole.partition(PLUS)[0]:
            return Piece(entry, (home,), "taken")
        return Piece(constant(entry.name, entry.require(), entry.shape), (home,), "zeroed")

    def _made(self, part: str, made: Made) -> Piece | None:
        like = self.piece(made.like)
        if like is None:
            return None
        dtype = like.entry.require() if made.dtype is None else BY_NAME[made.dtype]
        shape = like.entry.shape if made.shape is None else made.shape
        return Piece(constant(part, dtype, shape, made.value), like.homes, "made")

    def _require_sums(self) -> None:
        if self.sums == "refuse":
            raise RuleError(_UNLIKE)


def tell(pieces: Sequence[Piece], homes: Sequence[Home], target: Field) -> str:
    """Say in words how a tensor was made of pieces."""
    hows = [piece.how for piece in pieces]
    roles = listed(list(dict.fromkeys(home.field.name for home in homes)))
    if all(how in ("zeroed", "made") for how in hows):
        if "zeroed" in hows:
            return f"zeroed, since {roles} is the sum of two and nothing tells them apart"
        return "made up, since the other side has no such tensor"
    turned = next((home.field.form.words for home in homes if home.field.form != target.form), "")
    turned = target.form.words or turned if turned or target.form.words else ""
    same = all(home.field.form == target.form for home in homes)
    tail = f", {turned}" if turned and not same else ""
    if "summed" in hows:
        return f"summed from {roles}{tail}"
    if "taken" in hows:
        return f"taken from {roles}, the sum of two biases{tail}"
    zeros = ", with zeros for what is one of two summed" if "zeroed" in hows else ""
    return f"{'split' if len(homes) == 1 else 'joined'} from {roles}{tail}{zeros}"


def listed(names: Sequence[str]) -> str:
    """Join names as one says them."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
