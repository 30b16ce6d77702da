"""How much a file may ask for, before it is believed."""

from __future__ import annotations

from dataclasses import dataclass, fields

MiB = 1 << 20
GiB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds checked before memory is taken; pass another object to `open` to move them.

    The burnpack bounds are Burn 0.22.1's own, checked on reading and on writing: a file past them is one that Burn refuses.
    The others protect the reader from small files that ask for a lot.
    """

    burnpack_metadata_bytes: int = 100 * MiB
    burnpack_tensor_bytes: int = 10 * GiB
    burnpack_tensors: int = 100_000
    burnpack_file_bytes: int = 100 * GiB
    burnpack_depth: int = 128
    burnpack_decoded_bytes: int = 192 * MiB
    """Memory that the decoded table may take, estimated beforehand. Burn has no such bound; its own files stay far below."""
    safetensors_header_bytes: int = 100_000_000
    safetensors_tensors: int = 2_000_000
    pickle_bytes: int = 100 * MiB
    pickle_opcodes: int = 10_000_000
    pickle_depth: int = 1_000
    """Also of nested maps in MessagePack, and of groups in HDF5."""
    pickle_nodes: int = 2_000_000
    """Values visited when a pickled object is flattened, objects shared many times each time; values of a MessagePack or GGUF file."""
    text_bytes: int = 64 * MiB
    """Text and bytes held by values read from one pickle, or from one MessagePack or GGUF file."""
    archive_members: int = 1_000_000
    inflate_ratio: int = 1_100
    """Deflate cannot do better than about 1,032 to 1; a member that claims to is damaged."""
    tensor_bytes: int = 1 << 40
    """One tensor as it would lie in memory: expanded views count at their full size."""
    expanded_bytes: int = 256 * MiB
    """What all views of a PyTorch file that repeat elements may add to it, beyond eight times their storages."""

    def __repr__(self) -> str:
        """Tell the bounds that were moved: the whole would be the longest part of many a signature."""
        held = ((bound.name, getattr(self, bound.name), bound.default) for bound in fields(self))
        return f"Limits({', '.join(f'{name}={value!r}' for name, value, usual in held if value != usual)})"


DEFAULT_LIMITS = Limits()
