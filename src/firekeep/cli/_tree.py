"""Names of tensors as a tree, with alike siblings folded into one: layers.{0…29}."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from firekeep.cli._output import can_print, shown

_MAX_SEGMENTS = 64
"""Segments of a name that become levels of the tree; the rest of a longer name stays one label."""

_MAX_RANGES = 6
"""Ranges in the label of a folded group; siblings scattered more than this are folded run by run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A tensor as it is shown."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    numel: int
    nbytes: int
    param_id: str | None = None
    tied_to: str | None = None
    problem: str | None = None


@dataclass(slots=True, eq=False)
class Node:
    """A place in the tree: a tensor, or a group of them, or both; `times` is how many alike siblings it stands for."""

    label: str
    row: Row | None = None
    children: list[Node] = field(default_factory=list)
    times: int = 1
    tensors: int = 0
    nbytes: int = 0
    kind: int = -1
    """Equal for subtrees that differ in nothing but their label and the parameter ids."""


def grow(rows: Iterable[Row], *, fold: bool) -> Node:
    """Build the tree of names that are in natural order; with `fold`, alike numbered siblings become one node."""
    root = _nest(rows)
    kinds: dict[object, int] = {}
    _settle(root, kinds, fold=fold)
    return root


def _nest(rows: Iterable[Row]) -> Node:
    root = Node("")
    index: dict[int, dict[str, Node]] = {}
    for row in rows:
        node = root
        for segment in row.name.split(".", _MAX_SEGMENTS - 1):
            known = index.setdefault(id(node), {})
            child = known.get(segment)
            if child is None:
                child = known[segment] = Node(segment)
                node.children.append(child)
            node = child
        node.row = row
    return root


def _settle(node: Node, kinds: dict[object, int], *, fold: bool) -> None:
    """Fold from the leaves up, add up, and number the kinds of subtrees."""
    for child in node.children:
        _settle(child, kinds, fold=fold)
    if fold:
        node.children = _fold(node.children)
    row = node.row
    node.tensors = (row is not None) + sum(child.tensors * child.times for child in node.children)
    node.nbytes = (row.nbytes if row is not None and row.tied_to is None else 0) + sum(
        child.nbytes * child.times for child in node.children
    )
    own = None if row is None else (row.dtype, row.shape, row.tied_to, row.problem)
    below = tuple((child.label, child.kind) for child in node.children)
    node.kind = kinds.setdefault((own, below), len(kinds))


def _fold(children: list[Node]) -> list[Node]:
    groups: dict[int, list[Node]] = {}
    for child in children:
        if _is_number(child.label):
            groups.setdefault(child.kind, []).append(child)
    folded: list[Node] = []
    for child in children:
        group = groups.get(child.kind, [child]) if _is_number(child.label) else [child]
        if len(group) == 1:
            folded.append(child)
        elif child is group[0]:
            folded += _fold_group(group)
    return folded


def _fold_group(group: list[Node]) -> list[Node]:
    numbers = [int(node.label) for node in group]
    runs = list(_runs(numbers))
    if len(runs) <= _MAX_RANGES:
        return [_stand_for(group, [_range(numbers[first], numbers[last]) for first, last in runs])]
    step = numbers[1] - numbers[0]
    if all(after - before == step for before, after in pairwise(numbers)):
        return [_stand_for(group, [str(numbers[0]), _range(numbers[1], numbers[-1])])]
    return [
        _stand_for(group[first : last + 1], [_range(numbers[first], numbers[last])]) if first < last else group[first]
        for first, last in runs
    ]


def _stand_for(group: Sequence[Node], ranges: Sequence[str]) -> Node:
    node = group[0]
    node.label = f"{{{','.join(ranges)}}}"
    node.times = len(group)
    return node


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            yield start, place - 1
            start = place


def _range(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}{'…' if can_print('…') else '..'}{last}"


def _is_number(label: str) -> bool:
    return label.isascii() and label.isdigit() and len(label) <= 9 and (label == "0" or label[0] != "0")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the drawn tree: guides and label, the node it ends at, how many such nodes it stands for.

    `below` are the guides of a further line for the same node.
    """

    text: str
    node: Node
    times: int
    below: str


def draw(root: Node) -> Iterator[Line]:
    """Give the lines of the tree from the top; a group with one member and nothing else is joined to it with a dot."""
    fancy = can_print("├└│─")
    branch, corner, bar, blank = ("├── ", "└── ", "│   ", "    ") if fancy else ("|-- ", "`-- ", "|   ", "    ")

    def walk(node: Node, before: str) -> Iterator[Line]:
        for place, child in enumerate(node.children):
            last = place == len(node.children) - 1
            below = before + (blank if last else bar)
            end, text, times = _joined(child, before + (corner if last else branch))
            yield Line(text, end, times, below + (bar if end.children else blank))
            yield from walk(end, below)

    for child in root.children:
        end, text, times = _joined(child, "")
        yield Line(text, end, times, bar if end.children else blank)
        yield from walk(end, "")


def _joined(node: Node, guides: str) -> tuple[Node, str, int]:
    text, times = guides + _label(node), node.times
    while node.row is None and len(node.children) == 1:
        node = node.children[0]
        text += f".{_label(node)}"
        times *= node.times
    return node, text, times


def _label(node: Node) -> str:
    return shown(node.label)
