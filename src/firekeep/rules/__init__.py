"""The family of rules: names and entries in, names and entries out. No tensor file is read or written here.

Members that few need are imported by their own names: `firekeep.rules.surgery` and the like.
"""

from firekeep.rules._mapping_file import MappingFile
from firekeep.rules._patterns import Pattern
from firekeep.rules._presets import PRESETS, Preset
from firekeep.rules.cast import (
    HALF_PRECISION_TYPES,
    DTypeLike,
    Losses,
    can_cast,
    cast,
    cast_target,
    half_precision,
    name_dtype,
    narrows,
)
from firekeep.rules.filter import PathFilter, Place, Predicate, Selection, Wanted
from firekeep.rules.indices import Gap, OpenedGaps, close_gaps, open_gaps
from firekeep.rules.rename import KeyRemapper, RenameRule, Renaming, Rule

__all__ = [
    "HALF_PRECISION_TYPES",
    "PRESETS",
    "DTypeLike",
    "Gap",
    "KeyRemapper",
    "Losses",
    "MappingFile",
    "OpenedGaps",
    "PathFilter",
    "Pattern",
    "Place",
    "Predicate",
    "Preset",
    "RenameRule",
    "Renaming",
    "Rule",
    "Selection",
    "Wanted",
    "can_cast",
    "cast",
    "cast_target",
    "close_gaps",
    "half_precision",
    "name_dtype",
    "narrows",
    "open_gaps",
]
