"""The weights of a model as Burn's ModuleRecord keeps them: in Burn's file form, with their ids, in the order of the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from firekeep import applying
from firekeep.applying import LoadJob
from firekeep.bridges import bridge_of
from firekeep.collecting import CollectJob, arrange
from firekeep.entry import TensorEntry
from firekeep.errors import RuleError, TensorNotFoundError, WrongFormatError
from firekeep.formats import Contents, OpenOptions
from firekeep.garbage import collector_paused
from firekeep.layouts import LAYOUT, UNTURNED, check_layout, layout_of, write_unturned
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.matching import Policy
from firekeep.module import ParamGroup
from firekeep.opened import OpenedFile, Readable
from firekeep.records._derived_ids import derive_ids
from firekeep.records._files import copied, open_record, record_bytes, write_record
from firekeep.records._kinds import RANK, kind_of
from firekeep.report import LoadReport
from firekeep.rules.layout import LAYERS, translate, write_layers
from firekeep.saving import Progress
from firekeep.scalars import Scalar
from firekeep.slots import Convention, Layer, Outline
from firekeep.supply import Supply, supply_of_entries, supply_of_opened
from firekeep.wording import count

DtypePolicy = Literal["record", "module"]


class ModuleRecord:
    """The weights of a model, or of a group of its parameters; always a burnpack file.

    A tensor's name is its path, its id is always written, and data lie in the order of the model. The record of a `firekeep.Module` has
    no metadata: its bytes are those that Burn writes for the same values and ids.
    """

    def __init__(
        self, contents: Contents, supply: Supply, *, source: str | None = None, opened: OpenedFile | None = None
    ) -> None:
        self._entries = list(contents.entries)
        self._contents = contents
        self._supply = supply
        self._source = source
        self._opened = opened  # keeps the file open for tensors that were not read yet

    @classmethod
    def of(
        cls,
        obj: Any,
        *,
        group: ParamGroup | None = None,
        layout: str | None = None,
        ties: str = "keep",
        copy: bool = True,
    ) -> Self:
        """Take the weights of a `firekeep.Module`, a `torch.nn.Module`, or a tree of arrays.

        With a `group` parameters outside it are not read, nor made where they are not made yet. The layout is Burn's where layers are
        known, another one is named in the metadata. `ties="expand"` stores a tied tensor under each of its names, as Burn does.
        With `copy=False` nothing is copied: tensors are drawn when they are saved, and are then what the model holds at that time.
        """
        bridge = bridge_of(obj)
        with collector_paused():
            outline = bridge.outline(obj)
            entries = _within(bridge.entries(obj), group, type(obj).__name__)
            chosen = _layout(outline, layout)
            made = arrange(entries, outline, CollectJob(layout=chosen, ties=ties))
        found = _identified(list(made.entries), entries, outline, chosen)
        if copy:
            found = copied(found)
        metadata = {} if chosen in ("burn", None) else {LAYOUT: str(chosen)}
        if outline.convention is None:
            metadata = {LAYOUT: "unspecified" if chosen is None else chosen}
        if (told := write_layers(made.told)) is not None:
            metadata[LAYERS] = told
        if (unturned := write_unturned(made.unturned)) is not None:
            metadata[UNTURNED] = unturned
        contents = Contents(entries=found, metadata=metadata, scalars=dict(made.scalars))
        layers: tuple[Layer, ...] = made.layers
        return cls(
            contents,
            supply_of_entries(
                found, layout=chosen, layers=layers, scalars=made.scalars, told=made.told, unturned=made.unturned
            ),
        )

    @classmethod
    def load(cls, path: Readable, *, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Open a record; its tensors are read when it is applied.

        A name without `.bpk` gets it, unless only the name as it is is a file. Raises `WrongFormatError` for a record of something else.
        """
        return cls.of_opened(open_record(path, limits=limits), limits=limits)

    @classmethod
    def of_opened(cls, opened: OpenedFile, *, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Take the record in an open file, which has to stay open until it was applied."""
        _refuse_others(opened)
        contents = Contents(
            entries=list(opened.container.entries.values()),
            metadata=dict(opened.metadata),
            scalars=dict(opened.scalars),
        )
        supply = supply_of_opened(opened, OpenOptions(limits=limits))
        return cls(contents, supply, source=opened.path, opened=opened)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, *, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Open a record in memory."""
        return cls.load(data, limits=limits)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = True,
        durable: bool = True,
        digest: bool = False,
        progress: Progress | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Path:
        """Write the record, whole or not at all, and give its path; `.bpk` is added to a name that does not end in it."""
        return write_record(
            self.contents(),
            path,
            overwrite=overwrite,
            durable=durable,
            digest=digest,
            progress=progress,
            limits=limits,
        )

    def to_bytes(self, *, limits: Limits = DEFAULT_LIMITS) -> bytes:
        """Make the file in memory."""
        return record_bytes(self.contents(), limits=limits)

    def apply(
        self,
        obj: Any,
        *,
        allow_partial: bool = False,
        allow_unused: bool = False,
        validate: bool = True,
        dtype_policy: DtypePolicy = "record",
        match: Literal["exact", "auto"] = "exact",
        layout: str | None = None,
        stage: bool = False,
        dry_run: bool = False,
    ) -> LoadReport:
        """Put the weights into a model, all of them or none; parameters take their ids from the record.

        Parameters that the record lacks are refused unless `allow_partial`, tensors that nobody claims unless `allow_unused`, and other
        shapes than the model's unless `validate=False`, which leaves such a parameter as it is. All are named at once by `LoadError`.

        A parameter takes the dtype of the record, or keeps its own with `dtype_policy="module"`. `match="auto"` also finds tensors under
        other names, as `firekeep.load_into` does. Parameters that were not made yet are filled without being made.
        """
        if dtype_policy not in ("record", "module"):
            raise RuleError(
                f"dtype_policy={dtype_policy!r}: 'record' takes the file's dtypes, 'module' keeps the model's"
            )
        if match not in ("exact", "auto"):
            raise RuleError(f"match={match!r}: 'exact' takes equal names only, 'auto' finds others by certain steps")
        job = LoadJob(
            policy=Policy(
                missing="allow" if allow_partial else "error",
                unused="allow" if allow_unused else "error",
                shape="error" if validate else "allow",
            ),
            match=match,
            dtype="file" if dtype_policy == "record" else "module",
            layout=None if layout is None else check_layout(layout),
            stage=stage,
            dry_run=dry_run,
        )
        return applying.load_into(obj, self._supply, job)

    def contents(self) -> Contents:
        """Give what a file of the record holds."""
        return self._contents

    @property
    def layout(self) -> str:
        """How the tensors of layers lie: "burn", "torch", or "unspecified"."""
        return layout_of("burnpack", self._contents.metadata).name

    @property
    def metadata(self) -> Mapping[str, str]:
        """Text beside the tensors."""
        return dict(self._contents.metadata)

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        """Numbers beside the tensors, such as counters of batches, for which Burn has no tensors."""
        return dict(self._contents.scalars)

    def keys(self) -> list[str]:
        """List the names of the tensors, in the order of the model."""
        return [entry.name for entry in self._entries]

    def entry(self, name: str) -> TensorEntry:
        """Give one tensor; raises `TensorNotFoundError`."""
        for entry in self._entries:
            if entry.name == name:
                return entry
        raise TensorNotFoundError(f"there is no tensor {name!r} among {len(self)}", path=self._source)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<ModuleRecord: {count(len(self), 'tensor')}, layout {self.layout!r}>"


def _within(entries: list[TensorEntry], group: ParamGroup | None, what: str) -> list[TensorEntry]:
    if group is None:
        return entries
    kept = [entry for entry in entries if group.matches(param_id=entry.param_id, path=entry.name)]
    if entries and not kept:
        raise RuleError(f"none of the {count(len(entries), 'parameter')} of {what} is in the group {group}")
    return kept


def _layout(outline: Outline, asked: str | None) -> Convention | None:
    if asked is not None:
        return check_layout(asked)
    return None if outline.convention is None else "burn"


def _identified(
    found: list[TensorEntry], entries: list[TensorEntry], outline: Outline, layout: Convention | None
) -> list[TensorEntry]:
    """Give ids to tensors that have none: parts of fused ones derive theirs, so that an optimizer's record calls them the same."""
    if all(entry.param_id is not None for entry in found):
        return found
    origins: Mapping[str, tuple[str, ...]] = {}
    if outline.convention is not None and layout is not None and layout != outline.convention:
        origins = translate(entries, outline.layers, source=outline.convention, target=layout).origins
    return derive_ids(found, origins, {entry.name: entry.param_id for entry in entries})


def _refuse_others(opened: OpenedFile) -> None:
    kind = kind_of(opened.keys(), opened.metadata, opened.scalars)
    if kind in ("module", "nothing"):
        return
    of, name = {"optimizer": ("an optimizer", "OptimizerRecord"), "scheduler": ("a schedule", "LrSchedulerRecord")}[
        kind
    ]
    example = next((key for key in opened.scalars if key.endswith(RANK)), next(iter([*opened.keys(), *opened.scalars])))
    raise WrongFormatError(
        f"it holds the state of {of} ({example!r}), and not the weights of a model",
        kind=kind,
        path=opened.path,
        remedy=f"Read it with {name}.load, and give the file that the model was saved to.",
    )
