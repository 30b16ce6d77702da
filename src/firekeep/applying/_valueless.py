"""What a load of tensors does not do for a model, whatever the file."""

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


def tell_beside(outline: Outline) -> Iterator[str]:
    """Tell of parts that keep more than tensors, and of those whose framework would not put in tensors as they are."""
    if outline.stateful:
        yield (
            f"{_parts(outline.stateful)} {'keeps' if len(outline.stateful) == 1 else 'keep'} a state besides tensors (get_extra_state), "
            "which stays as it is: only a TrainingState carries it"
        )
    if outline.rewriting:
        yield f"{tell_rewriting(outline)} as they are in the file"


def tell_rewriting(outline: Outline) -> str:
    """Tell of parts whose framework would change tensors on their way, up to how they are taken instead."""
    one = len(outline.rewriting) == 1
    return (
        f"{_parts(outline.rewriting)} {'changes' if one else 'change'} tensors by code of {'its' if one else 'their'} own on the way "
        "to and from state dicts (hooks), which is not run here: tensors are taken"
    )


def _parts(paths: tuple[str, ...]) -> str:
    return "the model itself" if paths == ("",) else some([path or "model" for path in paths])
