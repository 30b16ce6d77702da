"""An open file: names, entries, arrays, and what stands beside them."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TypeAlias

from firekeep.entry import TensorEntry, find_ties
from firekeep.errors import FirekeepError, FormatError, RuleError, TensorNotFoundError, WrongTypeError
from firekeep.formats import Container, OpenOptions, files_of_set, open_path, open_source
from firekeep.scalars import Scalar
from firekeep.slots import Layer
from firekeep.sources import FileSource, MemorySource, Source, closed_on_failure
from firekeep.wording import kind

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from firekeep.arrays import Array
    from firekeep.formats._diagnose import Diagnosis
    from firekeep.formats.pytorch import ScanReport

_NEAR = 3
_SEARCHED = 20_000

Readable: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Traversable"


class OpenedFile:
    """A file of tensors held open: names and lazy entries, in the order their data lie. Made by `firekeep.open`.

    Use it as a context manager. Entries and arrays are windows of the file: arrays taken from it stay valid after `close`, and
    the file may be replaced meanwhile. `file[name]` is `file.array(name)`.
    """

    def __init__(self, container: Container, source: Source) -> None:
        self._container = container
        self._source = source

    @property
    def path(self) -> str | None:
        """The file's path, or None for bytes."""
        return self._source.path

    @property
    def format(self) -> str:
        """The format found in the content: "burnpack", "safetensors", "pytorch", "numpy", "flax", "hdf5" or "gguf"."""
        return self._container.format

    @property
    def variant(self) -> str:
        """The kind of file within the format: "zip", "legacy", "torchscript", "sharded", "npz", "keras-archive" or the like, or ""."""
        return self._container.variant

    @property
    def metadata(self) -> Mapping[str, str]:
        """String metadata of the file."""
        return MappingProxyType(dict(self._container.metadata))

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        """Typed scalars of a burnpack file; empty elsewhere."""
        return MappingProxyType(dict(self._container.scalars))

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader noticed and did not refuse, in words."""
        return self._container.notes

    @property
    def details(self) -> Mapping[str, Any]:
        """Facts of the format: header length, version, byte order and the like."""
        return MappingProxyType(dict(self._container.details))

    @property
    def subtrees(self) -> tuple[str, ...]:
        """Dotted paths in a PyTorch file that hold a model's tensors beside other things: for `top_level_key`."""
        return self._container.subtrees

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers of known kinds, in PyTorch's convention, where a PyTorch file holds a whole model: the names of classes tell them."""
        return self._container.layers

    @property
    def submodules(self) -> frozenset[str]:
        """Paths of the modules that a PyTorch file knows of, those without tensors too; empty where it says nothing of any."""
        return self._container.submodules

    @property
    def source(self) -> Source:
        """The bytes behind the file: for a sharded set, its index."""
        return self._source

    @property
    def container(self) -> Container:
        """The container itself, for code that goes on with entries."""
        return self._container

    @property
    def ties(self) -> dict[str, str]:
        """Map each further name of a tied tensor to the first; names only recorded in metadata are included."""
        return {**find_ties(list(self._container.entries.values())), **self._container.ties}

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        """All tensors by name: a lazy mapping, which draws no bytes."""
        return self._container.entries

    def filled(self) -> dict[str, TensorEntry]:
        """Give the entries under all names: those that are only tied to a tensor of the file come last."""
        entries = dict(self._container.entries.items())
        for name, kept in self._container.ties.items():
            if name not in entries and kept in self._container.entries:
                entries[name] = self._container.entries[kept].renamed(name)
        return entries

    def keys(self) -> list[str]:
        """List the tensors' names, in the order their data lie."""
        return list(self._container.entries)

    def entry(self, name: str) -> TensorEntry:
        """Give one tensor's entry; raises `TensorNotFoundError` with near names.

        A name that the file does not hold but ties to one it holds (`ties`) gives that tensor.
        """
        container = self._container
        try:
            return container.entries[name]
        except KeyError:
            if (kept := container.ties.get(name)) is not None and kept in container.entries:
                return container.entries[kept].renamed(name)
            raise TensorNotFoundError(
                f"there is no tensor {name!r} among {len(self)}",
                path=self.path,
                remedy=_near(name, self.keys()),
            ) from None

    def array(self, name: str) -> Array:
        """Give one tensor as a NumPy array: a read-only view of the file where possible, else a fresh array.

        Raises `TensorNotFoundError`, or `UnsupportedError` for a tensor that is listed but has no plain bytes.
        """
        from firekeep.arrays import as_array

        try:
            return as_array(self.entry(name))
        except FirekeepError as error:
            raise error.at(path=self.path, tensor=name)  # noqa: B904 - the same error, with its place

    def values(self) -> Any:
        """Give what a file holds besides tensors, as plain data: epoch, hyper-parameters, configuration; {} where it holds no more.

        In a PyTorch file tensors stand in it as `TensorRef`, foreign objects as `Opaque` with the name of their class. A GGUF file gives
        its key-value pairs, a `.keras` archive its configuration, a MessagePack file of Flax what is no array.
        """
        return self._container.values()

    def __getitem__(self, name: str) -> Array:
        return self.array(name)

    def __contains__(self, name: object) -> bool:
        return name in self._container.entries or name in self._container.ties

    def __iter__(self) -> Iterator[str]:
        return iter(self._container.entries)

    def __len__(self) -> int:
        return len(self._container.entries)

    def close(self) -> None:
        """Let go of the file; arrays taken from it stay valid."""
        self._source.close()
        for source in self._container.sources:
            source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<firekeep file {self.path or 'in memory'}: {self.format}, {len(self)} tensors>"


