"""What goes wrong while a module tree is declared or filled."""

from __future__ import annotations

from firekeep.errors import FirekeepError


class ModuleError(FirekeepError, ValueError):
    """A module is declared, filled or called in a way that it cannot be."""


class ConstantArrayWarning(UserWarning):
    """An array is kept in a module without being a `Param`: it is a constant, and no file will hold it."""
