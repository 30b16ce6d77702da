"""Tagged text into values."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

from firekeep.errors import FirekeepError, FormatError, LimitError
from firekeep.tagged._words import MAX_DEPTH, MAX_TEXT, MAX_VALUES, NUMPY, SMALL_FLOATS, TensorAt, Values
from firekeep.wording import spell

# A text that never ends is matched too: each character is looked at once.
_TEXTS = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_ALIKE = 100
"""How many keys may have one hash: of keys that nobody chose for it, two hardly ever do."""
_OPENERS = re.compile(r"[,\[{]")


def decode(text: str) -> Any:
    """Give back the value of a text; raises `FormatError` for what `encode` does not write, `LimitError` for too much of it."""
    if len(text) > MAX_TEXT:
        raise LimitError("the text of tagged values is too long", limit=MAX_TEXT, actual=len(text))
    if (found := _count(text)) > MAX_VALUES:
        raise LimitError("the text holds too many tagged values", limit=MAX_VALUES, actual=found)
    try:
        plain = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
    except RecursionError:
        raise LimitError("the tagged values lie too deep in one another", limit=MAX_DEPTH) from None
    except FirekeepError:
        raise
    except ValueError as error:
        raise FormatError(f"the text is not one of tagged values: {error}") from None
    return _decode(plain, 0)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object, with its keys as they came."""


def _count(text: str) -> int:
    found = text.count(",") + text.count("[") + text.count("{") + 1
    return found if found <= MAX_VALUES else len(_OPENERS.findall(_TEXTS.sub('""', text))) + 1


def _refuse_constant(name: str) -> Any:
    raise FormatError(f"the text is not one of tagged values: {name} stands for a number")


def _decode(plain: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise LimitError("the tagged values lie too deep in one another", limit=MAX_DEPTH)
    if isinstance(plain, _Pairs):
        if len(plain) == 1 and plain[0][0].startswith("$"):
            tag, content = plain[0]
            maker = _MAKERS.get(tag)
            if maker is None:
                raise FormatError(
                    f"there is no kind of value {tag!r}", remedy="A newer firekeep may have written it: update."
                )
            return maker(content, depth)
        made = {}
        for key, item in plain:
            if key in made or key.startswith("$"):
                raise _malformed(f"a dictionary with the key {key!r}")
            made[key] = _decode(item, depth + 1)
        return made
    if isinstance(plain, list):
        return [_decode(item, depth + 1) for item in plain]
    return plain


def _malformed(what: str) -> FormatError:
    return FormatError(f"the tagged value is not as it is written: {what}")


def _list(content: Any, depth: int) -> Values:
    if type(content) is not list:
        raise _malformed("no list of values")
    return [_decode(item, depth + 1) for item in content]


def _text(content: Any) -> str:
    if type(content) is not str:
        raise _malformed("no text")
    return content


def _pairs(content: Any, depth: int) -> Iterator[tuple[Any, Any]]:
    for pair in content if type(content) is list else [None]:
        if type(pair) is not list or len(pair) != 2:
            raise _malformed("no list of keys with their values")
        yield _decode(pair[0], depth + 1), _decode(pair[1], depth + 1)


def _fill(kind: type[dict[Any, Any]]) -> Callable[[Any, int], Any]:
    def make(content: Any, depth: int) -> Any:
        made = kind()
        hashes: Counter[int] = Counter()
        for number, (key, item) in enumerate(_pairs(content, depth)):
            made[_hashable(key, hashes)] = item
            if len(made) <= number:
                raise _malformed(f"a dictionary with two keys {spell(key)}")
        return made

    return make


def _gather(kind: Callable[[Values], Any]) -> Callable[[Any, int], Any]:
    def make(content: Any, depth: int) -> Any:
        items, hashes = _list(content, depth), Counter[int]()
        made = kind([_hashable(item, hashes) for item in items])
        if len(made) != len(items):
            raise _malformed("a set with one value twice")
        return made

    return make


def _hashable(value: Any, met: Counter[int]) -> Any:
    """Give a key, or refuse one that is none; or many that were chosen to have one hash, among which a search takes for ever."""
    try:
        found = hash(value)
    except TypeError:
        raise _malformed(f"{type(value).__name__} as a key") from None
    met[found] += 1
    if met[found] > _ALIKE:
        raise LimitError("too many keys of the tagged values have the same hash", limit=_ALIKE)
    return value


def _to_int(content: Any, _depth: int) -> int:
    if re.fullmatch(r"-?0x[0-9a-f]+", text := _text(content)) is None:
        raise _malformed(f"an integer {text[:40]!r}")
    return int(text, 16)


def _to_float(content: Any, _depth: int) -> float:
    text = _text(content)
    if text in ("inf", "-inf", "nan"):
        return float(text)
    value = struct.unpack("<d", struct.pack("<Q", int(text, 16)))[0] if re.fullmatch(r"0x[0-9a-f]{16}", text) else 0.0
    if not math.isnan(value):
        raise _malformed(f"a float {text[:40]!r}")
    return float(value)


def _to_bytes(content: Any, _depth: int) -> bytes:
    try:
        return base64.b64decode(_text(content), validate=True)
    except (binascii.Error, ValueError):
        raise _malformed("bytes that are not base64") from None


def _to_deque(content: Any, depth: int) -> deque[Any]:
    if type(content) is not list or len(content) != 2:
        raise _malformed("no deque")
    items, longest = _list(content[0], depth), content[1]
    if longest is not None and (type(longest) is not int or not len(items) <= longest <= sys.maxsize):
        raise _malformed(f"a deque of {len(items)} values and at most {longest}")
    return deque(items, longest)


def _to_complex(content: Any, depth: int) -> complex:
    parts = _list(content, depth)
    if len(parts) != 2 or not all(type(part) is float for part in parts):
        raise _malformed("no complex number")
    return complex(*parts)


def _to_numpy(content: Any, _depth: int) -> Any:
    if type(content) is not list or len(content) != 2:
        raise _malformed("no NumPy scalar")
    name, digits = _text(content[0]), _text(content[1])
    if name not in NUMPY and name not in SMALL_FLOATS:
        raise _malformed(f"a NumPy scalar of {name[:40]!r}")
    import numpy as np

    if name in SMALL_FLOATS:
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, name))
    else:
        dtype = np.dtype(name).newbyteorder("<")
    if re.fullmatch(r"[0-9a-f]*", digits) is None or len(digits) != 2 * dtype.itemsize:
        raise _malformed(f"a NumPy scalar of {name} in {len(digits)} digits")
    if name == "bool" and digits not in ("00", "01"):
        raise _malformed(f"a NumPy bool {digits!r}")
    return np.frombuffer(bytes.fromhex(digits), dtype)[0]


_MAKERS: dict[str, Callable[[Any, int], Any]] = {
    "$int": _to_int,
    "$float": _to_float,
    "$tuple": lambda content, depth: tuple(_list(content, depth)),
    "$dict": _fill(dict),
    "$ordered": _fill(OrderedDict),
    "$counter": _fill(Counter),
    "$set": _gather(set),
    "$frozenset": _gather(frozenset),
    "$deque": _to_deque,
    "$bytes": _to_bytes,
    "$complex": _to_complex,
    "$numpy": _to_numpy,
    "$tensor": lambda content, _depth: TensorAt(_text(content)),
}