def open_file(source: Readable, options: OpenOptions, *, private: bool = False) -> OpenedFile:
    """Open a path, bytes, a binary file object or an importlib resource.

    A directory or an index path opens a sharded set. File objects are read from their current position, by their descriptor
    where they are whole files on disk, else into memory. `private` maps files copy-on-write, so that views are writable.
    See `firekeep.open`.
    """
    if isinstance(source, str | os.PathLike):
        path = require_name(source)
        # A set is opened whole: that one of its files has no such part would say nothing of the set.
        if (opened := open_path(path, replace(options, private=private, top_level_key=None))) is not None:
            return _checked(OpenedFile(*opened), options)
    backing = source_of(source, private=private)
    with closed_on_failure(backing):
        return _checked(OpenedFile(open_source(backing, options), backing), options)


def _checked(opened: OpenedFile, options: OpenOptions) -> OpenedFile:
    """Refuse an option that would be ignored."""
    is_set = opened.variant == "sharded"
    if options.top_level_key and (is_set or opened.format != "pytorch"):
        opened.close()
        raise RuleError(
            f"top_level_key={options.top_level_key!r} is for single PyTorch files, and this is a set of files"
            if is_set
            else f"top_level_key={options.top_level_key!r} is for PyTorch files, and this is a {opened.format} file",
            path=opened.path,
            remedy=_without_part(options.top_level_key, opened),
        )
    return opened


def _without_part(key: str, opened: OpenedFile) -> str:
    """Say how to come to the tensors under a path in a file that has names and no tree."""
    remedy = "Leave it out. To choose tensors by name, use include of load_file or convert."
    rule = rf"^{re.escape(key)}\."
    if "'" in rule or not any(name.startswith(f"{key}.") for name in opened.container.entries):
        return remedy
    return f"{remedy} To load those under {key!r} into a model, pass rename=[r'{rule}=>'] and allow_unused=True."


def narrow(opened: OpenedFile, options: OpenOptions) -> OpenedFile:
    """Read the table of an open PyTorch file again, for the part that `options.top_level_key` names."""
    source = opened.source
    try:
        return OpenedFile(open_source(source, options), source)
    except FirekeepError as error:
        raise error.at(path=source.path)  # noqa: B904 - the same error, with its place


def scan_file(source: Readable, options: OpenOptions) -> ScanReport:
    """Scan the pickles of any file, of all files in a folder, or of those an index names; see `firekeep.scan`."""
    from firekeep.formats.pytorch import scan_folder, scan_set

    if isinstance(source, str | os.PathLike) and (name := require_name(source)):
        if Path(name).is_dir():
            return scan_folder(Path(name), options)
        try:
            files = files_of_set(name, options)
        except FormatError as error:  # called an index, and none: it may be a pickle
            report = _scan(source, options)
            return report if report.damaged is not None else replace(report, damaged=error.message)
        if files is not None:
            return scan_set(Path(name), files, options)
    return _scan(source, options)


def _scan(source: Readable, options: OpenOptions) -> ScanReport:
    from firekeep.formats.pytorch import scan_source

    backing = source_of(source)
    try:
        return scan_source(backing, options)
    finally:
        backing.close()


