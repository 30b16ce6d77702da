"""Element types and scalars as burnpack spells them, both ways.

Reading takes the decoded table (dicts, lists, texts, numbers) and is as strict as Burn 0.22.1, but for three spellings of older
releases that it knows and puts into `notes`: the dtype "Bool" without a store, the store "U32", and schemes with `level` and
`param` in place of `tensor` and `block`.
"""

from __future__ import annotations

from firekeep.dtypes import BY_BURN, BY_BURN_BOOL, SCALE_BYTES, VALUE_BITS, DType, QuantScheme, qfloat
from firekeep.errors import MetadataError, ScalarError, UnsupportedError
from firekeep.formats.burnpack._cbor import encode
from firekeep.scalars import Scalar

MODES = ("Symmetric", "Lookup")
PACKED_STORES = ("PackedU32", "PackedNative")
BLOCK_AXES = 5
U64 = 1 << 64

OLD_BOOL = "booleans are spelled as Burn up to 0.20 did, without a store: read as one byte each"
OLD_STORE = "the quantized store is spelled 'U32', as in Burn 0.20: read as PackedU32 along the last axis"
OLD_SCHEME = "quantization schemes are spelled with level and param, as before Burn 0.22"

_SCALAR_KINDS = {"Int": "int", "UInt": "uint", "Float": "float", "Bool": "bool"}
_SCALAR_NAMES = {kind: name for name, kind in _SCALAR_KINDS.items()}


def show(value: object) -> str:
    """Show a value of a file in a message: shortened, and safe for integers of any size."""
    if type(value) is int and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    try:
        shown = repr(value)
    except ValueError:  # a huge integer somewhere inside
        return f"a {type(value).__name__}"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def nbytes_of(dtype: DType, shape: tuple[int, ...]) -> int:
    """Give the bytes of a tensor; no step of the product may leave 64 bits, as in Burn."""
    count = 1
    for extent in shape:
        count *= extent
        if not 0 <= extent < U64 or count >= U64:
            raise MetadataError(f"shape {show(list(shape))} does not fit 64 bits")
    nbytes = dtype.nbytes(shape)
    if nbytes >= U64:
        raise MetadataError(f"{dtype} of shape {show(list(shape))} does not fit 64 bits")
    return nbytes


# Reading


def dtype_of(tree: object, notes: set[str]) -> DType:
    """Give the dtype of a descriptor; raises `MetadataError` for anything Burn has not written."""
    if isinstance(tree, str):
        if tree == "Bool":
            notes.add(OLD_BOOL)
            return BY_BURN_BOOL["Native"]
        if (row := BY_BURN.get(tree)) is not None:
            return row
    elif isinstance(tree, dict) and len(tree) == 1:
        ((kind, value),) = tree.items()
        if kind == "Bool" and isinstance(value, str) and value in BY_BURN_BOOL:
            return BY_BURN_BOOL[value]
        if kind == "QFloat" and isinstance(value, dict):
            return qfloat(_scheme_of(value, notes))
    raise MetadataError(f"dtype {show(tree)} is none of burnpack's")


def _scheme_of(tree: dict[object, object], notes: set[str]) -> QuantScheme:
    value = _choice(tree, "value", VALUE_BITS)
    mode = _choice(tree, "mode", MODES)
    store, packed_dim = _store_of(tree.get("store"), notes)
    if "tensor" not in tree and "block" not in tree and ("level" in tree or "param" in tree):
        notes.add(OLD_SCHEME)
        tensor, block, block_dtype = _old_level_of(tree)
    else:
        tensor = None if tree.get("tensor") is None else _choice(tree, "tensor", SCALE_BYTES)
        block, block_dtype = _block_of(tree.get("block"))
    if block is not None and tensor not in (None, "F32"):
        raise MetadataError(f"scheme with blocks and a tensor scale of {tensor}: beside blocks it is F32")
    return QuantScheme(
        value=value,
        store=store,
        packed_dim=packed_dim,
        mode=mode,
        tensor=tensor,
        block=block,
        block_dtype=block_dtype,
    )


def _choice(tree: dict[object, object], key: str, allowed: object) -> str:
    value = tree.get(key)
    if isinstance(value, str) and value in allowed:  # type: ignore[operator]
        return value
    raise MetadataError(f"scheme {key} {show(value)} is not one of {', '.join(allowed)}")  # type: ignore[arg-type]


