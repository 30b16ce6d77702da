"""Keep training state: open, check, convert and save model weights, without executing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firekeep._version import __version__
from firekeep.errors import (
    DigestError,
    DiskFullError,
    EntryError,
    ExistsError,
    FirekeepError,
    FormatError,
    HeaderError,
    LimitError,
    MetadataError,
    MissingExtraError,
    RuleError,
    ScalarError,
    TensorNotFoundError,
    TruncatedError,
    UnsafePickleError,
    UnsupportedError,
    WrongFormatError,
)

if TYPE_CHECKING:
    from firekeep.adapters import (
        BurnToPyTorchAdapter,
        FloatCastAdapter,
        HalfPrecisionAdapter,
        PyTorchToBurnAdapter,
        chain,
    )
    from firekeep.api import convert, dequantize, diff, doctor, load_file, open, save_bytes, save_file, scan, verify
    from firekeep.bridges import entries_of, slots_of
    from firekeep.checkpoint import (
        CheckpointManager,
        DirectoryBusyError,
        KeepAll,
        KeepBest,
        KeepEvery,
        KeepLast,
        KeepYounger,
        NoStepError,
        StepExistsError,
    )
    from firekeep.dtypes import DType, QuantScheme
    from firekeep.entry import TensorEntry
    from firekeep.ids import ParamId
    from firekeep.limits import Limits
    from firekeep.models import apply, collect, load_as, load_into, save
    from firekeep.previews import compare_constants, preview, renamed_keys, saved_metadata
    from firekeep.records import (
        LrSchedulerRecord,
        Module,
        ModuleRecord,
        OptimizerError,
        OptimizerRecord,
        OptimizerReport,
        OptimizerWarning,
        StateError,
    )
    from firekeep.report import ConstantDifference, LoadError, LoadReport, NothingMatchedError
    from firekeep.rules import KeyRemapper, PathFilter
    from firekeep.scalars import Scalar
    from firekeep.slots import Layer, Outline, Slot
    from firekeep.stores import BurnpackStore, PytorchStore, SafetensorsStore
    from firekeep.training import (
        RestoreError,
        RestoreReport,
        ResumableLoader,
        ResumableSampler,
        SeededDataset,
        TrainingState,
    )

_HOMES = {
    **dict.fromkeys(
        ("convert", "dequantize", "diff", "doctor", "load_file", "open", "save_bytes", "save_file", "scan", "verify"),
        "firekeep.api",
    ),
    **dict.fromkeys(
        ("apply", "collect", "load_as", "load_into", "save"),
        "firekeep.models",
    ),
    **dict.fromkeys(
        ("compare_constants", "preview", "renamed_keys", "saved_metadata"),
        "firekeep.previews",
    ),
    **dict.fromkeys(
        ("BurnToPyTorchAdapter", "FloatCastAdapter", "HalfPrecisionAdapter", "PyTorchToBurnAdapter", "chain"),
        "firekeep.adapters",
    ),
    **dict.fromkeys(
        (
            *("CheckpointManager", "DirectoryBusyError", "KeepAll", "KeepBest", "KeepEvery", "KeepLast", "KeepYounger"),
            *("NoStepError", "StepExistsError"),
        ),
        "firekeep.checkpoint",
    ),
    **dict.fromkeys(
        ("ResumableLoader", "ResumableSampler", "RestoreError", "RestoreReport", "SeededDataset", "TrainingState"),
        "firekeep.training",
    ),
    **dict.fromkeys(("entries_of", "slots_of"), "firekeep.bridges"),
    **dict.fromkeys(
        (
            *("LrSchedulerRecord", "Module", "ModuleRecord", "OptimizerError", "OptimizerRecord", "OptimizerReport"),
            *("OptimizerWarning", "StateError"),
        ),
        "firekeep.records",
    ),
    **dict.fromkeys(("ConstantDifference", "LoadError", "LoadReport", "NothingMatchedError"), "firekeep.report"),
    **dict.fromkeys(("KeyRemapper", "PathFilter"), "firekeep.rules"),
    **dict.fromkeys(("Layer", "Outline", "Slot"), "firekeep.slots"),
    **dict.fromkeys(("BurnpackStore", "PytorchStore", "SafetensorsStore"), "firekeep.stores"),
    "DType": "firekeep.dtypes",
    "Limits": "firekeep.limits",
    "ParamId": "firekeep.ids",
    "QuantScheme": "firekeep.dtypes",
    "Scalar": "firekeep.scalars",
    "TensorEntry": "firekeep.entry",
}

__all__ = [
    "BurnToPyTorchAdapter",
    "BurnpackStore",
    "CheckpointManager",
    "ConstantDifference",
    "DType",
    "DigestError",
    "DirectoryBusyError",
    "DiskFullError",
    "EntryError",
    "ExistsError",
    "FirekeepError",
    "FloatCastAdapter",
    "FormatError",
    "HalfPrecisionAdapter",
    "HeaderError",
    "KeepAll",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "KeepYounger",
    "KeyRemapper",
    "Layer",
    "LimitError",
    "Limits",
    "LoadError",
    "LoadReport",
    "LrSchedulerRecord",
    "MetadataError",
    "MissingExtraError",
    "Module",
    "ModuleRecord",
    "NoStepError",
    "NothingMatchedError",
    "OptimizerError",
    "OptimizerRecord",
    "OptimizerReport",
    "OptimizerWarning",
    "Outline",
    "ParamId",
    "PathFilter",
    "PyTorchToBurnAdapter",
    "PytorchStore",
    "QuantScheme",
    "RestoreError",
    "RestoreReport",
    "ResumableLoader",
    "ResumableSampler",
    "RuleError",
    "SafetensorsStore",
    "Scalar",
    "ScalarError",
    "SeededDataset",
    "Slot",
    "StateError",
    "StepExistsError",
    "TensorEntry",
    "TensorNotFoundError",
    "TrainingState",
    "TruncatedError",
    "UnsafePickleError",
    "UnsupportedError",
    "WrongFormatError",
    "__version__",
    "apply",
    "chain",
    "collect",
    "compare_constants",
    "convert",
    "dequantize",
    "diff",
    "doctor",
    "entries_of",
    "load_as",
    "load_file",
    "load_into",
    "open",
    "preview",
    "renamed_keys",
    "save",
    "save_bytes",
    "save_file",
    "saved_metadata",
    "scan",
    "slots_of",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'firekeep' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
