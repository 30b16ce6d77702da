"""How exactly a run went on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from firekeep.showing import Shown


class ResumeWarning(UserWarning):
    """A run does not go on exactly as it would have."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ResumeReport(Shown):
    """How exactly a run went on. `reasons` say why it did not, `changed` what else decides the bits of a result and is another now."""

    epoch: int
    batch: int
    generators: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether losses and weights are those of a run that never stopped."""
        return not self.reasons and not self.changed

    def to_dict(self) -> dict[str, Any]:
        """Give plain values."""
        return {"exact": self.exact, **asdict(self)}

    def __str__(self) -> str:
        verdict = "exactly" if self.exact else "not exactly"
        head = f"went on in epoch {self.epoch}, at batch {self.batch}, {verdict} as it would have"
        return "\n".join((head, *(f"  {why}" for why in (*self.reasons, *self.changed))))
