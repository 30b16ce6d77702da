"""Tensors split, merged, stacked and unstacked, one by one or by rules that find them by name."""

from firekeep.rules.surgery._rules import Merge, Split, Stack, Unstack
from firekeep.rules.surgery._surgery import Operated, Operation, Surgery
from firekeep.rules.surgery._tensors import merge, split, stack, unstack

__all__ = [
    "Merge",
    "Operated",
    "Operation",
    "Split",
    "Stack",
    "Surgery",
    "Unstack",
    "merge",
    "split",
    "stack",
    "unstack",
]