def diagnose_file(source: Readable, options: OpenOptions) -> Diagnosis:
    """Say what any file or folder is; see `firekeep.doctor`."""
    from firekeep.formats._diagnose import diagnose, diagnose_set

    if isinstance(source, str | os.PathLike) and (found := diagnose_set(os.fspath(source), options)) is not None:
        return found
    backing = source_of(source)
    try:
        return diagnose(backing, options)
    finally:
        backing.close()


def source_of(source: Readable, *, private: bool = False) -> Source:
    """Give the bytes of one file, wherever they are."""
    if isinstance(source, str | os.PathLike):
        return _source_of_path(require_name(source), private=private)
    return _source_of(source, private=private)


def require_name(path: str | os.PathLike[str]) -> str:
    """Give a path as text; raises `RuleError` for one that the system cannot even be asked about."""
    if not isinstance(path, str | os.PathLike | bytes):
        raise WrongTypeError(f"a path is due, text or a path object, not {kind(path)}")
    given = os.fsdecode(path)
    if "\0" in given:
        raise RuleError(f"the path {given!r} has a NUL character in it, which no file's name can hold")
    return given


def _source_of_path(path: str, *, private: bool) -> Source:
    if Path(path).is_fifo():  # as the shell's <(command) is: it has no size, and is read once
        return MemorySource(Path(path).read_bytes(), path=path)
    return FileSource(path, private=private)


def _source_of(source: Any, *, private: bool) -> Source:
    if isinstance(source, bytes | bytearray | memoryview):
        return MemorySource(source)
    if hasattr(source, "read"):
        return _source_of_file(source, private=private)
    if is_readable(source):
        return MemorySource(source.read_bytes(), path=source.name)
    raise no_file(source, remedy=_instead_of(source))


def is_readable(source: object) -> bool:
    """Say whether it is of a kind that can be opened."""
    if isinstance(source, str | os.PathLike | bytes | bytearray | memoryview) or hasattr(source, "read"):
        return True
    from importlib.resources.abc import Traversable  # only here: it brings tempfile, shutil and the compressors

    return isinstance(source, Traversable)


def no_file(given: object, *, remedy: str | None) -> WrongTypeError:
    """Give the error for an object where a file is due."""
    return WrongTypeError(
        f"cannot open {kind(given)}: a path, bytes, a binary file or a resource is needed", remedy=remedy
    )


def _instead_of(given: object) -> str | None:
    """Say what takes an object that was given where a file is due, if anything does."""
    from firekeep.bridges import entries_of

    if isinstance(given, OpenedFile):
        return "It is open already: ask it, or give its path." if given.path else "It is open already: ask it."
    try:
        held = entries_of(given)
    except FirekeepError:
        return None
    if any(entry.problem is None for entry in held):
        return "firekeep.entries_of(obj) lists the tensors of an object, and firekeep.save(obj, path) writes a file of them."
    return None


def _source_of_file(file: Any, *, private: bool) -> Source:
    if isinstance(file, io.TextIOBase):
        raise TypeError("the file is open in text mode: open it with 'rb'")
    name = getattr(file, "name", None)
    path = name if isinstance(name, str) else None
    if path is not None and _is_whole_file(file, path):
        return FileSource(path, private=private)
    data = file.read()
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"the file gives {type(data).__name__} where bytes are needed: open it with 'rb'")
    return MemorySource(data, path=path)


def _is_whole_file(file: Any, path: str) -> bool:
    """Say whether a file object, where it stands, is the regular file of its name and nothing that decompresses one."""
    raw = getattr(file, "raw", file)
    if not isinstance(raw, io.FileIO) or not isinstance(file, io.BufferedReader | io.BufferedRandom | io.FileIO):
        return False
    try:
        there, here = Path(path).stat(), os.fstat(raw.fileno())
        return stat.S_ISREG(here.st_mode) and os.path.samestat(here, there) and file.tell() == 0
    except (OSError, ValueError):
        return False


def _near(name: str, names: list[str]) -> str | None:
    """List the names that were most likely meant: those that differ by a prefix first."""
    from rapidfuzz import process
    from rapidfuzz.distance import Jaro

    near = [known for known in names if known.endswith(f".{name}") or name.endswith(f".{known}")][:_NEAR]
    found = process.extract(name, names[:_SEARCHED], scorer=Jaro.similarity, score_cutoff=0.7, limit=_NEAR)
    near += [choice for choice, _, _ in found if choice not in near]
    return f"Near: {', '.join(map(repr, near[:_NEAR]))}." if near else None
