"""Objects that users have, as entries: arrays, and tensors of frameworks, told by what they can do; no framework is imported."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from typing import Any

from firekeep.blobs import Blob
from firekeep.dtypes import BY_TORCH, DType
from firekeep.entry import TensorEntry
from firekeep.errors import FirekeepError, UnsupportedError


def describe(name: str, value: Any) -> TensorEntry:
    """Describe any array or tensor as an entry, without copying it; raises `UnsupportedError`, naming it, for what is neither."""
    torch = sys.modules.get("torch")  # who gives a tensor has it imported
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return torch_entry(name, value)
    return array_entry(name, value)


def array_entry(name: str, value: Any) -> TensorEntry:
    """Describe anything with `__array__` or DLPack; raises `UnsupportedError`, naming it, for what is no tensor."""
    from firekeep.arrays import entry_of

    if type(value) is not sys.modules["numpy"].ndarray:
        _require_array(name, value)
    try:
        return entry_of(name, value)
    except FirekeepError:
        raise
    except Exception as error:
        raise UnsupportedError(
            f"{type(value).__name__} gives no array: {error}", tensor=name, remedy="Give a NumPy array of it."
        ) from error


def _require_array(name: str, value: Any) -> None:
    if not hasattr(value, "__array__") and not hasattr(value, "__dlpack__"):
        raise _refuse(name, value)
    if hasattr(value, "filled") and hasattr(value, "mask"):
        raise UnsupportedError(
            "it is a masked array, and a file has no mask", tensor=name, remedy="Give array.filled(...) of it."
        )


def torch_entry(name: str, value: Any) -> TensorEntry:
    """Describe a PyTorch tensor on any device, of any dtype, bfloat16 and the 8-bit floats included.

    Its bytes are taken when they are drawn: those of a CPU tensor in row-major order are its own memory. Raises `UnsupportedError`,
    naming it, for tensors without plain values (meta, sparse, quantized, subclasses that keep them elsewhere).
    """
    fault = _torch_fault(value)
    if fault is not None:
        raise UnsupportedError(fault[0], tensor=name, remedy=fault[1])
    dtype = _DTYPES[value.dtype]
    if dtype is None or dtype.kind == "quantized":
        raise UnsupportedError(f"a tensor of {value.dtype} has no plain values", tensor=name)
    shape = tuple(value.shape)
    if dtype.bits == 4:
        if not shape:
            raise UnsupportedError(f"a tensor of {value.dtype} has no rank-0 form", tensor=name)
        shape = (*shape[:-1], shape[-1] * 2)
    return TensorEntry(name, dtype, shape, TorchBlob(value, dtype.nbytes(shape)))


class _Dtypes(dict[Any, DType | None]):
    """Dtypes by PyTorch's, each spelled once."""

    def __missing__(self, dtype: Any) -> DType | None:
        self[dtype] = found = BY_TORCH.get(str(dtype).removeprefix("torch."))
        return found


_DTYPES = _Dtypes()


class TorchBlob(Blob):
    """The values of a PyTorch tensor as row-major bytes."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Any, nbytes: int) -> None:
        self._tensor = tensor
        super().__init__(nbytes)

    def view(self) -> memoryview:
        """Give the tensor's memory, or gather it; from another device it is copied."""
        if self.nbytes == 0:
            return memoryview(b"")
        tensor = self._tensor.detach()
        if tensor.is_complex():
            tensor = tensor.resolve_conj()
        tensor = tensor.resolve_neg().cpu().contiguous().reshape(-1)
        # NumPy has no word for bfloat16: the bytes are asked for by the dtype of bytes, of the module that made the tensor.
        array = tensor.view(sys.modules["torch"].uint8).numpy()
        if sys.byteorder == "big":
            array = array.reshape(-1, self._tensor.element_size())[:, ::-1].copy().reshape(-1)
        return memoryview(array)

    def memory(self) -> tuple[range, ...]:
        """Give the whole storage, of which the tensor may be a part."""
        storage = self._tensor.untyped_storage()
        start: int = storage.data_ptr()
        return (range(start, start + storage.nbytes()),)

    def identity(self) -> Hashable | None:
        """Tensors that look at the same memory in the same way are one tensor."""
        tensor = self._tensor
        return (
            str(tensor.device),
            tensor.data_ptr(),
            tensor.stride(),
            str(tensor.dtype),
            tensor.is_conj(),
            tensor.is_neg(),
        )


def _torch_fault(value: Any) -> tuple[str, str | None] | None:
    base = sys.modules["torch"].Tensor
    if type(value).__torch_dispatch__ is not base.__torch_dispatch__:
        return (
            f"{type(value).__name__} is a tensor that keeps its values in a form of its own",
            "Give a plain tensor of it (full_tensor(), dequantize()).",
        )
    if value.is_meta:
        return "it is a meta tensor: it has a shape and no values", "Load the values into it first."
    if value.layout is not sys.modules["torch"].strided:
        return f"its layout is {value.layout}, and files hold dense tensors", "Give tensor.to_dense() of it."
    if value.is_quantized:
        return "it is quantized, and its scale has no place in the file", "Give tensor.dequantize() of it."
    why = storage_fault(value)
    return None if why is None else (why, None)


def storage_fault(value: Any) -> str | None:
    """Say of a dense PyTorch tensor that its memory has been taken away, as sharding does while the values are elsewhere, or give None."""
    if value.is_contiguous():
        end = value.storage_offset() * value.itemsize + value.nbytes
    else:
        steps = zip(value.shape, value.stride(), strict=True)
        end = (value.storage_offset() + 1 + sum((extent - 1) * step for extent, step in steps)) * value.itemsize
    try:
        held = value.untyped_storage().nbytes()
    except NotImplementedError:
        return "it has no memory of its own: it stands for many inside torch.func (vmap, grad)"
    if held >= end or not value.numel():
        return None
    return f"its memory of {end} bytes was taken away: {held} are left (gather a parameter that is sharded before its values are wanted)"


def _refuse(name: str, value: Any) -> UnsupportedError:
    kind = type(value).__name__
    if isinstance(value, Mapping):
        remedy = f"Join nested names with dots, as in {f'{name}.weight' if name else 'fc.weight'!r}."
    elif isinstance(value, int | float | bool | complex | list | tuple):
        remedy = "Give numpy.asarray(...) of it, with the dtype that is meant; numbers may be scalars of a .bpk file."
    else:
        remedy = "Leave it out, or give a NumPy array of it."
    return UnsupportedError(f"{kind} is not a tensor", tensor=name, remedy=remedy)
