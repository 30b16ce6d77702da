"""Files as stores of weights: a format, rules, a policy and a path, with the same options for every format."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from firekeep import applying, collecting, writing
from firekeep.applying import Hold, LoadJob
from firekeep.collecting import Collection, CollectJob, SaveReport
from firekeep.entry import TensorEntry
from firekeep.errors import ExistsError, FirekeepError, RuleError, TensorNotFoundError, UnsupportedError
from firekeep.formats import FORMATS, OpenOptions
from firekeep.layouts import CONVENTIONS, check_layout
from firekeep.likeness import Likeness, likeness_of
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.matching import Policy
from firekeep.opened import open_file, require_name
from firekeep.report import LoadReport
from firekeep.rules import DTypeLike, KeyRemapper, PathFilter, Rule, cast_target, name_dtype
from firekeep.rules.surgery import Surgery
from firekeep.supply import Supply, supply_of_file, supply_of_opened
from firekeep.views import ghost
from firekeep.wording import some


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What every store can be told, with its defaults.

    `include` and `exclude` speak of the model's names, in both directions. `rename` rules turn the file's names into the model's; a save
    applies their inverse, as it does that of `surgery`, which splits and joins the file's tensors before renames. `layout` is the
    file's, None for what its format promises. `allow_partial` lets the file lack tensors,
    `allow_unused` lets it hold more than the model wants, `validate=False` leaves tensors of another shape as they are. `dtype` is "module"
    (a slot keeps its dtype), "file", or a float type, in which a save writes floats, too.
    """

    include: Any = ()
    exclude: Any = ()
    rename: Rule | Iterable[Rule] | Mapping[str, str] | KeyRemapper = ()
    surgery: Any = ()
    layout: str | None = None
    like: Any = None
    dtype: DTypeLike = "module"
    match: Literal["auto", "exact"] = "auto"
    allow_partial: bool = False
    allow_unused: bool = True
    validate: bool = True
    stage: bool = False
    top_level_key: str | None = None
    metadata: Mapping[str, str] | None = None
    ties: str = "keep"
    digest: bool = False
    max_shard_size: int | str | None = None
    overwrite: bool = True
    durable: bool = True
    auto_extension: bool = True
    limits: Limits = DEFAULT_LIMITS


