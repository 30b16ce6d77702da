"""Arrays and tensors of any kind: what they are, whether they can be written to, and how. No framework is imported."""

from __future__ import annotations

import sys
from typing import Any

from firekeep.blobs import Blob, DeferredBlob
from firekeep.bridges._drawing import draw, draw_own, plain_dtype
from firekeep.dtypes import BY_TORCH, DType
from firekeep.entry import TensorEntry
from firekeep.errors import UnsupportedError
from firekeep.tensors import array_entry, torch_entry

Faulty = tuple[DType, tuple[int, ...], str]
"""Dtype, shape and what is wrong, of a tensor without values."""

_NO_NUMBERS = "OUSMm"
"""NumPy's kinds of objects, texts and dates."""


def is_torch(value: Any) -> bool:
    """Tell a tensor of PyTorch."""
    torch = sys.modules.get("torch")  # who has a tensor has it imported
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def is_tensor(value: Any) -> bool:
    """Tell arrays and tensors from other objects; arrays of texts and of objects are none."""
    if is_torch(value):
        return True
    kind = type(value)
    if not hasattr(kind, "__array__") and not hasattr(kind, "__dlpack__"):
        return False
    dtype = getattr(value, "dtype", None)
    return getattr(dtype, "kind", "") not in tuple(_NO_NUMBERS) and getattr(dtype, "names", None) is None


def describe_leaf(path: str, value: Any) -> TensorEntry:
    """Describe a tensor without copying it; raises `UnsupportedError`, naming it, for one without values."""
    import numpy as np

    if is_torch(value):
        return torch_entry(path, value)
    if not isinstance(value, np.ndarray | np.generic) and isinstance(getattr(value, "dtype", None), np.dtype):
        return _describe_later(path, value)
    return array_entry(path, value)


def _describe_later(path: str, value: Any) -> TensorEntry:
    """Describe an array of another library, which may be on another device: it is fetched when it is drawn."""
    import numpy as np

    from firekeep.arrays import dtype_of

    try:
        dtype = dtype_of(np.empty(0, value.dtype))
    except UnsupportedError as error:
        raise error.at(tensor=path)  # noqa: B904 - the same error, with its place
    shape = tuple(map(int, value.shape))

    def fetch() -> memoryview:
        return array_entry(path, value).read()

    return TensorEntry(path, dtype, shape, DeferredBlob(dtype.nbytes(shape), fetch, identity=("array", id(value))))


def describe_faulty(path: str, value: Any, error: UnsupportedError) -> Faulty:
    """Give dtype, shape and the fault of a tensor without values; raises the error again where its dtype is not known either."""
    dtype = BY_TORCH.get(str(getattr(value, "dtype", "")).removeprefix("torch."))
    if not is_torch(value) or dtype is None:
        raise error.at(tensor=path)
    return dtype, tuple(value.shape), f"{error.message}. {error.remedy or ''}".strip(". ")


def faulty_entry(path: str, faulty: Faulty) -> TensorEntry:
    """Give the entry of a tensor without values."""
    dtype, shape, problem = faulty
    return TensorEntry(
        path, dtype, shape, Blob(0 if dtype.kind == "quantized" else dtype.nbytes(shape)), problem=problem
    )


def fits_in_place(value: Any, dtype: DType) -> bool:
    """Say whether values of a dtype can be written into a tensor's own memory."""
    import numpy as np

    from firekeep.arrays import numpy_dtype

    if is_torch(value):
        own = str(value.dtype) == f"torch.{plain_dtype(dtype).torch}" and not value.is_inference()
        return own and not _overlaps(value.shape, value.stride())
    if not isinstance(value, np.ndarray) or plain_dtype(dtype).numpy is None:
        return False
    own = value.dtype.newbyteorder("=") == numpy_dtype(plain_dtype(dtype))
    return own and value.flags.writeable and not _overlaps(value.shape, value.strides)


def _overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Say whether several elements are one place in memory, as in an expanded or broadcast tensor."""
    return 0 not in shape and any(extent > 1 and step == 0 for extent, step in zip(shape, strides, strict=True))


def write(value: Any, entry: TensorEntry, dtype: DType) -> None:
    """Write values into the memory of an array or tensor that they fit."""
    import numpy as np

    if not is_torch(value):
        np.copyto(value, draw(entry, dtype), casting="unsafe")
        return
    torch = sys.modules["torch"]
    with torch.no_grad():
        if value.device.type == "cpu" and value.is_contiguous() and not (value.is_conj() or value.is_neg()):
            _write_bytes(value, entry, dtype)
        else:
            value.copy_(_torch_like(value, entry, dtype, device="cpu"))


def make_like(value: Any, entry: TensorEntry, dtype: DType) -> Any:
    """Make another array or tensor of the kind, with values of a dtype."""
    import numpy as np

    if is_torch(value):
        return _torch_parameter(value, _torch_like(value, entry, dtype, device=value.device))
    array = draw_own(entry, dtype)
    if isinstance(value, np.generic):
        return array[()]
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.Array):
        return jax.device_put(array, value.sharding)
    return array


def cannot_become(value: Any, dtype: DType) -> str | None:
    """Say why no array of the kind holds a dtype, or None."""
    jax = sys.modules.get("jax")
    wide = dtype.bits == 128 or (dtype.bits == 64 and dtype.kind != "complex")
    if jax is not None and isinstance(value, jax.Array) and wide and not jax.config.jax_enable_x64:
        return f"JAX makes no arrays of {dtype} unless jax_enable_x64 is set"
    if is_torch(value) and plain_dtype(dtype).torch is None:
        return f"PyTorch has no tensors of {dtype}"
    return None


def _torch_like(value: Any, entry: TensorEntry, dtype: DType, *, device: Any) -> Any:
    torch = sys.modules["torch"]
    made = torch.empty(value.shape, dtype=getattr(torch, str(plain_dtype(dtype).torch)))
    _write_bytes(made, entry, dtype)
    return made.to(device)


def _torch_parameter(value: Any, made: Any) -> Any:
    """Make a tensor what the other was: a parameter, or one that takes a gradient."""
    torch = sys.modules["torch"]
    wants = value.requires_grad and made.is_floating_point()
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=wants)
    return made.requires_grad_(wants)


def _write_bytes(target: Any, entry: TensorEntry, dtype: DType) -> None:
    """Copy values into a contiguous CPU tensor of their dtype, as bytes: NumPy has no word for all of PyTorch's types."""
    import numpy as np

    if target.numel() == 0:
        return
    source = entry.require()
    if source.torch == plain_dtype(dtype).torch:
        raw = np.frombuffer(entry.read(), np.uint8)
    else:
        raw = np.frombuffer(array_entry(entry.name, draw(entry, dtype)).read(), np.uint8)
    np.copyto(target.detach().reshape(-1).view(sys.modules["torch"].uint8).numpy(), raw)
