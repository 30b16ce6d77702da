"""From what a container's reader found to the open file: tensors by name, values, notes, details."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from firekeep.formats._protocol import Container, Finding, OpenOptions
from firekeep.formats.pytorch._blobs import attest
from firekeep.formats.pytorch._flatten import Flattener, key_name
from firekeep.formats.pytorch._found import Found
from firekeep.formats.pytorch._layers import tell_layers, tell_submodules
from firekeep.formats.pytorch._rebuild import Rebuilder
from firekeep.formats.pytorch._subtrees import ModelFinder, describe, select
from firekeep.formats.pytorch._values import ValueMaker
from firekeep.formats.pytorch._verdicts import DANGEROUS, SAFE, judge

_SHOWN = 6
_KEYS_KEPT = 100
_WASTE_WORTH_A_NOTE = 1024


def assemble(found: Found, options: OpenOptions) -> Container:
    """Name the tensors of what was found, or of the part that `top_level_key` asks for."""
    root = select(found.root, options.top_level_key) if options.top_level_key else found.root
    rebuilder = Rebuilder(found.storages, options.limits)
    flattener = Flattener(rebuilder, options.limits, found.classes)
    flattener.run(root)
    subtrees = ModelFinder(rebuilder).find(root)
    values = ValueMaker(
        is_tensor=rebuilder.is_tensor, listed=flattener.entries, names=flattener.names, limits=options.limits
    )
    notes = [*found.notes, *found.later_notes(), *_notes(found, rebuilder, flattener)]
    if (models := describe(subtrees, len(flattener.entries))) is not None:
        notes.append(models)
    return Container(
        format="pytorch",
        variant=found.variant,
        entries=flattener.entries,
        notes=tuple(notes),
        details={**found.details, **_details(found, root, flattener)},
        subtrees=tuple(subtrees),
        layers=tell_layers(flattener.modules),
        submodules=tell_submodules(flattener.modules, flattener.state_metadata),
        values=lambda: values.make(root),
        check=lambda: _check(found),
        attest=lambda entry: attest(entry.blob),
        taken=_taken(found, rebuilder, flattener),
    )


def _taken(found: Found, rebuilder: Rebuilder, flattener: Flattener) -> dict[str, int]:
    """Say what the file took of its limits: one that holds for the pickle and for the walk through it by what was more."""
    walked = {"pickle_nodes": flattener.visited, "text_bytes": flattener.spelled}
    more = {field: max(amount, found.taken.get(field, 0)) for field, amount in walked.items()}
    return {**found.taken, **more, "expanded_bytes": rebuilder.expanded}


def _check(found: Found) -> Iterator[Finding]:
    """Run the checks of the container, and tell of storages that are described and not there."""
    yield from found.check()
    for ref, storage in found.storages.found():
        if storage.problem is not None and storage.dtype is not None:
            yield Finding("error", f"storage {ref.key[:200]}", storage.problem)


def _details(found: Found, root: Any, flattener: Flattener) -> dict[str, Any]:
    names = sorted(known.path for known in found.globals.values() if judge(known.module, known.name) != SAFE)
    details: dict[str, Any] = {"storages": len(found.storages.refs), "globals": names}
    if isinstance(root, dict):
        details["top_level_keys"] = [key_name(key)[:200] for key in list(root)[:_KEYS_KEPT]]
    if flattener.state_metadata:
        details["state_dict_metadata"] = flattener.state_metadata
    return details


def _notes(found: Found, rebuilder: Rebuilder, flattener: Flattener) -> Iterator[str]:
    dangerous = [known for known in found.globals.values() if judge(known.module, known.name) == DANGEROUS]
    if dangerous:
        shown = _listing([f"{known.path}{' (called)' if known.called else ''}" for known in dangerous])
        yield f"an unpickler would have run code of its author: {shown}; here nothing was imported or called"
    foreign = [
        known.path for known in found.globals.values() if judge(known.module, known.name) not in (SAFE, DANGEROUS)
    ]
    if foreign:
        yield f"objects of other packages are shown and not made: {_listing(foreign)}"
    lost = [entry for entry in flattener.entries.values() if entry.problem is not None]
    if lost:
        told = _listing([f"{entry.name!r}: {entry.problem}" for entry in lost])
        yield f"{_count(len(lost), 'tensor')} cannot be given: {told}"
    if flattener.compiled:
        yield "torch.compile's own module is left out of the names: they are those of the model in it"
    if (hidden := flattener.hidden) == 1:
        yield "1 tensor is a plain attribute of a module, no part of its state dict, and not listed"
    elif hidden:
        yield f"{hidden} tensors are plain attributes of modules, no part of a state dict, and not listed"
    if (attributes := rebuilder.attributes) == 1:
        yield "1 tensor is an attribute of another tensor, and not listed"
    elif attributes:
        yield f"{attributes} tensors are attributes of other tensors, and not listed"
    if arrays := flattener.arrays:
        shown = _listing([repr(name) for name in arrays])
        if len(arrays) == 1:
            yield f"a NumPy array is no tensor, and not listed: {shown} (values() gives it, and inspect --values shows it)"
        else:
            told = f"{len(arrays):,} NumPy arrays are no tensors, and not listed: {shown}"
            yield f"{told} (values() gives them, and inspect --values shows them)"
    yield from _waste(rebuilder)


def _waste(rebuilder: Rebuilder) -> Iterator[str]:
    wasted = [(ref, nbytes, used) for ref, nbytes, used in rebuilder.wasted() if nbytes - used >= _WASTE_WORTH_A_NOTE]
    if not wasted:
        return
    total = sum(nbytes - used for _, nbytes, used in wasted)
    shown = _listing([f"storage {ref.key!r} has {nbytes:,} bytes, {used:,} used" for ref, nbytes, used in wasted])
    yield f"{total:,} bytes belong to no tensor, as when a slice is saved with all of its storage: {shown}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _listing(texts: Sequence[str]) -> str:
    shown = ", ".join(text[:200] for text in texts[:_SHOWN])
    return shown + (f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")
