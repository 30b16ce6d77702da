"""Finding the pickles of a file and what each would import; see `_report` for the outcome.

Every pickle is looked at: the one that is read, others in the same archive (an attacker hides one among the storages), several
in one stream, object arrays of NumPy, bytes that a call takes. A damaged pickle is read as far as it goes, since an unpickler
would run what comes before the damage; what comes after is still searched for names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from firekeep.errors import DigestError, FirekeepError, LimitError, TruncatedError
from firekeep.formats._protocol import OpenOptions
from firekeep.formats._zip import InflatedBlob, ZipDirectory, ZipMember, read_directory
from firekeep.formats.pytorch._budget import Budget
from firekeep.formats.pytorch._inert import Global
from firekeep.formats.pytorch._kinds import ends_as_zip, tell_kind
from firekeep.formats.pytorch._legacy import MAGIC
from firekeep.formats.pytorch._machine import Machine
from firekeep.formats.pytorch._report import ScanGlobal, ScanReport, ordered
from firekeep.formats.pytorch._salvage import salvage_members
from firekeep.formats.pytorch._tar import read_members
from firekeep.formats.pytorch._tokens import MOST_TOKENS, find_names, looks_like_pickle
from firekeep.formats.pytorch._verdicts import DANGEROUS, judge
from firekeep.formats.pytorch._window import Window
from firekeep.garbage import collector_paused
from firekeep.limits import Limits
from firekeep.sources import MemorySource, Source

_DEEPEST = 4
_FIRST_WINDOW = 1 << 14
_GROWTH = 32
_HEAD = 4096
_LEGACY_PICKLES = 5
_MOST_PICKLES = 10_000
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".pck", ".joblib", ".dat")
_BURNPACK = b"NRUB"
"""As a pickle, None that is called with nothing to call: every unpickler ends there."""
_NPY = b"\x93NUMPY"
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"7z\xbc\xaf": "7z",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"\x04\x22\x4d\x18": "lz4",
    b"Rar!": "rar",
}


def scan(source: Source, options: OpenOptions, *, expected: bool = True) -> ScanReport:
    """Look through a file; see `firekeep.formats.pytorch.scan_source`. Unless `expected` to be one, it may only look like a pickle."""
    search = Search(options.limits, source.size)
    with collector_paused():
        search.any(source, "", 0, expected=expected)
    return search.report(source.path)


class _Watcher(Machine):
    """A machine that keeps bytes which a call takes and which may be a pickle of their own."""

    def __init__(self, data: bytes, **context: Any) -> None:
        super().__init__(data, **context)
        self.inner: list[bytes] = []

    def call(self, func: Any, args: Any) -> Any:
        if type(args) is tuple and len(self.inner) < _MOST_PICKLES:
            self.inner.extend(arg for arg in args[:16] if type(arg) is bytes and looks_like_pickle(arg[:_HEAD]))
        return super().call(func, args)


class Search:
    """Looks through files and what is in them, all for one report; `damaged` says what is wrong with them."""

    def __init__(self, limits: Limits, size: int) -> None:
        self._limits = limits
        self._budget = Budget(limits, size)
        self._found: dict[tuple[str, str, str], ScanGlobal] = {}
        self.damaged: list[str] = []
        self._pickles = 0

    def report(self, path: str | None) -> ScanReport:
        """Say what was found so far."""
        damaged = None
        if self.damaged:
            more = len(self.damaged) - 1
            damaged = self.damaged[0] + (f" (and {more} more)" if more else "")
        if unseen := self._budget.verdict():
            damaged = f"{damaged}; {unseen}" if damaged else unseen
        return ScanReport(globals=ordered(self._found.values()), damaged=damaged, pickles=self._pickles, path=path)

    def any(self, source: Source, member: str, depth: int, *, expected: bool) -> None:
        """Look into a file or a member. `expected` says that it should be a pickle or archive: if it is damaged, that matters."""
        if depth > _DEEPEST or source.size < 2:
            return
        head = bytes(source.view(0, min(_HEAD, source.size)))
        if head.startswith(_BURNPACK):
            return
        kind = tell_kind(source)
        if kind == "zip":
            self._zip(source, member, depth, expected=expected)
        elif kind == "tar":
            self._tar(source, member, depth)
        elif head.startswith(_NPY):
            self._npy(source, head, member)
        elif kind == "legacy" or looks_like_pickle(head):
            self._stream(source, 0, member, depth, expected=expected)
            if ends_as_zip(source):
                self._zip(source, member, depth, expected=False)
        elif kind == "pickle" and expected and member:
            self.damaged.append(f"{member!r} is no pickle")
        elif packed := next((name for magic, name in _PACKED.items() if head.startswith(magic)), None):
            self.damaged.append(
                f"{repr(member) if member else 'the file'} is packed with {packed}: what is in it was not looked at"
            )

    def _zip(self, source: Source, member: str, depth: int, *, expected: bool) -> None:
        try:
            directory = read_directory(source, self._limits)
            members = list(directory.members)
        except FirekeepError as error:
            self._salvage(source, member, depth, error, expected=expected)
            return
        trouble: FirekeepError | None = None
        for name in members:
            inner_name = f"{member}/{name}" if member else name
            try:
                inner = self._open_member(source, directory, directory.members[name], inner_name)
            except FirekeepError as error:
                trouble = trouble or error
                continue
            due = name.endswith(_PICKLE_SUFFIXES)
            if inner is not None:
                self.any(inner, inner_name, depth + 1, expected=due)
        if directory.archives > 1 or trouble is not None:
            self._salvage(source, member, depth, trouble, expected=expected)

    def _open_member(self, source: Source, directory: ZipDirectory, entry: ZipMember, name: str) -> Source | None:
        """Give a member as a file; None where its first bytes tell that there is nothing to find."""
        blob = directory.blob(entry)
        window = blob.window()
        if window is not None:
            if (
                entry.name.endswith(_PICKLE_SUFFIXES)
                and (wrong := directory.check(entry))
                and wrong.severity == "error"
            ):
                self.damaged.append(wrong.message)
            return Window(source, window[1], blob.nbytes)
        head = bytes(next(blob.chunks(_HEAD), b""))
        if not (head.startswith((b"PK", _NPY)) or head[257:262] == b"ustar" or looks_like_pickle(head)):
            return None
        if not isinstance(blob, InflatedBlob) or not self._budget.inflate(entry.size):
            self._budget.skip(name)
            return None
        try:
            return MemorySource(blob.inflate())
        except DigestError as error:
            self.damaged.append(error.message)
            return MemorySource(blob.inflate(verify=False))

    def _salvage(self, source: Source, member: str, depth: int, error: FirekeepError | None, *, expected: bool) -> None:
        """Look at what the local headers of a damaged or tampered archive lead to."""
        if error is not None and expected:
            self.damaged.append(error.message)
        for name, data in salvage_members(source, most=self._budget.inflatable):
            inner = f"{member}/{name}" if member else name
            self._budget.inflate(min(len(data), self._budget.inflatable))
            self.any(MemorySource(data), inner, depth + 1, expected=False)

    def _tar(self, source: Source, member: str, depth: int) -> None:
        try:
            members, _ = read_members(source)
        except FirekeepError as error:
            self.damaged.append(error.message)
            return
        for name, window in members.items():
            inner = f"{member}/{name}" if member else name
            self.any(window, inner, depth + 1, expected=name.endswith(_PICKLE_SUFFIXES) or name == "pickle")

    def _npy(self, source: Source, head: bytes, member: str) -> None:
        """Look behind the header of a NumPy file: arrays of objects are pickles."""
        width = 2 if head[6:7] == b"\x01" else 4
        start = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
        if b"O" in head[8 + width : start] and start < source.size:
            self._stream(source, start, member, 0, expected=True)

    def _stream(self, source: Source, position: int, member: str, depth: int, *, expected: bool) -> None:
        """Read pickles one after the other; behind those of a legacy file lie the storages."""
        most = _MOST_PICKLES
        for number in range(_MOST_PICKLES):
            if number >= most or position >= source.size:
                return
            limits = self._budget.limits()
            if limits is None:
                self._budget.skip(member)
                return
            machine, value, error = self._run(source, position, limits)
            if isinstance(error, LimitError) and limits.pickle_opcodes <= machine.opcodes < self._limits.pickle_opcodes:
                self._budget.skip(member)
            if error is not None and number and not machine.globals:
                return  # what follows a pickle and is none
            if error is not None and not expected and not _is_attack(machine.globals.values()):
                if isinstance(error, LimitError):
                    self._budget.skip(member)
                return  # what only looked like one
            self._pickles += 1
            self._record(machine.globals.values(), member)
            for data in machine.inner:
                self.any(MemorySource(data), f"{member}#bytes" if member else "#bytes", depth + 1, expected=False)
            if error is not None:
                self._after(machine, member)
                if expected or number:
                    self.damaged.append(error.message)
                return
            position += machine.position
            if number == 0 and type(value) is int and value == MAGIC:
                most = _LEGACY_PICKLES
            elif most == _MOST_PICKLES and not looks_like_pickle(
                bytes(source.view(position, min(_HEAD, source.size - position)))
            ):
                return

    def _run(self, source: Source, position: int, limits: Limits) -> tuple[_Watcher, Any, FirekeepError | None]:
        """Run a machine over a window that grows until the pickle ends in it."""
        window = _FIRST_WINDOW
        most = min(source.size - position, self._limits.pickle_bytes)
        while True:
            machine = _Watcher(
                bytes(source.view(position, min(window, most))), limits=limits, base=position, persistent=_keep
            )
            try:
                value, error = machine.run(), None
            except FirekeepError as found:
                value, error = None, found
            if isinstance(error, TruncatedError) and window < most:
                window *= _GROWTH
                continue
            self._budget.spend(machine.opcodes + machine.made)
            return machine, value, error

    def _after(self, machine: _Watcher, member: str) -> None:
        """Search what comes after the damage for names."""
        known = {(found.module, found.name) for found in machine.globals.values()}
        tokens = max(0, min(MOST_TOKENS, self._budget.left, len(machine.data) - machine.position))
        self._budget.spend(tokens)
        for found in find_names(machine.data, machine.position, most=tokens):
            if (found.module, found.name) not in known:
                self._record([found], member)

    def _record(self, found: Any, member: str) -> None:
        one: Global
        for one in found:
            key = (member, one.module, one.name)
            before = self._found.get(key)
            self._found[key] = ScanGlobal(
                module=one.module,
                name=one.name,
                verdict=judge(one.module, one.name),
                called=one.called or (before is not None and before.called),
                member=member,
                offset=one.offset if before is None else before.offset,
                count=one.count + (0 if before is None else before.count),
            )


def _is_attack(found: Iterable[Global]) -> bool:
    return any(judge(one.module, one.name) == DANGEROUS for one in found)


def _keep(pid: Any) -> Any:
    """A persistent id names a storage or a module's class."""
    if type(pid) is tuple and len(pid) > 1 and pid[0] in ("module", b"module") and type(pid[1]) is Global:
        return pid[1]
    return pid[0] if type(pid) is tuple and pid and type(pid[0]) is Global else None
