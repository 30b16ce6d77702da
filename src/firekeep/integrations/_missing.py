"""The error for a framework that is not there."""

from __future__ import annotations

from firekeep.errors import MissingExtraError


def missing(extra: str, error: ModuleNotFoundError) -> MissingExtraError:
    """Make the error that says how to get what an integration needs; a framework that is there and broken speaks for itself."""
    package = (error.name or "").partition(".")[0]
    if package not in _PACKAGES[extra]:
        raise error
    return MissingExtraError(
        f"firekeep.integrations.{extra} needs the package {package!r}, which is not installed",
        remedy=f"pip install 'firekeep[{extra}]'",
    )


_PACKAGES = {
    "lightning": ("lightning", "torch"),
    "hf": ("transformers", "accelerate", "torch"),
    "keras": ("keras", "torch"),
}
