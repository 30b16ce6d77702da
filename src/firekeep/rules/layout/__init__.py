"""How layers of a kind name and lay their tensors: one table, read in both directions."""

from firekeep.rules.layout._biases import BIASES, Pair, merged_biases, read_biases, restore_biases, write_biases
from firekeep.rules.layout._collections import without_collection, without_collections
from firekeep.rules.layout._convs import GROUPLESS, groups_told
from firekeep.rules.layout._facts import join_facts, tell_facts
from firekeep.rules.layout._like import layers_from_like
from firekeep.rules.layout._like_flax import layers_from_flax
from firekeep.rules.layout._names import rename_paths, spellings, translate_layers
from firekeep.rules.layout._recurrent import stacked
from firekeep.rules.layout._row import CONVENTIONS, SIDES
from firekeep.rules.layout._table import KINDS
from firekeep.rules.layout._translate import Translation, translate

__all__ = [
    "BIASES",
    "CONVENTIONS",
    "GROUPLESS",
    "KINDS",
    "SIDES",
    "Pair",
    "Translation",
    "groups_told",
    "join_facts",
    "layers_from_flax",
    "layers_from_like",
    "merged_biases",
    "read_biases",
    "rename_paths",
    "restore_biases",
    "spellings",
    "stacked",
    "tell_facts",
    "translate",
    "translate_layers",
    "without_collection",
    "without_collections",
    "write_biases",
]
