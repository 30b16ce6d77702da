"""HDF5 as Keras writes it: `.weights.h5`, `.keras` archives, the `.h5` of Keras 2, and any other file whose datasets are arrays of numbers.

The files are read by firekeep itself. The HDF5 library may loop for ever in a damaged file, follows links to other files, and loads
plug-ins for filters. Here a link that leaves the file is left aside, and a dataset packed in an unknown way is listed with that problem.
"""

from __future__ import annotations

from firekeep.formats.hdf5._read import open_container

__all__ = ["open_container"]
