"""The doors: `open`, `load_file`, `save_file`, `convert`, and the checks beside them."""

from __future__ import annotations

from firekeep.formats import OpenOptions
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.opened import OpenedFile, Readable, open_file


def open(
    source: Readable,
    *,
    top_level_key: str | None = None,
    allow_trailing: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> OpenedFile:
    """Open a file of tensors, of any format, and read its table only.

    `source` is a path, bytes, a binary file object or an importlib resource; a directory or an index opens a sharded safetensors set.
    The format is told from the content. `top_level_key` shows what lies under a dotted path of a PyTorch file, without the prefix.
    Raises `WrongFormatError` for another kind of file, saying which, and `FormatError` for a damaged one.

    Example:
        >>> with firekeep.open("model.safetensors") as file:  # doctest: +SKIP
        ...     print(file.keys(), file.array("fc.weight").shape)
    """
    options = OpenOptions(limits=limits, top_level_key=top_level_key, allow_trailing=allow_trailing)
    return open_file(source, options)
