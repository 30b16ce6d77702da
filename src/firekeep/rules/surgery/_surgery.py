"""Operations in a row, from code or from a mapping file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeGuard

from firekeep.entry import TensorEntry
from firekeep.errors import RuleError
from firekeep.rules._mapping_file import MappingFile
from firekeep.rules.surgery._rules import Merge, Split, Stack, Unstack
from firekeep.wording import some, spell

Operation = Split | Merge | Stack | Unstack
"""What a surgery is made of."""

_MAKERS: Mapping[str, Any] = {"split": Split.of, "merge": Merge.of, "stack": Stack.of, "unstack": Unstack.of}
_FACTS = {
    "split": ("into", "sizes", "axis", "heads"),
    "merge": ("into", "sizes", "axis", "heads"),
    "stack": ("into", "axis"),
    "unstack": ("into", "axis"),
}
_NUMBERS = 1 << 63


@dataclass(frozen=True, slots=True)
class Operated:
    """All tensors after a surgery, and for each operation on how many it was done."""

    entries: list[TensorEntry]
    hits: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Surgery:
    r"""Operations on tensors in order; each sees what the one before made of them.

    >>> print(Surgery.of([Split.of(r"\.qkv\.", [".q.", ".k.", ".v."])]).inverse())
    merge \.q\., \.k\., \.v\. into .qkv.
    """

    operations: tuple[Operation, ...] = ()

    @classmethod
    def of(cls, operations: Operation | Iterable[Operation | Mapping[str, object]] | Self = ()) -> Self:
        """Take operations, or tables that describe them as a mapping file does; raises `RuleError` saying which is wrong.

        A surgery is given back as it is.
        """
        if isinstance(operations, cls):
            return operations
        if isinstance(operations, Operation):
            operations = (operations,)
        if not isinstance(operations, Iterable):
            raise RuleError(f"surgery: {operations!r} is {type(operations).__name__}, where operations are due")
        made = []
        for place, operation in enumerate(operations):
            if isinstance(operation, Operation):
                made.append(operation)
                continue
            if not isinstance(operation, Mapping):
                raise RuleError(
                    f"surgery {place + 1}: {operation!r} is neither an operation nor a table that describes one"
                )
            try:
                made.append(_read(operation))
            except RuleError as error:
                raise RuleError(f"surgery {place + 1}: {error.message}", remedy=error.remedy) from None
        return cls(tuple(made))

    @classmethod
    def of_file(cls, file: MappingFile) -> Self:
        """Read the operations of a mapping file that is already open, and nothing else of it; errors name the file and the entry."""
        try:
            return cls.of(file.surgery)
        except RuleError as error:
            raise error.at(path=file.path)  # noqa: B904 - the same error, with its place

    def tables(self) -> tuple[dict[str, object], ...]:
        """Give the operations as the tables of a mapping file."""
        return tuple(operation.table() for operation in self.operations)

    def apply(self, entries: Iterable[TensorEntry]) -> Operated:
        """Do all operations; nothing is drawn. Raises `RuleError` naming tensors that would have one name."""
        current = list(entries)
        hits = []
        for operation in self.operations:
            current, count = operation.apply(current)
            hits.append((str(operation), count))
            _refuse_doubles(current, operation)
        return Operated(current, tuple(hits))

    def inverse(self) -> Self:
        """Give the surgery that turns this one round, the last operation first; raises `RuleError` naming one that has no inverse."""
        return type(self)(tuple(operation.inverse() for operation in reversed(self.operations)))

    def __bool__(self) -> bool:
        return bool(self.operations)

    def __str__(self) -> str:
        return "; ".join(map(str, self.operations))


def _refuse_doubles(entries: Sequence[TensorEntry], operation: Operation) -> None:
    times = Counter(entry.name for entry in entries)
    doubles = [name for name, count in times.items() if count > 1]
    if doubles:
        raise RuleError(
            f"after {str(operation)!r} there are several tensors of one name: {some(doubles)}",
            remedy="Rename those that are in the way first, or leave them out with exclude.",
        )


def _read(table: Mapping[str, object]) -> Operation:
    kinds = [key for key in table if key in _MAKERS]
    if len(kinds) != 1:
        raise RuleError(f"one of {', '.join(_MAKERS)} is due, and there are {', '.join(kinds) or 'none'}")
    kind = kinds[0]
    unknown = [key for key in table if key not in (kind, *_FACTS[kind])]
    if unknown:
        raise RuleError(f"{kind} knows no {unknown[0]!r}", remedy=f"It takes {', '.join(_FACTS[kind])}.")
    if "into" not in table:
        raise RuleError(f"{kind} has no 'into'")
    _require_kinds(table, kind)
    facts = {key: table[key] for key in ("sizes", "axis", "heads") if key in table}
    made: Operation = _MAKERS[kind](table[kind], table["into"], **facts)
    return made


def _require_kinds(table: Mapping[str, object], kind: str) -> None:
    for key in ("axis", "heads"):
        value = table.get(key, 1)
        if not _is_number(value) or (key == "heads" and value < 1):
            raise RuleError(
                f"{kind}: {key} is {spell(value)}, where {'a number from 1 on' if key == 'heads' else 'a number'} is due"
            )
    sizes = table.get("sizes", [])
    if not isinstance(sizes, list | tuple) or not all(_is_number(size) and size >= 0 for size in sizes):
        raise RuleError(f"{kind}: sizes are {spell(sizes)}, where a list of numbers is due")
    for key, as_list in ((kind, kind == "merge"), ("into", kind == "split")):
        value = table[key]
        listed = isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
        if not (listed if as_list else isinstance(value, str) or (listed and kind == "merge")):
            raise RuleError(f"{kind}: {key} is {spell(value)}, where {'a list of texts' if as_list else 'text'} is due")


def _is_number(value: object) -> TypeGuard[int]:
    """Say whether a value is a whole number of 64 bits: a file may have one that Python refuses to spell."""
    return type(value) is int and -_NUMBERS <= value < _NUMBERS
