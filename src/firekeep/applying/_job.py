"""What is asked of a load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from firekeep.dtypes import DType
from firekeep.matching import STRICT, Policy
from firekeep.rules import KeyRemapper, PathFilter
from firekeep.rules.surgery import Surgery
from firekeep.slots import Convention, Outline

Hold = Literal["module", "file"] | DType
"""The dtype that a slot holds after a load: its own, the file's, or one for all floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What whoever asks can do about a tree that does not tell its layers: `like=`. `spelled` is one that `telling` would try, if any."""

    telling: Callable[[Outline], Outline] | None = None
    spelled: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """How tensors are to be found and put into a model.

    `chosen` speaks of the model's names, `remapper` turns names of the file into those that the model's convention gives them in it.
    `surgery` splits and joins tensors of the file before they are
    renamed. `layout` says how the file's layers lie, where it is known better than the file tells.
    """

    policy: Policy = STRICT
    match: Literal["auto", "exact"] = "auto"
    remapper: KeyRemapper = KeyRemapper()  # noqa: RUF009 - frozen
    surgery: Surgery = Surgery()  # noqa: RUF009 - frozen
    chosen: PathFilter = PathFilter()  # noqa: RUF009 - frozen
    dtype: Hold = "module"
    layout: Convention | None = None
    stage: bool = False
    dry_run: bool = False
    telling: Callable[[Outline], Outline] | None = None
    """Adds the layers to the outline of a tree that does not tell them."""
    hint: Hint | None = None
    """What might add them, where nothing was given that does, and the door takes such: tried where the load is refused."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """How whoever asks spells what allows tensors that are "missing", "unused" or of another "shape"."""
