"""NumPy's `.npy` and `.npz`: one array without a name, and a zip archive of arrays by name. Pickled objects are refused by name."""

from __future__ import annotations

from firekeep.formats.numpy._read import open_container

__all__ = ["open_container"]
