"""Nested values with tensors in them as one burnpack file, under any name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firekeep.disk import write_file
from firekeep.errors import FirekeepError, WrongFormatError
from firekeep.formats import FORMATS, Contents, OpenOptions
from firekeep.limits import DEFAULT_LIMITS
from firekeep.opened import open_file
from firekeep.saving import prepare
from firekeep.training._nested import pack, unpack


def save_values(
    tree: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    key: str,
    metadata: Mapping[str, str] | None = None,
    durable: bool = True,
) -> Path:
    """Write values to a file, whole or not at all: tensors by the keys that lead to them, the rest as text under a metadata key.

    Raises `UnsupportedError` naming the place of a value that is neither plain nor a tensor.
    """
    try:
        entries, told = pack(tree, key=key)
        contents = Contents(entries=entries, metadata={**told, **(metadata or {})})
        plan, observe, seal = prepare(contents, FORMATS["burnpack"], digest=False, limits=DEFAULT_LIMITS)
    except FirekeepError as error:
        raise error.at(path=path)  # noqa: B904 - the same error, with its place
    return write_file(path, plan, durable=durable, observe=observe, seal=seal)


def load_values(
    path: str | os.PathLike[str], *, key: str, what: str, remedy: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read values back, tensors on the CPU, and the file's other metadata.

    Raises `WrongFormatError` for a file without such values: `what` names those expected, `remedy` says what reads others.
    """
    with open_file(path, OpenOptions()) as opened:
        if key not in opened.metadata:
            raise WrongFormatError(
                f"this is a {opened.format} file, and not {what}", kind=opened.format, path=path, remedy=remedy
            )
        tree = unpack(opened, key=key)
        return tree, {name: text for name, text in opened.metadata.items() if name != key}
