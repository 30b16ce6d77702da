"""PyTorch's random numbers: taken, put back, and kept out of the way; and what else decides the bits of a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from firekeep.bridges.torch._bytes import pour, torch_dtype
from firekeep.entry import TensorEntry
from firekeep.errors import UnsupportedError

_MASK = (1 << 64) - 1


def rng_state() -> dict[str, Any]:
    """Take the state of the CPU's generator, and of each CUDA device's where CUDA is in use; see the door."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if _uses_cuda():
        state["cuda"] = [torch.cuda.get_rng_state(device).cpu() for device in range(torch.cuda.device_count())]
    return state


def rng_fault(state: Mapping[str, Any]) -> str | None:
    """Say why states cannot be put back, or give None; see the door."""
    live = torch.get_rng_state()
    if state.get("cpu") is not None and not _looks_like(state["cpu"], live):
        return f"it is no state of PyTorch's generator on the CPU, which takes {live.numel():,} bytes"
    devices = state.get("cuda") or []
    if not isinstance(devices, list) or not all(isinstance(one, torch.Tensor) for one in devices):
        return "it is no list of states of devices"
    for device, held in enumerate(devices[: cuda_devices()]):
        if not _looks_like(held, own := torch.cuda.get_rng_state(device)):
            return f"it is no state of the generator of cuda:{device}, which takes {own.numel():,} bytes"
    return None


def _looks_like(held: Any, live: torch.Tensor) -> bool:
    return isinstance(held, torch.Tensor) and held.dtype is torch.uint8 and held.shape == live.shape


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Put a state back, of as many CUDA devices as there are; see the door."""
    if state.get("cpu") is not None:
        torch.set_rng_state(state["cpu"])
    for device, held in enumerate(list(state.get("cuda") or ())[: cuda_devices()]):
        torch.cuda.set_rng_state(held, device)


def cuda_devices() -> int:
    """Count the CUDA devices that can be used."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from the CPU's generator by a seed, and leave it as it was; see the door."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed & _MASK)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def tensor_of(entry: TensorEntry) -> torch.Tensor:
    """Give an entry as a tensor in memory of its own; raises `UnsupportedError` for a dtype that PyTorch has not."""
    dtype = torch_dtype(entry.require())
    if dtype is None or entry.require().bits < 8:
        raise UnsupportedError(f"PyTorch has no dtype for {entry.dtype}", tensor=entry.name)
    made = torch.empty(entry.shape, dtype=dtype)
    pour(entry, made)
    return made


def facts() -> dict[str, str | int | bool]:
    """Give what decides the bits of a result besides the state: version, threads, switches, devices."""
    told: dict[str, str | int | bool] = {
        "torch": str(torch.__version__),
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": str(torch.backends.cpu.get_cpu_capability()),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": str(torch.get_float32_matmul_precision()),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "mkldnn": bool(torch.backends.mkldnn.enabled),
    }
    if _uses_cuda():
        told["cuda"] = str(torch.version.cuda)
        told["cuda_devices"] = ", ".join(torch.cuda.get_device_name(one) for one in range(torch.cuda.device_count()))
        told["cudnn_benchmark"] = bool(torch.backends.cudnn.benchmark)
        told["cudnn_deterministic"] = bool(torch.backends.cudnn.deterministic)
        told["cudnn_allow_tf32"] = bool(torch.backends.cudnn.allow_tf32)
    return told


def _uses_cuda() -> bool:
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return initialized and torch.cuda.is_available()
