"""Keep training state: open, check, convert and save model weights, and whole training runs, without executing anything.

Files, of any format: `open` looks inside, `load_file` gives all arrays, `convert` makes another file, `verify`, `diff`, `scan` and
`doctor` check, `save_file` writes arrays.

Models, of PyTorch, JAX, Burn or plain trees: `save` writes them, `load_into` puts a file into them, or `load_as` where they never change;
`preview` only plans, `collect` and `apply` go from model to model.

Runs: a `TrainingState` is what goes on, a `CheckpointManager` keeps it step by step in a directory and restores it exactly;
`ResumableLoader` and `ResumableSampler` let data go on where they stopped. `firekeep.learner.Learner` is a whole loop,
`firekeep.integrations` is for Lightning, Hugging Face's Trainer and Keras.

Burn's own records are `ModuleRecord`, `OptimizerRecord` and `LrSchedulerRecord`, its layers in Python `firekeep.module`, its schedules
`firekeep.schedulers`.

Example:
    >>> import firekeep
    >>> report = firekeep.load_into(model, "model.safetensors")  # doctest: +SKIP
    >>> print(report)  # doctest: +SKIP
"""

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
    WrongTypeError,
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
    from firekeep.collecting import LayoutWarning, LeftOutWarning
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
    "LayoutWarning": "firekeep.collecting",
    "LeftOutWarning": "firekeep.collecting",
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
    "LayoutWarning",
    "LeftOutWarning",
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
    "WrongTypeError",
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


_PARTS = ("checkpoint", "integrations", "learner", "module", "records", "rules", "schedulers", "training")
"""Packages that are used by their own names, imported when they first are."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _PARTS:
        return import_module(f"firekeep.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'firekeep' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *_PARTS]
