"""Mapping files: renames, a table of names, and operations on tensors, as data in TOML or JSON. Nothing in them is run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Self

from firekeep.errors import RuleError
from firekeep.wording import spell

Table = Mapping[str, object]
"""One operation on tensors, as it stands in the file: a word saying which, and its facts."""

_LARGEST = 64 << 20
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ENTRIES = ("names", "rename", "surgery")


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingFile:
    r"""What a mapping file says.

        rename = [
            ['^model\.', ''],
            ['layers\.(\d+)', 'blocks.$1'],
        ]
        [names]
        "lm_head.weight" = "output.weight"
        [[surgery]]
        split = '^(.*)\.qkv\.(weight|bias)$'
        into = ['$1.q.$2', '$1.k.$2', '$1.v.$2']

    Everything is optional. The operations of `surgery` come first, on the names of the source; then each name takes its new one from
    `names`, or, where it is not there, from the ordered pairs of `rename`. JSON has the same three entries.
    """

    rules: tuple[tuple[str, str], ...] = ()
    names: Mapping[str, str] = field(default_factory=dict, hash=False)
    surgery: tuple[Table, ...] = field(default=(), hash=False)
    path: str | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a mapping file: JSON where the path ends in .json, else TOML; errors name the file and the entry."""
        path = os.fspath(path)
        try:
            return cls._of(_parse(path), path)
        except RuleError as error:
            raise error.at(path=path)  # noqa: B904 - the same error, with its place

    @classmethod
    def _of(cls, data: object, path: str) -> Self:
        if not isinstance(data, dict):
            raise RuleError(f"a mapping file holds a table, and this one {_kind(data)}")
        unknown = [key for key in data if key not in _ENTRIES]
        if unknown:
            raise RuleError(
                f"the entry {unknown[0]!r} is not one of a mapping file", remedy=f"There are {', '.join(_ENTRIES)}."
            )
        return cls(
            rules=tuple(_pairs(data.get("rename", []))),
            names=MappingProxyType(dict(_names(data.get("names", {})))),
            surgery=tuple(_tables(data.get("surgery", []))),
            path=path,
        )

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write it whole or not at all: JSON where the path ends in .json, else TOML."""
        from firekeep.blobs import MemoryBlob
        from firekeep.disk import Part, WritePlan, write_file

        text = _to_json(self) if _is_json(path) else _to_toml(self)
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            wrong = text[error.start : error.end]
            raise RuleError(f"{wrong!r} cannot be written in a text file", path=path) from None
        write_file(path, WritePlan(nbytes=len(data), parts=(Part(0, MemoryBlob(data)),)), overwrite=overwrite)

    def fault(self, entry: str, error: RuleError) -> RuleError:
        """Give the error of an entry with its place: the file and the entry."""
        return RuleError(f"{entry}: {error.message}", path=self.path, remedy=error.remedy)


def _is_json(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().endswith(".json")


def _parse(path: str) -> object:
    import json
    import tomllib

    if Path(path).stat().st_size > _LARGEST:
        raise RuleError(f"a mapping file has at most {_LARGEST >> 20} MiB", limit=_LARGEST)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RuleError(f"not a mapping file: byte {error.start} is not UTF-8") from None
    kind = "JSON" if _is_json(path) else "TOML"
    try:
        return json.loads(text, object_pairs_hook=_without_doubles) if kind == "JSON" else tomllib.loads(text)
    except RuleError:
        raise
    except (ValueError, RecursionError) as error:
        raise RuleError(
            f"not {kind}: {error}", remedy="A mapping file is TOML, or JSON where its name ends in .json."
        ) from None


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made: dict[str, object] = {}
    for key, value in pairs:
        if key in made:
            raise RuleError(f"the entry {key!r} is there twice")
        made[key] = value
    return made


def _kind(value: object) -> str:
    words = {dict: "a table", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return words.get(type(value), "something else")


def _pairs(value: object) -> Iterator[tuple[str, str]]:
    if not isinstance(value, list):
        raise RuleError(f"rename: a list of [pattern, replacement] is due, and this is {_kind(value)}")
    for place, pair in enumerate(value):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise RuleError(f"rename {place + 1}: {spell(pair)} is no pair of two texts, [pattern, replacement]")
        yield pair[0], pair[1]


def _names(value: object) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        raise RuleError(f"names: a table of names is due, and this is {_kind(value)}")
    for old, new in value.items():
        if not isinstance(new, str):
            quoted = "Names with dots are written in quotes." if isinstance(new, dict) else None
            raise RuleError(f"names: the new name of {old!r} is {_kind(new)}, where text is due", remedy=quoted)
        yield old, new


def _tables(value: object) -> Iterator[Table]:
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise RuleError("surgery: a list of tables is due", remedy="Write [[surgery]] above each.")
    for table in value:
        yield MappingProxyType(table)


def _to_json(file: MappingFile) -> str:
    import json

    data: dict[str, object] = {}
    if file.rules:
        data["rename"] = [list(pair) for pair in file.rules]
    if file.names:
        data["names"] = dict(file.names)
    if file.surgery:
        data["surgery"] = [dict(table) for table in file.surgery]
    return json.dumps(data, ensure_ascii=False, indent=2) + "\n"


def _to_toml(file: MappingFile) -> str:
    lines: list[str] = []
    if file.rules:
        lines += ["rename = [", *(f"    {_value(list(pair))}," for pair in file.rules), "]"]
    if file.names:
        lines += ["", "[names]", *(f"{_quote(old)} = {_quote(new)}" for old, new in file.names.items())]
    for table in file.surgery:
        lines += ["", "[[surgery]]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines).lstrip("\n") + "\n"


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) else _quote(key)


def _value(value: object) -> str:
    if isinstance(value, str):
        return _literal(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    raise RuleError(f"a mapping file has no place for {value!r}")


def _literal(text: str) -> str:
    """Write patterns as they are, in single quotes, where TOML can: no letter needs a backslash there."""
    return f"'{text}'" if "'" not in text and text.isprintable() else _quote(text)


def _quote(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(letter) or _spelled(letter) for letter in text) + '"'


def _spelled(letter: str) -> str:
    return f"\\u{ord(letter):04X}" if letter < " " or letter == "\x7f" else letter
