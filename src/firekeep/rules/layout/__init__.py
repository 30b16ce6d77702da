"""How layers of a kind name and lay their tensors: one table, read in both directions."""

from firekeep.rules.layout._biases import BIASES, Pair, merged_biases, read_biases, restore_biases, write_biases
from firekeep.rules.layout._collections import without_collection, without_collections
from firekeep.rules.layout._convs import GROUPLESS, groups_told
from firekeep.rules.layout._facts import TELLING, TIED, TWINS, join_facts, tell_facts, tell_reader, tellable, with_facts
from firekeep.rules.layout._like import layers_from_like
from firekeep.rules.layout._like_flax import layers_from_flax
from firekeep.rules.layout._moved import moved, parts_of
from firekeep.rules.layout._names import rename_paths, spellings, translate_layers
from firekeep.rules.layout._norms import are_of_a_norm, is_norm, norm_names
from firekeep.rules.layout._recurrent import stacked
from firekeep.rules.layout._route import Route, route_of
from firekeep.rules.layout._row import CONVENTIONS, SIDES
from firekeep.rules.layout._table import KINDS
from firekeep.rules.layout._told import LAYERS, read_layers, write_layers
from firekeep.rules.layout._translate import Translation, translate

__all__ = [
    "BIASES",
    "CONVENTIONS",
    "GROUPLESS",
    "KINDS",
    "LAYERS",
    "SIDES",
    "TELLING",
    "TIED",
    "TWINS",
    "Pair",
    "Route",
    "Translation",
    "are_of_a_norm",
    "groups_told",
    "is_norm",
    "join_facts",
    "layers_from_flax",
    "layers_from_like",
    "merged_biases",
    "moved",
    "norm_names",
    "parts_of",
    "read_biases",
    "read_layers",
    "rename_paths",
    "restore_biases",
    "route_of",
    "spellings",
    "stacked",
    "tell_facts",
    "tell_reader",
    "tellable",
    "translate",
    "translate_layers",
    "with_facts",
    "without_collection",
    "without_collections",
    "write_biases",
    "write_layers",
]
