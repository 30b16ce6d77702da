"""Places of a model that stay without values after any load."""

from __future__ import annotations

from collections.abc import Iterator

from firekeep.slots import Outline
from firekeep.wording import some


def tell_valueless(outline: Outline) -> Iterator[str]:
    """Tell of buffers that no file holds, and that are therefore not missing, while they are on the meta device."""
    names = outline.valueless
    if not names:
        return
    path, _, name = names[0].rpartition(".")
    place = f"model.get_submodule({path!r})" if path else "model"
    yield (
        f"{some(names)} {'has' if len(names) == 1 else 'have'} no values yet, being on the meta device, and no file holds buffers "
        f"that are not persistent: set them before the model runs ({place}.{name} = tensor), or make the modules around them "
        "outside torch.device('meta')"
    )
