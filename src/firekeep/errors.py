"""Every error firekeep raises on purpose.

    FirekeepError
    ├── FormatError (ValueError)            the file is not what its format says
    │   ├── HeaderError                     the fixed part at the start is wrong
    │   ├── MetadataError                   the table of tensors is wrong
    │   ├── TruncatedError (EOFError)       the file ends before its own table does
    │   ├── LimitError                      larger or deeper than `Limits` allows
    │   ├── UnsupportedError                legal, but no bytes can be given for it
    │   ├── UnsafePickleError               a pickle that asks for more than data
    │   ├── DigestError                     a checksum or digest does not match
    │   └── WrongFormatError                a different kind of file; says which
    ├── EntryError                          a tensor's bytes could not be produced as declared
    ├── TensorNotFoundError (KeyError)      no tensor of that name
    ├── ScalarError (ValueError)            a scalar does not fit the type asked for
    ├── RuleError (ValueError)              a filter, rename or cast cannot be applied
    │   └── WrongTypeError (TypeError)      an object where a file or a path is due
    ├── ExistsError (FileExistsError)       the destination exists and overwrite=False
    ├── DiskFullError (OSError)             not enough free space; nothing was written
    └── MissingExtraError (ImportError)     an optional package is needed

Errors of the operating system (missing file, no permission) pass through as they are.
"""

from __future__ import annotations

import os


class FirekeepError(Exception):
    """The base of all errors of firekeep.

    `str(error)` reads "PATH: tensor 'NAME': message. Remedy." with the parts that are known. The fields may be
    filled in on the way up by whoever knows them: see `at`.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        tensor: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
        actual: int | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else os.fspath(path)
        self.tensor = tensor
        self.offset = offset
        self.limit = limit
        self.actual = actual
        self.remedy = remedy

    def at(self, *, path: str | os.PathLike[str] | None = None, tensor: str | None = None) -> FirekeepError:
        """Fill in the place where it happened, unless a deeper layer already did."""
        if self.path is None and path is not None:
            self.path = os.fspath(path)
        if self.tensor is None:
            self.tensor = tensor
        return self

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path is not None else ""
        if self.tensor is not None:
            place += f"tensor {self.tensor!r}: "
        text = place + self.message
        return f"{text.rstrip('.')}. {self.remedy}" if self.remedy else text


class FormatError(FirekeepError, ValueError):
    """The bytes are not a valid file of the format they claim to be."""


class HeaderError(FormatError):
    """The fixed part at the start of a file is wrong."""


class MetadataError(FormatError):
    """The table of tensors, metadata or scalars of a file is wrong."""


class TruncatedError(FormatError, EOFError):
    """The file ends before the data that its own table declares; `limit` is the size expected, `actual` the one found."""


class LimitError(FormatError):
    """A file asks for more than `firekeep.Limits` allows; `limit` and `actual` say how much."""


class UnsupportedError(FormatError):
    """A legal value of which firekeep cannot give bytes or an array."""


class UnsafePickleError(FormatError):
    """A pickle that is damaged or asks for more than plain data and tensors."""


class DigestError(FormatError):
    """A checksum or digest does not match the bytes."""


class WrongFormatError(FormatError):
    """The file is of another kind; `kind` is its short name, as `firekeep doctor` prints it."""

    def __init__(self, message: str, *, kind: str = "unknown", **context: object) -> None:
        super().__init__(message, **context)  # type: ignore[arg-type]
        self.kind = kind


class EntryError(FirekeepError):
    """The bytes of a tensor could not be produced, or not as many as declared."""


class TensorNotFoundError(FirekeepError, KeyError):
    """There is no tensor of this name; the remedy lists near names."""

    __str__ = FirekeepError.__str__


class ScalarError(FirekeepError, ValueError):
    """A scalar cannot be read as the type asked for."""


class RuleError(FirekeepError, ValueError):
    """A filter, rename or cast cannot be applied."""


class WrongTypeError(RuleError, TypeError):
    """An object was given where a file or a path is due; the remedy says what takes it."""


class ExistsError(FirekeepError, FileExistsError):
    """The destination exists and overwriting was not allowed."""

    __str__ = FirekeepError.__str__


class DiskFullError(FirekeepError, OSError):
    """The destination has too little free space; nothing was written."""

    __str__ = FirekeepError.__str__


class MissingExtraError(FirekeepError, ImportError):
    """An optional package is not installed; the remedy is the install line."""

    __str__ = FirekeepError.__str__
