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
    from firekeep.api import convert, diff, doctor, load_file, open, save_bytes, save_file, scan, verify
    from firekeep.dtypes import DType, QuantScheme
    from firekeep.entry import TensorEntry
    from firekeep.ids import ParamId
    from firekeep.limits import Limits
    from firekeep.scalars import Scalar

_HOMES = {
    **dict.fromkeys(
        ("convert", "diff", "doctor", "load_file", "open", "save_bytes", "save_file", "scan", "verify"),
        "firekeep.api",
    ),
    "DType": "firekeep.dtypes",
    "Limits": "firekeep.limits",
    "ParamId": "firekeep.ids",
    "QuantScheme": "firekeep.dtypes",
    "Scalar": "firekeep.scalars",
    "TensorEntry": "firekeep.entry",
}

__all__ = [
    "DType",
    "DigestError",
    "DiskFullError",
    "EntryError",
    "ExistsError",
    "FirekeepError",
    "FormatError",
    "HeaderError",
    "LimitError",
    "Limits",
    "MetadataError",
    "MissingExtraError",
    "ParamId",
    "QuantScheme",
    "RuleError",
    "Scalar",
    "ScalarError",
    "TensorEntry",
    "TensorNotFoundError",
    "TruncatedError",
    "UnsafePickleError",
    "UnsupportedError",
    "WrongFormatError",
    "__version__",
    "convert",
    "diff",
    "doctor",
    "load_file",
    "open",
    "save_bytes",
    "save_file",
    "scan",
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
