"""The manager of a directory of checkpoints: when a state is saved, which step comes back, and how long each is kept."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from firekeep.checkpoint._background import Background
from firekeep.checkpoint._catalog import Catalog, Layout, describe
from firekeep.checkpoint._digest import digest_of
from firekeep.checkpoint._errors import CheckpointWarning, DirectoryBusyError, NoStepError
from firekeep.checkpoint._held import HeldStep, hold_step
from firekeep.checkpoint._hints import hint, make_directory, unmake
from firekeep.checkpoint._manifest import check_facts, check_metrics, check_step
from firekeep.checkpoint._numbers import Numbers, higher_step, note_of, warning_of
from firekeep.checkpoint._reports import PruneReport, StepRestored, StepSaved
from firekeep.checkpoint._retention import KeepBest, KeepLast, Policy
from firekeep.checkpoint._signals import DEFAULT, SignalWatch
from firekeep.checkpoint._snapshot import Buffers, room_for, size_of
from firekeep.checkpoint._step import Fact, StepInfo
from firekeep.checkpoint._store import Store
from firekeep.errors import FirekeepError, RuleError
from firekeep.formats import OpenOptions
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.sections import Savable, Section
from firekeep.wording import some

Which = Literal["latest", "best"]


class CheckpointManager:
    """Keeps the steps of a run in a directory: each saved by one commit, complete or not there at all.

    `keep` is a retention policy (`KeepLast`, `KeepBest`, `KeepEvery`, `KeepYounger`, `KeepAll`, joined by `|` and `&`); by default the
    last two steps and the best one stay. `best` names the metric that tells the best step, "valid_loss" with the least value first
    unless a `KeepBest` says otherwise. Whatever the policy, the newest step, the best and the one just written are never deleted, and
    nothing is before a new step is complete.

    `every` is how many steps lie between two saves by `tick`. `background=True` copies the state and writes the copy on a thread: the
    loop goes on, one save is in flight at most, and what goes wrong is raised by the next call. NumPy's and torch's memory is copied.
    Arrays of JAX in the CPU's memory never change: they are held until they are written, and not copied, so memory that one shares with
    NumPy or torch (`jax.device_put` of an array, `from_dlpack`) must not be written to until `wait` has come back, as JAX itself asks.
    The memory of the copy is taken at the first save, or with `preallocate=True` at the first `tick` or `restore`, when the state is
    known; a number of bytes takes it now.
    `digest=True` keeps a digest of each file for `verify`. `durable=False` skips the fsyncs and nothing else. `layout="burn"` reads and
    writes the three files a step of Burn's Learner. Several processes may use one directory: whoever finds it locked for longer than
    `lock_timeout` seconds gets `DirectoryBusyError`. A step is read as one save left it, though another process replaces it meanwhile.

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
        best: KeepBest | str = "valid_loss",
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
        return self._save(state, step=step, metrics=metrics, overwrite=overwrite, background=self._in_background)

    def _save(
        self, state: Savable, *, step: int, metrics: Mapping[str, Any] | None, overwrite: bool, background: bool
    ) -> StepSaved:
        self.wait()
        step, metrics = check_step(step), check_metrics(metrics)
        if not overwrite:
            self._store.refuse_existing(step)
        self._numbers.give(state, step)
        info = StepInfo(step=step, folder=self.directory, time=time.time(), metrics=metrics, facts=_facts(state))
        sections = _sections(state)
        self._has_saved = True
        if not background:
            report = self._commit(sections, info, overwrite=overwrite)
            self._saved = step
            return report
        copies = self._buffers.snapshot(sections)
        self._saved = step
        self._background.start(
            lambda: self._commit_later(copies, info, overwrite=overwrite), name=f"firekeep-save-{step}"
        )
        names = tuple(section.name for section in sections)
        return StepSaved(step=step, directory=self.directory, nbytes=size_of(copies), sections=names, background=True)

    def _warn_once(self, saved: StepSaved | None) -> None:
        if saved is not None and saved.hidden_by is not None and not self._warned:
            self._warned = True
            told = warning_of(saved.step, directory=self.directory, higher=saved.hidden_by)
            warnings.warn(told, CheckpointWarning, stacklevel=3)

    def _commit(self, sections: Sequence[Section], info: StepInfo, *, overwrite: bool) -> StepSaved:
        try:
            saved = self._store.save(sections, info, overwrite=overwrite)
        except BaseException as error:
            error.add_note(self._outcome(info))
            raise
        gone: Sequence[StepInfo] = ()
        notes: tuple[str, ...] = ()
        hidden_by: int | None = None
        try:
            stay, gone = self._store.prune(self._keep, best=self._best, spared=(info.step,))
            hidden_by = higher_step(stay, info)
            notes = () if hidden_by is None else (note_of(hidden_by),)
        except (OSError, FirekeepError) as error:  # the step is saved: too many steps are no reason to end a run
            notes = (f"old steps could not be deleted, and will be after the next save: {error}",)
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
            self._warn_once(self.wait())
            if self._saved != step:
                self._warn_once(self._save(state, step=step, metrics=metrics, overwrite=True, background=False))
            return True
        if is_idle:
            told = "tick saves nothing here: the manager has no every=, and signals come to it after handle_signals() alone"
            warnings.warn(told, CheckpointWarning, stacklevel=2)
        self._ticks += 1
        if self._every is not None and step % self._every == 0 and self._saved != step:
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
            doubt=lambda info: self._doubts(step, info),
        )

    def _doubts(self, step: int | str, info: StepInfo) -> bool:
        """Say whether another step may be meant: one that was being replaced when the directory was looked at."""
        if step == "latest":
            return self._store.passed_over(info.step)
        if step != "best":
            return False
        catalog = self.catalog()
        return self._best.best(catalog.steps) != info or self._store.is_unclear(catalog)

    def _choose(self, step: int | str) -> StepInfo:
        if step == "latest" and (newest := self._store.latest()) is not None:
            return newest
        if not isinstance(step, str) and (there := self._store.find(check_step(step))) is not None:
            return there
        catalog = self.catalog()
        if step == "latest":
            found, asked = catalog.latest(), "a step"
        elif step == "best":
            found, asked = self._best.best(catalog.steps), f"a step with a number for the metric {self._best.metric!r}"
        elif isinstance(step, str):
            raise RuleError(f"step={step!r}: 'latest', 'best' or a number")
        else:
            found, asked = catalog.find(check_step(step)), f"step {step}"
        if found is None:
            if not catalog.steps:
                unmake(self._made)  # the name may be mistyped, and a save makes it again
            remedy = None if catalog.steps else hint(self.directory)
            raise NoStepError(f"{asked} is asked for, and {describe(catalog)}", remedy=remedy)
        return found

    def prune(self, *, dry_run: bool = False) -> PruneReport:
        """Delete the steps that need not stay, as after each save; `dry_run` only says which."""
        self.wait()
        if not dry_run:
            self.recover()
        kept, deleted = self._store.prune(self._keep, best=self._best, dry_run=dry_run)
        return PruneReport(directory=self.directory, kept=kept, deleted=deleted, dry_run=dry_run)

    def verify(self, step: int | Which = "latest") -> tuple[str, ...]:
        """Read a step's files and give the names of those whose digest is not the one kept; without digests only sizes are known."""
        with self._hold(step) as held:
            return tuple(
                file.name
                for file in held.info.files
                if file.xxh3 is not None and digest_of(held.fileno(file.section)) != file.xxh3
            )

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
        if not self._background.busy:
            self._buffers.reserve(room_for(_sections(state)), populate=True)

    def wait(self) -> StepSaved | None:
        """Wait for the save in the background; gives its report, or raises what went wrong with it, once."""
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


def _sections(state: Savable) -> list[Section]:
    """Take a state apart, and refuse sections that would become one file."""
    if not callable(getattr(state, "sections", None)):
        needed = "a state with sections() and restore(opened) is needed, such as a firekeep.training.TrainingState"
        raise TypeError(f"{needed}, not {type(state).__name__}")
    sections = list(state.sections())
    if not sections:
        raise RuleError("the state has no sections: nothing would be saved")
    names = [section.name.casefold() for section in sections]
    twice = sorted({section.name for section in sections if names.count(section.name.casefold()) > 1})
    if twice:
        raise RuleError(f"the state has sections of one name, or that differ in case only: {some(twice)}")
    return sections


def _facts(state: Savable) -> dict[str, Fact]:
    own: dict[str, Fact] = {"host": socket.gethostname(), "pid": os.getpid()}
    if hasattr(os, "sched_getaffinity"):
        own["cpus"] = len(os.sched_getaffinity(0))
    told = getattr(state, "facts", None)
    return {**own, **check_facts(told() if callable(told) else {})}
