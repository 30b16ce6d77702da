"""The classes of a TorchScript archive, read from its code as text: which attributes are parameters, and which buffers."""

from __future__ import annotations

import re

from firekeep.errors import FirekeepError
from firekeep.formats._zip import ZipDirectory
from firekeep.formats.pytorch._inert import Global

_CODE_BYTES = 4 << 20
_BODY = r"^class {}(?:\((\w*)\))?:\n((?:(?:  .*)?\n)*)"
_LIST = r"^  __{}__ = \[(.*)\]"
_NAME = re.compile(r'"([^"\\]*)"')


class ScriptCode:
    """Looks up classes in `code/`; nothing of it is compiled or run."""

    def __init__(self, directory: ZipDirectory, root: str) -> None:
        self._directory = directory
        self._root = root
        self._texts: dict[str, str] = {}
        self._known: dict[str, tuple[tuple[str, ...], tuple[str, ...] | None] | None] = {}

    def describe(self, cls: Global) -> tuple[tuple[str, ...], tuple[str, ...] | None] | None:
        """Give the names of a module's parameters and buffers; None for a class that is no module.

        A class without code is taken for a module of which nothing is known.
        """
        if cls.path not in self._known:
            self._known[cls.path] = self._read(cls)
        return self._known[cls.path]

    def _read(self, cls: Global) -> tuple[tuple[str, ...], tuple[str, ...] | None] | None:
        if cls.module.startswith("__torch__.torch.classes"):
            return None
        found = re.search(_BODY.format(re.escape(cls.name)), self._text(cls.module), re.MULTILINE)
        if found is None:
            return (), None
        if found[1] != "Module":
            return None
        parameters = _names(found[2], "parameters") or ()
        return parameters, _names(found[2], "buffers")

    def _text(self, module: str) -> str:
        if module not in self._texts:
            member = self._directory.members.get(f"{self._root}code/{module.replace('.', '/')}.py")
            text = ""
            if member is not None:
                try:
                    text = self._directory.read(member, limit=_CODE_BYTES).decode("utf-8", "replace")
                except FirekeepError:
                    text = ""  # nothing is known of its classes
            self._texts[module] = text
        return self._texts[module]


def _names(body: str, table: str) -> tuple[str, ...] | None:
    found = re.search(_LIST.format(table), body, re.MULTILINE)
    return tuple(_NAME.findall(found[1])) if found else None
