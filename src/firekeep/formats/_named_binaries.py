"""Naming binary files that no fixed bytes tell alone, and the facts of those that they do."""

from __future__ import annotations

import re

from firekeep.formats._protobuf import identify_protobuf
from firekeep.formats._signatures import Identity, count_bytes
from firekeep.sources import Source

_HDF5 = b"\x89HDF\r\n\x1a\n"
_NPY = b"\x93NUMPY"
_TABLE_FOOTER = bytes.fromhex("57fb808b247547db")
_SEARCHED = 1 << 20


def identify_binary(source: Source, head: bytes) -> Identity | None:
    """Name a binary file by the structure of its first bytes, or of its last."""
    for test in (_name_npy, _name_hdf5, _name_gguf, identify_protobuf, _name_torch7, _name_msgpack, _name_ctranslate2):
        if (found := test(source, head)) is not None:
            return found
    if source.size >= 8 and bytes(source.view(source.size - 8, 8)) == _TABLE_FOOTER:
        return Identity(
            kind="tf-checkpoint",
            title="the index of a TensorFlow checkpoint",
            next_step="firekeep does not read it yet; `tf.train.load_checkpoint` does, given the path without .index.",
        )
    return None


def _name_npy(source: Source, head: bytes) -> Identity | None:
    if not head.startswith(_NPY):
        return None
    if bytes(source.view(0, min(source.size, _SEARCHED))).count(_NPY) > 1:
        return Identity(
            kind="equinox",
            title="several NumPy arrays in a row, as Equinox and repeated numpy.save write them: arrays without names",
            next_step="firekeep does not read it yet; `equinox.tree_deserialise_leaves` does, with the model as the template.",
        )
    return Identity(kind="npy", title="a NumPy .npy file", format="numpy")


def _name_hdf5(source: Source, head: bytes) -> Identity | None:
    if not head.startswith(_HDF5) and not (source.size >= 520 and head[512:520] == _HDF5):
        return None
    return Identity(kind="hdf5", title="an HDF5 file, as Keras and h5py write it", format="hdf5")


def _name_gguf(_: Source, head: bytes) -> Identity | None:
    if not head.startswith(b"GGUF"):
        return None
    return Identity(kind="gguf", title="a GGUF file, as llama.cpp uses it", format="gguf")


def _name_torch7(_: Source, head: bytes) -> Identity | None:
    """Tell Lua Torch7: a type tag, an index from 1, then a version string or a table's size (torch7/File.lua)."""
    found = re.match(rb"(?:4\n1\n3\nV 1\n|\x04\0\0\0\x01\0\0\0\x03\0\0\0V 1)", head) is not None
    if not found and len(head) >= 16 and head[:8] == b"\x03\0\0\0\x01\0\0\0":
        count = int.from_bytes(head[8:12], "little", signed=True)
        found = 0 <= count < 1 << 24 and int.from_bytes(head[12:16], "little") <= 8
    if not found:
        return None
    named = re.search(rb"\b(?:nn|torch|cudnn|cunn)\.[A-Za-z]\w{1,40}", head)
    return Identity(
        kind="torch7",
        title="a Lua Torch7 file, from before PyTorch",
        facts=(("first class", named[0].decode()),) if named else (),
        next_step="firekeep does not read it; the package torchfile does (`torchfile.load`), and its arrays can be saved.",
    )


def _name_msgpack(_: Source, head: bytes) -> Identity | None:
    """Tell a MessagePack map with text keys: Burn's records up to 0.21, Flax's weights."""
    match = re.match(rb"(?:[\x81-\x8f]|\xde..|\xdf....)(?:([\xa1-\xbf])|\xd9(.))", head[:16], re.DOTALL)
    if match is None:
        return None
    length = match[1][0] - 0xA0 if match[1] else match[2][0]
    key = head[match.end() : match.end() + length]
    if len(key) < length or not re.fullmatch(rb"[\x20-\x7e]+", key):
        return None
    facts = (("first key", repr(key.decode())),)
    if (key == b"metadata" and b"recorder" in head[:512]) or b"NamedMpk" in head[:512]:
        return Identity(
            kind="burn-record",
            title="a Burn record in MessagePack, as Burn up to 0.21 wrote it",
            facts=facts,
            next_step="Load it with its recorder in Burn 0.21 or older, and save the model there with BurnpackStore as .bpk.",
        )
    return Identity(kind="msgpack", title="a MessagePack file, as Flax writes weights", format="flax")


def _name_ctranslate2(_: Source, head: bytes) -> Identity | None:
    """Tell a CTranslate2 model: a version, then the specification's name with its length and a final zero."""
    match = re.match(rb"([\x01-\x20])\0\0\0([\x05-\x40])\0([A-Z][A-Za-z0-9]+)\0", head)
    if match is None or len(match[3]) + 1 != match[2][0]:
        return None
    return Identity(
        kind="ctranslate2",
        title="a CTranslate2 model",
        facts=(("specification", match[3].decode()), ("version", str(match[1][0]))),
        next_step="Take the weights from the model it was converted from; CTranslate2 itself only runs it.",
    )


def identify_zeros(source: Source) -> Identity | None:
    """Tell a file of nothing but zero bytes, by samples from its start, middle and end."""
    step = 1 << 16
    starts = {0, max(0, source.size // 2 - step // 2), max(0, source.size - step)}
    if any(any(source.view(start, min(step, source.size - start))) for start in starts):
        return None
    return Identity(
        kind="zeros",
        title=f"a file of {count_bytes(source.size)}, all zero: its space was reserved, and nothing was written",
        next_step="The download or the copy was interrupted: fetch the file again.",
    )
