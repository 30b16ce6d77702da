"""Bytes as torch tensors and torch tensors as bytes, without a copy and without a warning."""

from __future__ import annotations

import ctypes
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from firekeep.dtypes import DType
from firekeep.entry import TensorEntry
from firekeep.errors import EntryError

# Types that have other names here than in PyTorch, by the dtype whose bytes they are. Any byte but 0 is true.
_STORED = {"FLEX32": torch.float32, "BOOL": torch.uint8, "BOOL_U8": torch.uint8, "BOOL_U32": torch.uint32}

_memory_at = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)
_WRITABLE = 0x200
"""PyBUF_WRITE of Python's C interface."""


def torch_dtype(dtype: DType) -> torch.dtype | None:
    """Give the dtype of tensors that hold such values, or None where PyTorch has none."""
    if dtype.kind == "bool":
        return torch.bool
    if dtype.name in _STORED:
        return _STORED[dtype.name]
    found = None if dtype.torch is None or dtype.kind == "quantized" else getattr(torch, dtype.torch, None)
    return found if isinstance(found, torch.dtype) else None


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Give the memory of a contiguous CPU tensor, to be written to; the tensor has to live as long as that is used.

    A view by way of NumPy would keep it alive and takes seven times as long, of which a model has tens of thousands.
    """
    if tensor.numel() == 0:
        return memoryview(bytearray())
    view: memoryview = _memory_at(tensor.data_ptr(), tensor.nbytes, _WRITABLE)
    return view


def pour(entry: TensorEntry, target: torch.Tensor) -> None:
    """Copy the values of an entry into a tensor of the same shape, cast to its dtype.

    Raises `EntryError` for whole numbers that the dtype cannot hold.
    """
    stored = _stored(entry)
    if entry.blob.nbytes != entry.require().nbytes(entry.shape):
        raise EntryError(
            f"a tensor of that shape takes {entry.require().nbytes(entry.shape)} bytes, and {entry.blob.nbytes} are there"
        )
    if target.numel() == 0:
        return
    # An inference tensor can be written to in that mode only; it is not switched off for the others: that would switch grad mode on.
    with torch.inference_mode() if target.is_inference() else nullcontext():
        _copy(target, _tensor(entry.read(), stored).reshape(target.shape), entry)


def _stored(entry: TensorEntry) -> torch.dtype:
    dtype = entry.require()
    found = _STORED.get(dtype.name) or torch_dtype(dtype)
    if found is None:
        raise EntryError(f"PyTorch has no dtype for {dtype}", tensor=entry.name)
    return found


def _copy(target: torch.Tensor, values: torch.Tensor, entry: TensorEntry) -> None:
    if target.dtype is not values.dtype and not target.is_floating_point() and not target.is_complex():
        _check_range(values, target.dtype, entry)
    if target.is_cuda:
        values = values.pin_memory()
    if target.dtype is values.dtype and target.element_size() == 1 and target.device.type == "cpu":
        target.view(torch.uint8).copy_(
            values.view(torch.uint8)
        )  # types packed several to a byte cannot be copied as such
    else:
        target.copy_(values, non_blocking=target.is_cuda)


def _check_range(values: torch.Tensor, dtype: torch.dtype, entry: TensorEntry) -> None:
    if dtype is torch.bool:
        return
    numbers: Any = values.numpy()
    info = torch.iinfo(dtype)
    least, most = int(numbers.min()), int(numbers.max())
    if least < info.min or most > info.max:
        raise EntryError(
            f"it holds numbers from {least} to {most}, and {dtype} holds {info.min} to {info.max}", tensor=entry.name
        )


def _tensor(view: memoryview, dtype: torch.dtype) -> torch.Tensor:
    """See bytes as a flat tensor, which is only read and keeps them alive."""
    unit = dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize
    if sys.byteorder == "big" and unit > 1:
        view = memoryview(np.frombuffer(view, np.uint8).reshape(-1, unit)[:, ::-1].tobytes())
    raw = np.frombuffer(view, np.uint8)
    address: int = raw.__array_interface__["data"][0]
    if address % dtype.itemsize:
        view = memoryview(bytearray(view))
    elif view.readonly:
        # PyTorch warns of memory that it must not write to, and cannot be told that it will not.
        seen: Any = (ctypes.c_ubyte * view.nbytes).from_address(address)
        seen.owner = view
        view = memoryview(seen)
    return torch.frombuffer(view, dtype=dtype)
