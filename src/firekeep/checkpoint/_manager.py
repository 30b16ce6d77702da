"""The manager of a directory of checkpoints: when a state is saved, which step comes back, and how long each is kept."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from firekeep.callers import levels_outside
from firekeep.checkpoint._background import Background
from firekeep.checkpoint._catalog import Catalog, Layout
from firekeep.checkpoint._choice import choose, in_doubt
from firekeep.checkpoint._errors import CheckpointWarning, DirectoryBusyError
from firekeep.checkpoint._held import HeldStep, hold_step
from firekeep.checkpoint._hints import make_directory, unmake
from firekeep.checkpoint._manifest import check_metrics, check_step
from firekeep.checkpoint._numbers import Numbers, higher_step, note_of, warning_of
from firekeep.checkpoint._reports import PruneReport, StepRestored, StepSaved
from firekeep.checkpoint._retention import KeepBest, KeepLast, Policy
from firekeep.checkpoint._signals import DEFAULT, SignalWatch
from firekeep.checkpoint._snapshot import Buffers, room_for, size_of
from firekeep.checkpoint._step import StepInfo
from firekeep.checkpoint._store import Store
from firekeep.checkpoint._taking import facts_of, sections_of
from firekeep.checkpoint._turn import Turn
from firekeep.checkpoint._verified import StepVerified
from firekeep.checkpoint._verify import verify_held
from firekeep.checkpoint._warnings import Lacking
from firekeep.errors import FirekeepError, RuleError
from firekeep.formats import OpenOptions
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.sections import Savable, Section
from firekeep.wording import some

Which = Literal["latest", "best"]
_BEST = "valid_loss"


class CheckpointManager:
    """Keeps the steps of a run in a directory: each saved by one commit, complete or not there at all.

    `keep` is a retention policy (`KeepLast`, `KeepBest`, `KeepEvery`, `KeepYounger`, `KeepAll`, joined by `|` and `&`); by default the
    last two steps and the best one stay. `best` names the metric that tells the best step, "valid_loss" with the least value first
    unless a `KeepBest` says otherwise: `best=KeepBest("accuracy", mode="max")`. Whatever the policy, the newest step, the best and the
    one just written are never deleted, and nothing is before a new step is complete.

    `every` is how many steps lie between two saves by `tick`. `background=True` copies the state and writes the copy on a thread: the
    loop goes on, one save is in flight at most, and what goes wrong is raised by the next call. NumPy's and torch's memory is copied.
    Arrays of JAX in the CPU's memory never change: they are held until they are written, and not copied, so memory that one shares with
    NumPy or torch (`jax.device_put` of an array, `from_dlpack`) must not be written to until `wait` has come back, as JAX itself asks.
    The memory of the copy is taken at the first save, or with `preallocate=True` at the first `tick` or `restore`, when the state is
    known; a number of bytes takes it now.
    `digest=True` keeps a digest of each file for `verify`. `durable=False` skips the fsyncs and nothing else. `layout="burn"` reads and
    writes the three files a step of Burn's Learner. Several processes may use one directory: whoever finds it locked for longer than
    `lock_timeout` seconds gets `DirectoryBusyError`. A step is read as one save left it, though another process replaces it meanwhile.
    Threads may use one manager: their saves are made one after the other, each of the state as it was when its turn came.

    Example:
        >>> with CheckpointManager("run", keep=KeepLast(3) | KeepEvery(1000)) as manager:  # doctest: +SKIP
        ...     with manager.handle_signals():
        ...         for step in range(start, 10_000):
        ...             loss = train_step()
        ...             if manager.tick(state, step=step, metrics={"loss": loss}):
        ...                 break
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: Policy | None = None,
        best: KeepBest | str = _BEST,
        every: int | None = None,
        background: bool = False,
        preallocate: bool | int = False,
        durable: bool = True,
        digest: bool = False,
        layout: Layout | None = None,
        lock_timeout: float = 60.0,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        if keep is not None and not isinstance(keep, Policy):
            raise TypeError(f"keep is a policy such as KeepLast(3), not {type(keep).__name__}")
        if every is not None and every < 1:
            raise RuleError(
                f"every={every}: a number of steps of at least 1 is needed, or None to save by save() alone"
            )
        if layout not in (None, "firekeep", "burn"):
            raise RuleError(f"layout={layout!r}: 'firekeep' or 'burn'")
        self._best = KeepBest(best) if isinstance(best, str) else best
        self._keep = KeepLast(2) | self._best if keep is None else keep
        self._lacking = Lacking(self._best, self._keep, is_default=best == _BEST)
        self._every = every
        self._store = Store(
            directory=Path(directory),
            layout=layout or "firekeep",
            durable=durable,
            digest=digest,
            lock_timeout=lock_timeout,
            limits=limits,
        )
        self._in_background = background
        self._preallocate = preallocate is True and background
        self._buffers = Buffers()
        self._background: Background[StepSaved] = Background()
        self._watch = SignalWatch()
        self._saved: int | None = None
        self._warned = False
        self._ticks = 0
        self._has_saved = False
        self._numbers = Numbers()
        self._turn = Turn()
        self._savers: dict[int, int] = {}
        self._saving: int | None = None
        # A folder that cannot be made is told now, not after an epoch.
        self._made = make_directory(self.directory)
        self.recover()
        if background and preallocate is not True and preallocate > 0:
            self._buffers.reserve(preallocate, populate=True)

    @property
    def directory(self) -> Path:
        """The directory of the steps."""
        return self._store.directory

    @property
    def stopping(self) -> bool:
        """Whether a signal has asked the run to end."""
        return self._watch.received is not None

    def catalog(self) -> Catalog:
        """Look at the directory: complete steps, incomplete ones with the reason, unfinished saves."""
        return self._store.scan()

    def steps(self) -> list[StepInfo]:
        """List the complete steps, oldest first."""
        return list(self.catalog().steps)

    def latest(self) -> StepInfo | None:
        """Give the complete step of the highest number, or None."""
        return self._store.latest()

    def best(self) -> StepInfo | None:
        """Give the complete step that is best by the metric, or None where none has it as a number."""
        return self._best.best(self.catalog().steps)

    def save(
        self,
        state: Savable,
        *,
        step: int,
        metrics: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> StepSaved:
        """Save a state as a step, then delete the steps that need not stay.

        In the background this returns once the state is copied; what went wrong with the save before is raised first. Metrics are
        numbers, NaN among them, which is worse than any other. Raises `StepExistsError` when the step is there, unless `overwrite`:
        the old one then stays until the new one is in its place. Whatever fails, the steps that were there are there.

        A state with a `step` of its own that the program never changes gets this number there, so that it comes back as that of this
        step; one that the program counts in, of batches for instance, stays as it is.
        """
        with self._turn.taken():
            saved = self._save(state, step=step, metrics=metrics, overwrite=overwrite, background=self._in_background)
            told = self._lacking.warning(metrics or {}, saved.step, self.directory, self.catalog)
        if told is not None:
            warnings.warn(told, CheckpointWarning, stacklevel=levels_outside("firekeep.checkpoint"))
        return saved

    def _save(
        self, state: Savable, *, step: int, metrics: Mapping[str, Any] | None, overwrite: bool, background: bool
    ) -> StepSaved:
        """Save in this thread's turn.

        What is called meanwhile on the same thread (a state that is drawn, a signal's handler) may save, too: that save is made at
        once and from the state itself, as the copy, and the thread that writes it, are those of the save that it came into.
        """
        if self._saving == os.getpid():
            return self._save_now(state, step=step, metrics=metrics, overwrite=overwrite, background=False)
        self._saving = os.getpid()
        try:
            self.wait()
            return self._save_now(state, step=step, metrics=metrics, overwrite=overwrite, background=background)
        finally:
            self._saving = None

    def _save_now(
        self, state: Savable, *, step: int, metrics: Mapping[str, Any] | None, overwrite: bool, background: bool
    ) -> StepSaved:
        step, metrics = check_step(step), check_metrics(metrics)
        if not overwrite:
            self._store.refuse_existing(step)
        self._numbers.give(state, step)
        facts = facts_of(state, best=self._best)
        info = StepInfo(step=step, folder=self.directory, time=time.time(), metrics=metrics, facts=facts)
        sections = sections_of(state)
        self._has_saved = True
        self._savers[step] = threading.get_ident()
        if not background:
            report = self._commit(sections, info, overwrite=overwrite)
            self._saved = step
            return report
        copies = self._buffers.snapshot(sections)
        self._saved = step
        self._background.start(
            lambda: self._commit_later(copies, info, overwrite=overwrite), name=f"firekeep-save-{step}"
        )
        return StepSaved(
            step=step,
            directory=self.directory,
            nbytes=size_of(copies),
            sections=tuple(section.name for section in sections),
            notes=self._lacking.notes(metrics),
            background=True,
        )

    def _warn_once(self, saved: StepSaved | None) -> None:
        if saved is None or saved.hidden_by is None or self._warned:
            return
        if (
            self._savers.get(saved.hidden_by, saver := self._savers.get(saved.step)) == saver
        ):  # no other thread of this run
            self._warned = True
            told = warning_of(saved.step, directory=self.directory, higher=saved.hidden_by)
            warnings.warn(told, CheckpointWarning, stacklevel=levels_outside("firekeep.checkpoint"))

    def _commit(self, sections: Sequence[Section], info: StepInfo, *, overwrite: bool) -> StepSaved:
        try:
            saved = self._store.save(sections, info, overwrite=overwrite)
        except BaseException as error:
            error.add_note(self._outcome(info))
            raise
        gone: Sequence[StepInfo] = ()
        notes = self._lacking.notes(info.metrics)
        hidden_by: int | None = None
        try:
            stay, gone = self._store.prune(self._keep, best=self._best, spared=(info.step,))
            hidden_by = higher_step(stay, info)
            notes += () if hidden_by is None else (note_of(hidden_by),)
        except (OSError, FirekeepError) as error:  # the step is saved: too many steps are no reason to end a run
            notes += (f"old steps could not be deleted, and will be after the next save: {error}",)
        return StepSaved(
            step=info.step,
            directory=self.directory,
            nbytes=saved.nbytes,
            sections=tuple(section.name for section in sections),
            deleted=tuple(other.step for other in gone),
            notes=notes,
            hidden_by=hidden_by,
        )

    def _outcome(self, info: StepInfo) -> str:
        """Say what became of a save that failed: the last failure there can be, that of syncing the directory, comes after the rename."""
        with contextlib.suppress(OSError):
            found = self._store.find(info.step)
            if found is not None and found.time == info.time:
                return f"Step {info.step} is in {self.directory} and complete, but may not survive a power loss."
        return f"Step {info.step} was not saved in {self.directory}; the steps before it are as they were."

    def _commit_later(self, sections: Sequence[Section], info: StepInfo, *, overwrite: bool) -> StepSaved:
        try:
            return self._commit(sections, info, overwrite=overwrite)
        except BaseException as error:
            error.add_note("It happened in the background, and is told at the first call after it.")
            raise

    def tick(self, state: Savable, *, step: int, metrics: Mapping[str, Any] | None = None) -> bool:
        """Save at the end of a step if one is due, or if a signal has come; says whether the run is to stop.

        A save that a signal asked for is complete when this returns, and replaces a step of the same number, which an earlier
        run that went further has left. Warns once, with a `CheckpointWarning`, where a step of an earlier run has a higher number than
        what is saved, so that a restore would take that one.
        """
        step = check_step(step)
        is_idle = not (self._ticks or self._every or self._preallocate or self._watch.active)
        if self._preallocate:
            self.reserve(state)
        if self.stopping:
            with self._turn.taken():
                self._warn_once(self.wait())
                if self._saved != step:
                    self._warn_once(self._save(state, step=step, metrics=metrics, overwrite=True, background=False))
            return True
        if is_idle:
            told = "tick saves nothing here: the manager has no every=, and signals come to it after handle_signals() alone"
            warnings.warn(told, CheckpointWarning, stacklevel=2)
        self._ticks += 1
        if self._every is not None and step % self._every == 0:
            with self._turn.taken():
                if self._saved != step:
                    self._warn_once(self.wait())  # the save before this one, in the background
                    self._warn_once(self.save(state, step=step, metrics=metrics))
        return self.stopping

    def restore(self, state: Savable, step: int | Which = "latest") -> StepRestored:
        """Bring a state back: the latest complete step, the best, or one by its number.

        Incomplete steps are never chosen, and those above the latest are told. Whatever other processes save meanwhile, what comes back
        is of one save. Raises `NoStepError` saying what there is, `DirectoryBusyError` for a step that is replaced all the time, or whose
        files another program writes into while they are read (the state is then to be restored again); what the state itself raises
        names the step.
        """
        self.wait()
        self.recover()
        with self._hold(step) as held:
            try:
                report = state.restore(held.opened(OpenOptions(limits=self._store.limits)))
            except Exception as error:
                error.add_note(f"It was step {held.info.step} of {self.directory} that was to be restored.")
                if anew := held.written_anew():
                    error.add_note(f"Another program wrote {some(anew)} anew meanwhile: restore again once it is done.")
                raise
            self._refuse_torn(held)
        with self._turn.taken():
            self._numbers.note(state, held.info.step)
        if self._preallocate:
            self.reserve(state)
        passed_over = self._store.incomplete_after(held.info.step) if step == "latest" else ()
        return StepRestored(info=held.info, report=report, passed_over=passed_over)

    def _refuse_torn(self, held: HeldStep) -> None:
        """Raise `DirectoryBusyError` for files that another program has written anew in their place while they were read."""
        if anew := held.written_anew():
            raise DirectoryBusyError(
                f"another program wrote {some(anew)} of step {held.info.step} anew while it was read: what came back may be of two saves",
                path=self.directory,
                remedy="Restore again once it is done, before the state is used: it has been changed.",
            )

    def _hold(self, step: int | Which) -> contextlib.AbstractContextManager[HeldStep]:
        store = self._store
        return hold_step(
            lambda: (store.layout, self._choose(step)),
            directory=store.directory,
            lock_timeout=store.lock_timeout,
            doubt=lambda info: in_doubt(store, step, self._best, info),
        )

    def _choose(self, step: int | Which) -> StepInfo:
        return choose(self._store, step, self._best, is_empty=self._unmake)

    def _unmake(self) -> None:
        """Take an empty directory away again: its name may be mistyped, and a save makes it again."""
        with self._turn.taken():
            if not self._has_saved:
                unmake(self._made)

    def prune(self, *, dry_run: bool = False) -> PruneReport:
        """Delete the steps that need not stay, as after each save; `dry_run` only says which."""
        self.wait()
        if not dry_run:
            self.recover()
        kept, deleted = self._store.prune(self._keep, best=self._best, dry_run=dry_run)
        return PruneReport(directory=self.directory, kept=kept, deleted=deleted, dry_run=dry_run)

    def verify(self, step: int | Which = "latest") -> StepVerified:
        """Read a step's files and give the names of those whose digest is not the one kept.

        The answer is a tuple of names, empty when nothing is wrong, that says in words what was compared: without `digest=True` no
        digest was kept, and its `compared` is empty.
        """
        with self._hold(step) as held:
            return verify_held(held)

    def recover(self) -> tuple[str, ...]:
        """Tidy up after processes that were killed in a save, and say what was done; every save does it, too."""
        try:
            return self._store.recover()
        except (PermissionError, DirectoryBusyError):
            return ()  # somebody else's directory, or somebody else is at it
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            return ()

    def reserve(self, state: Savable) -> None:
        """Take the memory of the first background save now, for a state as it is."""
        self._preallocate = False
        with self._turn.taken():
            if not (self._background.busy or self._saving == os.getpid()):
                self._buffers.reserve(room_for(sections_of(state)), populate=True)

    def wait(self) -> StepSaved | None:
        """Wait for the save in the background; gives its report, or raises what went wrong with it, once."""
        with self._turn.taken():
            try:
                return self._background.wait()
            except BaseException:
                self._saved = None
                raise

    def handle_signals(self, *signals: int) -> SignalWatch:
        """Have SIGTERM, SIGINT and SIGUSR1 (or those given) save at the next `tick`, which then says that the run is to stop.

        A second signal ends the process at once. Use it as a context manager, or the handlers stay until `close`.
        """
        self._watch.install(signals or DEFAULT)
        return self._watch

    def close(self) -> None:
        """Wait for the save in the background, raise what went wrong with it, and let go of memory and signals."""
        self._watch.remove()
        with self._turn.taken():
            try:
                self._warn_once(self.wait())
            finally:
                self._background.close()
                self._buffers = Buffers()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            if self._ticks > 1 and not (self._has_saved or self._every):
                told = f"{self._ticks:,} ticks and no save: a manager without every= saves in save(), and in tick after a signal"
                warnings.warn(told, CheckpointWarning, stacklevel=2)
            return
        try:
            self.close()
        except Exception as failure:  # noqa: BLE001 - the error that ends the run is the one to be seen
            error.add_note(f"The save in the background failed, too: {type(failure).__name__}: {failure}")
        with contextlib.suppress(OSError):
            last = self.latest()
            told = "holds no complete step" if last is None else f"holds step {last.step} as the last complete one"
            error.add_note(f"Nothing was saved because of this error; {self.directory} {told}.")
