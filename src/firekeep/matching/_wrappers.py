"""Names that wrappers put around a model's own: `module.`, `_orig_mod.`, `model.` and their kin, and the list of a Sequential."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from firekeep.wording import count

LEADING = ("module", "model", "base_model", "state_dict", "model_state_dict")
"""Words that stand for nothing at the beginning of a name: of DataParallel, of training scripts, of PEFT."""

INNER = ("_orig_mod", "module", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer")
"""Words that stand for nothing anywhere: torch.compile, DataParallel, Lightning Fabric, FSDP, activation checkpoints, PEFT."""

_INNER = re.compile(rf"(?:^|(?<=\.))(?:{'|'.join(INNER)})\.|(?<=\.lora_[AB]\.)default\.")
_LIST = re.compile(r"(?:^|(?<=\.))layers\.(?=[0-9]+(?:\.|$))")
"""What Flax's and Equinox's Sequential call their list, where PyTorch's is the list itself."""
_LEADING = re.compile(rf"(?:(?:{'|'.join(LEADING)})\.)+")
_LEAD = re.compile(rf"(?:(?:{'|'.join(dict.fromkeys((*LEADING, *INNER)))})\.)*")


def bare(name: str) -> str:
    """Give a name without the words of wrappers; its last segment always stays."""
    inner = _INNER.sub("", name)
    match = _LEADING.match(inner)
    return inner[match.end() :] if match else inner


def has_list(name: str) -> bool:
    """Say whether a name leads through a list that may be a Sequential's."""
    return _LIST.search(name) is not None


def unlisted(name: str) -> str:
    """Give a name without the word for the list of a Sequential: layers.0.weight is 0.weight."""
    return _LIST.sub("", name)


def bare_unlisted(name: str) -> str:
    """Give a name without that word and those of wrappers."""
    return unlisted(bare(name))


def common_lead(names: Sequence[str]) -> str:
    """Give the words of wrappers that all names begin with, with the dot: 'module._orig_mod.', or ''."""
    if not names:
        return ""
    lead = _lead_of(names[0])
    while lead and not all(name.startswith(lead) for name in names):
        lead = lead[: lead.rfind(".", 0, -1) + 1]
    return lead


def _lead_of(name: str) -> str:
    match = _LEAD.match(name)
    return match[0] if match else ""


@dataclass(frozen=True, slots=True)
class _Change:
    """What became of a name on its way from the file to the model."""

    off: str
    on: str
    out: tuple[str, ...]
    into: tuple[str, ...]
    lists: int = 0
    """By how many lists of a Sequential the name of the model has more."""

    def sentences(self, times: int) -> Iterable[str]:
        names = f"{count(times, 'name')} of the file"
        if self.off and self.on:
            yield f"prefix {self.off!r} became {self.on!r} in {names}"
        elif self.off:
            yield f"prefix {self.off!r} was taken off {names}"
        elif self.on:
            yield f"prefix {self.on!r} was put before {names}"
        for word in self.out:
            yield f"{word!r} was left out within {names}"
        for word in self.into:
            yield f"{word!r} was put into {names}"
        if self.lists:
            did = "put before" if self.lists > 0 else "left out before"
            yield f"'layers', as the list of a Sequential is called, was {did} numbers in {names}"


def describe(changes: Iterable[tuple[str, str]]) -> list[str]:
    """Say what was done to names of the file to make names of the model of them, given pairs of the two."""
    tally: dict[_Change, int] = {}
    for old, new in changes:
        change = _change(old, new)
        tally[change] = tally.get(change, 0) + 1
    spoken: dict[str, None] = {}
    for change, times in tally.items():
        spoken |= dict.fromkeys(change.sentences(times))
    return list(spoken)


def _change(old: str, new: str) -> _Change:
    off, on = _lead_of(old), _lead_of(new)
    out, into = _inner_words(old[len(off) :]), _inner_words(new[len(on) :])
    while off and on and off.split(".", 1)[0] == on.split(".", 1)[0]:
        off, on = off.split(".", 1)[1], on.split(".", 1)[1]
    while off and on and off.split(".")[-2] == on.split(".")[-2]:
        off, on = (lead[: lead.rfind(".", 0, -1) + 1] for lead in (off, on))
    return _Change(
        off,
        on,
        tuple(word for word in out if word not in into),
        tuple(word for word in into if word not in out),
        len(_LIST.findall(new)) - len(_LIST.findall(old)),
    )


def _inner_words(name: str) -> tuple[str, ...]:
    if "mod" not in name and "base_layer" not in name and "default" not in name:  # spares most names the search
        return ()
    return tuple(dict.fromkeys(word.rstrip(".") for word in _INNER.findall(name)))
