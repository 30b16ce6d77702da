# ruff: noqa: ARG001 - every handler has one signature
"""What each function that rebuilds tensors takes, and the tensor it would have given.

The arguments are those of `torch/_utils.py`, `torch/_tensor.py` and `torch/nn/parameter.py`, from PyTorch 0.1 to 2.13. A handler may
raise `IndexError` or `ValueError` for arguments that PyTorch never wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from firekeep.dtypes import BY_NAME, DType
from firekeep.formats._absent import NoBlob
from firekeep.formats.pytorch._blobs import ResolvedBlob
from firekeep.formats.pytorch._inert import Call, Global
from firekeep.formats.pytorch._storages import Storage
from firekeep.formats.pytorch._tensors import Tensor, describe, dtype_of, lost, shape_of, show_extents

_INTEGERS = {"QINT8": "I8", "QUINT8": "U8", "QINT32": "I32"}
_PLAIN_TENSORS = frozenset(
    (
        "torch.nn.parameter.Parameter",
        "torch.nn.parameter.Buffer",
        "torch._tensor.Tensor",
        "torch.Tensor",
        "torch.tensor.Tensor",
    )
)


class Builder(Protocol):
    """What a handler may ask for."""

    def recognise(self, value: Any) -> Tensor | None: ...
    def storage(self, ref: Any) -> Storage: ...
    def view(self, ref: Any, offset: Any, shape: Any, strides: Any, dtype: DType | None = None) -> Tensor: ...
    def note_attributes(self, state: Any) -> None: ...


def _rebuild_tensor(builder: Builder, args: tuple[Any, ...]) -> Tensor:
    storage, offset, shape, strides = args[:4]
    return builder.view(storage, offset, shape, strides)


def _rebuild_tensor_v2(builder: Builder, args: tuple[Any, ...]) -> Tensor:
    storage, offset, shape, strides = args[:4]
    tensor = builder.view(storage, offset, shape, strides)
    return _settle(tensor, args[6]) if len(args) > 6 else tensor


def _rebuild_tensor_v3(builder: Builder, args: tuple[Any, ...]) -> Tensor:
    storage, offset, shape, strides, _, _, kind = args[:7]
    dtype = dtype_of(kind)
    if dtype is None or dtype.bits % 8:
        return lost(shape_of(shape), f"its dtype is {describe(kind)}", dtype)
    tensor = builder.view(storage, offset, shape, strides, dtype)
    return _settle(tensor, args[7]) if len(args) > 7 else tensor


def _settle(tensor: Tensor, metadata: Any) -> Tensor:
    """Do what PyTorch left to be done on reading: `conj()` and `_neg_view()` only set a bit."""
    if not isinstance(metadata, dict) or tensor.dtype is None or tensor.problem is not None:
        return tensor
    conjugate = metadata.get("conj") is True and tensor.dtype.kind == "complex"
    negate = metadata.get("neg") is True
    if not conjugate and not negate:
        return tensor
    numpy = tensor.dtype.numpy
    if numpy is None or "." in numpy:
        return lost(tensor.shape, f"it is a lazily conjugated or negated view of {tensor.dtype}", tensor.dtype)
    blob = ResolvedBlob(tensor.blob, numpy=numpy, conjugate=conjugate, negate=negate)
    return Tensor(tensor.dtype, tensor.shape, blob)


def _rebuild_parameter(builder: Builder, args: tuple[Any, ...]) -> Tensor:
    """A parameter wraps a tensor: (data, requires_grad, hooks[, attributes])."""
    tensor = builder.recognise(args[0])
    if len(args) > 3:
        builder.note_attributes(args[3])
    return lost((), f"it is a parameter made of {describe(args[0])}") if tensor is None else tensor


def _rebuild_from_type(builder: Builder, args: tuple[Any, ...]) -> Tensor:
    """A tensor of a subclass: (function, class, arguments, state)."""
    func, cls, arguments = args[:3]
    if type(func) is not Global or type(arguments) is not tuple:
        raise ValueError
    tensor = builder.recognise(Call(func, arguments))
    if len(args) > 3:
        builder.note_attributes(args[3])
    if tensor is None:
        return lost((), f"it is a {describe(cls)}, rebuilt by {func.path}")
    if tensor.problem is not None and type(cls) is Global and cls.path not in _PLAIN_TENSORS:
        problem = f"it is a {cls.path}: {tensor.problem}"
        return Tensor(tensor.dtype, tensor.shape, NoBlob(tensor.blob.nbytes, problem), problem)
    return tensor


def _rebuild_qtensor(builder: Builder, args: tuple[Any, ...]) -> Tensor:
    storage, offset, shape, strides, quantizer = args[:5]
    found = builder.storage(storage)
    dtype = found.dtype
    problem = f"it is quantized ({_quantizer(quantizer)}): its integers alone are not its values"
    if dtype is None or dtype.name not in _INTEGERS:
        return lost(shape_of(shape), problem, None if dtype is None or dtype.name.endswith(("X2", "X4")) else dtype)
    integers = builder.view(storage, offset, shape, strides, BY_NAME[_INTEGERS[dtype.name]])
    return Tensor(dtype, integers.shape, integers.blob, integers.problem or problem, integers)


def _quantizer(params: Any) -> str:
    if type(params) is not tuple or not params:
        return "unknown scheme"
    scheme = describe(params[0]).removeprefix("torch.")
    numbers = [number for number in params[1:] if type(number) in (int, float)]
    if len(params) == 3 and len(numbers) == 2 and not (type(numbers[1]) is int and numbers[1].bit_length() > 64):
        return f"{scheme}, scale {numbers[0]:g}, zero point {numbers[1]}" if type(numbers[0]) is float else scheme
    return scheme


def _rebuild_sparse(builder: Builder, args: tuple[Any, ...]) -> Tensor:
    layout, data = args[:2]
    name = describe(layout.args[0] if type(layout) is Call and layout.args else layout).removeprefix("torch.")
    at = 1 if name == "sparse_coo" else 2
    values = builder.recognise(data[at])
    shape = shape_of(data[at + 1])
    dtype = None if values is None else values.dtype
    problem = f"it is sparse ({name}): {show_extents(shape)} elements of which few are stored"
    return Tensor(dtype, shape, NoBlob(0, problem), problem)


def _rebuild_nested(builder: Builder, args: tuple[Any, ...]) -> Tensor:
    buffer = builder.recognise(args[0])
    problem = "it is nested: a list of tensors of different shapes"
    return Tensor(None if buffer is None else buffer.dtype, (), NoBlob(0, problem), problem)


def _rebuild_meta(builder: Builder, args: tuple[Any, ...]) -> Tensor:
    dtype, shape = dtype_of(args[0]), shape_of(args[1])
    return lost(shape, "it is on the meta device: it was saved without data", dtype)


def _rebuild_wrapper(builder: Builder, args: tuple[Any, ...]) -> Tensor:
    cls, dtype, shape = args[:3]
    return lost(shape_of(shape), f"it is a {describe(cls)}, whose data lie in its attributes", dtype_of(dtype))


def _rebuild_uninitialised(builder: Builder, args: tuple[Any, ...]) -> Tensor:
    return lost((), "it was saved before it was initialised: it has no shape yet")


def _rebuild_from_cpu(builder: Builder, args: tuple[Any, ...]) -> Tensor:
    tensor = builder.recognise(args[0])
    if tensor is None:
        raise ValueError
    wanted = dtype_of(args[1])
    if wanted != tensor.dtype:
        return lost(tensor.shape, f"it was saved as {tensor.dtype}, to be cast to {wanted} on reading", wanted)
    return tensor


def _rebuild_from_numpy(builder: Builder, args: tuple[Any, ...]) -> Tensor:
    from firekeep.arrays import dtype_of as row_of
    from firekeep.arrays import entry_of
    from firekeep.errors import UnsupportedError
    from firekeep.formats.pytorch._numpy import decode_array

    array = decode_array(args[0])
    wanted = dtype_of(args[1])
    if array is None:
        raise ValueError
    try:
        row = row_of(array)
    except UnsupportedError:
        row = None
    if row is None or row != wanted:
        return lost(array.shape, f"it was saved as NumPy's {array.dtype}, to be cast to {wanted} on reading", wanted)
    return Tensor(row, array.shape, entry_of("", array).blob)


_UTILS = "torch._utils"
Handler = Callable[[Builder, tuple[Any, ...]], Tensor]
HANDLERS: dict[tuple[str, str], Handler] = {
    (_UTILS, "_rebuild_tensor"): _rebuild_tensor,
    (_UTILS, "_rebuild_tensor_v2"): _rebuild_tensor_v2,
    (_UTILS, "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    (_UTILS, "_rebuild_parameter"): _rebuild_parameter,
    (_UTILS, "_rebuild_parameter_with_state"): _rebuild_parameter,
    (_UTILS, "_rebuild_qtensor"): _rebuild_qtensor,
    (_UTILS, "_rebuild_sparse_tensor"): _rebuild_sparse,
    (_UTILS, "_rebuild_sparse_csr_tensor"): _rebuild_sparse,
    (_UTILS, "_rebuild_nested_tensor"): _rebuild_nested,
    (_UTILS, "_rebuild_meta_tensor_no_storage"): _rebuild_meta,
    (_UTILS, "_rebuild_wrapper_subclass"): _rebuild_wrapper,
    (_UTILS, "_rebuild_device_tensor_from_cpu_tensor"): _rebuild_from_cpu,
    (_UTILS, "_rebuild_device_tensor_from_numpy"): _rebuild_from_numpy,
    (_UTILS, "_rebuild_xla_tensor"): _rebuild_from_numpy,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    ("torch._tensor", "_rebuild_from_type"): _rebuild_from_type,
    ("torch.tensor", "_rebuild_from_type"): _rebuild_from_type,
    ("torch.nn.parameter", "Parameter"): _rebuild_parameter,
    ("torch.nn.parameter", "Buffer"): _rebuild_parameter,
    ("torch.autograd.variable", "Variable"): _rebuild_parameter,
    ("torch.nn.parameter", "UninitializedParameter"): _rebuild_uninitialised,
    ("torch.nn.parameter", "UninitializedBuffer"): _rebuild_uninitialised,
}
