"""A bare pickle: values, and tensors only where `pickle.dump` put their storages into the pickle itself."""

from __future__ import annotations

from typing import Any

from firekeep.blobs import Blob
from firekeep.errors import LimitError, UnsafePickleError
from firekeep.formats._protocol import OpenOptions
from firekeep.formats.pytorch._found import Found
from firekeep.formats.pytorch._inert import StorageRef
from firekeep.formats.pytorch._machine import Machine
from firekeep.formats.pytorch._storages import StorageTable
from firekeep.sources import Source


class NoStorages(StorageTable):
    """A pickle with nothing beside it."""

    def persistent(self, pid: Any) -> Any:
        """Read the source of a module; refuse a storage, which can only be elsewhere."""
        made = super().persistent(pid)
        if type(made) is StorageRef:
            raise UnsafePickleError(
                f"its tensors are in storages (the first is {made.key!r}) that this bare pickle does not hold",
                remedy="Open the whole file that the pickle was taken from.",
            )
        return made

    def locate(self, ref: StorageRef, nbytes: int) -> Blob | str:
        """There are none."""
        return f"its storage {ref.key!r} of {nbytes} bytes is not in the file"


def read_plain(source: Source, options: OpenOptions) -> Found:
    """Read the pickle; bytes behind it are noted."""
    limits = options.limits
    if source.size > limits.pickle_bytes:
        raise LimitError(
            f"the pickle has {source.size:,} bytes; at most {limits.pickle_bytes:,} are read",
            limit=limits.pickle_bytes,
            actual=source.size,
            remedy="If the file is honest, open it with a larger firekeep.Limits(pickle_bytes=...).",
        )
    data = bytes(source.view(0, source.size))
    storages = NoStorages()
    machine = Machine(data, limits=limits, persistent=storages.persistent)
    root = machine.run()
    rest = len(data) - machine.position
    return Found(
        variant="pickle",
        root=root,
        storages=storages,
        globals=machine.globals,
        details={"pickle_protocol": machine.protocol},
        notes=[f"{rest} bytes follow the pickle, at {machine.position}"] if rest else [],
        taken=machine.taken(),
    )
