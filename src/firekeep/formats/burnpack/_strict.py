"""Read a burnpack table with the rules of Burn's own decoder.

The quick decoder knows only what Burn writes. Whatever is not that comes here: spellings that Burn tolerates, and broken tables, of
which this one can say where and why. The tree given back is normal: known keys only, lists for lists, no tags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from firekeep.errors import FirekeepError, LimitError, MetadataError
from firekeep.formats.burnpack._cbor import MAP
from firekeep.formats.burnpack._items import ItemReader
from firekeep.limits import Limits

Tree = dict[str, object]
Field = Callable[[ItemReader], object]


def decode_strictly(data: bytes, limits: Limits) -> tuple[Tree, int]:
    """Give the table and the bytes left over behind it.

    Raises `MetadataError` where Burn would refuse the table or a name stands in it twice, `LimitError` beyond a limit.
    """
    items = ItemReader(data, max_depth=limits.burnpack_depth)
    fields: Mapping[str, Field] = {
        "tensors": partial(_by_name, what="tensor", read=_descriptor, limit=limits.burnpack_tensors),
        "metadata": partial(_by_name, what="metadata key", read=ItemReader.text),
        "scalars": partial(_by_name, what="scalar", read=_scalar),
    }
    tree = _struct(items, "the table", fields, required=("tensors",))
    return tree, len(data) - items.pos


def _struct(items: ItemReader, what: str, fields: Mapping[str, Field], *, required: tuple[str, ...]) -> Tree:
    out: Tree = {}
    for _ in items.entries(MAP, what):
        key = items.key()
        read = fields.get(key)
        if read is None:
            items.skip()
        elif key in out:
            raise items.wrong(f"{what} has the key {key!r} twice")
        else:
            out[key] = read(items)
    for key in required:
        if key not in out:
            raise items.wrong(f"{what} has no {key!r}")
    return out


def _by_name(items: ItemReader, *, what: str, read: Field, limit: int | None = None) -> Tree:
    out: Tree = {}
    for _ in items.entries(MAP, f"a map by {what}"):
        name = items.text()
        if what != "tensor":
            items.count_odd()
        try:
            if name in out:
                raise MetadataError(f"the {what} {name!r} stands in the table twice")
            if len(out) == limit:
                raise LimitError(f"more than {limit} tensors", limit=limit, actual=len(out) + 1)
            out[name] = read(items)
        except FirekeepError as error:
            if what != "tensor":
                raise
            raise error.at(tensor=name)  # noqa: B904 - the same error, with its place
    return out


def _enum(items: ItemReader, *, what: str, values: Mapping[str, Field]) -> object:
    word, has_value = items.variant(what, with_value=bool(values))
    if not has_value:
        return word
    if word not in values:
        raise items.wrong(f"{word!r} is not {what} with a value")
    value = values[word](items)
    items.leave()
    return {word: value}


def _optional(items: ItemReader, *, read: Field) -> object:
    return None if items.at_null() else read(items)


def _descriptor(items: ItemReader) -> Tree:
    tree = _struct(items, "a descriptor", _DESCRIPTOR, required=("dtype", "shape", "data_offsets"))
    if tree.get("param_id", 0) is None:
        del tree["param_id"]
    return tree


def _offsets(items: ItemReader) -> list[int]:
    offsets = items.integers()
    if len(offsets) != 2:
        raise items.wrong(f"{len(offsets)} data_offsets where two are due")
    return offsets


_SIZE: Mapping[str, Field] = {"storage": ItemReader.integers, "len": ItemReader.integer}
_size = partial(_struct, what="a block size", fields=_SIZE, required=("storage", "len"))
_BLOCK: Mapping[str, Field] = {"size": _size, "dtype": ItemReader.word}
_block = partial(_struct, what="a block", fields=_BLOCK, required=("size", "dtype"))
_SCHEME: Mapping[str, Field] = {
    "value": ItemReader.word,
    "store": partial(
        _enum, what="a store", values={"PackedU32": ItemReader.integer, "PackedNative": ItemReader.integer}
    ),
    "mode": ItemReader.word,
    "tensor": partial(_optional, read=ItemReader.word),
    "block": partial(_optional, read=_block),
    "level": ItemReader.anything,
    "param": ItemReader.anything,
}
_scheme = partial(_struct, what="a quantization scheme", fields=_SCHEME, required=("value", "store", "mode"))
_DESCRIPTOR: Mapping[str, Field] = {
    "dtype": partial(_enum, what="a dtype", values={"Bool": ItemReader.word, "QFloat": _scheme}),
    "shape": ItemReader.integers,
    "data_offsets": _offsets,
    "param_id": partial(_optional, read=ItemReader.integer),
}
_scalar = partial(
    _enum,
    what="a scalar",
    values={
        "Int": ItemReader.integer,
        "UInt": ItemReader.integer,
        "Float": ItemReader.real,
        "Bool": ItemReader.boolean,
    },
)
