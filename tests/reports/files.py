"""Small files as the reports describe them."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import pickles

FOUR = pickles.floats(1, 2, 3, 4)


def raw_safetensors(header: Mapping[str, Any] | str, data: bytes = b"") -> bytes:
    """A safetensors file with any header, right or wrong."""
    text = header if isinstance(header, str) else json.dumps(header)
    encoded = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(encoded)) + encoded + data


def described(dtype: str, shape: Sequence[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def state_dict_file(**storages: bytes) -> bytes:
    """A zip file of float tensors in one row, each with a storage of its own."""
    held = {str(index): raw for index, raw in enumerate(storages.values())}
    tensors = {
        name: pickles.tensor("FloatStorage", key, len(raw) // 4)
        for (name, raw), key in zip(storages.items(), held, strict=True)
    }
    return pickles.zip_file(pickles.pickled(pickles.ordered(tensors)), held)


def zip_of(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.comment = comment
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def members_of(file: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