def _store_of(tree: object, notes: set[str]) -> tuple[str, int]:
    if tree == "Native":
        return "Native", 0
    if tree == "U32":
        notes.add(OLD_STORE)
        return "PackedU32", 0
    if isinstance(tree, dict) and len(tree) == 1:
        ((store, axis),) = tree.items()
        if store in PACKED_STORES and type(axis) is int and 0 <= axis < 1 << 32:
            return store, axis
    raise MetadataError(f"scheme store {show(tree)} is not Native, PackedU32 or PackedNative with an axis")


def _block_of(tree: object) -> tuple[tuple[int, ...] | None, str | None]:
    if tree is None:
        return None, None
    if not isinstance(tree, dict):
        raise MetadataError(f"scheme block {show(tree)} is not a map of size and dtype")
    return _extents_of(tree.get("size")), _choice(tree, "dtype", SCALE_BYTES)


def _extents_of(tree: object) -> tuple[int, ...]:
    if isinstance(tree, dict):
        storage, count = tree.get("storage"), tree.get("len")
        if isinstance(storage, list | bytes) and len(storage) == BLOCK_AXES and type(count) is int:
            extents = tuple(storage)[: max(count, 0)]
            if 0 <= count <= BLOCK_AXES and all(type(one) is int and 0 < one < 256 for one in extents):
                return extents
    raise MetadataError(f"block size {show(tree)} is not up to five extents of 1 to 255")


def _old_level_of(tree: dict[object, object]) -> tuple[str | None, tuple[int, ...] | None, str | None]:
    level, param = tree.get("level", "Tensor"), _choice({"param": "F32", **tree}, "param", SCALE_BYTES)
    if level == "Tensor":
        return (None if param == "F32" else param), None, None
    if isinstance(level, dict) and list(level) == ["Block"]:
        size = level["Block"]
        extents = (size,) if type(size) is int and 0 < size < 1 << 32 else _extents_of(size)
        return None, extents, param
    raise MetadataError(f"scheme level {show(level)} is not Tensor or Block")


def scalar_of(tree: object) -> Scalar:
    """Give a scalar, its kind kept; raises `MetadataError` where Burn refuses the file."""
    if isinstance(tree, dict) and len(tree) == 1:
        ((name, value),) = tree.items()
        if name in _SCALAR_KINDS:
            try:
                return Scalar(_SCALAR_KINDS[name], value)  # type: ignore[arg-type]
            except (ScalarError, ValueError):
                raise MetadataError(f"{show(value)} is not a 64-bit {name}") from None
    raise MetadataError(f"{show(tree)} is not one of Int, UInt, Float and Bool with a value")


# Writing


def dtype_tree(dtype: DType) -> object:
    """Give a dtype as it stands in a table; raises `UnsupportedError` with a remedy for one that Burn has no name for."""
    if dtype.scheme is not None:
        return {"QFloat": _scheme_tree(dtype.scheme)}
    if dtype.burn is not None and dtype.kind == "bool":
        return {"Bool": dtype.burn}
    if dtype.burn is not None and dtype.kind != "quantized":
        return dtype.burn
    if dtype.safetensors is not None:
        remedy = f"Write a .safetensors file, which can hold {dtype.name}, or leave the tensor out."
    else:
        remedy = "Leave the tensor out."
    raise UnsupportedError(f"burnpack has no dtype {dtype}", remedy=remedy)


def _scheme_tree(scheme: QuantScheme) -> dict[object, object]:
    block: dict[str, object] | None = None
    if scheme.block is not None:
        extents = list(scheme.block)
        while len(extents) > 1 and extents[0] == 1:  # Burn's canonical form has no leading ones
            del extents[0]
        storage = extents + [1] * (BLOCK_AXES - len(extents))
        block = {"size": {"storage": storage, "len": len(extents)}, "dtype": scheme.block_dtype or "F32"}
    tree: dict[object, object] = {
        "value": scheme.value,
        "store": scheme.store if scheme.store == "Native" else {scheme.store: scheme.packed_dim},
        "mode": scheme.mode,
        "tensor": scheme.tensor,
        "block": block,
    }
    _scheme_of(tree, set())  # what the reader would refuse is not written
    return tree


def scalar_bytes(scalar: Scalar) -> bytes:
    """Spell a scalar: a map of its kind to its value."""
    return encode({_SCALAR_NAMES[scalar.kind]: scalar.value})
