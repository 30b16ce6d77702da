"""Python values as JSON text that brings the very same values back: what no scalar of a file can hold.

Plain JSON is used where plain JSON is exact. Everything else stands in an object of one key that begins with a dollar sign: a tuple is
`{"$tuple": [...]}`. A real dictionary that would look like one, or whose keys are not all text, is `{"$dict": [[key, value], ...]}`.

>>> encode({"milestones": (3, 5), "best": float("inf")})
'{"milestones":{"$tuple":[3,5]},"best":{"$float":"inf"}}'
>>> decode(_)
{'milestones': (3, 5), 'best': inf}

Nothing in a text is imported or called: the kinds are those of this module and no others. Tensors are not kept in a text; `split_tensors`
takes them out of a value beforehand, and `join_tensors` puts them back.
"""

from __future__ import annotations

from firekeep.tagged._decode import decode
from firekeep.tagged._encode import encode
from firekeep.tagged._tensors import join_tensors, replace_tensors, split_tensors
from firekeep.tagged._words import MAX_DEPTH, MAX_TEXT, MAX_VALUES, TensorAt

__all__ = [
    "MAX_DEPTH",
    "MAX_TEXT",
    "MAX_VALUES",
    "TensorAt",
    "decode",
    "encode",
    "join_tensors",
    "replace_tensors",
    "split_tensors",
]