class Store:
    """A place for a model's weights: a file, or bytes in memory. Its subclasses are one a format.

    `place` is a path, bytes of a file, or None for a file in memory that a save makes. Options are those of `StoreOptions`; `with_options`
    gives a store like this one with others.
    """

    format: ClassVar[str] = ""

    def __init__(self, place: str | os.PathLike[str] | bytes | None = None, **options: Any) -> None:
        self.options = StoreOptions(**options)
        self._data = place if isinstance(place, bytes) else None
        self.path = None if place is None or isinstance(place, bytes) else self._resolve(place)
        self._loaded: Likeness | None = None
        self._remapper = KeyRemapper.of(self.options.rename)
        self._surgery = Surgery.of(self.options.surgery)
        self._chosen = PathFilter.of(include=self.options.include, exclude=self.options.exclude)

    def _resolve(self, place: str | os.PathLike[str]) -> Path:
        """Add the format's suffix to a path that has none of those known, as Burn's own store does to one without any."""
        path = Path(os.fsdecode(require_name(place)))
        known = {suffix for row in FORMATS.values() for suffix in row.suffixes}
        if not self.options.auto_extension or path.suffix.lower() in known or path.is_file() or not self.format:
            return path
        if self.format != "burnpack" or path.suffix:
            return path
        return path.with_name(path.name + FORMATS[self.format].suffixes[0])

    def with_options(self, **options: Any) -> Self:
        """Give a store of the same place with some options changed."""
        changed = {**{name: getattr(self.options, name) for name in StoreOptions.__slots__}, **options}
        return type(self)(self.path if self._data is None else self._data, **changed)

    @property
    def data(self) -> bytes:
        """The bytes of a store in memory: those given, or those last saved."""
        if self._data is None:
            raise RuleError(
                "the store is a file on disk" if self.path is not None else "nothing has been saved in this store yet",
                path=self.path,
                remedy="Read the file's bytes." if self.path is not None else "Save a model first.",
            )
        return self._data

    def keys(self) -> list[str]:
        """List the file's tensors, by the names that the rename rules give them."""
        return list(self._entries())

    def entry(self, name: str) -> TensorEntry:
        """Give one tensor, by the name that the rename rules give it; raises `TensorNotFoundError`."""
        entries = self._entries()
        if name not in entries:
            raise TensorNotFoundError(
                f"there is no tensor {name!r} among {len(entries)}",
                path=self.path,
                remedy=f"There are {some(list(entries))}.",
            )
        return entries[name]

    def metadata(self) -> dict[str, str]:
        """Give the file's metadata, as a save wrote it."""
        with open_file(self._source(), self._open_options()) as opened:
            return dict(opened.metadata)

    def save(self, obj: Any) -> SaveReport:
        """Write a model's weights; see `firekeep.save`.

        Names are those that the rename rules would turn into the model's: rules are inverted where they can be, or the names of the last
        load or of `like` are used. Raises `RuleError`, naming the rule, where neither is possible.
        """
        try:
            if self.path is not None:
                return writing.save(obj, self.path, self._collect_job(), self._write_job())
            if self._data is not None and not self.options.overwrite:
                raise ExistsError(
                    "the store holds a file, and overwrite=False", remedy="Give overwrite=True, or make another store."
                )
            if self.options.max_shard_size is not None:
                raise RuleError("a store in memory is one file, and max_shard_size was given", remedy="Give it a path.")
            job = replace(self._write_job(), format=self._written_format())
            self._data, report = writing.save_to_bytes(obj, self._collect_job(), job)
        except FirekeepError as error:
            raise error.at(path=self.path)  # noqa: B904 - the same error, with its place
        return report

    def load_into(self, obj: Any, *, dry_run: bool = False) -> LoadReport:
        """Put the file's weights into a model, and say what was done with every tensor; see `firekeep.load_into`."""
        with supply_of_file(self._source(), self._open_options()) as supply:
            report = applying.load_into(obj, supply, replace(self._load_job(), dry_run=dry_run))
            if not dry_run:
                self._loaded = self._likeness(supply)
        return report

    def _likeness(self, supply: Supply) -> Likeness:
        """Remember what a file looks like, so that a save gives tensors the names they came under."""
        layout = self.options.layout or (None if supply.layout is None else supply.layout.name)
        return Likeness(
            what="the file that was loaded",
            entries=tuple(
                ghost(name, entry.dtype, entry.shape)
                for name, entry in supply.entries.items()
                if entry.dtype is not None and entry.problem is None
            ),
            layout=next((known for known in CONVENTIONS if known == layout), None),
            layers=supply.layers,
            modules=supply.submodules,
            match=self.options.match,
            whole=False,
        )

    def collect(self, obj: Any) -> Collection:
        """Give the tensors of a model as a save would write them, lazily."""
        row = FORMATS[self.format] if self.format else FORMATS["safetensors"]
        return collecting.collect(obj, writing.for_format(self._collect_job(), row))

    def _entries(self) -> dict[str, TensorEntry]:
        options = self._open_options()
        # The file stays open as long as an entry of it is kept.
        supply = supply_of_opened(
            open_file(self._source(), replace(options, top_level_key=options.top_level_key or None)), options
        )
        entries = self._surgery.apply(supply.entries.values()).entries if self._surgery else supply.entries.values()
        names = self._remapper.rename([entry.name for entry in entries]).names
        return {names[entry.name]: entry.renamed(names[entry.name]) for entry in entries}

    def _source(self) -> str | os.PathLike[str] | bytes:
        if self.path is not None:
            return self.path
        return self.data

    def _open_options(self) -> OpenOptions:
        return OpenOptions(limits=self.options.limits, top_level_key=self.options.top_level_key)

    def _written_format(self) -> str:
        return self.format or "safetensors"

    def _collect_job(self) -> CollectJob:
        options = self.options
        like = None if options.like is None else likeness_of(options.like, self._open_options())
        hold = held(options.dtype)
        return CollectJob(
            chosen=self._chosen,
            layout=None if options.layout is None else check_layout(options.layout),
            dtype=None if isinstance(hold, str) else hold,
            like=like or self._loaded,
            load_surgery=self._surgery,
            load_renames=self._remapper,
            ties=options.ties,
        )

    def _write_job(self) -> writing.WriteJob:
        options = self.options
        return writing.WriteJob(
            metadata=options.metadata or {},
            format=self.format or None,
            digest=options.digest,
            max_shard_size=options.max_shard_size,
            overwrite=options.overwrite,
            durable=options.durable,
            limits=options.limits,
        )

    def _load_job(self) -> LoadJob:
        options = self.options
        return LoadJob(
            policy=Policy(
                missing="allow" if options.allow_partial else "error",
                unused="allow" if options.allow_unused else "error",
                shape="error" if options.validate else "allow",
            ),
            match=options.match,
            remapper=self._remapper,
            surgery=self._surgery,
            chosen=self._chosen,
            dtype=held(options.dtype),
            layout=None if options.layout is None else check_layout(options.layout),
            stage=options.stage,
            switches={"missing": "allow_partial=True", "unused": "allow_unused=True", "shape": "validate=False"},
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path) if self.path is not None else 'in memory'})"


class BurnpackStore(Store):
    """A `.bpk` file, in Burn's layout unless its metadata or `layout=` say otherwise."""

    format = "burnpack"


class SafetensorsStore(Store):
    """A `.safetensors` file, in PyTorch's layout unless its metadata or `layout=` say otherwise."""

    format = "safetensors"


class PytorchStore(Store):
    """A PyTorch file: it is read, and not written."""

    format = "pytorch"

    def save(self, obj: Any) -> SaveReport:  # noqa: ARG002 - as every store
        """Refuse: a `.pt` file is a pickle, a program that runs where it is loaded."""
        raise UnsupportedError(
            "PyTorch files are read, not written: they are pickles, programs that run where they are loaded",
            path=self.path,
            remedy="Save a .safetensors file: torch reads it with safetensors.torch.load_file.",
        )


def held(dtype: DTypeLike) -> Hold:
    """Read the word for what slots hold after a load: "module", "file", or a float type."""
    if isinstance(dtype, str) and dtype == "module":
        return "module"
    if isinstance(dtype, str) and dtype == "file":
        return "file"
    return cast_target(name_dtype(dtype))
