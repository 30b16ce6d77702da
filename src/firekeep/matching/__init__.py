"""What a model wants and what a file offers, paired by name: a pure plan, made before a byte is read."""

from __future__ import annotations

from firekeep.matching._near import Suggestion, suggest
from firekeep.matching._plan import plan
from firekeep.matching._remedies import Remedy, find_remedies
from firekeep.matching._skeletons import may_meet, skeletons_of
from firekeep.matching._words import (
    IMPORT,
    LENIENT,
    STRICT,
    Ambiguity,
    MatchOptions,
    Pair,
    Plan,
    Policy,
    Verdict,
    Via,
    Want,
)

__all__ = [
    "IMPORT",
    "LENIENT",
    "STRICT",
    "Ambiguity",
    "MatchOptions",
    "Pair",
    "Plan",
    "Policy",
    "Remedy",
    "Suggestion",
    "Verdict",
    "Via",
    "Want",
    "find_remedies",
    "may_meet",
    "plan",
    "skeletons_of",
    "suggest",
]
