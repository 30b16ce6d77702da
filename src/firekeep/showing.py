"""Reports as an interactive prompt shows them."""

from __future__ import annotations


class Shown:
    """What a prompt shows as `print` does; a dataclass of this kind needs `repr=False`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
