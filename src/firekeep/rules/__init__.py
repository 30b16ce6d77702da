"""The family of rules: names and entries in, names and entries out. Nothing here reads or writes a file."""

from firekeep.rules._patterns import Pattern
from firekeep.rules.cast import Losses, can_cast, cast, cast_target
from firekeep.rules.filter import PathFilter, Selection
from firekeep.rules.rename import KeyRemapper, RenameRule, Renaming, Rule

__all__ = [
    "KeyRemapper",
    "Losses",
    "PathFilter",
    "Pattern",
    "RenameRule",
    "Renaming",
    "Rule",
    "Selection",
    "can_cast",
    "cast",
    "cast_target",
]
