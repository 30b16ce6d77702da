"""How layers of a kind name and lay their tensors: one table, read in both directions."""

from firekeep.rules.layout._facts import tell_facts
from firekeep.rules.layout._like import layers_from_like
from firekeep.rules.layout._names import rename_paths, spellings, translate_layers
from firekeep.rules.layout._row import CONVENTIONS, SIDES
from firekeep.rules.layout._table import KINDS
from firekeep.rules.layout._translate import Translation, translate

__all__ = [
    "CONVENTIONS",
    "KINDS",
    "SIDES",
    "Translation",
    "layers_from_like",
    "rename_paths",
    "spellings",
    "tell_facts",
    "translate",
    "translate_layers",
]
