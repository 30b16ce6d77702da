"""New names for tensors, by ordered rules."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from firekeep.errors import RuleError
from firekeep.rules._mapping_file import MappingFile
from firekeep.rules._patterns import pattern_text
from firekeep.rules._presets import PRESETS
from firekeep.rules._rule import RenameRule, Rule
from firekeep.rules._templates import refuse_collisions

__all__ = ["KeyRemapper", "RenameRule", "Renaming", "Rule"]

_SHOWN = 5
_NO_NAMES: Mapping[str, str] = MappingProxyType({})
_NARROWER = "Make the patterns narrower, or leave one of them out with exclude."


@dataclass(frozen=True, slots=True)
class Renaming:
    """What rules made of a list of names: old to new for all of them, and for each rule in how many names it was found.

    `unmet` are the names of the remapper's own table that were not in the list.
    """

    names: Mapping[str, str]
    hits: tuple[tuple[str, int], ...]
    unmet: tuple[str, ...] = ()

    @property
    def changed(self) -> int:
        """How many names are not what they were."""
        return sum(old != new for old, new in self.names.items())

    @property
    def holed(self) -> tuple[str, ...]:
        """The old names whose new one is empty or has nothing between two dots, which the old one had not."""
        return tuple(
            old for old, new in self.names.items() if old != new and "" in new.split(".") and "" not in old.split(".")
        )


@dataclass(frozen=True, slots=True)
class KeyRemapper:
    r"""Rules tried in order on every name; each sees what the one before made of it.

    A name that stands in the table `names` takes its new one from there, and no rule is tried on it.

    >>> KeyRemapper.of([r"^model\.=>", r"layers\.(\d+)=>blocks.$1"]).rename(["model.layers.3.bias"]).names
    {'model.layers.3.bias': 'blocks.3.bias'}
    """

    rules: tuple[RenameRule, ...] = ()
    names: Mapping[str, str] = field(default_factory=lambda: _NO_NAMES, hash=False)

    @classmethod
    def of(
        cls,
        rules: Rule | RenameRule | Iterable[Rule | RenameRule] | Mapping[str, str] | Self = (),
        *,
        names: Mapping[str, str] = _NO_NAMES,
    ) -> Self:
        """Read rules, one by itself, or a mapping of patterns to replacements; `names` are whole names and their new ones.

        A remapper is given back as it is, so that whoever takes rules takes one, too.
        """
        if isinstance(rules, cls) and names is _NO_NAMES:
            return rules
        if isinstance(rules, str | RenameRule):
            rules = (rules,)
        if not isinstance(rules, Iterable):
            raise RuleError(f"rename: {rules!r} is {type(rules).__name__}, where rules are due")
        _require_table(names)
        given: Iterable[Rule | RenameRule] = rules.items() if isinstance(rules, Mapping) else rules  # type: ignore[assignment]
        return cls(tuple(RenameRule.of(rule) for rule in given), MappingProxyType(dict(names)))

    @classmethod
    def table(cls, names: Mapping[str, str]) -> Self:
        """Take whole names and their new ones, and no rules."""
        return cls.of(names=names)

    @classmethod
    def preset(cls, name: str) -> Self:
        """Give the rules of a usual case by its name; `PRESETS` lists them, and an unknown one raises `RuleError`."""
        if name not in PRESETS:
            known = ", ".join(map(repr, PRESETS))
            raise RuleError(f"there are no renames by the name of {name!r}", remedy=f"There are {known}.")
        return cls.of(PRESETS[name].rules)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read the renames of a mapping file, TOML or JSON; errors name the file and the entry.

        A file that also splits or merges tensors is refused: `MappingFile.load` gives both parts.
        """
        file = MappingFile.load(path)
        if file.surgery:
            raise RuleError(
                "the mapping also splits or merges tensors, which renames alone cannot do",
                path=path,
                remedy="Read it with MappingFile.load, and give its `surgery` to Surgery.of.",
            )
        return cls.of_file(file)

    @classmethod
    def of_file(cls, file: MappingFile) -> Self:
        """Read the renames of a mapping file that is already open, and nothing else of it."""
        rules = []
        for place, rule in enumerate(file.rules):
            try:
                rules.append(RenameRule.of(rule))
            except RuleError as error:
                raise file.fault(f"rename {place + 1}", error) from None
        return cls.of(rules, names=file.names)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write a mapping file that `load` reads: JSON where the path ends in .json, else TOML."""
        rules = tuple((pattern_text(rule.pattern), rule.replacement) for rule in self.rules)
        MappingFile(rules=rules, names=self.names).save(path, overwrite=overwrite)

    def rename(self, names: Iterable[str]) -> Renaming:
        """Give every name its new one; raises `RuleError` naming both sources when two would become one."""
        hits = [0] * len(self.rules)
        renamed: dict[str, str] = {}
        numbered = list(enumerate(self.rules))
        for old in names:
            if old in self.names:
                renamed[old] = self.names[old]
                continue
            new = old
            for place, rule in numbered:
                if rule.pattern.search(new) is not None:
                    new = rule.apply(new)[0]
                    hits[place] += 1
            renamed[old] = new
        refuse_collisions(renamed, what="the renames give", remedy=_NARROWER)
        told = tuple((str(rule), count) for rule, count in zip(self.rules, hits, strict=True))
        return Renaming(renamed, told, tuple(name for name in self.names if name not in renamed))

    def inverse(self) -> Self:
        """Give the rules that turn these round, the last one first; raises `RuleError` naming a rule that has no inverse.

        `RenameRule.inverse` says what can be turned round and for which names that is right; `undo` checks it.
        """
        table = {new: old for old, new in self.names.items()}
        refuse_collisions(self.names, what="the table of names gives", remedy="Only one of them can keep the name.")
        return type(self)(tuple(rule.inverse() for rule in reversed(self.rules)), MappingProxyType(table))

    def inverse_of(self, names: Iterable[str]) -> Self:
        """Give a table that turns round what these rules make of `names`: always right, for those names and no others."""
        return type(self)((), MappingProxyType({new: old for old, new in self.rename(names).names.items()}))

    def undo(self, names: Iterable[str]) -> Renaming:
        """Give new names back their old ones by `inverse`, and make sure that the rules would give the new ones again.

        Raises `RuleError` naming those that would not come back.
        """
        undone = self.inverse().rename(names)
        again = self.rename(undone.names.values()).names
        lost = [(new, old, again[old]) for new, old in undone.names.items() if again[old] != new]
        if lost:
            shown = "; ".join(f"{new!r} goes back to {old!r}, which becomes {end!r}" for new, old, end in lost[:_SHOWN])
            more = f"; and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
            raise RuleError(
                f"the renames cannot be turned round for these names: {shown}{more}",
                remedy="Give inverse_of() the names that the rules were used on.",
            )
        return undone

    def __bool__(self) -> bool:
        return bool(self.rules or self.names)


def _require_table(names: object) -> None:
    if isinstance(names, Mapping) and all(isinstance(text, str) for pair in names.items() for text in pair):
        return
    raise RuleError("rename: the table of names is a mapping of names to names")
